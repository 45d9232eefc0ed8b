// An experiment file and the files that it names.
#include "searcher/input/experiment_file.h"

#include <vector>

#include "searcher/input/objective.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The YAML; the texts of ds_config.json and accelerate.yaml beside it.
void ExperimentFile(std::string_view input) {
  const auto parts = Parts(input, 3);
  WriteInput("ds_config.json", parts[1].empty() ? "{\"train_batch_size\": 8}" : parts[1]);
  WriteInput("accelerate.yaml", parts[2]);
  std::vector<std::string> warnings;
  ExperimentSpec spec = ReadExperimentFile(WriteInput("deepspeed.yaml", parts[0]), "", &warnings);
  SetTrainBatchSize("", spec);
}

}  // namespace dsat::fuzz
