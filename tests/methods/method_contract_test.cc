// Tests the contract that every method fulfills (methods/method.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "methods/methods.h"
#include "tests/base/error_code.h"
#include "tests/methods/method_testing.h"
#include "tests/sanitizers.h"

namespace dsat {
namespace {

struct Case {
  std::string method;
  bool compat = false;
  std::string metric;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const MethodInfo& method : Methods()) {
    for (const bool compat : {false, true}) {
      if (compat && method.name == "auto") continue;  // It has no published behavior.
      for (const char* metric : {"throughput", "latency"}) {
        cases.push_back({method.name, compat, metric});
      }
    }
  }
  return cases;
}

SearchSpace Space() {
  SearchSpace space = TestSpace({0, 1, 2, 3}, 12);
  space.stages[0].approx_max_micro_batch = 0;
  space.stages[3].approx_max_micro_batch = 40;
  return space;
}

// How a proposal ends: by its size and stage, and by chance.
Trial EndOf(const Proposal& proposal, TrialId id) {
  const int stage = StageOf(proposal.assignment);
  const int64_t size = MicroBatchOf(proposal.assignment);
  const uint64_t dice = Rng(1, static_cast<uint64_t>(id), "outcome").Below(10);
  if (dice == 0) return EndedTrial(id, TrialState::kFailed);
  if (dice == 1) return EndedTrial(id, TrialState::kStopped);
  if (size > 10 * (stage + 1)) return EndedTrial(id, TrialState::kInfeasible);
  Trial trial = EndedTrial(id, TrialState::kSucceeded, static_cast<double>(size * (5 - stage)));
  trial.points[0].point.micro_batch_size = size;
  return trial;
}

// The assignments of the first `count` proposals with up to `concurrency` running, ended in an
// order that chance decides. `vain_asks` asks once more where the method has nothing.
std::vector<Assignment> Explore(Method& method, int count, size_t concurrency, bool vain_asks) {
  std::vector<Assignment> asked;
  std::deque<std::pair<Proposal, TrialId>> running;
  Rng order(2, concurrency, "order");
  while (static_cast<int>(asked.size()) < count) {
    std::optional<Proposal> proposal;
    if (running.size() < concurrency) proposal = method.Ask();
    if (proposal) {
      running.emplace_back(*proposal, static_cast<TrialId>(asked.size()));
      asked.push_back(proposal->assignment);
      continue;
    }
    if (vain_asks && running.size() < concurrency) {
      EXPECT_FALSE(method.Ask());
    }
    if (running.empty()) break;
    const auto ended = running.begin() + static_cast<std::ptrdiff_t>(order.Below(running.size()));
    method.Tell(ended->first.tag, EndOf(ended->first, ended->second));
    running.erase(ended);
  }
  return asked;
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.method << ", " << c.metric;
}

class MethodContract : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Method> Make(int64_t seed = 42) const {
    SearchOptions options = TestOptions(GetParam().compat);
    options.metric = GetParam().metric;
    options.random_seed = seed;
    return FindMethod(GetParam().method).make(Space(), options);
  }
  // As many of `count` proposals as are worth their time: a decision of auto takes long.
  static int UpTo(int count) {
    const int part = IsSanitized() ? 10 : 5;
    return GetParam().method == "auto" ? count / part : count;
  }
};

INSTANTIATE_TEST_SUITE_P(, MethodContract, testing::ValuesIn(AllCases()), [](const auto& info) {
  return info.param.method + (info.param.compat ? "_published_" : "_") + info.param.metric;
});

TEST_P(MethodContract, ProposalsStayInTheSpaceWhateverTheOutcomes) {
  const SearchSpace space = Space();
  for (const size_t concurrency : {1, 3, 16}) {
    const std::vector<Assignment> asked = Explore(*Make(), UpTo(300), concurrency, false);
    EXPECT_GE(asked.size(), GetParam().method == "auto" ? 5u : 15u);  // auto stops when it is sure.
    for (const Assignment& assignment : asked) {
      EXPECT_GE(MicroBatchOf(assignment), 1);
      const auto stage = std::find_if(space.stages.begin(), space.stages.end(), [&](const auto& s) {
        return s.stage == StageOf(assignment);
      });
      ASSERT_NE(stage, space.stages.end());
      for (const auto& [pointer, value] : assignment) {
        if (pointer == "/zero_optimization/stage") continue;
        if (pointer == "/train_micro_batch_size_per_gpu") continue;
        const auto knob = std::find_if(stage->knobs.begin(), stage->knobs.end(),
                                       [&](const Knob& k) { return k.pointer == pointer; });
        ASSERT_NE(knob, stage->knobs.end()) << pointer;
        EXPECT_NE(std::find(knob->values.begin(), knob->values.end(), value), knob->values.end());
      }
    }
  }
}

TEST_P(MethodContract, TheSameAsksAndTellsGiveTheSameProposals) {
  for (const size_t concurrency : {1, 3, 16}) {
    EXPECT_EQ(Explore(*Make(), UpTo(200), concurrency, false),
              Explore(*Make(), UpTo(200), concurrency, false));
  }
}

TEST_P(MethodContract, AskingInVainChangesNothing) {
  for (const size_t concurrency : {1, 3, 16}) {
    EXPECT_EQ(Explore(*Make(), UpTo(200), concurrency, true),
              Explore(*Make(), UpTo(200), concurrency, false));
  }
}

TEST_P(MethodContract, AnotherSeedGivesOtherProposalsIfTheMethodDraws) {
  if (GetParam().method == "auto") return;  // The seed only decides how sure it is.
  const bool draws = GetParam().method != "grid";
  EXPECT_EQ(Explore(*Make(1), 50, 3, false) != Explore(*Make(2), 50, 3, false), draws);
}

TEST_P(MethodContract, APointOfARunningTrialIsNotFollowedByAnotherExceptWithAuto) {
  if (GetParam().method == "auto") return;  // auto_test.cc
  EXPECT_FALSE(Make()->NextPoint(0, Trial()));
}

TEST(MethodsTest, GridEndsWhateverTheOutcomes) {
  const std::unique_ptr<Method> method = FindMethod("grid").make(Space(), TestOptions());
  EXPECT_LT(Explore(*method, 100000, 3, true).size(), 200u);
}

TEST(MethodsTest, EveryMethodIsFoundByItsNameAndDescribed) {
  std::vector<std::string> names;
  for (const MethodInfo& method : Methods()) {
    names.push_back(method.name);
    EXPECT_EQ(FindMethod(method.name).name, method.name);
    EXPECT_FALSE(method.summary.empty());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"auto", "asha", "binary", "random", "grid"}));
}

TEST(MethodsTest, AnUnknownMethodIsRefusedWithTheKnownOnes) {
  EXPECT_EQ(RefusalOf([&] { FindMethod("annealing"); }),
            "method: \"annealing\" is not known; expected one of auto, asha, "
            "binary, random, grid");
}

}  // namespace
}  // namespace dsat
