// A measurement that a program tells, and the history of a training.
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "proto/training_step.h"
#include "proto/trial.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The text of the file; a line of metrics.jsonl.
void MetricsFile(std::string_view input) {
  const auto parts = Parts(input, 2);
  try {
    TrainingStepFromJson(Json::parse(parts[1]));
  } catch (const Json::exception&) {  // The reader skips the line.
  }
  MeasurementFromJson(ParseTolerantJson(parts[0], "metrics.json"), "metrics.json");
}

}  // namespace dsat::fuzz
