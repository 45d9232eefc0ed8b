// Helpers for the tests of methods: spaces, ended trials, and a driver that runs one proposal at a
// time on a device with a largest micro-batch size.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "methods/lineage.h"
#include "methods/method.h"

namespace dsat {

// These stages, each with two knobs of three and two values.
SearchSpace TestSpace(const std::vector<int>& stages, int64_t approx_max_micro_batch);

SearchOptions TestOptions(bool compat_determined = false);

int64_t MicroBatchOf(const Assignment& assignment);
int StageOf(const Assignment& assignment);

// A trial that ended in this state, with `value` as every metric if it succeeded.
Trial EndedTrial(TrialId id, TrialState state, double value = 0);

// Asks and tells one proposal at a time.
class Driver {
 public:
  explicit Driver(Method& method) : method_(&method) {}

  // The next proposal. REQUIRES: there is one.
  Proposal Ask();
  void Tell(const Proposal& proposal, TrialState state, double value = 0);
  // Ask, then tell success up to `largest` and infeasible beyond; the metric is the micro-batch
  // size.
  Proposal Step(int64_t largest);

 private:
  Method* method_;
  TrialId next_id_ = 0;
};

template <typename M>
struct OwnMethod {
  M method;
};
// A driver with a method of its own.
template <typename M>
struct Driven : OwnMethod<M>, Driver {
  Driven(const SearchSpace& space, const SearchOptions& options)
      : OwnMethod<M>{M(space, options)}, Driver(this->method) {}
};

// Expects that the first lineage tries the largest size that fits, whichever of the range it is,
// within `most_trials`.
template <typename M>
void ExpectEveryTargetIsTried(const SearchOptions& options, int64_t range, int64_t most_trials) {
  for (const int stage : {0, 1, 2, 3}) {
    for (int64_t target = 1; target <= range; ++target) {
      Driven<M> driver(TestSpace({stage}, range), options);
      int64_t trials = 0;
      for (int64_t size = 0; size != target; ++trials) {
        ASSERT_LT(trials, most_trials) << "target " << target;
        const Proposal proposal = driver.Step(target);
        EXPECT_EQ(proposal.tag, 0) << "a second lineage began before the first had ended";
        EXPECT_EQ(StageOf(proposal.assignment), stage);
        const Step& step = driver.method.table().lineages()[0].trials.back().step;
        EXPECT_TRUE(1 <= step.low && step.low <= step.micro_batch && step.micro_batch <= step.high);
        size = MicroBatchOf(proposal.assignment);
      }
    }
  }
}

// One trial of a lineage that has ended: `step` in `rung`.
void AddTrial(LineageTable& table, Lineage& lineage, const Step& step, int64_t rung,
              TrialState state, double value = 0);

// floor(log2(n)) + 1: the trials a bisection of n sizes takes at most.
int64_t BisectionTrials(int64_t n);

}  // namespace dsat
