// Writes the history of a training: metrics.jsonl, a line for each step and each validation.
#ifndef DSAT_ENGINE_WORKER_STEP_HISTORY_H_
#define DSAT_ENGINE_WORKER_STEP_HISTORY_H_

#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "proto/training_step.h"

namespace dsat::engine {

// The file has every step up to the newest once, also across runs that continue from a checkpoint,
// however these end. Used by one thread of rank 0.
class StepHistory {
 public:
  // Continues the file at `path`, which may not exist, after `step`: removes the lines of later
  // steps, which are trained again, and a line that is incomplete. Throws by file name, as all
  // methods do.
  StepHistory(const std::string& path, int64_t step);

  // Whether the file has the validation after the last step with which it continues.
  bool has_validation() const { return has_validation_; }
  void Add(const TrainingStep& step);
  // To be called before a checkpoint is saved: its steps must not be lost.
  void Sync();

 private:
  std::string path_;
  bool has_validation_ = false;
  UniqueFd file_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_WORKER_STEP_HISTORY_H_
