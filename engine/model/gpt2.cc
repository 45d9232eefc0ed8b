// GPT-2's three kinds of layers. N = B * T throughout.
#include "engine/model/gpt2.h"

#include <array>
#include <cmath>
#include <utility>

#include "engine/model/linear.h"
#include "engine/model/softmax_loss.h"

namespace dsat::engine {
namespace {

using Init = ParamSpec::Init;

constexpr float kStddev = 0.02F;

int64_t NumTokens(const LayerContext& ctx) {
  return ctx.batch.B * ctx.batch.T;
}

// Tokens to vectors: wte[token] + wpe[position].
class Gpt2Embedding final : public Layer {
 public:
  explicit Gpt2Embedding(const Gpt2Shape& shape)
      : C_(shape.n_embd),
        params_{{"wte.weight", {shape.vocab_size, C_}, Init::kNormal, kStddev},
                {"wpe.weight", {shape.n_positions, C_}, Init::kNormal, kStddev}} {}

  std::string name() const override { return "embedding"; }
  const std::vector<ParamSpec>& params() const override { return params_; }

  Buffer Forward(const LayerContext& ctx, const Buffer&, Saved&) const override {
    const Batch& batch = ctx.batch;
    Buffer y = ctx.arena.Allocate(ctx.dtype, NumTokens(ctx) * C_, "embedding output");
    ctx.kernels.EmbeddingForward(y.AsTensor(ctx.dtype), batch.tokens, ctx.params[0], ctx.params[1],
                                 batch.B, batch.T, C_);
    return y;
  }

  Buffer Backward(const LayerContext& ctx, const Buffer&, Buffer dy, Saved&) const override {
    const Batch& batch = ctx.batch;
    ctx.kernels.EmbeddingBackward(ctx.grads[0], ctx.grads[1], dy.AsTensor(ctx.dtype), batch.tokens,
                                  batch.B, batch.T, C_);
    return {};
  }

 private:
  int64_t C_;
  std::vector<ParamSpec> params_;
};

// x + attention(LayerNorm(x)), then the same with a two-layer perceptron.
class Gpt2Block final : public Layer {
 public:
  Gpt2Block(const Gpt2Shape& shape, int64_t index);

  std::string name() const override { return name_; }
  const std::vector<ParamSpec>& params() const override { return params_; }
  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override;
  Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer dy, Saved& saved) const override;

 private:
  enum Param {
    kLn1Weight,
    kLn1Bias,
    kAttnWeight,
    kAttnBias,
    kAttnProjWeight,
    kAttnProjBias,
    kLn2Weight,
    kLn2Bias,
    kFcWeight,
    kFcBias,
    kMlpProjWeight,
    kMlpProjBias,
  };
  // Order of Saved.
  enum Kept { kStats, kQkv, kAttnOut, kMiddle, kFcOut, kNumKept };
  // The f32 numbers that kStats holds.
  struct Stats {
    Tensor mean1, rstd1, mean2, rstd2, lse;
  };

  Stats StatsIn(const LayerContext& ctx, const Buffer& buffer) const;
  AttentionShape Attention(const LayerContext& ctx) const {
    return {ctx.batch.B, ctx.batch.T, C_, H_};
  }
  Buffer LayerNorm(const LayerContext& ctx, Tensor x, Param weight, Tensor mean, Tensor rstd) const;
  void LayerNormGrads(const LayerContext& ctx, Tensor dx, Tensor dy, Tensor x, Param weight,
                      Tensor mean, Tensor rstd) const;
  Buffer AttentionScratch(const LayerContext& ctx) const;
  Buffer AttendForward(const LayerContext& ctx, const Buffer& x, Saved& saved) const;
  Buffer PerceptronForward(const LayerContext& ctx, Saved& saved) const;
  void PerceptronBackward(const LayerContext& ctx, Tensor dy, Saved& saved) const;
  Buffer QkvGrad(const LayerContext& ctx, Tensor dy, Saved& saved) const;

  int64_t C_;
  int64_t H_;
  std::string name_;
  std::vector<ParamSpec> params_;
};

Gpt2Block::Gpt2Block(const Gpt2Shape& shape, int64_t index)
    : C_(shape.n_embd), H_(shape.n_head), name_(fmt::format("h.{}", index)) {
  const float residual_stddev = kStddev / std::sqrt(2.0F * static_cast<float>(shape.n_layer));
  const auto add = [&](const char* suffix, std::vector<int64_t> dims, Init init, float stddev = 0) {
    params_.push_back({fmt::format("{}.{}", name_, suffix), std::move(dims), init, stddev});
  };
  add("ln_1.weight", {C_}, Init::kOne);
  add("ln_1.bias", {C_}, Init::kZero);
  add("attn.c_attn.weight", {C_, 3 * C_}, Init::kNormal, kStddev);
  add("attn.c_attn.bias", {3 * C_}, Init::kZero);
  add("attn.c_proj.weight", {C_, C_}, Init::kNormal, residual_stddev);
  add("attn.c_proj.bias", {C_}, Init::kZero);
  add("ln_2.weight", {C_}, Init::kOne);
  add("ln_2.bias", {C_}, Init::kZero);
  add("mlp.c_fc.weight", {C_, 4 * C_}, Init::kNormal, kStddev);
  add("mlp.c_fc.bias", {4 * C_}, Init::kZero);
  add("mlp.c_proj.weight", {4 * C_, C_}, Init::kNormal, residual_stddev);
  add("mlp.c_proj.bias", {C_}, Init::kZero);
}

Gpt2Block::Stats Gpt2Block::StatsIn(const LayerContext& ctx, const Buffer& buffer) const {
  const int64_t N = NumTokens(ctx);
  const Tensor all = buffer.AsTensor(DType::kF32);
  return {all.Slice(0, N), all.Slice(N, N), all.Slice(2 * N, N), all.Slice(3 * N, N),
          all.Slice(4 * N, H_ * N)};
}

Buffer Gpt2Block::LayerNorm(const LayerContext& ctx, Tensor x, Param weight, Tensor mean,
                            Tensor rstd) const {
  const int64_t N = NumTokens(ctx);
  Buffer y = ctx.arena.Allocate(ctx.dtype, N * C_, "layer norm output");
  ctx.kernels.LayerNormForward(y.AsTensor(ctx.dtype), mean, rstd, x, ctx.params[weight],
                               ctx.params[weight + 1], N, C_);
  return y;
}

// dx (N, C) += the gradient that comes through the LayerNorm.
void Gpt2Block::LayerNormGrads(const LayerContext& ctx, Tensor dx, Tensor dy, Tensor x,
                               Param weight, Tensor mean, Tensor rstd) const {
  ctx.kernels.LayerNormBackward(dx, ctx.grads[weight], ctx.grads[weight + 1], dy, x,
                                ctx.params[weight], mean, rstd, NumTokens(ctx), C_,
                                /*accumulate_dx=*/true);
}

Buffer Gpt2Block::AttentionScratch(const LayerContext& ctx) const {
  return ctx.arena.Allocate(ctx.kernels.AttentionScratchBytes(Attention(ctx)), "attention scratch");
}

Buffer Gpt2Block::Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const {
  saved.resize(kNumKept);
  saved[kMiddle] = AttendForward(ctx, x, saved);
  return PerceptronForward(ctx, saved);
}

// x (N, C) + projection(attention(LayerNorm(x))).
Buffer Gpt2Block::AttendForward(const LayerContext& ctx, const Buffer& x, Saved& saved) const {
  const int64_t N = NumTokens(ctx);
  const DType dtype = ctx.dtype;
  saved[kStats] = ctx.arena.Allocate(DType::kF32, (4 + H_) * N, "block statistics");
  const Stats stats = StatsIn(ctx, saved[kStats]);

  Buffer normed = LayerNorm(ctx, x.AsTensor(dtype), kLn1Weight, stats.mean1, stats.rstd1);
  saved[kQkv] = ctx.arena.Allocate(dtype, 3 * N * C_, "attention qkv");
  const Tensor qkv = saved[kQkv].AsTensor(dtype);
  LinearForward(ctx.kernels, qkv, normed.AsTensor(dtype), ctx.params[kAttnWeight],
                ctx.params[kAttnBias], {N, C_, 3 * C_});
  normed.Free();

  saved[kAttnOut] = ctx.arena.Allocate(dtype, N * C_, "attention output");
  const Tensor attended = saved[kAttnOut].AsTensor(dtype);
  Buffer scratch = AttentionScratch(ctx);
  ctx.kernels.AttentionForward(attended, stats.lse, qkv, scratch.AsTensor(DType::kF32),
                               Attention(ctx));
  scratch.Free();

  Buffer middle = ctx.arena.Allocate(dtype, N * C_, "residual stream");
  LinearForward(ctx.kernels, middle.AsTensor(dtype), attended, ctx.params[kAttnProjWeight],
                ctx.params[kAttnProjBias], {N, C_, C_});
  ctx.kernels.Add(middle.AsTensor(dtype), middle.AsTensor(dtype), x.AsTensor(dtype));
  return middle;
}

// middle (N, C) + projection(GELU(fc(LayerNorm(middle)))).
Buffer Gpt2Block::PerceptronForward(const LayerContext& ctx, Saved& saved) const {
  const int64_t N = NumTokens(ctx);
  const DType dtype = ctx.dtype;
  const Stats stats = StatsIn(ctx, saved[kStats]);
  const Tensor middle = saved[kMiddle].AsTensor(dtype);

  Buffer normed = LayerNorm(ctx, middle, kLn2Weight, stats.mean2, stats.rstd2);
  saved[kFcOut] = ctx.arena.Allocate(dtype, 4 * N * C_, "c_fc output");
  LinearForward(ctx.kernels, saved[kFcOut].AsTensor(dtype), normed.AsTensor(dtype),
                ctx.params[kFcWeight], ctx.params[kFcBias], {N, C_, 4 * C_});
  normed.Free();

  Buffer gelu = ctx.arena.Allocate(dtype, 4 * N * C_, "gelu output");
  ctx.kernels.GeluForward(gelu.AsTensor(dtype), saved[kFcOut].AsTensor(dtype));
  Buffer y = ctx.arena.Allocate(dtype, N * C_, "block output");
  LinearForward(ctx.kernels, y.AsTensor(dtype), gelu.AsTensor(dtype), ctx.params[kMlpProjWeight],
                ctx.params[kMlpProjBias], {N, 4 * C_, C_});
  gelu.Free();
  ctx.kernels.Add(y.AsTensor(dtype), y.AsTensor(dtype), middle);
  return y;
}

Buffer Gpt2Block::Backward(const LayerContext& ctx, const Buffer& x, Buffer dy,
                           Saved& saved) const {
  const int64_t N = NumTokens(ctx);
  const DType dtype = ctx.dtype;
  // The residual stream passes gradients on unchanged: dy becomes dmiddle, then dx, in place.
  PerceptronBackward(ctx, dy.AsTensor(dtype), saved);
  Buffer dqkv = QkvGrad(ctx, dy.AsTensor(dtype), saved);

  const Stats stats = StatsIn(ctx, saved[kStats]);
  Buffer normed = LayerNorm(ctx, x.AsTensor(dtype), kLn1Weight, stats.mean1, stats.rstd1);
  const LinearShape shape{N, C_, 3 * C_};
  LinearParamGrads(ctx.kernels, ctx.grads[kAttnWeight], ctx.grads[kAttnBias], dqkv.AsTensor(dtype),
                   normed.AsTensor(dtype), shape);
  const Tensor dnormed = normed.AsTensor(dtype);  // Its values have served.
  LinearInputGrad(ctx.kernels, dnormed, dqkv.AsTensor(dtype), ctx.params[kAttnWeight], shape);
  dqkv.Free();
  LayerNormGrads(ctx, dy.AsTensor(dtype), dnormed, x.AsTensor(dtype), kLn1Weight, stats.mean1,
                 stats.rstd1);
  saved.clear();
  return dy;
}

// dy (N, C), the gradient of the block's output, becomes that of `middle`.
void Gpt2Block::PerceptronBackward(const LayerContext& ctx, Tensor dy, Saved& saved) const {
  const int64_t N = NumTokens(ctx);
  const DType dtype = ctx.dtype;
  const LinearShape proj_shape{N, 4 * C_, C_};
  const LinearShape fc_shape{N, C_, 4 * C_};
  const Stats stats = StatsIn(ctx, saved[kStats]);

  Buffer hidden = ctx.arena.Allocate(dtype, 4 * N * C_, "gelu output");
  const Tensor gelu = hidden.AsTensor(dtype);
  ctx.kernels.GeluForward(gelu, saved[kFcOut].AsTensor(dtype));
  LinearParamGrads(ctx.kernels, ctx.grads[kMlpProjWeight], ctx.grads[kMlpProjBias], dy, gelu,
                   proj_shape);
  const Tensor dfc = hidden.AsTensor(dtype);  // In the same memory: first dgelu, then dfc.
  LinearInputGrad(ctx.kernels, dfc, dy, ctx.params[kMlpProjWeight], proj_shape);
  ctx.kernels.GeluBackward(dfc, dfc, saved[kFcOut].AsTensor(dtype));
  saved[kFcOut].Free();

  const Tensor middle = saved[kMiddle].AsTensor(dtype);
  Buffer normed = LayerNorm(ctx, middle, kLn2Weight, stats.mean2, stats.rstd2);
  LinearParamGrads(ctx.kernels, ctx.grads[kFcWeight], ctx.grads[kFcBias], dfc,
                   normed.AsTensor(dtype), fc_shape);
  const Tensor dnormed = normed.AsTensor(dtype);
  LinearInputGrad(ctx.kernels, dnormed, dfc, ctx.params[kFcWeight], fc_shape);
  hidden.Free();
  LayerNormGrads(ctx, dy, dnormed, middle, kLn2Weight, stats.mean2, stats.rstd2);
  saved[kMiddle].Free();
}

// From dy (N, C), the gradient of `middle`, to that of qkv (N, 3C).
Buffer Gpt2Block::QkvGrad(const LayerContext& ctx, Tensor dy, Saved& saved) const {
  const int64_t N = NumTokens(ctx);
  const DType dtype = ctx.dtype;
  const LinearShape shape{N, C_, C_};
  const Tensor attended = saved[kAttnOut].AsTensor(dtype);
  LinearParamGrads(ctx.kernels, ctx.grads[kAttnProjWeight], ctx.grads[kAttnProjBias], dy, attended,
                   shape);
  Buffer dattended = ctx.arena.Allocate(dtype, N * C_, "attention output gradient");
  LinearInputGrad(ctx.kernels, dattended.AsTensor(dtype), dy, ctx.params[kAttnProjWeight], shape);

  Buffer dqkv = ctx.arena.Allocate(dtype, 3 * N * C_, "attention qkv gradient");
  Buffer scratch = AttentionScratch(ctx);
  ctx.kernels.AttentionBackward(dqkv.AsTensor(dtype), dattended.AsTensor(dtype), attended,
                                saved[kQkv].AsTensor(dtype), StatsIn(ctx, saved[kStats]).lse,
                                scratch.AsTensor(DType::kF32), Attention(ctx));
  saved[kAttnOut].Free();
  saved[kQkv].Free();
  return dqkv;
}

// The final LayerNorm, the tied output embedding and the loss.
class Gpt2Head final : public Layer {
 public:
  explicit Gpt2Head(const Gpt2Shape& shape)
      : C_(shape.n_embd),
        V_(shape.vocab_size),
        params_{{"ln_f.weight", {C_}, Init::kOne}, {"ln_f.bias", {C_}, Init::kZero}} {}

  std::string name() const override { return "head"; }
  const std::vector<ParamSpec>& params() const override { return params_; }
  std::vector<TiedParam> tied() const override { return {{.layer = 0, .param = 0}}; }
  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override;
  Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer dy, Saved& saved) const override;

 private:
  enum Param { kLnWeight, kLnBias, kWte };
  enum Kept { kStats, kLogits, kNumKept };

  Buffer LayerNorm(const LayerContext& ctx, const Buffer& x, Tensor stats) const;

  int64_t C_;
  int64_t V_;
  std::vector<ParamSpec> params_;
};

Buffer Gpt2Head::LayerNorm(const LayerContext& ctx, const Buffer& x, Tensor stats) const {
  const int64_t N = NumTokens(ctx);
  Buffer y = ctx.arena.Allocate(ctx.dtype, N * C_, "final layer norm output");
  ctx.kernels.LayerNormForward(y.AsTensor(ctx.dtype), stats.Slice(0, N), stats.Slice(N, N),
                               x.AsTensor(ctx.dtype), ctx.params[kLnWeight], ctx.params[kLnBias], N,
                               C_);
  return y;
}

Buffer Gpt2Head::Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const {
  const int64_t N = NumTokens(ctx);
  saved.resize(kNumKept);
  saved[kStats] = ctx.arena.Allocate(DType::kF32, 2 * N, "final layer norm statistics");
  const Buffer normed = LayerNorm(ctx, x, saved[kStats].AsTensor(DType::kF32));
  saved[kLogits] = ctx.arena.Allocate(ctx.dtype, N * V_, "logits");
  const Tensor logits = saved[kLogits].AsTensor(ctx.dtype);
  ctx.kernels.Matmul({.M = N,
                      .N = V_,
                      .K = C_,
                      .a = normed.AsTensor(ctx.dtype),
                      .b = ctx.params[kWte],
                      .c = logits,
                      .transpose_b = true});
  SoftmaxLossInPlace(ctx, logits, V_);
  return {};
}

Buffer Gpt2Head::Backward(const LayerContext& ctx, const Buffer& x, Buffer, Saved& saved) const {
  const int64_t N = NumTokens(ctx);
  const Tensor stats = saved[kStats].AsTensor(DType::kF32);
  const Tensor dlogits = saved[kLogits].AsTensor(ctx.dtype);
  Buffer normed = LayerNorm(ctx, x, stats);
  ctx.kernels.Matmul({.M = V_,
                      .N = C_,
                      .K = N,
                      .a = dlogits,
                      .b = normed.AsTensor(ctx.dtype),
                      .c = ctx.grads[kWte],
                      .transpose_a = true,
                      .accumulate = true});
  const Tensor dnormed = normed.AsTensor(ctx.dtype);  // Its values have served.
  ctx.kernels.Matmul({.M = N, .N = C_, .K = V_, .a = dlogits, .b = ctx.params[kWte], .c = dnormed});
  saved[kLogits].Free();

  Buffer dx = ctx.arena.Allocate(ctx.dtype, N * C_, "head input gradient");
  ctx.kernels.LayerNormBackward(dx.AsTensor(ctx.dtype), ctx.grads[kLnWeight], ctx.grads[kLnBias],
                                dnormed, x.AsTensor(ctx.dtype), ctx.params[kLnWeight],
                                stats.Slice(0, N), stats.Slice(N, N), N, C_,
                                /*accumulate_dx=*/false);
  saved.clear();
  return dx;
}

}  // namespace

Model MakeGpt2(const Gpt2Shape& shape) {
  DSAT_CHECK(shape.n_embd % shape.n_head == 0);
  Model model;
  model.vocab_size = shape.vocab_size;
  model.max_seq_len = shape.n_positions;
  model.layers.push_back(std::make_unique<Gpt2Embedding>(shape));
  for (int64_t index = 0; index < shape.n_layer; ++index) {
    model.layers.push_back(std::make_unique<Gpt2Block>(shape, index));
  }
  model.layers.push_back(std::make_unique<Gpt2Head>(shape));
  return model;
}

}  // namespace dsat::engine
