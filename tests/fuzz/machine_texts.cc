// Reads what Slurm, nvidia-smi and the kernel say.
#include <string>

#include "searcher/hosts/slurm.h"
#include "searcher/processes/exit_report.h"
#include "searcher/processes/process_tree.h"
#include "searcher/scripts/device_memory.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// A line of a job's output; nvidia-smi's sizes; /proc/vmstat; /proc/self/cgroup; --slurm-args;
// /proc/PID/stat.
void MachineTexts(std::string_view input) {
  const auto parts = Parts(input, 6);
  ParseNodes(std::string(parts[0]));
  SmallestMib(std::string(parts[1]));
  FindCounter(parts[2], "oom_kill");
  FindMemoryCgroup(parts[3]);
  SplitSlurmArgs(std::string(parts[4]));
  ParseProcessStat(std::string(parts[5]));
}

}  // namespace dsat::fuzz
