// Slurm's view of trials: the size of their jobs, and the nodes of a job as hosts.
//
// Inside of a job (SLURM_JOB_ID is set) trials are steps of it, placed on its nodes as on the hosts
// of a hostfile. Outside, each attempt gets a job of its own (searcher/hosts/slurm_job.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "searcher/hosts/hosts.h"
#include "searcher/hosts/reach_hosts.h"

namespace dsat {

// The jobs that attempts get.
struct SlurmJobs {
  std::vector<std::string> args;  // Options of salloc; PlanJobs puts the size of a job before them.
  int64_t slots_per_node = 0;     // The most on one node; 0 = those of a trial.
  std::chrono::seconds keep{600};  // How long a job outlives a runner that was killed.
  ExperimentSpec spec = {};        // The spec of the trials; set by PlanJobs.
  HostAccess access = {};          // slurm_job is not set.
};

// The words of --slurm-args. Throws kInvalidArgument if they need a shell.
std::vector<std::string> SplitSlurmArgs(const std::string& text);

// The nodes of a job and its number.
struct SlurmNodes {
  std::string job;
  std::vector<Host> hosts;  // Their slots are tasks.
};

// A shell command that prints, within a job, the line that ParseNodes reads.
inline constexpr char kPrintNodes[] = R"(echo dsat-nodes "$SLURM_JOB_ID" "$SLURM_TASKS_PER_NODE" )"
                                      R"($(scontrol show hostnames "$SLURM_JOB_NODELIST"))";
// Reads "dsat-nodes JOB TASKS NODE...", such as "dsat-nodes 12 4(x2) n1 n2". No hosts if `line` is
// another one.
SlurmNodes ParseNodes(const std::string& line);

// The job in which this process runs, and its nodes with `slots_per_node` slots; 0 = its tasks.
// Throws kFailedPrecondition if Slurm does not name its nodes.
SlurmNodes NodesOfThisJob(int64_t slots_per_node);

// The command that runs the shell command that follows on a node of a job.
std::vector<std::string> ReachBySrun(const std::string& job, const std::string& node);

// Hosts with as many slots as Slurm has given them devices, unless `slots_per_node` is above 0.
void CountDevicesAsSlots(int64_t slots_per_node, std::vector<LaunchHost>* hosts);

// Completes `jobs` for trials of `spec`, and asks Slurm whether it would run such a job. Returns
// hosts as those of a job, but without their names and addresses, and the address of this machine
// as the nodes see it. Throws kFailedPrecondition with Slurm's words if Slurm refuses the job,
// cannot be reached, or is not installed.
ReachedHosts PlanJobs(const ExperimentSpec& spec, SlurmJobs* jobs);

// Whether steps of a job run on its nodes.
bool HasSteps(const std::string& job);

// Why a job waits in the queue, such as "PartitionDown"; "" if Slurm gives no reason.
std::string WhySlurmWaits(const std::string& job);

// Why Slurm has ended a job, such as "Slurm ended job 12: TIMEOUT (TimeLimit)"; "" if it runs or is
// unknown. Waits up to 5 s for a job that is ending.
std::string WhySlurmEnded(const std::string& job);

}  // namespace dsat
