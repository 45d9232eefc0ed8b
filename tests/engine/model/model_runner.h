// Runs a model's layers forward and backward as the executor would, without any of its policies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/backend/kernels.h"
#include "engine/core/arena.h"
#include "engine/model/layer.h"

namespace dsat::engine {

// B sequences of T tokens and their targets, drawn from [0, V); or B images and their classes.
struct RandomBatch {
  RandomBatch(int64_t b, int64_t t, int64_t V) : B(b), T(t) {
    Rng rng(7, 0, "tokens");
    for (int64_t i = 0; i < B * T; ++i) {
      tokens.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(V))));
      targets.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(V))));
    }
  }
  // A batch that the model takes; T is 1 for images.
  RandomBatch(const Model& model, int64_t b, int64_t t)
      : RandomBatch(b, model.image.NumElems() > 0 ? 1 : t, model.vocab_size) {
    Rng rng(7, 0, "pixels");
    for (int64_t i = 0; i < B * model.image.NumElems(); ++i)
      pixels.push_back(static_cast<float>(rng.Normal()));
  }
  Batch view() const {
    return {.B = B,
            .T = T,
            .tokens = tokens.data(),
            .pixels = pixels.empty() ? nullptr : pixels.data(),
            .targets = targets.data()};
  }

  int64_t B, T;
  std::vector<int32_t> tokens, targets;
  std::vector<float> pixels;
};

class ModelRunner {
 public:
  // Parameters as the model's weights or their ParamSpecs say; `extra_stddev` is added noise, so
  // that zeros and ones become generic too. `kind` also chooses the kernels.
  ModelRunner(Model model, Arena::Kind kind, std::unique_ptr<Kernels> kernels, DType dtype,
              double extra_stddev)
      : model_(std::move(model)),
        kernels_(std::move(kernels)),
        dtype_(dtype),
        arena_("test memory", kind, 0),
        params_(model_.layers.size()),
        grads_(model_.layers.size()) {
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      for (const ParamSpec& spec : model_.layers[i]->params()) {
        params_[i].push_back(arena_.Allocate(dtype_, spec.StoredElems(), "parameter"));
        const int64_t trained = IsFrozen(i) ? 0 : spec.StoredElems();
        grads_[i].push_back(arena_.Allocate(dtype_, trained, "gradient"));
        if (kind == Arena::Kind::kReal) Initialize(spec, params_[i].back(), extra_stddev);
      }
    }
    ZeroGrads();
    arena_.ResetPeak();
  }

  // The mean loss; keeps what Backward needs.
  double Forward(const Batch& batch, float loss_grad_scale = 1) {
    batch_ = batch;
    inputs_.clear();
    saved_.clear();
    saved_.resize(model_.layers.size());
    inputs_.emplace_back();
    double loss = 0;
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      const LayerContext ctx = Context(i, loss_grad_scale, &loss);
      inputs_.push_back(model_.layers[i]->Forward(ctx, inputs_[i], saved_[i]));
    }
    return loss;
  }

  // Adds to the gradients; frees what Forward kept.
  void Backward() {
    Buffer dy = std::move(inputs_.back());  // Empty: the last layer has no output.
    inputs_.pop_back();
    for (size_t i = model_.layers.size(); i-- > 0;) {
      const LayerContext ctx = Context(i, 1, nullptr);
      dy = model_.layers[i]->Backward(ctx, inputs_.back(), std::move(dy), saved_[i]);
      inputs_.pop_back();
    }
    saved_.clear();
  }

  void ZeroGrads() {
    for (const auto& layer : grads_) {
      for (const Buffer& grad : layer)
        kernels_->Run(op::Fill{grad.AsTensor(dtype_), 0});
    }
  }

  // The logits (B, classes) of each row's last position, in f32.
  std::vector<float> Predict(const Batch& batch) {
    batch_ = batch;
    batch_.targets = nullptr;
    std::vector<float> logits(static_cast<size_t>(batch.B * model_.vocab_size));
    Buffer x;
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      Saved saved;
      LayerContext ctx = Context(i, 1, nullptr);
      ctx.grads = {};
      ctx.logits = {logits.data(), batch.B * model_.vocab_size, DType::kF32};
      x = model_.layers[i]->Forward(ctx, x, saved);
      if (i + 1 == model_.layers.size()) predict_kept_nothing_ = saved.empty();
    }
    return logits;
  }
  // Sets LayerContext::keeps_outputs of the next Forward.
  void set_keeps_outputs(bool keeps) { keeps_outputs_ = keeps; }
  // Whether the last layer of the last Predict saved nothing for a backward pass.
  bool predict_kept_nothing() const { return predict_kept_nothing_; }

  // Forward without keeping anything afterwards.
  double Loss(const Batch& batch) {
    const double loss = Forward(batch);
    inputs_.clear();
    saved_.clear();
    return loss;
  }

  const Model& model() const { return model_; }
  Kernels& kernels() { return *kernels_; }
  Arena& arena() { return arena_; }
  const std::vector<Saved>& saved() const { return saved_; }
  const std::vector<Buffer>& inputs() const { return inputs_; }
  // Both with the padded vocabulary.
  Tensor param(size_t layer, size_t i) const {
    return params_[layer][i].AsTensor(dtype_).Slice(0, Spec(layer, i).StoredElems());
  }
  // Empty if the layer is frozen.
  Tensor grad(size_t layer, size_t i) const {
    return IsFrozen(layer)
               ? Tensor{}
               : grads_[layer][i].AsTensor(dtype_).Slice(0, Spec(layer, i).StoredElems());
  }
  bool IsFrozen(size_t layer) const { return model_.IsFrozen(layer); }

  // A tensor's values as f32.
  std::vector<float> Values(Tensor tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elems));
    kernels_->Run(op::Cast{{values.data(), tensor.num_elems, DType::kF32}, tensor});
    return values;
  }

 private:
  const ParamSpec& Spec(size_t layer, size_t i) const { return model_.layers[layer]->params()[i]; }
  void Initialize(const ParamSpec& spec, const Buffer& buffer, double extra_stddev) {
    kernels_->Run(op::Fill{buffer.AsTensor(dtype_), 0});
    if (model_.weights != nullptr) {
      model_.weights->Read(*kernels_, spec.name, 0,
                           buffer.AsTensor(dtype_).Slice(0, spec.NumElems()));
      return;
    }
    Rng rng(11, StableHash(spec.name), "init");
    std::vector<float> values;
    for (int64_t i = 0; i < spec.NumElems(); ++i) {
      const double start = spec.init == ParamSpec::Init::kOne ? 1 : spec.stddev * rng.Normal();
      values.push_back(static_cast<float>(start + extra_stddev * rng.Normal()));
    }
    kernels_->Run(op::Cast{buffer.AsTensor(dtype_).Slice(0, spec.NumElems()),
                           {values.data(), spec.NumElems(), DType::kF32}});
  }

  // Parameters of the layer, then those it borrows; the same for gradients.
  LayerContext Context(size_t layer, float loss_grad_scale, double* loss) {
    ctx_params_.clear();
    ctx_grads_.clear();
    for (size_t i = 0; i < params_[layer].size(); ++i) {
      ctx_params_.push_back(param(layer, i));
      ctx_grads_.push_back(grad(layer, i));
    }
    for (const TiedParam& tied : model_.layers[layer]->tied()) {
      const auto owner = static_cast<size_t>(tied.layer);
      ctx_params_.push_back(param(owner, static_cast<size_t>(tied.param)));
      ctx_grads_.push_back(grad(owner, static_cast<size_t>(tied.param)));
    }
    return {.kernels = *kernels_,
            .arena = arena_,
            .dtype = dtype_,
            .batch = batch_,
            .params = ctx_params_,
            .grads = ctx_grads_,
            .loss_grad_scale = loss_grad_scale,
            .keeps_outputs = keeps_outputs_,
            .loss = loss};
  }

  Model model_;
  std::unique_ptr<Kernels> kernels_;
  DType dtype_;
  Arena arena_;
  std::vector<std::vector<Buffer>> params_, grads_;
  Batch batch_;
  std::vector<Buffer> inputs_;  // The input of each layer, then the last output.
  std::vector<Saved> saved_;
  std::vector<Tensor> ctx_params_, ctx_grads_;
  bool keeps_outputs_ = false;
  bool predict_kept_nothing_ = false;
};

}  // namespace dsat::engine
