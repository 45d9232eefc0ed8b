// Each step keeps what the one before it has changed.
#include "searcher/search/profile_ladder.h"

#include "engine/config/batch.h"
#include "engine/config/strategies.h"
#include "proto/search_policy.h"

namespace dsat {

std::vector<Json> ProfileLadder(const ExperimentSpec& spec) {
  std::vector<Json> ladder = {spec.ds_config};
  if (PolicyOf(spec.options).published_space) return ladder;
  const Json base = engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial);
  Json config = base;
  SetAtPointer(config, kStageKey, 3);
  ladder.push_back(config);
  if (IsBuiltin(spec)) {
    SetAtPointer(config, "/pipeline/activation_checkpoint_interval", 1);
    ladder.push_back(config);
  }
  ladder.push_back(engine::WithStrategy(config, *engine::FindStrategy("stage_3_offload")));
  return ladder;
}

}  // namespace dsat
