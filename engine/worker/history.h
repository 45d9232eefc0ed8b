// The files that grow with a training: its history, metrics.jsonl, and the scalars for TensorBoard
// and as CSV files.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "base/unique_fd.h"
#include "engine/config/ds_config.h"
#include "proto/training_step.h"

namespace dsat::engine {

// A text file that grows by lines, and is continued by the next run. Errors name the file.
class LineFile {
 public:
  // Continues the file at `path`, which may not exist, with those of its lines that `keep` accepts.
  // An incomplete last line is removed.
  LineFile(std::string path, const std::function<bool(const std::string& line)>& keep);

  // Writes the line at once, and an end of line.
  void Add(const std::string& line);
  // Returns when what was added is on disk.
  void Sync();
  // True if no line was kept, and none was added.
  bool empty() const { return empty_; }

 private:
  std::string path_;
  bool empty_ = true;
  UniqueFd file_;
};

// Writes metrics.jsonl, a line for each step and each validation. The file has every step up to the
// newest once, also across runs that continue from a checkpoint, however these end. Used by one
// thread of rank 0.
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

// Writes the scalars of a training for TensorBoard and as CSV files, where the ds_config asks for
// them. They are DeepSpeed's, over the number of samples trained: Train/Samples/train_loss, lr
// and, in fp16, loss_scale; and Validation/Samples/loss. Folders that are not absolute lie in the
// training's output folder, which is the current one. Used by one thread of rank 0. Errors name the
// file.
class Monitors {
 public:
  // Continues after `num_samples`: later steps of an earlier run, which are trained again, are
  // removed from the CSV files, and TensorBoard is told to drop them.
  Monitors(const DsConfig& config, int64_t num_samples);

  // `num_samples` were trained up to and including the step.
  void Add(const TrainingStep& step, int64_t num_samples);

 private:
  void Write(const std::string& tag, int64_t samples, double value);
  LineFile& FileOf(const std::string& tag);
  void OpenEvents(const std::string& dir);
  void WriteEvents(const std::string& records);

  bool has_loss_scale_;
  int64_t first_samples_;                // The samples that earlier runs have trained.
  std::string csv_dir_;                  // "" = no CSV files.
  std::map<std::string, LineFile> csv_;  // By tag.
  std::string events_path_;
  std::ofstream events_;  // TensorBoard's; closed = none.
};

}  // namespace dsat::engine
