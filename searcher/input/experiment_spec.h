// The spec of an experiment from the keys of its file.
#ifndef DSAT_SEARCHER_INPUT_EXPERIMENT_SPEC_H_
#define DSAT_SEARCHER_INPUT_EXPERIMENT_SPEC_H_

#include <string>
#include <vector>

#include "proto/experiment.h"
#include "searcher/input/document.h"

namespace dsat {

// The spec that a document describes, with relative paths resolved against `model_dir` (absolute)
// and the merged ds_config checked. Errors and warnings as ReadExperimentFile.
ExperimentSpec SpecFromDocument(const ExperimentDocument& document, const std::string& model_dir,
                                std::vector<std::string>* warnings);

}  // namespace dsat

#endif  // DSAT_SEARCHER_INPUT_EXPERIMENT_SPEC_H_
