// Finds out what the engine of a script ran with, and compares it with what it was asked to run.
#ifndef DSAT_SEARCHER_SCRIPTS_RAN_CONFIG_H_
#define DSAT_SEARCHER_SCRIPTS_RAN_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "searcher/scripts/deepspeed_metrics.h"

namespace dsat {

// JSON pointers of a ds_config -> numbers, as far as they are known.
struct RanConfig {
  std::map<std::string, double> settings;
  int64_t data_parallel_size = 0;  // 0 if unknown.
};

// What dsat's import hook reports of one rank (hook-rank<R>.json in the attempt's folder).
struct HookReport {
  bool config_applied = false;
  std::string engine = {};      // "DeepSpeedEngine", "PipelineEngine", ...
  int64_t world_size = 0;       // Of torch.distributed; 0 if unknown.
  bool on_cpu = false;          // It has no GPU.
  bool changed_script = false;  // Its own batch sizes, which the config does not decide about.
  RanConfig ran = {};
  std::optional<double> peak_bytes = {};
  std::optional<double> host_bytes = {};
  std::optional<double> alloc_retries = {};
  std::optional<double> data_wait = {};     // 0 to 1.
  bool has_ended = false;                   // It has written its losses, if it has any.
  std::vector<double> losses = {};          // NaN if not finite.
  int64_t largest_batch = 0;                // Samples of the largest forward pass; 0 if unknown.
  std::vector<int64_t> partial_steps = {};  // With a forward pass of fewer samples than asked for.
  CountedSteps counted = {};
};

// Reads the text of such a file, in which Python may write NaN and Infinity; nullopt if it is
// incomplete.
std::optional<HookReport> ReadHookReport(const std::string& text);

// DeepSpeed's dump of its config in the log of rank 0; nullopt if the text has none.
std::optional<RanConfig> ReadConfigDump(std::string_view log);

// Why the ranks that ran, or those of them that share samples, are not those of a trial of `spec`;
// "" if they are, or if the report does not say.
std::string MisfitOfRanks(const HookReport& report, const ExperimentSpec& spec);

// Why the samples of the rank's forward passes are not those of a trial with `micro_batch`; "" if
// they are, or if the report does not say. `others` has the largest batches of earlier launches by
// their micro-batch sizes.
std::string MisfitOfBatches(const HookReport& report, int64_t micro_batch,
                            const std::map<int64_t, int64_t>& others);

// "train_micro_batch_size_per_gpu is 8 instead of 51, ..." for all settings that `asked`, the
// trial's ds_config, gives as another number; "" if there is none.
std::string Rewritten(const RanConfig& ran, const Json& asked);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_RAN_CONFIG_H_
