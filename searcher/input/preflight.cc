// Checks that an experiment can run here.
#include "searcher/input/preflight.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/config/ds_config.h"
#include "engine/config/validate.h"
#include "engine/data/dataset.h"
#include "engine/data/model_fit.h"
#include "engine/model/models.h"
#include "profiler/places.h"
#include "searcher/processes/leftovers.h"
#include "searcher/scripts/command_target.h"
#include "searcher/scripts/device_memory.h"

namespace dsat {
namespace {

// The device of the trials.
engine::DeviceKind CheckedDevice(const ExperimentSpec& spec, bool elsewhere) {
  if (spec.device == "cpu") return engine::DeviceKind::kCpu;
  if (elsewhere)
    return spec.device == "cuda" ? engine::DeviceKind::kCuda : engine::DeviceKind::kCpu;
  const engine::CudaStatus status = engine::ProbeCuda();
  if (status.problem.empty()) return engine::DeviceKind::kCuda;
  if (spec.device == "auto") return engine::DeviceKind::kCpu;
  Throw(ErrorCode::kUnavailable, "{}: /resources/device is \"cuda\": {}", spec.config_path,
        status.problem);
}

void CheckModelAndData(const ExperimentSpec& spec, engine::DeviceKind device) {
  const std::string where = spec.config_path + ": /hyperparameters/";
  const engine::Model model =
      engine::MakeModel(spec.hyperparameters.at("model"), where + "model", spec.model_dir);
  engine::CheckModelFitsDevice(model, device, where + "model");
  const Json& data = spec.hyperparameters.at("data");
  // Images have none: that the data are text is then what is wrong.
  if (model.image.NumElems() == 0) engine::SeqLen(data, model.max_seq_len, where + "data");
  const auto dataset =
      engine::OpenDataset(data, spec.model_dir, spec.options.random_seed, where + "data");
  engine::CheckModelFitsData(model, *dataset, where + "model", where + "data");
  const auto validation =
      engine::OpenValidationDataset(data, spec.model_dir, spec.options.random_seed, where + "data");
  if (validation)
    engine::CheckModelFitsData(model, *validation, where + "model", where + "data/validation");
}

// Checks the folders of swap files, which a run would check only after its start.
void CheckNvmeFolders(const engine::ZeroConfig& zero, const std::string& source) {
  const auto check = [&](engine::Tier tier, const std::string& path, const char* block) {
    std::error_code error;
    if (tier != engine::Tier::kNvme) return;
    if (!std::filesystem::path(path).is_absolute()) {
      Throw(ErrorCode::kInvalidArgument,
            "{}: /zero_optimization/{}/nvme_path is \"{}\"; expected an absolute path, because "
            "ranks have other working folders",
            source, block, path);
    }
    if (std::filesystem::is_directory(path, error)) {
      if (access(path.c_str(), W_OK | X_OK) == 0) return;
      Throw(ErrorCode::kPermissionDenied,
            "{}: /zero_optimization/{}/nvme_path is \"{}\": files cannot be written there", source,
            block, path);
    }
    Throw(ErrorCode::kNotFound,
          "{}: /zero_optimization/{}/nvme_path is \"{}\": no such folder; expected one on a fast "
          "disk of this machine",
          source, block, path);
  };
  check(zero.offload_optimizer.tier, zero.offload_optimizer.nvme_path, "offload_optimizer");
  check(zero.offload_param.tier, zero.offload_param.nvme_path, "offload_param");
}

// Throws if the submitted config cannot run at this stage, even without what the search varies.
void CheckStage(const ExperimentSpec& spec, int stage, const std::string& source) {
  const Json config = engine::ConfigForTrial(FirstPlaceAt(spec, stage), {}, spec.slots_per_trial);
  if (IsBuiltin(spec)) {
    engine::ParseDsConfig(config, source, spec.slots_per_trial, nullptr);
  } else {
    engine::ValidateDsConfig(engine::KnownPart(config, spec.search_space), source,
                             spec.slots_per_trial);
  }
}

}  // namespace

std::vector<std::string> CheckSpec(const ExperimentSpec& spec, bool elsewhere) {
  std::vector<std::string> warnings;
  const std::string source = spec.ds_config_path.empty() ? spec.config_path : spec.ds_config_path;
  if (IsBuiltin(spec)) {
    const engine::DsConfig config =
        engine::ParseDsConfig(spec.ds_config, source, spec.slots_per_trial, &warnings);
    if (!elsewhere) CheckNvmeFolders(config.zero, source);
    CheckModelAndData(spec, CheckedDevice(spec, elsewhere));
  } else {
    MakeCommandTarget(spec);  // Throws if the entrypoint takes no config.
    if (!elsewhere && spec.slots_per_trial > 1 && !NvidiaMemoryBytes()) {
      const std::string shortage = SharedMemoryShortage(spec.slots_per_trial);
      if (!shortage.empty()) warnings.push_back(shortage);
    }
  }
  return warnings;
}

std::vector<std::string> CheckStages(const ExperimentSpec& spec) {
  const std::string source = spec.ds_config_path.empty() ? spec.config_path : spec.ds_config_path;
  std::vector<std::string> warnings;
  for (const int stage : spec.options.zero_stages) {
    try {
      CheckStage(spec, stage, source);
    } catch (const Error& error) {
      warnings.push_back(fmt::format("ZeRO stage {} cannot be searched: {}", stage, error.what()));
    }
  }
  if (!warnings.empty() && warnings.size() == spec.options.zero_stages.size())
    Throw(ErrorCode::kInvalidArgument,
          "none of --zero-stages {} can be searched, the ds_config has stage {}: {}",
          fmt::join(spec.options.zero_stages, " "),
          spec.ds_config.value(Json::json_pointer(kStageKey), Json(0)).dump(), warnings.back());
  CheckPlaces(spec);
  return warnings;
}

}  // namespace dsat
