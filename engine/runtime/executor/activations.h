// The tensors that one micro-batch keeps on this pipeline stage from its forward to its backward.
#pragma once

#include <vector>

#include "engine/model/layer.h"
#include "engine/runtime/state/unit_state.h"

namespace dsat::engine {

class Activations {
 public:
  // `memory` must outlive this.
  Activations(size_t num_units, const Memory& memory);

  // Runs the unit's forward; its output becomes the input of the next unit.
  void Forward(const Layer& layer, int unit, const LayerContext& context);
  void Backward(const Layer& layer, int unit, const LayerContext& context);

  void DropSaved(int unit) { saved_[unit].clear(); }
  void DropInput(int unit) { inputs_[unit].Free(); }
  void DropGrad() { grad_.Free(); }
  // Move the unit's input to host memory, and back.
  void StoreInput(int unit);
  void FetchInput(int unit);

  // The messages to the adjacent pipeline stages, and memory for the messages from them.
  Buffer& Output(int unit) { return inputs_[unit + 1]; }
  Buffer& Grad() { return grad_; }
  Buffer& NewInput(int unit, int64_t bytes);
  Buffer& NewGrad(int64_t bytes);

 private:
  const Memory* memory_;
  std::vector<Buffer> inputs_;  // Per unit; the last is the output of the last unit.
  std::vector<Buffer> inputs_on_host_;
  std::vector<Saved> saved_;
  Buffer grad_;  // The gradient of the output of the unit whose backward comes next.
};

}  // namespace dsat::engine
