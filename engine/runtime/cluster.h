// A cluster: what its nodes have and how fast they are, by data sheet or as measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/kernels.h"
#include "engine/core/device_kind.h"
#include "engine/core/tensor.h"
#include "engine/runtime/timeline.h"

namespace dsat::engine {

// Sizes of 0 are no limit, speeds of 0 take no time. Speeds are per second.
struct Cluster {
  std::string device;
  int64_t num_ranks = 1;       // One per device.
  int64_t ranks_per_node = 1;  // The last node may have fewer.
  int64_t device_memory_bytes = 0;
  // The limit of a node; all that follow but the device's own are a node's, too.
  int64_t host_memory_bytes = 0;
  int64_t disk_bytes = 0;
  int64_t rank_host_memory_bytes = 0;  // The limit of one rank.
  int num_threads = 1;                 // Compute threads of a rank, on a CPU.
  double flops_16bit = 0;              // Peak of a device in matrix multiplication in bf16 or fp16.
  double flops_f32 = 0;                // The same in f32.
  double efficiency = 0.5;   // The share of the peak that a whole forward and backward reaches.
  double device_bytes = 0;   // Device memory.
  double link_bytes = 0;     // A device to the next on the same node, one way.
  double network_bytes = 0;  // A node to the next, one way.
  double copy_bytes = 0;     // A device to host memory, one way.
  double host_bytes = 0;     // Host memory.
  double disk_read_bytes = 0;
  double disk_write_bytes = 0;
  double call_seconds = 0;

  DeviceKind kind() const { return device == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda; }
  int64_t num_nodes() const { return (num_ranks + ranks_per_node - 1) / ranks_per_node; }
  // Host memory of a full node: its own limit, or that of its ranks together.
  int64_t NodeHostMemoryBytes() const;
  // The speeds that one rank gets while all ranks of its node work.
  Speeds SpeedsFor(DType dtype) const;
};

// By name, in lower case, such as "h100", "rtx4090" or "cpu" (docs/estimate.md). Throws
// kInvalidArgument naming them all.
Cluster ClusterOf(const std::string& device);
std::vector<std::string> ClusterNames();
// The GPU of an estimate that names none.
inline constexpr const char* kDefaultGpu = "a100";
// Returns that of a GPU by its driver's name, such as "NVIDIA H200", or else that of kDefaultGpu.
Cluster ClusterOfGpu(const std::string& gpu);

// The peak of matrix multiplication in `dtype`, FLOP/s, by the driver's name; 0 if it is unknown.
double PeakFlopsOf(const std::string& gpu, DType dtype);

}  // namespace dsat::engine
