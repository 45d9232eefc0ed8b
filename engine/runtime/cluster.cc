// Machines that people have: a node of each, by its vendor's data sheet (docs/estimate.md).
#include "engine/runtime/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "base/error.h"
#include "base/files.h"

namespace dsat::engine {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kGB = 1e9;
constexpr double kTera = 1e12;
constexpr double kCallSeconds = 20e-6;

struct Preset {
  const char* name;
  int64_t ranks_per_node;
  int64_t device_gib;
  double host_bytes;  // Capacity.
  double disk_bytes;  // Capacity.
  double teraflops_16bit, teraflops_f32, efficiency;
  // GB/s.
  double device, link, network, copy, host, disk_read, disk_write;
};

constexpr auto kPresets = std::to_array<Preset>({
    // DGX-2: 16 V100-32, 8 x 100 Gb/s. Disk: what ZeRO-Infinity (2021) measured on it.
    {"v100", 16, 32, 1.5e12, 30e12, 125, 15.7, 0.5, 900, 150, 100, 16, 256, 25, 25},
    // DGX A100 640GB: 8 x 200 Gb/s.
    {"a100", 8, 80, 2e12, 30e12, 312, 19.5, 0.5, 2039, 300, 200, 32, 410, 50, 25},
    // DGX H100 and H200: 8 x 400 Gb/s.
    {"h100", 8, 80, 2e12, 30e12, 989, 67, 0.5, 3350, 450, 400, 64, 614, 50, 25},
    {"h200", 8, 141, 2e12, 30e12, 989, 67, 0.5, 4800, 450, 400, 64, 614, 50, 25},
    // DGX B200: 8 x 400 Gb/s.
    {"b200", 8, 180, 4e12, 30e12, 2250, 75, 0.5, 8000, 900, 400, 64, 717, 50, 25},
    // Servers with eight cards, which communicate over PCIe.
    {"t4", 8, 16, 1e12, 15e12, 65, 8.1, 0.5, 320, 16, 25, 16, 256, 25, 12},
    {"a10", 8, 24, 1e12, 15e12, 125, 31.2, 0.5, 600, 32, 25, 32, 410, 25, 12},
    {"l40s", 8, 48, 1e12, 15e12, 362, 91.6, 0.5, 864, 32, 25, 32, 410, 25, 12},
    {"l4", 8, 24, 1e12, 15e12, 121, 30.3, 0.5, 300, 32, 25, 32, 410, 25, 12},
    {"a6000", 8, 48, 1e12, 15e12, 155, 38.7, 0.5, 768, 32, 25, 32, 410, 25, 12},
    {"rtx3090", 8, 24, 1e12, 15e12, 71, 35.6, 0.5, 936, 32, 25, 32, 410, 25, 12},
    {"rtx4090", 8, 24, 1e12, 15e12, 165, 82.6, 0.5, 1008, 32, 25, 32, 410, 25, 12},
    // One core per rank; measured, not peaks (docs/dev/benchmarks.md).
    {"cpu", 2, 0, 0, 0, 0.2, 0.1, 0.8, 8, 4, 1, 8, 8, 1, 1},
});

// The preset whose name stands in the driver's name of a GPU, and ends there: an L40 is no L4.
// nullptr: there is none.
const Preset* PresetOfGpu(const std::string& gpu) {
  std::string name = LowerCase(gpu);
  if (const size_t at = name.find("rtx "); at != name.npos) name.erase(at + 3, 1);
  const auto found = std::ranges::find_if(kPresets, [&](const Preset& preset) {
    const std::string_view own = preset.name;
    const size_t at = name.find(own);
    return own != "cpu" && at != name.npos &&
           !std::isalnum(static_cast<unsigned char>((name + " ")[at + own.size()]));
  });
  return found == kPresets.end() ? nullptr : &*found;
}

}  // namespace

Speeds Cluster::SpeedsFor(DType dtype) const {
  const auto on_node = static_cast<double>(std::min(num_ranks, ranks_per_node));
  // A ring over all ranks crosses every node's border; its slowest hop decides.
  const bool crosses = num_ranks > ranks_per_node && network_bytes > 0;
  return {.flops = (dtype == DType::kF32 ? flops_f32 : flops_16bit) * efficiency,
          .device_bytes = device_bytes,
          .host_bytes = host_bytes / on_node,
          .copy_bytes = copy_bytes,
          .link_bytes = crosses ? std::min(link_bytes, network_bytes) : link_bytes,
          .read_bytes = disk_read_bytes / on_node,
          .write_bytes = disk_write_bytes / on_node,
          .call_seconds = call_seconds};
}

int64_t Cluster::NodeHostMemoryBytes() const {
  if (host_memory_bytes > 0) return host_memory_bytes;
  return rank_host_memory_bytes * std::min(num_ranks, ranks_per_node);
}

Cluster ClusterOf(const std::string& device) {
  for (const Preset& preset : kPresets) {
    if (device != preset.name) continue;
    return {.device = device,
            .ranks_per_node = preset.ranks_per_node,
            .device_memory_bytes = preset.device_gib * kGiB,
            .host_memory_bytes = static_cast<int64_t>(preset.host_bytes),
            .disk_bytes = static_cast<int64_t>(preset.disk_bytes),
            .flops_16bit = preset.teraflops_16bit * kTera,
            .flops_f32 = preset.teraflops_f32 * kTera,
            .efficiency = preset.efficiency,
            .device_bytes = preset.device * kGB,
            .link_bytes = preset.link * kGB,
            .network_bytes = preset.network * kGB,
            .copy_bytes = preset.copy * kGB,
            .host_bytes = preset.host * kGB,
            .disk_read_bytes = preset.disk_read * kGB,
            .disk_write_bytes = preset.disk_write * kGB,
            .call_seconds = kCallSeconds};
  }
  Throw(ErrorCode::kInvalidArgument, "--device: \"{}\"; expected one of {}", device,
        fmt::join(ClusterNames(), ", "));
}

std::vector<std::string> ClusterNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets)
    names.emplace_back(preset.name);
  return names;
}

Cluster ClusterOfGpu(const std::string& gpu) {
  const Preset* const preset = PresetOfGpu(gpu);
  return ClusterOf(preset == nullptr ? kDefaultGpu : preset->name);
}

double PeakFlopsOf(const std::string& gpu, DType dtype) {
  // Other forms of the same GPU run at other clocks, and a MIG instance is a part of one.
  const std::string name = LowerCase(gpu);
  for (const char* other : {"pcie", "nvl", "mig", "laptop", " ti", "4090 d"}) {
    if (name.find(other) != name.npos) return 0;
  }
  const Preset* const preset = PresetOfGpu(gpu);
  if (preset == nullptr) return 0;
  return (dtype == DType::kF32 ? preset->teraflops_f32 : preset->teraflops_16bit) * kTera;
}

}  // namespace dsat::engine
