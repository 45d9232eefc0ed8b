// A layer: explicit forward and backward over borrowed parameters. No autograd.
//
// A model is a list of layers. A layer is also the unit that is gathered, reduced and released
// together. Users add models by adding layers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/arena.h"
#include "engine/core/model_parts.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

class Kernels;

// A parameter and its initial values. kNormal draws each element of N(0, stddev) from (seed, name),
// so that the values do not depend on how the parameter is sharded.
struct ParamSpec {
  std::string name;  // Unique in the model: "h.0.attn.c_attn.weight".
  std::vector<int64_t> shape;
  enum class Init { kNormal, kZero, kOne } init = Init::kZero;
  float stddev = 0;
  std::vector<LinearPart> linears = {};  // The layers as which other programs publish it, if any.
  // Rows of zeros after the parameter, up to the padded vocabulary. Layers see them, but they are
  // not parameters and are never saved.
  int64_t vocab_padding = 0;
  int64_t NumElems() const;
  // With the padding, whose gradient must be zero.
  int64_t StoredElems() const;
};

// A parameter of another layer that this one also uses (the tied output embedding).
struct TiedParam {
  int layer = 0;
  int param = 0;
};

// One micro-batch on one rank: token sequences, or images (T = 1). Layers see it in device memory.
struct Batch {
  int64_t B = 0, T = 0;
  const int32_t* tokens = nullptr;  // (B, T), or nullptr
  const float* pixels = nullptr;    // (B, height, width, channels), or nullptr
  // (B, T): the token after each, or the image's class; kIgnoredTarget does not count in the loss.
  const int32_t* targets = nullptr;
  int64_t num_ignored = 0;  // Targets that do not count. The engine counts them in given batches.
};

// Logits (rows, stride), of whose columns the first `classes` are classes, in device memory.
struct LogitsView {
  Tensor logits;
  int64_t classes = 0, stride = 0;
  int64_t NumRows() const { return stride == 0 ? 0 : logits.num_elems / stride; }
};

// The operands that a layer works with in one call. Parameters are in the order of params(), then
// tied().
struct LayerContext {
  Kernels& kernels;
  Arena& arena;  // For outputs, saved tensors and scratch.
  DType dtype;   // The type of activations, parameters and gradients.
  const Batch& batch;
  std::span<const Tensor> params;
  // Backward accumulates into them; forward has none. Gradients of frozen parameters are empty
  // (they have no elements, or the whole span is empty); if all are frozen, backward computes only
  // dx.
  std::span<const Tensor> grads;
  // The last layer multiplies the gradient of the loss by it (1 / accumulation steps, times the
  // loss scale). It is set in forward, where the logits become their gradient in place.
  float loss_grad_scale = 1;
  // Forward keeps the outputs of norms and activations, which backward would otherwise recompute.
  bool keeps_outputs = false;
  // The last layer stores the mean loss of the micro-batch here, in device memory.
  double* loss = nullptr;
  // Prediction: if not empty, f32 (B, classes); the last layer stores the logits of each row's last
  // position here and computes no loss. Targets may be absent then.
  Tensor logits = {};
  // For a loss of the caller: if set, the last layer computes none and says here where its logits
  // are, in whose place backward finds their gradient.
  LogitsView* left_logits = nullptr;

  // Gradient i, or an empty tensor.
  Tensor Grad(size_t i) const { return i < grads.size() ? grads[i] : Tensor{}; }
  // Whether parameter i is trained.
  bool Trains(size_t i) const { return Grad(i).num_elems > 0; }
  // B * T.
  int64_t NumTokens() const { return batch.B * batch.T; }
  bool Predicts() const { return logits.num_elems > 0; }
};

// The buffers that forward keeps for backward, besides the layer's input, which the executor keeps.
using Saved = std::vector<Buffer>;

class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string name() const = 0;
  virtual const std::vector<ParamSpec>& params() const = 0;
  virtual std::vector<TiedParam> tied() const { return {}; }
  // x: the previous layer's output (empty for the first layer). Returns the output; the last layer
  // returns an empty buffer, computes the loss and saves what its backward needs.
  virtual Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const = 0;
  // dy: gradient of the output (empty for the last layer). Returns the gradient of x (empty for the
  // first layer). Consumes `saved`; frees as it goes.
  virtual Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer dy,
                          Saved& saved) const = 0;
};

// A layer that holds its name and its own parameters.
class NamedLayer : public Layer {
 public:
  explicit NamedLayer(std::string name, std::vector<ParamSpec> params = {})
      : name_(std::move(name)), params_(std::move(params)) {}
  std::string name() const final { return name_; }
  const std::vector<ParamSpec>& params() const final { return params_; }

 protected:
  std::string name_;
  std::vector<ParamSpec> params_;
};

// Trained weights as the initial values of a model. Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Writes elements [begin, begin + dst.num_elems) of the model's parameter `param`, in the order
  // of its ParamSpec's shape, to `dst`, converted to its dtype: a rank reads only what it keeps.
  // Throws kDataLoss if a file has changed underneath. REQUIRES: the model has the parameter, and
  // the range lies within it.
  virtual void Read(Kernels& kernels, const std::string& param, int64_t begin,
                    Tensor dst) const = 0;
};

struct Model {
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<bool> frozen;   // Per layer: its parameters are not trained. Empty: all are.
  int64_t vocab_size = 0;     // Tokens and targets, or the images' classes, are in [0, vocab_size).
  int64_t max_seq_len = 0;    // T of its batches, unless the data says shorter; 1 for images.
  ImageShape image;           // The images that it reads; all 0 if it reads tokens.
  int64_t head_channels = 0;  // The size of an attention head; 0 if the model has none.
  // Initial values that replace those of Init; nullptr if there are none.
  std::shared_ptr<const WeightSource> weights;
  bool IsFrozen(size_t layer) const { return !frozen.empty() && frozen[layer]; }
  std::string description;  // "gpt2 6 layers, 384 wide, 6 heads, 10.8 M parameters"
};

// Elements of all parameters, tied ones counted once; and of those that are not frozen.
int64_t NumParams(const Layer& layer);
int64_t NumParams(const Model& model);
int64_t NumTrainableParams(const Model& model);

}  // namespace dsat::engine
