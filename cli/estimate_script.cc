// Asks for a dry run of a script, and shows its answer.
#include "cli/estimate_script.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/table.h"
#include "cli/read_spec.h"
#include "engine/config/strategies.h"
#include "profiler/planner.h"
#include "proto/launch_settings.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/import_hook.h"
#include "searcher/input/experiment_file.h"
#include "searcher/scripts/device_memory.h"

namespace dsat::cli {
namespace {

void RefuseOtherFlags(const EstimateFlags& flags) {
  const std::pair<bool, const char*> given[] = {{flags.seq_len > 0, "--seq-len"},
                                                {!flags.host_memory.empty(), "--host-memory"},
                                                {!flags.disk_space.empty(), "--disk-space"},
                                                {flags.flops.has_value(), "--flops"},
                                                {flags.efficiency.has_value(), "--efficiency"},
                                                {!flags.link.empty(), "--link"},
                                                {!flags.network.empty(), "--network"},
                                                {!flags.pcie.empty(), "--pcie"},
                                                {!flags.disk.empty(), "--disk"},
                                                {!flags.model.empty(), "--model"},
                                                {flags.params.has_value(), "--params"}};
  for (const auto& [is_given, name] : given) {
    if (!is_given) continue;
    Throw(ErrorCode::kInvalidArgument,
          "{}: is for the built-in engine; the memory of a script is what the script itself does",
          name);
  }
}

// Sets the number of ranks and the memory of a device as the flags say.
void ApplyDevices(const EstimateFlags& flags, Json& request) {
  const int64_t per_node = flags.ranks_per_node.value_or(
      flags.device.empty() ? 8 : engine::ClusterOf(flags.device).ranks_per_node);
  if (flags.ranks) request["ranks"] = *flags.ranks;
  if (flags.nodes) request["ranks"] = *flags.nodes * per_node;
  if (!flags.device.empty())
    request["memory"] = engine::ClusterOf(flags.device).device_memory_bytes;
  if (!flags.device_memory.empty())
    request["memory"] = ParseBytes(flags.device_memory, "--device-memory");
  const std::optional<int64_t> here = NvidiaMemoryBytes();
  request["on_gpu"] =
      flags.device.empty() ? here || !flags.device_memory.empty() : flags.device != "cpu";
  if (request["memory"] == 0) request["memory"] = here.value_or(0);
}

void ApplyConfig(const EstimateFlags& flags, Json& ds_config) {
  if (!flags.ds_config.empty()) ds_config = engine::ReadDsConfig(flags.ds_config);
  for (const std::string& setting : flags.settings)
    ApplySetting(setting, ds_config);
  if (!flags.micro_batch) return;
  ds_config["train_micro_batch_size_per_gpu"] = *flags.micro_batch;
  ds_config.erase("train_batch_size");
}

std::string Share(int64_t bytes) {
  return bytes > 0 ? HumanBytes(bytes) : "-";
}

std::vector<std::string> RowOf(const Json& row, bool has_limit) {
  std::vector<std::string> cells = {row.at("settings")};
  if (row.contains("refused")) return cells;
  for (const char* kind :
       {"parameters", "gradients", "optimizer", "buffers", "activations", "temporaries"})
    cells.push_back(Share(row.at("kinds").at(kind)));
  cells.push_back(HumanBytes(row.at("peak_bytes")));
  cells.push_back(Share(row.at("host_bytes")));
  if (!has_limit) return cells;
  cells.emplace_back(row.at("fits") ? "yes" : "no");
  cells.push_back(row.contains("largest_micro_batch") ? row["largest_micro_batch"].dump() : "?");
  return cells;
}

std::string TextOf(const Json& answer) {
  const int64_t ranks = answer.at("ranks"), limit = answer.at("memory_bytes");
  std::string text = fmt::format(
      "{} parameters, {} of them trained, {:.4g} FLOPs per sample\n"
      "{} rank{} of {}, micro-batch {}, accumulation {}{}\n\n",
      answer.at("num_params").get<int64_t>(), answer.at("trainable_num_params").get<int64_t>(),
      answer.at("flops_per_sample").get<double>(), ranks, ranks == 1 ? "" : "s",
      answer.at("on_gpu") ? "a GPU" : "the CPU", answer.at("micro_batch_size").get<int64_t>(),
      answer.at("accumulation_steps").get<int64_t>(),
      answer.at("stage").is_null() ? ", without DeepSpeed"
                                   : fmt::format(", ZeRO stage {}", answer.at("stage").dump()));
  std::vector<std::string> columns = {"settings",  "parameters", "gradients",
                                      "optimizer", "buffers",    "activations",
                                      "temporary", "peak",       "host"};
  if (limit > 0) columns.insert(columns.end(), {"fits", "largest batch"});
  std::vector<std::vector<std::string>> rows;
  std::string notes;
  for (const Json& row : answer.at("rows")) {
    rows.push_back(RowOf(row, limit > 0));
    rows.back().resize(columns.size());
    if (row.contains("refused"))
      notes += fmt::format("{}: {}\n", row["settings"].get<std::string>(),
                           Printable(row["refused"].get<std::string>()));
  }
  text += FormatTable(columns, rows) + notes;
  text +=
      "Bytes of each rank's tensors at the peak of two steps; a GPU's context and the rounding of "
      "its\nallocator come on top.\n";
  for (const Json& note : answer.at("notes"))
    text += note.get<std::string>() + "\n";
  if (limit == 0) return text;
  const Json& first = answer["rows"][0];
  text += fmt::format("\nIt {} {} of device memory", first.at("fits") ? "fits" : "does not fit",
                      HumanBytes(limit));
  if (answer.contains("fewest_ranks"))
    text += fmt::format("; the fewest ranks that hold it: {}", answer["fewest_ranks"].dump());
  return text + ".\n";
}

}  // namespace

std::optional<Json> ScriptOf(const EstimateFlags& flags) {
  Json request{{"environment", Json::object()},
               {"ds_config", Json::object()},
               {"ranks", 0},
               {"memory", 0},
               {"all_stages", flags.all_stages}};
  if (flags.command.empty()) {
    if (flags.config.empty() || !flags.model.empty() || flags.params) return std::nullopt;
    std::vector<std::string> warnings;
    const ExperimentSpec spec = ReadExperimentFile(flags.config, flags.model_dir, &warnings);
    if (IsBuiltin(spec)) return std::nullopt;
    LogNew(warnings, {});
    request.update(DryRunRequest(spec, spec.ds_config));
  } else {
    if (!flags.config.empty())
      Throw(ErrorCode::kInvalidArgument, "\"{}\" and a command behind --: expected one of them",
            flags.config);
    request["command"] = flags.command;
    request["folder"] = std::filesystem::current_path();
  }
  RefuseOtherFlags(flags);
  ApplyDevices(flags, request);
  ApplyConfig(flags, request["ds_config"]);
  return request;
}

int EstimateScript(const Flags& flags, const Json& request) {
  const Json answer = DryRun(request);
  if (flags.json) {
    fmt::print("{}\n", answer.dump(2));
  } else {
    fmt::print("{}", TextOf(answer));
  }
  return 0;
}

}  // namespace dsat::cli
