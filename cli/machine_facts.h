// The machine and the software that trials run on, as an experiment records them.
#pragma once

#include <vector>

#include "base/json.h"
#include "proto/experiment.h"
#include "searcher/processes/launch_host.h"

namespace dsat::cli {

// ExperimentSpec::machine: dsat, the version; of trials on this machine, host, cpu and cores, and
// gpus (names), cuda_driver and a script's gpu_speeds if they use GPUs, and packages (name ->
// version) of the user's own command if its Python is found, and disk (read_bytes_per_s and
// write_bytes_per_s, measured in the folder for offload that the ds_config names) of the built-in
// engine; of others, hosts (name -> number of slots). `hosts` is empty if trials run on this
// machine.
Json MachineFacts(const ExperimentSpec& spec, const std::vector<LaunchHost>& hosts);

// Returns `extensions`, what compiles those of PyTorch and DeepSpeed at run time (the paths python,
// headers, compiler and ninja, or null), and `packages` (the versions of torch, deepspeed,
// transformers, and dsat, which is another project's package), both null without a python3 in
// PATH; `commands` (the paths of ssh and srun, or null); and disk_free_bytes of the current folder,
// or null.
Json EnvironmentFacts();

// The ports of this machine at which processes of dsat listen, as far as this user may see them:
// objects of pid, program (dsat or dsat-trial) and port.
Json ListeningPorts();

}  // namespace dsat::cli
