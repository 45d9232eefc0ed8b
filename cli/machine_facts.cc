// Asks the machine for its parts.
#include "cli/machine_facts.h"

#include "base/version.h"
#include "engine/backend/cuda/cuda_status.h"
#include "engine/backend/machine.h"
#include "searcher/hosts/placement.h"
#include "searcher/results.h"

namespace dsat::cli {

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
  if (!UsesGpus(spec)) return facts;
  const engine::CudaStatus cuda = engine::ProbeCuda();
  facts["gpus"] = Json::array();
  for (const engine::CudaGpu& gpu : cuda.gpus)
    facts["gpus"].push_back(gpu.name);
  facts["cuda_driver"] = cuda.driver_version;
  return facts;
}

}  // namespace dsat::cli
