// The checkpoints that a training saves, and which of them stay.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/comm/process_group.h"
#include "engine/config/ds_config.h"
#include "engine/data/dataset.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/runtime/checkpoint/checkpoint.h"
#include "engine/runtime/engine.h"
#include "proto/trial_task.h"

namespace dsat::engine {

// The newest few checkpoints of a folder, "global_step<N>" each, and the one with the lowest
// validation loss. Every rank has one; rank 0's removes what does not stay. Throws as the engine
// does; other errors name the file.
class TrainingCheckpoints {
 public:
  // `dir`: "" = none. `keep`: how many of the newest stay, those of earlier runs included.
  TrainingCheckpoints(std::string dir, int64_t keep, int rank);

  // Saves nothing from now on unless the ranks of `group`, on whichever hosts, see the same folder.
  // A collective call.
  void SaveOnlyIfShared(ProcessGroup& group);
  // Throws kAlreadyExists if a folder of one of these names holds what dsat has not saved.
  void CheckNoneIsForeign() const;
  // Loads the newest checkpoint that is good on all ranks, if there is one. Returns, and logs:
  // which ones are not good, and what has changed since in the training that `record` describes
  // (RecordOf), which the checkpoints that are saved keep. Throws kDataLoss if none is good, and
  // kInvalidArgument if the first good one is of another training. A collective call.
  std::vector<std::string> Continue(Engine& engine, ProcessGroup& group, Json record);
  // Saves the state after engine.num_steps() steps; unless `wait`, training continues before it is
  // on disk. A collective call.
  void Save(Engine& engine, bool wait);
  // Ends a Save that is on disk, or drops it if the loss of the next step, which is that of the
  // saved parameters, is not finite. If the gradients are not, training may end: waits for the
  // disk. A collective call.
  void OnStep(const StepResult& step);
  // Whether there is a best checkpoint, of this run or of an earlier one.
  bool HasBest() const;
  // Makes the state after engine.num_steps() steps the best, and saves it unless Save has. A
  // collective call.
  void SaveBest(Engine& engine);
  // The time of the last Save, or of the construction.
  std::chrono::steady_clock::time_point saved() const { return saved_; }
  // The time that the last Save took; 0 if there was none.
  double save_ms() const { return save_ms_; }

 private:
  void Finish(bool wait);
  void RemoveOld() const;

  std::string dir_;
  int64_t keep_;
  int rank_;
  Json record_ = Json::object();
  std::optional<int64_t> newest_;         // The step that was saved last.
  std::set<std::string> damaged_;         // The tags that Continue has found not to be good.
  std::unique_ptr<CheckpointSave> save_;  // Null if none is under way.
  double save_ms_ = 0;
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

// The record that a training keeps of itself in its checkpoints, so that no other one continues
// them unnoticed: model, data and their size, optimizer, schedule, clipping and seed, as the task
// has them.
Json RecordOf(const TrialTask& task, const DsConfig& config, const Dataset& data, int64_t seed);

// The settings that differ between a checkpoint and the training that is to continue it: "/KEY was
// VALUE and is VALUE; ...", "" if there are none. Files may have other names if they have the same
// size. Throws kInvalidArgument naming those differences for which a training is another one: in
// the model, the data or the type of the optimizer. Old checkpoints have no record.
std::string ChangesSince(const CheckpointManifest& manifest, const Json& record,
                         const std::string& folder);

}  // namespace dsat::engine
