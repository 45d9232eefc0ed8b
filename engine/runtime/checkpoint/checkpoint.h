// Checkpoints that load at any number of ranks and any ZeRO stage.
//
// <dir>/<tag>/rank_<r>.safetensors holds the r-th slice of all state, cut at parameter boundaries:
// tensor "<state>/<parameter>" with the index of its first element in the parameter as metadata
// under the same name. States: "param", "master" (f32 copy of 16-bit parameters, if that is what
// the optimizer updates), "moment0", "moment1". engine/files/checkpoint_manifest.h says what
// makes these files a checkpoint.
#pragma once

#include <future>
#include <memory>
#include <string>

#include "base/json.h"
#include "engine/comm/process_group.h"
#include "engine/files/checkpoint_manifest.h"
#include "engine/files/safetensors.h"
#include "engine/model/layer.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

// The content of a checkpoint besides tensors. It is equal on all ranks, and rank 0 saves it.
struct CheckpointNotes {
  Json engine = Json::object();        // The engine needs it to continue.
  Json client_state = Json::object();  // The caller keeps it.
};

// A checkpoint that is being saved. Whatever happens meanwhile (kill -9, a full disk, a power
// failure), this tag loads as its old state or its new one, every other tag loads, and <dir>/latest
// names a complete checkpoint. Only one save at a time may write to `dir`. The constructor and
// Finish are collective calls. If a rank fails, it throws an Error that names the file; the other
// ranks then throw kAborted, and training can continue.
class CheckpointSave {
 public:
  // Writes the state into the file system's cache: training may continue at once. Throws also
  // kInvalidArgument naming the tag if it is invalid (CheckTag) or differs between ranks. If
  // `async`, a thread flushes to the disk; else Finish does.
  CheckpointSave(std::string dir, std::string tag, const Model& model, UnitStates& states,
                 const CheckpointNotes& notes, ProcessGroup& group, bool async);
  // Once the state of all ranks is on disk, makes it a checkpoint and returns true; waits for that
  // if `wait`. REQUIRES: it has neither returned true nor thrown.
  bool Finish(bool wait);

 private:
  std::string dir_, tag_;
  CheckpointManifest manifest_;
  ProcessGroup* group_;
  int revision_ = 0;
  std::unique_ptr<SafetensorsWriter> file_;
  std::future<void> on_disk_;  // The last member: its end waits for the thread.
};

// The type of an optimizer, in lower case, or the other type that has the same moments: Adam and
// AdamW differ in what they do with them.
std::string MomentsOf(const std::string& optimizer);

// Overwrites `states`. `optimizer` is the type whose moments they have, "" if they have none; what
// was saved must be of the same, except that Adam's are AdamW's. Converts states that were saved in
// another dtype: moments, and master copies from and to parameters without one. An empty `tag` is
// the one in <dir>/latest. A collective call; each rank verifies the checksums of some of the
// files. Throws kNotFound naming the file, kInvalidArgument naming what does not fit this model,
// dtype or optimizer, or a parameter that is not whole, kDataLoss naming a file that is damaged,
// with both sums; the other ranks then throw kAborted. The states are undefined if it threw.
CheckpointNotes LoadCheckpoint(const std::string& dir, const std::string& tag, const Model& model,
                               UnitStates& states, const std::string& optimizer,
                               ProcessGroup& group);

// Rank 0 writes <dir>/<name>, a safetensors file of the parameters as published (published.h),
// whole or not at all. `exclude_frozen` leaves out the parameters of frozen layers. State that is
// sharded, on disk or on other pipeline stages is sent to rank 0 unit by unit and block by block,
// so that a rank needs memory for its part of one unit only. A collective call of `group`, all
// ranks. Throws kInvalidArgument if `name` cannot be the name of a file or does not end in
// .safetensors, and Errors that name the file; the other ranks then throw kAborted, and training
// can continue.
void Save16BitModel(const std::string& dir, const std::string& name, bool exclude_frozen,
                    const Model& model, UnitStates& states, int data_parallel_size,
                    ProcessGroup& group);

}  // namespace dsat::engine
