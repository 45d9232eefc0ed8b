// The tensors that one micro-batch keeps from its forward to its backward.
#include "engine/runtime/executor/activations.h"

#include <utility>

#include "engine/backend/stream.h"

namespace dsat::engine {
namespace {

// Whole numbers of elements of any type are whole numbers of these.
constexpr DType kAny = DType::kBF16;

}  // namespace

Activations::Activations(size_t num_units, const Memory& memory)
    : memory_(&memory), inputs_(num_units + 1), inputs_on_host_(num_units), saved_(num_units) {}

void Activations::Forward(const Layer& layer, int unit, const LayerContext& context) {
  inputs_[unit + 1] = layer.Forward(context, inputs_[unit], saved_[unit]);
}

void Activations::Backward(const Layer& layer, int unit, const LayerContext& context) {
  grad_ = layer.Backward(context, inputs_[unit], std::move(grad_), saved_[unit]);
  inputs_[unit].Free();
  saved_[unit].clear();
}

void Activations::StoreInput(int unit) {
  Buffer& input = inputs_[unit];
  Buffer& on_host = inputs_on_host_[unit];
  on_host = memory_->host.Allocate(input.bytes(), "activation checkpoints");
  memory_->kernels.stream().CopyToHost(on_host.AsTensor(kAny), input.AsTensor(kAny));
  input.Free();
}

void Activations::FetchInput(int unit) {
  Buffer& input = inputs_[unit];
  Buffer& on_host = inputs_on_host_[unit];
  input = memory_->device.Allocate(on_host.bytes(), "activation checkpoint");
  memory_->kernels.stream().CopyToDevice(input.AsTensor(kAny), on_host.AsTensor(kAny));
  on_host.Free();
}

Buffer& Activations::NewInput(int unit, int64_t bytes) {
  return inputs_[unit] = memory_->device.Allocate(bytes, "input from the stage before");
}

Buffer& Activations::NewGrad(int64_t bytes) {
  return grad_ = memory_->device.Allocate(bytes, "gradient from the stage after");
}

}  // namespace dsat::engine
