// Asks the machine for its parts.
#include "cli/machine_facts.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "base/version.h"
#include "cli/disk_speed.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/machine.h"
#include "engine/io/async_file.h"
#include "searcher/command/shell_words.h"
#include "searcher/hosts/slots.h"
#include "searcher/results.h"

namespace dsat::cli {
namespace {

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

// Returns the object that `script` prints as JSON when the interpreter `python` runs it in
// `folder`; null if there is no such interpreter, or it takes longer than 10 s.
Json RunPython(const std::string& folder, const std::string& python, const char* script) {
  const std::string command = fmt::format("cd {} && timeout 10 {} -c {} 2>/dev/null </dev/null",
                                          ShellWord(folder), ShellWord(python), ShellWord(script));
  FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return nullptr;
  std::string text;
  std::array<char, 512> part{};
  while (const size_t count = fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), count);
  pclose(pipe);
  const Json printed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return printed.is_object() ? printed : Json();
}

// Returns the versions of the packages that decide how fast a script trains, as RunPython does.
Json PackageVersions(const ExperimentSpec& spec) {
  const std::string& program = spec.entrypoint.at(0);
  const bool is_python = std::filesystem::path(program).filename().string().starts_with("python");
  return RunPython(spec.model_dir, is_python ? program : "python3", kPrintVersions);
}

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
  return RunPython(".", "python3", kPrintExtensionBuild);
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
  if (!IsBuiltin(spec)) facts["packages"] = PackageVersions(spec);
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
