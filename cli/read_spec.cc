// Reads an experiment file for a command and logs its warnings.
#include "cli/read_spec.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/config/strategies.h"
#include "searcher/command/trainer_command.h"
#include "searcher/input/experiment_file.h"

namespace dsat::cli {

ExperimentSpec ReadSpec(const std::string& config, const std::string& model_dir,
                        std::vector<std::string>* warnings) {
  ExperimentSpec spec = ReadExperimentFile(config, model_dir, warnings);
  for (const std::string& warning : *warnings)
    Log(LogLevel::kWarn, warning);
  return spec;
}

std::string TrainingFolder(const std::string& config) {
  const auto file = std::filesystem::absolute(config).lexically_normal();
  std::string name =
      file.lexically_relative(std::filesystem::current_path()).replace_extension().string();
  std::ranges::replace(name, '/', '-');
  return "dsat-out/train/" + name;
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
  if (IsBuiltin(spec)) return;
  for (const std::string& note : CheckCommandConfig(path, &spec))
    Log(LogLevel::kWarn, note);
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

void RequireValidation(const ExperimentSpec& spec, const std::string& wanted_by) {
  const Json* const data = FindAtPointer(spec.hyperparameters, "/data");
  if (data != nullptr && data->contains("validation")) return;
  Throw(ErrorCode::kInvalidArgument,
        "{}{}: /hyperparameters/data has no \"validation\"; expected for example "
        "{{\"split\": 0.05}} or {{\"path\": \"validation.txt\"}} (docs/models.md)",
        wanted_by, spec.config_path);
}

Store OpenForNew(const std::string& db, const ExperimentSpec& spec) {
  const std::string& earlier = spec.options.auto_method.warm_start;
  const bool must_exist = earlier != "auto" && earlier != "off";
  return Store::Open(db, must_exist ? Store::Mode::kReadWrite : Store::Mode::kCreate);
}

void LogNew(const std::vector<std::string>& warnings, const std::vector<std::string>& logged) {
  for (const std::string& warning : warnings) {
    if (std::find(logged.begin(), logged.end(), warning) == logged.end())
      Log(LogLevel::kWarn, warning);
  }
}

}  // namespace dsat::cli
