// Spaces, ended trials and a driver for the tests of methods.
#include "tests/methods/method_testing.h"

#include <bit>

#include "base/error.h"

namespace dsat {

SearchSpace TestSpace(const std::vector<int>& stages, int64_t approx_max_micro_batch) {
  SearchSpace space;
  for (const int stage : stages) {
    space.stages.push_back({.stage = stage,
                            .approx_max_micro_batch = approx_max_micro_batch,
                            .knobs = {{"/zero_optimization/reduce_bucket_size", {1, 2, 3}},
                                      {"/zero_optimization/overlap_comm", {true, false}}}});
  }
  return space;
}

SearchOptions TestOptions(bool compat_determined) {
  SearchOptions options;
  options.compat_determined = compat_determined;
  return options;
}

int64_t MicroBatchOf(const Assignment& assignment) {
  return assignment.at("/train_micro_batch_size_per_gpu").get<int64_t>();
}

int StageOf(const Assignment& assignment) {
  return assignment.at("/zero_optimization/stage").get<int>();
}

Trial EndedTrial(TrialId id, TrialState state, double value) {
  Trial trial;
  trial.id = id;
  trial.state = state;
  if (state != TrialState::kSucceeded) return trial;
  Measurement measurement;
  for (const std::string& metric : SearchMetrics()) {
    measurement[metric] = {.value = value, .spread = 0, .samples = 1};
  }
  trial.points = {{.point = {}, .measurement = measurement}};
  return trial;
}

Proposal Driver::Ask() {
  std::optional<Proposal> proposal = method_->Ask();
  DSAT_CHECK(proposal.has_value(), "the method has nothing to propose");
  return *proposal;
}

void Driver::Tell(const Proposal& proposal, TrialState state, double value) {
  method_->Tell(proposal.tag, EndedTrial(next_id_++, state, value));
}

Proposal Driver::Step(int64_t largest) {
  const Proposal proposal = Ask();
  const int64_t size = MicroBatchOf(proposal.assignment);
  Tell(proposal, size <= largest ? TrialState::kSucceeded : TrialState::kInfeasible,
       static_cast<double>(size));
  return proposal;
}

void AddTrial(LineageTable& table, Lineage& lineage, const Step& step, int64_t rung,
              TrialState state, double value) {
  const Proposal proposal = table.Propose(lineage, step, rung);
  table.Tell(proposal.tag, EndedTrial(table.num_proposals(), state, value));
}

int64_t BisectionTrials(int64_t n) {
  return std::bit_width(static_cast<uint64_t>(n));
}

}  // namespace dsat
