// The properties of this machine that training depends on, except GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dsat::engine {

struct Machine {
  std::string cpu_model;  // "" if unknown.
  int num_cores = 0;      // The cores that this process may run on.
  // The instruction sets that speed up matrix multiplications, by their names in /proc/cpuinfo.
  std::vector<std::string> instruction_sets;
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;  // Without swapping.
  std::string onednn_version;   // The version that the CPU backend was built with.
  int nccl_version = 0;         // 22809 for 2.28.9; 0: none is found.
  std::string nccl_path;
};
Machine ProbeMachine();

// Whether the processor has instructions for products of bf16. Without them, dsat converts tiles of
// bf16 matrices and multiplies them in f32.
bool MultipliesBf16(const Machine& machine);

// Returns the bytes per second that all cores together copy from memory to memory; nullopt if a
// limit of the process refuses the memory or the threads for it. Takes half a second, and uses at
// most an eighth of the available memory.
std::optional<double> MeasureCopyBandwidth(const Machine& machine);

}  // namespace dsat::engine
