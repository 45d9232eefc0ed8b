// Writes the history of a training.
#include "engine/worker/step_history.h"

#include <algorithm>
#include <cmath>

namespace dsat::engine {

StepHistory::StepHistory(const std::string& path, int64_t step)
    : file_(path, [this, step](const std::string& line) { return Keep(line, step); }) {}

bool StepHistory::Keep(const std::string& line, int64_t last_step) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.value("step", Json()).is_number_integer()) return false;
  if (json["step"] > last_step) return false;
  if (const auto loss = json.find("validation_loss"); loss != json.end()) {
    has_validation_ |= json["step"] == last_step;
    if (loss->is_number()) NoteValidation(*loss);
  }
  return true;
}

void StepHistory::NoteValidation(double loss) {
  lowest_validation_loss_ = std::min(lowest_validation_loss_, loss);
}

void StepHistory::Add(const TrainingStep& step) {
  if (step.validated && std::isfinite(step.loss)) NoteValidation(step.loss);
  file_.Add(ToJson(step).dump());
}

}  // namespace dsat::engine
