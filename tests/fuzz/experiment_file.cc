// An experiment file and the ds_config that it names.
#include "searcher/input/experiment_file.h"

#include <vector>

#include "searcher/input/objective.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The YAML; the text of ds_config.json beside it.
void ExperimentFile(std::string_view input) {
  const auto parts = Parts(input, 2);
  WriteInput("ds_config.json", parts[1].empty() ? "{\"train_batch_size\": 8}" : parts[1]);
  std::vector<std::string> warnings;
  ExperimentSpec spec = ReadExperimentFile(WriteInput("deepspeed.yaml", parts[0]), "", &warnings);
  SetTrainBatchSize("", spec);
}

}  // namespace dsat::fuzz
