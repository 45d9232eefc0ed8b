// Finds out what the engine of a script ran with, and compares it with what it was asked to run.
#include "searcher/scripts/ran_config.h"

#include <fmt/format.h>

#include <optional>

#include "engine/config/batch.h"
#include "searcher/command/command_words.h"
#include "searcher/command/rank_launcher.h"

namespace dsat {
namespace {

// Says how the script can feed the trial's batches: by the flag of the command that has the number
// of samples, if there is one.
std::string WayOutOf(int64_t fed, const ExperimentSpec& spec) {
  const CommandWords command(spec.entrypoint);
  for (size_t i = 0; i < command.words().size(); ++i) {
    const std::string& word = command.words()[i].text;
    const std::string flag = word.substr(0, word.find('='));
    const auto value = ValueOfFlag(command, i, WithUnderscores(flag));
    const bool evaluates = flag.find("eval") != flag.npos || flag.find("val_") != flag.npos;
    if (!flag.starts_with("--") || flag.find("batch") == flag.npos || evaluates || !value ||
        TextOf(command, *value) != std::to_string(fed))
      continue;
    return fmt::format(
        "write {0} $(jq .train_micro_batch_size_per_gpu $DSAT_DS_CONFIG) in the entrypoint in "
        "place of {0} {1}",
        flag, fed);
  }
  return "build its data loader with dsat.get_ds_config(config)"
         "[\"train_micro_batch_size_per_gpu\"]";
}

}  // namespace

std::string MisfitOfRanks(const HookReport& report, const ExperimentSpec& spec) {
  if (report.world_size > 0 && report.world_size != spec.slots_per_trial) {
    const std::optional<RankLauncher> launcher = FindRankLauncher(spec.entrypoint);
    return fmt::format(
        "the entrypoint trained with world size {}; expected {} as in resources.slots_per_trial: "
        "{}, or change slots_per_trial",
        report.world_size, spec.slots_per_trial,
        launcher ? fmt::format("give {} {} to {}", launcher->ranks_flag, spec.slots_per_trial,
                               launcher->name)
        : StartsRanks(spec) ? "let it start $NPROC_PER_NODE ranks on each host; `deepspeed` on "
                              "several hosts has to be the entrypoint itself"
                            : "begin it with the launcher that starts them");
  }
  const int64_t replicas = report.ran.data_parallel_size;
  const int64_t expected =
      engine::DataParallelSize(spec.ds_config, spec.ds_config_path, spec.slots_per_trial);
  if (!spec.options.train_batch_size || replicas == 0 || replicas == expected) return "";
  // A kept batch is as many samples per replica as submitted, however many replicas there are.
  if (*spec.options.train_batch_size ==
      engine::ResolveBatchSizes(spec.ds_config, spec.ds_config_path, spec.slots_per_trial)
          .train_batch_size)
    return "";
  // Ranks of another engine share samples in a way that the ds_config does not say.
  const std::string stages =
      report.engine != "PipelineEngine"
          ? ""
          : fmt::format(
                "give the number of pipeline stages in the ds_config (\"pipeline\": "
                "{{\"stages\": {}}}), or ",
                spec.slots_per_trial / replicas);
  return fmt::format(
      "the data-parallel size of the script is {} on {} ranks; expected {}, by which the fixed "
      "train_batch_size {} is divided: {}use --train-batch-size any",
      replicas, spec.slots_per_trial, expected, *spec.options.train_batch_size, stages);
}

std::string MisfitOfBatches(const HookReport& report, int64_t micro_batch,
                            const std::map<int64_t, int64_t>& others, const ExperimentSpec& spec) {
  const int64_t fed = report.largest_batch;
  if (fed == 0) return "";
  if (fed < micro_batch) {
    return fmt::format(
        "the script fed batches of at most {} samples, and the config says {}: its data loader has "
        "its own batch size, or too little data; {}",
        fed, micro_batch, WayOutOf(fed, spec));
  }
  // More samples than the micro-batch may be views of them, which grow with it. Fewer than another
  // size asked for are all that there are.
  for (const auto& [size, other_fed] : others) {
    if (size == micro_batch || other_fed != fed || fed < size) continue;
    return fmt::format(
        "the script feeds batches of {} samples, with train_micro_batch_size_per_gpu {} as with "
        "{}: {}",
        fed, micro_batch, size, WayOutOf(fed, spec));
  }
  return "";
}

std::string Rewritten(const RanConfig& ran, const Json& asked) {
  std::string text;
  for (const auto& [name, pointer] : kRanSettings) {
    const auto found = ran.settings.find(pointer);
    const Json* value = FindAtPointer(asked, pointer);
    if (found == ran.settings.end() || value == nullptr || !value->is_number()) continue;
    if (found->second == value->get<double>()) continue;
    text += fmt::format("{}{} is {} instead of {}", text.empty() ? "" : ", ", pointer + 1,
                        found->second, value->dump());
  }
  return text;
}

}  // namespace dsat
