// Writes the scalars of a training for TensorBoard and as CSV files, where the ds_config asks for
// them.
#ifndef DSAT_ENGINE_WORKER_MONITORS_H_
#define DSAT_ENGINE_WORKER_MONITORS_H_

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "engine/config/ds_config.h"
#include "engine/worker/line_file.h"
#include "proto/training_step.h"

namespace dsat::engine {

// The scalars are DeepSpeed's, over the number of samples trained: Train/Samples/train_loss, lr
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

#endif  // DSAT_ENGINE_WORKER_MONITORS_H_
