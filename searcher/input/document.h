// An experiment file as JSON with line numbers, and the spec that it describes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "proto/experiment.h"

namespace dsat {

struct ExperimentDocument {
  std::string path;                  // As given by the user, for messages.
  Json root;                         // An object.
  std::map<std::string, int> lines;  // JSON pointer -> line, counted from 1.

  // "<path>:<line>: <pointer>", with the line of the nearest enclosing key if the key does not
  // exist.
  std::string Place(const std::string& pointer) const;
  // Throws kInvalidArgument "<path>:<line>: <pointer> <message>".
  [[noreturn]] void Fail(const std::string& pointer, const std::string& message) const;
};

// The spec that a document describes, with relative paths resolved against `model_dir` (absolute)
// and the merged ds_config checked. Errors and warnings as ReadExperimentFile.
ExperimentSpec SpecFromDocument(const ExperimentDocument& document, const std::string& model_dir,
                                std::vector<std::string>* warnings);

}  // namespace dsat
