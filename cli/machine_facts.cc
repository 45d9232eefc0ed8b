// Asks the machine for its parts.
#include "cli/machine_facts.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "base/version.h"
#include "cli/disk_speed.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/machine.h"
#include "engine/io/async_file.h"
#include "searcher/command/import_hook.h"
#include "searcher/command/shell_words.h"
#include "searcher/hosts/slots.h"
#include "searcher/results.h"

namespace dsat::cli {
namespace {

// Prints the packages that decide how fast a script trains.
constexpr char kPrintVersions[] = R"(
import importlib.metadata, json
versions = {}
for name in ("deepspeed", "torch", "transformers"):
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(versions)))";

constexpr char kPrintExtensionBuild[] = R"(
import json, os, shutil, sys, sysconfig
include = sysconfig.get_paths()["include"]
print(json.dumps({
    "python": sys.executable,
    "headers": include if os.path.exists(os.path.join(include, "Python.h")) else None,
    "compiler": shutil.which(os.environ.get("CXX") or "c++"),
    "ninja": shutil.which("ninja")})))";

// The speeds of the disk that the ds_config has for offload; null if it has none, or none that can
// be used.
Json DiskSpeeds(const ExperimentSpec& spec) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  const Json* folder = nullptr;
  for (const char* section : {"offload_optimizer", "offload_param"}) {
    if (folder == nullptr || !folder->is_string()) {
      folder =
          FindAtPointer(spec.ds_config, fmt::format("/zero_optimization/{}/nvme_path", section));
    }
  }
  if (folder == nullptr || !folder->is_string()) return nullptr;
  try {
    const NoiseMemory memory = MakeNoise(kBytes);
    const DiskSpeed speed = MeasureDisk(folder->get<std::string>(), memory.get(), kBytes,
                                        /*repeats=*/1, {}, engine::BestAioEngine());
    return {{"read_bytes_per_s", std::llround(speed.read_bytes_per_s)},
            {"write_bytes_per_s", std::llround(speed.write_bytes_per_s)}};
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

Json ExtensionBuildFacts() {
  ExperimentSpec any_script;
  any_script.entrypoint = {"python3"};
  any_script.model_dir = ".";
  return AskPython(any_script, {"-c", kPrintExtensionBuild});
}

Json MachineFacts(const ExperimentSpec& spec, const std::vector<LaunchHost>& hosts) {
  Json facts{{"dsat", kVersion}};
  if (!hosts.empty()) {
    for (const LaunchHost& host : hosts)
      facts["hosts"][host.name] = host.slots.size();
    return facts;
  }
  const engine::Machine machine = engine::ProbeMachine();
  facts["host"] = MachineName();
  facts["cpu"] = machine.cpu_model;
  facts["cores"] = machine.num_cores;
  if (IsBuiltin(spec) && !engine::MultipliesBf16(machine)) facts["multiplies_bf16"] = false;
  if (!IsBuiltin(spec)) facts["packages"] = AskPython(spec, {"-c", kPrintVersions});
  if (IsBuiltin(spec)) {
    const Json disk = DiskSpeeds(spec);
    if (!disk.is_null()) facts["disk"] = disk;
  }
  if (!UsesGpus(spec)) return facts;
  const engine::CudaStatus cuda = engine::ProbeCuda();
  facts["gpus"] = Json::array();
  for (const engine::CudaGpu& gpu : cuda.gpus)
    facts["gpus"].push_back(gpu.name);
  facts["cuda_driver"] = cuda.driver_version;
  return facts;
}

}  // namespace dsat::cli
