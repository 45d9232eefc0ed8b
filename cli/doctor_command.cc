// dsat doctor: reports what this machine provides, what is missing and how to fix it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/machine_facts.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/machine.h"
#include "searcher/scripts/exit_classifier.h"

namespace dsat::cli {
namespace {

using engine::CudaGpu;
using engine::CudaStatus;
using engine::DeviceSpeed;
using engine::Machine;

struct UsableGpu {
  int64_t free_bytes = 0;  // Beside a context and its kernels, but without buffers.
  DeviceSpeed speed;
};

struct Findings {
  Machine machine;
  std::optional<double> copy_bytes_per_s;
  CudaStatus cuda;
  std::vector<UsableGpu> usable;  // By GPU; empty if no GPU can be used.
  std::string problem;            // Why the last measurement failed, "" if it did not.
  Json environment;               // As EnvironmentFacts.
  Json listening;                 // As ListeningPorts.
};

Findings Examine() {
  Findings found;
  found.machine = engine::ProbeMachine();
  found.copy_bytes_per_s = engine::MeasureCopyBandwidth(found.machine);
  found.environment = EnvironmentFacts();
  found.listening = ListeningPorts();
  found.cuda = engine::ProbeCuda();
  found.problem = found.cuda.problem;
  if (!found.problem.empty()) return found;
  try {
    for (int gpu = 0; gpu < static_cast<int>(found.cuda.gpus.size()); ++gpu) {
      const DeviceSpeed speed = engine::MeasureCudaSpeed(gpu);  // Loads what it runs.
      found.usable.push_back({engine::FreeCudaMemory(gpu), speed});
    }
  } catch (const Error& error) {
    found.problem = error.what();
    found.usable.clear();
  }
  return found;
}

// 13000 is 13.0.
std::string CudaVersion(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// 22809 is 2.28.9.
std::string LibraryVersion(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Json ToJson(const Findings& found) {
  const Machine& machine = found.machine;
  const auto version_or_null = [](int version, const auto& format) {
    return version == 0 ? Json() : Json(format(version));
  };
  const auto path_or_null = [](const std::string& path) {
    return path.empty() ? Json() : Json(path);
  };
  Json gpus = Json::array();
  for (size_t i = 0; i < found.cuda.gpus.size(); ++i) {
    const CudaGpu& gpu = found.cuda.gpus[i];
    Json json = {{"name", gpu.name},
                 {"memory_bytes", gpu.memory_bytes},
                 {"capability", gpu.capability},
                 {"multiprocessors", gpu.num_multiprocessors}};
    if (i < found.usable.size()) {
      const DeviceSpeed& speed = found.usable[i].speed;
      json["free_bytes"] = found.usable[i].free_bytes;
      json["context_bytes"] = gpu.memory_bytes - found.usable[i].free_bytes;
      json["to_device_bytes_per_s"] = speed.to_device;
      json["to_host_bytes_per_s"] = speed.to_host;
      json["copy_bytes_per_s"] = speed.copy;
      json["bf16_matmul_flops_per_s"] = speed.matmul_flops;
    }
    gpus.push_back(json);
  }
  Json json = {
      {"cpu",
       {{"model", machine.cpu_model},
        {"cores", machine.num_cores},
        {"instruction_sets", machine.instruction_sets},
        {"multiplies_bf16", engine::MultipliesBf16(machine)},
        {"onednn", machine.onednn_version}}},
      {"memory",
       {{"bytes", machine.memory_bytes},
        {"available_bytes", machine.available_bytes},
        {"copy_bytes_per_s", found.copy_bytes_per_s ? Json(*found.copy_bytes_per_s) : Json()}}},
      {"nccl", version_or_null(machine.nccl_version, LibraryVersion)},
      {"nccl_library", path_or_null(machine.nccl_path)},
      {"cuda",
       {{"toolkit", version_or_null(found.cuda.toolkit_version, CudaVersion)},
        {"driver", version_or_null(found.cuda.driver_version, CudaVersion)},
        {"cublas_library", path_or_null(found.cuda.cublas_path)},
        {"gpus", gpus},
        {"problem", found.problem.empty() ? Json() : Json(found.problem)}}},
      {"listening", found.listening},
      {"device", found.problem.empty() ? "cuda" : "cpu"}};
  json.update(found.environment);
  return json;
}

void Line(const char* what, const std::string& text) {
  fmt::print("{:<10} {}\n", what, text);
}

void PrintGpus(const Findings& found) {
  for (size_t i = 0; i < found.cuda.gpus.size(); ++i) {
    const CudaGpu& gpu = found.cuda.gpus[i];
    std::string text = fmt::format("{}: {}, {}, compute capability {}.{}, {} multiprocessors", i,
                                   gpu.name, HumanBytes(gpu.memory_bytes), gpu.capability / 10,
                                   gpu.capability % 10, gpu.num_multiprocessors);
    if (i < found.usable.size()) {
      const DeviceSpeed& speed = found.usable[i].speed;
      text += fmt::format(
          "; {} free besides {} of a process's context and kernels and of other processes; {:.1f} "
          "GB/s to it, {:.1f} GB/s from it, {:.1f} GB/s within it, {:.1f} "
          "TFLOP/s in bf16 matrix multiplication",
          HumanBytes(found.usable[i].free_bytes),
          HumanBytes(gpu.memory_bytes - found.usable[i].free_bytes), speed.to_device / 1e9,
          speed.to_host / 1e9, speed.copy / 1e9, speed.matmul_flops / 1e12);
    }
    Line("GPU", text);
  }
}

// Says whether DeepSpeed can compile its extensions here, and what to install where it cannot.
std::string DescribeExtensions(const Json& facts) {
  std::vector<std::string> missing;
  for (const ExtensionNeed& need : kExtensionNeeds) {
    if (*need.fact != '\0' && facts.at(need.fact).is_null()) missing.emplace_back(need.to_install);
  }
  const std::string python = facts.at("python").get<std::string>();
  return missing.empty() ? python + ", compiles extensions of PyTorch and DeepSpeed"
                         : fmt::format(
                               "{}, compiles no extensions of PyTorch and DeepSpeed, which "
                               "scripts may need: install {}",
                               python, fmt::join(missing, ", "));
}

void PrintEnvironment(const Json& facts) {
  const auto line = [](const char* what, const Json& found, const char* need) {
    Line(what, found.is_string() ? found.get<std::string>() : fmt::format("not found: {}", need));
  };
  if (const Json& packages = facts.at("packages"); packages.is_null()) {
    Line("Python", "not found: only the built-in engine trains here");
  } else {
    Line("Python", DescribeExtensions(facts.at("extensions")));
    line("PyTorch", packages.value("torch", Json()), "scripts need it; pip install torch");
    line("DeepSpeed", packages.value("deepspeed", Json()),
         "scripts with a ds_config need it; pip install deepspeed");
    if (packages.contains("dsat")) {
      Line("", fmt::format("the package dsat {} is another project's, whose module hides ours; "
                           "pip uninstall dsat, and install dsat-autotune again",
                           packages["dsat"].get<std::string>()));
    }
  }
  line("ssh", facts["commands"]["ssh"],
       "searches on several hosts need it; install openssh-client");
  line("Slurm", facts["commands"]["srun"], "searches on nodes of Slurm need its srun");
  const Json& free_bytes = facts.at("disk_free_bytes");
  if (free_bytes.is_number())
    Line("disk", HumanBytes(free_bytes.get<int64_t>()) + " free in this folder");
}

void Print(const Findings& found) {
  const Machine& machine = found.machine;
  Line("CPU", fmt::format("{}, {} cores", machine.cpu_model, machine.num_cores));
  Line("", machine.instruction_sets.empty()
               ? "no instruction set that dsat uses: matrix multiplication will be slow"
               : fmt::format("{}", fmt::join(machine.instruction_sets, " ")));
  if (!engine::MultipliesBf16(machine)) {
    Line("", "no bf16 instructions: bf16 is multiplied in f32, which saves memory but no time");
  }
  const std::string copied =
      found.copy_bytes_per_s
          ? fmt::format("{:.1f} GB/s copied", *found.copy_bytes_per_s / 1e9)
          : "copying is not measured, because a limit of this process refuses memory or threads";
  Line("memory", fmt::format("{}, {} available; {}", HumanBytes(machine.memory_bytes),
                             HumanBytes(machine.available_bytes), copied));
  Line("oneDNN", machine.onednn_version);
  Line("CUDA", found.cuda.toolkit_version == 0
                   ? "not built in"
                   : "built with " + CudaVersion(found.cuda.toolkit_version));
  Line("driver", found.cuda.driver_version == 0
                     ? "not found"
                     : "runs CUDA up to " + CudaVersion(found.cuda.driver_version));
  PrintGpus(found);
  if (!found.cuda.cublas_path.empty()) Line("cuBLASLt", found.cuda.cublas_path);
  Line("NCCL", machine.nccl_version == 0
                   ? "not found"
                   : LibraryVersion(machine.nccl_version) + ", " + machine.nccl_path);
  if (!found.problem.empty()) Line("no GPU", found.problem);
  PrintEnvironment(found.environment);
  if (found.listening.empty()) Line("network", "no program of dsat listens on it");
  for (const Json& port : found.listening) {
    Line("network",
         fmt::format("{} (process {}) listens at port {}{}", port.at("program").get<std::string>(),
                     port.at("pid").dump(), port.at("port").dump(),
                     port.at("program") == "dsat" ? ", with mutual TLS" : " for ranks"));
  }
  Line("device",
       found.problem.empty() ? "cuda (resources.device: auto)" : "cpu (resources.device: auto)");
}

}  // namespace

int RunCommand(const Flags& flags, const DoctorFlags&) {
  const Findings found = Examine();
  if (flags.json) {
    fmt::print("{}\n", ToJson(found).dump(2));
  } else {
    Print(found);
  }
  return 0;
}

}  // namespace dsat::cli
