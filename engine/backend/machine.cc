// Finds the properties of this machine that training depends on.
#include "engine/backend/machine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <new>
#include <numeric>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/num_cores.h"
#include "engine/backend/open_library.h"

namespace dsat::engine {
namespace {

constexpr const char* kInstructionSets[] = {"avx2",     "fma",         "f16c",
                                            "avx512f",  "avx512_bf16", "avx512_fp16",
                                            "avx_vnni", "amx_bf16",    "amx_int8"};

// The text after "key...: " of the first such line of a file of /proc, "" if there is none.
std::string ValueIn(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == line.npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == line.npos ? "" : line.substr(begin);
  }
  return "";
}

std::vector<std::string> InstructionSets() {
  std::istringstream flags(ValueIn("/proc/cpuinfo", "flags"));
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;) {
    if (std::ranges::find(kInstructionSets, flag) != std::end(kInstructionSets))
      found.push_back(flag);
  }
  return found;
}

int VersionOf(OpenedLibrary nccl) {
  int (*get)(int*) = nullptr;
  if (nccl.handle != nullptr) nccl.Find("ncclGetVersion", get);
  int version = 0;
  return get == nullptr || get(&version) != 0 ? 0 : version;
}

}  // namespace

Machine ProbeMachine() {
  Machine machine;
  machine.cpu_model = ValueIn("/proc/cpuinfo", "model name");
  machine.num_cores = static_cast<int>(NumCores());
  machine.instruction_sets = InstructionSets();
  machine.memory_bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  std::istringstream available(ValueIn("/proc/meminfo", "MemAvailable"));
  available >> machine.available_bytes;
  machine.available_bytes *= 1024;  // It is in kB.
  machine.onednn_version = DSAT_ONEDNN_VERSION;
  const OpenedLibrary nccl = OpenLibrary(kNcclLibrary);
  machine.nccl_version = VersionOf(nccl);
  machine.nccl_path = nccl.path;
  return machine;
}

// True for processors with avx512_bf16, which all those with amx_bf16 have, too.
bool MultipliesBf16(const Machine& machine) {
  return std::ranges::find(machine.instruction_sets, "avx512_bf16") !=
         machine.instruction_sets.end();
}

std::optional<double> MeasureCopyBandwidth(const Machine& machine) try {
  // The block of a core is larger than its caches.
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  constexpr auto kDuration = std::chrono::milliseconds(400);
  const int64_t bytes = std::max<int64_t>(
      4096, std::min(kMostBytes, machine.available_bytes / 16 / machine.num_cores));
  std::vector<double> rates(static_cast<size_t>(machine.num_cores));
  std::vector<std::array<std::vector<char>, 2>> blocks(rates.size());
  for (auto& [from, to] : blocks) {
    from.assign(static_cast<size_t>(bytes), 1);
    to.assign(static_cast<size_t>(bytes), 2);
  }
  std::vector<std::jthread> threads;
  for (size_t core = 0; core < rates.size(); ++core) {
    threads.emplace_back([&rate = rates[core], &block = blocks[core], bytes, kDuration] {
      auto& [from, to] = block;
      const auto start = std::chrono::steady_clock::now();
      double copied = 0;
      std::chrono::duration<double> elapsed{};
      do {
        std::memcpy(to.data(), from.data(), from.size());
        from[0] = static_cast<char>(from[0] + to[1]);  // Every copy matters.
        copied += static_cast<double>(bytes);
        elapsed = std::chrono::steady_clock::now() - start;
      } while (elapsed < kDuration);
      rate = copied / elapsed.count();
    });
  }
  threads.clear();  // Waits for them.
  return std::accumulate(rates.begin(), rates.end(), 0.0);
} catch (const std::bad_alloc&) {
  return std::nullopt;
} catch (const std::system_error&) {
  return std::nullopt;
}

}  // namespace dsat::engine
