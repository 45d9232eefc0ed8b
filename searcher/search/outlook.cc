// Asks auto's models for the most promising configurations and the predictor for their memory.
#include "searcher/search/outlook.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "methods/auto.h"
#include "methods/auto_space.h"
#include "searcher/search/proposer.h"

namespace dsat {
namespace {

constexpr int kMostRounds = 10;
constexpr size_t kPerShown = 4;  // Configurations that are looked at for each that is shown.

// The samples of a step; 1 where the config does not say.
double SamplesOf(const Json& ds_config) {
  const Json* samples = FindAtPointer(ds_config, "/train_batch_size");
  return samples != nullptr && samples->is_number() ? samples->get<double>() : 1;
}

// Fills in what is predicted of config.assignment. Returns false if it cannot run.
bool Foresee(const Proposer& proposer, const Predictor& predictor, EstimatedConfig& config) {
  const std::string refusal = RefusalOf([&] {
    config.ds_config = proposer.MakeDraft(config.assignment).ds_config;
    config.predicted = predictor.Predict(config.ds_config);
  });
  if (!refusal.empty()) return false;
  if (config.predicted.step_ms > 0) config.step_ms = config.predicted.step_ms;
  return !config.predicted.exact || config.predicted.fits();
}

}  // namespace

Outlook LookAhead(const SearchState& search, size_t num_best) {
  const Proposer& proposer = *search.proposer;
  const ExperimentSpec& spec = proposer.spec();
  Outlook outlook;
  AutoMethod method(proposer.space(), spec.options);
  const AutoSpace& space = method.space();
  for (int64_t place = 0; place < space.num_places(); ++place) {
    outlook.sizes.push_back(space.sizes(place));
    outlook.num_configs.push_back(space.num_configs(place));
  }
  outlook.num_candidates = static_cast<double>(space.num_candidates());
  for (const auto& [id, trial] : search.trials)
    method.Observe(trial);
  const std::unique_ptr<Predictor> predictor = MakePredictor(spec, *search.profile);
  // As in a search, what an exact prediction refuses teaches the method what else does not fit.
  std::set<Assignment> seen;
  for (int round = 0; round < kMostRounds && outlook.best.size() < kPerShown * num_best; ++round) {
    for (const AutoMethod::Expected& expected : method.BestExpected(4 * kPerShown * num_best)) {
      if (!seen.insert(expected.assignment).second) continue;
      EstimatedConfig config{.assignment = expected.assignment,
                             .ds_config = {},
                             .predicted = {},
                             .step_ms = expected.step_ms,
                             .factor = expected.factor};
      if (Foresee(proposer, *predictor, config)) {
        outlook.best.push_back(std::move(config));
      } else if (!config.ds_config.is_null()) {
        Trial refused;
        refused.id = -1;
        refused.ds_config = config.ds_config;
        refused.state = TrialState::kInfeasible;
        method.Observe(refused);
      }
    }
  }
  const bool per_step = SmallerIsBetter(spec.options.metric);
  const auto cost = [per_step](const EstimatedConfig& c) {
    return c.step_ms > 0 ? c.step_ms / (per_step ? 1 : SamplesOf(c.ds_config)) : c.factor;
  };
  std::ranges::stable_sort(outlook.best, {}, cost);
  // One stands for all that differ in keys without a predicted effect.
  const auto shown = [](const EstimatedConfig& c) {
    return std::tuple(c.predicted.device.peak_bytes, c.step_ms, c.factor);
  };
  const auto same = std::ranges::unique(outlook.best, {}, shown);
  outlook.best.erase(same.begin(), same.end());
  outlook.best.resize(std::min(outlook.best.size(), num_best));
  return outlook;
}

}  // namespace dsat
