// Writes the history of a training: metrics.jsonl, a line for each step and each validation.
#ifndef DSAT_ENGINE_WORKER_STEP_HISTORY_H_
#define DSAT_ENGINE_WORKER_STEP_HISTORY_H_

#include <cstdint>
#include <limits>
#include <string>

#include "engine/worker/line_file.h"
#include "proto/training_step.h"

namespace dsat::engine {

// The file has every step up to the newest once, also across runs that continue from a checkpoint,
// however these end. Used by one thread of rank 0.
class StepHistory {
 public:
  // Continues the file at `path`, which may not exist, after `step`: removes the lines of later
  // steps, which are trained again. Errors of all methods name the file.
  StepHistory(const std::string& path, int64_t step);

  // Whether the file has the validation after the last step with which it continues.
  bool has_validation() const { return has_validation_; }
  // The lowest loss of all validations in the file since ForgetLowest; infinity if there is none.
  double lowest_validation_loss() const { return lowest_validation_loss_; }
  void ForgetLowest() { lowest_validation_loss_ = std::numeric_limits<double>::infinity(); }
  void Add(const TrainingStep& step);
  // To be called before a checkpoint is saved: its steps must not be lost.
  void Sync() { file_.Sync(); }

 private:
  bool Keep(const std::string& path, const std::string& line, int64_t last_step);
  void NoteValidation(double loss);

  bool has_validation_ = false;
  double lowest_validation_loss_ = std::numeric_limits<double>::infinity();
  LineFile file_;  // Last: its lines set the others.
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_WORKER_STEP_HISTORY_H_
