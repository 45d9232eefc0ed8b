// What this machine has that training depends on, GPUs apart.
#ifndef DSAT_ENGINE_BACKEND_MACHINE_H_
#define DSAT_ENGINE_BACKEND_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dsat::engine {

struct Machine {
  std::string cpu_model;  // "" if the system does not say.
  int num_cores = 0;      // That this process may run on.
  // Of the instruction sets that make matrix multiplications fast, as /proc/cpuinfo calls them.
  std::vector<std::string> instruction_sets;
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;  // Without swapping.
  std::string onednn_version;   // That the CPU backend was built with.
  int nccl_version = 0;         // 22809 for 2.28.9; 0: the loader finds none.
};
Machine ProbeMachine();

// Bytes a second that all cores together copy from memory to memory. Takes half a second, and
// memory of at most an eighth of what is available.
double MeasureCopyBandwidth(const Machine& machine);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_MACHINE_H_
