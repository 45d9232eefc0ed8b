// Asks the machine for its parts.
#include "cli/machine_facts.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "base/num_cores.h"
#include "base/parse_number.h"
#include "base/version.h"
#include "cli/disk_speed.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/machine.h"
#include "profiler/planner.h"
#include "searcher/command/import_hook.h"
#include "searcher/hosts/slots.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// Prints what compiles extensions, and the packages that decide how fast a script trains.
constexpr char kPrintEnvironment[] = R"(
import importlib.metadata, json, os, shutil, sys, sysconfig
include, packages = sysconfig.get_paths()["include"], {}
for name in ("deepspeed", "torch", "transformers", "dsat"):
    try:
        packages[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"packages": packages, "extensions": {
    "python": sys.executable,
    "headers": include if os.path.exists(os.path.join(include, "Python.h")) else None,
    "compiler": shutil.which(os.environ.get("CXX") or "c++"), "ninja": shutil.which("ninja")}})))";

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
                                        /*repeats=*/1, {});
    return {{"read_bytes_per_s", std::llround(speed.read_bytes_per_s)},
            {"write_bytes_per_s", std::llround(speed.write_bytes_per_s)}};
  } catch (const Error&) {
    return nullptr;
  }
}

// This machine, to tell whether a recorded speed can be expected again: its name and cores.
std::string MachineName() {
  utsname name{};
  if (uname(&name) != 0) return "";
  return fmt::format("{}, {} cores", name.nodename, NumCores());
}

}  // namespace

Json EnvironmentFacts() {
  ExperimentSpec any_script;
  any_script.entrypoint = {"python3"};
  any_script.model_dir = ".";
  const Json found = AskPython(any_script, {"-c", kPrintEnvironment});
  const auto path_or_null = [](const char* program) {
    const std::string path = FindProgram(program);
    return path.empty() ? Json() : Json(path);
  };
  std::error_code error;
  const fs::space_info disk = fs::space(".", error);
  return {{"extensions", found.is_null() ? Json() : found.at("extensions")},
          {"packages", found.is_null() ? Json() : found.at("packages")},
          {"commands", {{"ssh", path_or_null("ssh")}, {"srun", path_or_null("srun")}}},
          {"disk_free_bytes", error ? Json() : Json(disk.available)}};
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
  if (IsBuiltin(spec)) {
    const Json disk = DiskSpeeds(spec);
    if (!disk.is_null()) facts["disk"] = disk;
  } else if (const Json found = AskPython(spec, {"-c", kPrintEnvironment}); found.is_object()) {
    facts["packages"] = found.at("packages");
    facts["packages"].erase("dsat");  // Another project's: ours is `dsat`.
  }
  if (!UsesGpus(spec)) return facts;
  const engine::CudaStatus cuda = engine::ProbeCuda();
  facts["gpus"] = Json::array();
  for (const engine::CudaGpu& gpu : cuda.gpus)
    facts["gpus"].push_back(gpu.name);
  const std::string gpu = cuda.gpus.empty() ? "" : cuda.gpus.front().name;
  if (!IsBuiltin(spec))
    facts["gpu_speeds"] = SpeedsOfDryRun(engine::ClusterOfGpu(gpu), spec.ds_config);
  facts["cuda_driver"] = cuda.driver_version;
  return facts;
}

Json ListeningPorts() {
  std::map<std::string, int64_t> port_of;  // By the name of the socket in /proc.
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(ReadOrEmpty(table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      const std::vector<std::string> row{std::istream_iterator<std::string>(words), {}};
      if (row.size() < 10 || row[3] != "0A") continue;  // TCP_LISTEN.
      const std::string port = row[1].substr(row[1].rfind(':') + 1);
      port_of[fmt::format("socket:[{}]", row[9])] = std::stoll(port, nullptr, 16);
    }
  }
  Json found = Json::array();
  std::error_code error;
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    const std::optional<int64_t> pid = ParseNumber<int64_t>(process.path().filename().string());
    const std::string program = pid ? ReadOrEmpty(process.path() / "comm") : "";
    if (program != "dsat\n" && program != "dsat-trial\n") continue;
    for (auto file = fs::directory_iterator(process.path() / "fd", error);
         file != fs::directory_iterator(); file.increment(error)) {
      const auto port = port_of.find(fs::read_symlink(file->path(), error).string());
      if (port == port_of.end()) continue;
      found.push_back({{"pid", *pid},
                       {"program", program.substr(0, program.size() - 1)},
                       {"port", port->second}});
    }
  }
  return found;
}

}  // namespace dsat::cli
