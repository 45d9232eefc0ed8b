// The request for a dry run whose answer is a profile.
#include "searcher/scripts/profile_by_dry_run.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/config/batch.h"
#include "searcher/command/import_hook.h"
#include "searcher/scripts/device_memory.h"

namespace dsat {
namespace {

// A launch that measures the profile takes about as long.
constexpr int kLimitS = 60;

}  // namespace

std::string ProfileByDryRun(const ExperimentSpec& spec, const LaunchRequest& request,
                            const std::string& report) {
  const engine::BatchSizes submitted =
      engine::ResolveBatchSizes(engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial),
                                spec.ds_config_path, spec.slots_per_trial);
  Json ds_config = request.ds_config;
  ds_config.erase("train_batch_size");
  // Gradients accumulate in the second micro-batch as in all that follow.
  SetPoint(ds_config,
           {submitted.micro_batch_size, std::min<int64_t>(submitted.accumulation_steps, 2)});
  try {
    Json run = DryRunRequest(spec, ds_config);
    run["on_gpu"] = NvidiaMemoryBytes().has_value();
    run["stages"] = spec.options.zero_stages;
    run["report"] = report;
    run["limit_s"] = kLimitS;
    return DryRunCommand(std::move(run));
  } catch (const Error&) {
    return "";
  }
}

}  // namespace dsat
