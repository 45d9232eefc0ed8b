// The model's parameters as one file in the type that it trains in, as DeepSpeed's save_16bit_model
// writes it (deepspeed/runtime/engine.py).
#ifndef DSAT_ENGINE_EXPORT_SAVE_16BIT_MODEL_H_
#define DSAT_ENGINE_EXPORT_SAVE_16BIT_MODEL_H_

#include <string>

#include "engine/comm/process_group.h"
#include "engine/memory/arena.h"
#include "engine/model/layer.h"
#include "engine/unit_state.h"

namespace dsat::engine {

// Brings sharded parameters together, one unit at a time, in memory of the group that is taken with
// the first call, is as large as the largest sharded unit, and is counted in the arena.
class ModelSaver {
 public:
  // All must outlive this.
  ModelSaver(const Model& model, UnitStates& states, ProcessGroup& group, Arena& arena)
      : model_(model), states_(states), group_(group), arena_(arena) {}
  ModelSaver(const ModelSaver&) = delete;
  ModelSaver& operator=(const ModelSaver&) = delete;
  ~ModelSaver();

  // Rank 0 writes <dir>/<name>, whole or not at all; a name that ends in .safetensors gives that
  // format, every other one what torch.load reads. `exclude_frozen`: without the parameters of
  // frozen layers. A collective call. Throws OutOfMemory, kInvalidArgument if `name` is no file's
  // name, and by file name; the other ranks then throw kAborted, and training can go on.
  void Save(const std::string& dir, const std::string& name, bool exclude_frozen);

 private:
  bool IsSharded(int u) const;
  bool IsSaved(int u, bool exclude_frozen) const;
  void ReserveBucket();
  // The whole parameters of a unit on every rank, until the next call.
  Tensor Whole(int u);

  const Model& model_;
  UnitStates& states_;
  ProcessGroup& group_;
  Arena& arena_;
  CommBuffer bucket_;
};

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_EXPORT_SAVE_16BIT_MODEL_H_
