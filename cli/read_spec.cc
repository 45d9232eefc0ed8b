// Reads an experiment file for a command and logs its warnings.
#include "cli/read_spec.h"

#include <filesystem>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json_block.h"
#include "base/log.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/config/strategies.h"
#include "searcher/command/trainer_command.h"
#include "searcher/input/experiment_file.h"

namespace dsat::cli {

void Warn(const std::vector<std::string>& warnings) {
  static std::set<std::string> logged;
  for (const std::string& warning : warnings) {
    if (logged.insert(warning).second) Log(LogLevel::kWarn, warning);
  }
}

ExperimentSpec ReadSpec(const std::string& config, const std::string& model_dir) {
  std::vector<std::string> warnings;
  ExperimentSpec spec = ReadExperimentFile(config, model_dir, &warnings);
  Warn(warnings);
  return spec;
}

TypedCommand Typed(const std::vector<std::string>& words) {
  return {words, std::filesystem::current_path().string(),
          [] { return static_cast<int64_t>(engine::ProbeCuda().gpus.size()); }};
}

void DescribeCommand(SearchFlags* search) {
  if (search->command.empty()) return;
  const TypedCommand command = Typed(search->command);
  search->config = WriteExperimentFile(command);
  search->model_dir = command.folder;
}

void UseDsConfig(const std::string& path, ExperimentSpec& spec) {
  spec.ds_config = engine::ReadDsConfig(path);
  spec.ds_config_path = path;
  if (!IsBuiltin(spec)) Warn(CheckCommandConfig(path, &spec));
}

void ApplySetting(const std::string& setting, Json& ds_config) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || setting.front() != '/') {
    Throw(ErrorCode::kInvalidArgument,
          "--set: \"{}\"; expected /KEY=JSON, such as /zero_optimization/stage=3", setting);
  }
  SetAtPointer(ds_config, setting.substr(0, equals),
               ParseTolerantJson(setting.substr(equals + 1), "--set " + setting));
}

Store OpenForNew(const std::string& db, const ExperimentSpec& spec) {
  const std::string& earlier = spec.options.auto_method.warm_start;
  const bool must_exist = earlier != "auto" && earlier != "off";
  return Store::Open(db, must_exist ? Store::Mode::kReadWrite : Store::Mode::kCreate);
}

engine::Cluster ClusterFor(const std::string& device) {
  if (!device.ends_with(".json")) return engine::ClusterOf(device);
  const Json file = ReadJsonFile(device);
  const JsonBlock block(file, device);
  engine::Cluster cluster = engine::ClusterOf(
      file.contains("like") ? block.Word("like", engine::ClusterNames()) : engine::kDefaultGpu);
  std::vector<std::string> known = {"like", "ranks_per_node", "flops", "efficiency"};
  const auto text_of = [&](const char* key) {
    known.emplace_back(key);
    if (!block.Has(key)) return std::string();
    if (file[key].is_string()) return file[key].get<std::string>();
    Throw(ErrorCode::kInvalidArgument, "{}/{} is {}; expected a text such as \"24GiB\"", device,
          key, file[key].dump());
  };
  const auto speed = [&](const char* key, double& bytes_per_s) {
    std::string text = text_of(key);
    if (text.ends_with("/s")) text.resize(text.size() - 2);
    auto bytes = static_cast<int64_t>(bytes_per_s);
    SetSize(text, device + "/" + key, bytes);
    bytes_per_s = static_cast<double>(bytes);
  };
  SetSize(text_of("device_memory"), device + "/device_memory", cluster.device_memory_bytes);
  SetSize(text_of("host_memory"), device + "/host_memory", cluster.host_memory_bytes);
  SetSize(text_of("disk_space"), device + "/disk_space", cluster.disk_bytes);
  speed("memory", cluster.device_bytes);
  speed("link", cluster.link_bytes);
  speed("network", cluster.network_bytes);
  speed("pcie", cluster.copy_bytes);
  speed("disk", cluster.disk_read_bytes);
  cluster.disk_write_bytes = block.Has("disk") ? cluster.disk_read_bytes : cluster.disk_write_bytes;
  block.CheckKeys(known);
  cluster.ranks_per_node = block.Int("ranks_per_node", cluster.ranks_per_node, 1, 1'000'000);
  cluster.efficiency = block.Number("efficiency", cluster.efficiency, 0.001, 1);
  if (block.Has("flops"))
    cluster.flops_16bit = cluster.flops_f32 = block.Number("flops", 0, 1e6, 1e18);
  return cluster;
}

void SetSize(const std::string& text, const std::string& what, int64_t& bytes) {
  if (text.empty()) return;
  bytes = ParseBytes(text, what);
  if (bytes == 0) Throw(ErrorCode::kInvalidArgument, "{}: 0; expected more", what);
}

}  // namespace dsat::cli
