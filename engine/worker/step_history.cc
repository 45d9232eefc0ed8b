// Writes the history of a training.
#include "engine/worker/step_history.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/files.h"

namespace dsat::engine {
namespace {

constexpr size_t kShownBytes = 80;

}  // namespace

StepHistory::StepHistory(const std::string& path, int64_t step)
    : file_(path, [&](const std::string& line) { return Keep(path, line, step); }) {}

bool StepHistory::Keep(const std::string& path, const std::string& line, int64_t last_step) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;  // Damaged.
  if (!json.value("step", Json()).is_number_integer()) {
    Throw(ErrorCode::kAlreadyExists,
          "{}: it has a line that no training of dsat has written: {}; train into another folder",
          path, Printable(line.substr(0, kShownBytes)));
  }
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
