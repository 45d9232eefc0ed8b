// Embedding, block and head of a transformer. N = B * T throughout.
#include "engine/model/transformer.h"

#include <utility>

#include "engine/backend/kernels.h"
#include "engine/model/linear.h"
#include "engine/model/softmax_loss.h"

namespace dsat::engine {
namespace {

class TokenEmbedding final : public NamedLayer {
 public:
  explicit TokenEmbedding(ParamSpecs params)
      : NamedLayer("embedding", std::move(params)), C_(params_[0].shape[1]) {}

  Buffer Forward(const LayerContext& ctx, const Buffer&, Saved&) const override {
    const Batch& batch = ctx.batch;
    Buffer y = ctx.arena.Allocate(ctx.dtype, ctx.NumTokens() * C_, "embedding output");
    const Tensor positions = params_.size() > 1 ? ctx.params[1] : Tensor{};
    ctx.kernels.Run(op::EmbeddingForward{y.AsTensor(ctx.dtype), batch.tokens, ctx.params[0],
                                         positions, batch.B, batch.T, C_});
    return y;
  }

  Buffer Backward(const LayerContext& ctx, const Buffer&, Buffer dy, Saved&) const override {
    const Batch& batch = ctx.batch;
    if (!ctx.Trains(0)) return {};
    const Tensor dpositions = params_.size() > 1 ? ctx.Grad(1) : Tensor{};
    ctx.kernels.Run(op::EmbeddingBackward{ctx.Grad(0), dpositions, dy.AsTensor(ctx.dtype),
                                          batch.tokens, batch.B, batch.T, C_});
    return {};
  }

 private:
  int64_t C_;
};

// An output that has been read in forward, for backward.
void KeepOrFree(const LayerContext& ctx, Buffer output, Buffer& kept) {
  if (ctx.keeps_outputs) kept = std::move(output);
}

class TransformerBlock final : public NamedLayer {
 public:
  TransformerBlock(std::string name, const BlockShape& shape, ParamSpecs params)
      : NamedLayer(std::move(name), std::move(params)), shape_(shape) {
    const size_t norm_params = static_cast<size_t>(shape.norm.NumParams());
    const size_t linear_params = shape.bias ? 2 : 1;
    norm2_ = norm_params + 2 * linear_params;
    qkv_ = norm_params;
    proj_ = qkv_ + linear_params;
    fc_ = norm2_ + norm_params;
    down_ = fc_ + linear_params;
    DSAT_CHECK(params_.size() == down_ + linear_params, "{} parameters", params_.size());
  }

  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override {
    saved.resize(kNumKept);
    saved[kMiddle] = AttendForward(ctx, x, saved);
    return MlpForward(ctx, saved);
  }

  Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer dy,
                  Saved& saved) const override {
    const DType dtype = ctx.dtype;
    // The residual stream passes gradients on unchanged: dy becomes dmiddle, then dx, in place.
    MlpBackward(ctx, dy.AsTensor(dtype), saved);
    Buffer dqkv = QkvGrad(ctx, dy.AsTensor(dtype), saved);

    const Tensor stats = StatsIn(ctx, saved[kStats]).norm1;
    Buffer normed = NormedAgain(ctx, x.AsTensor(dtype), kNorm1, stats, qkv_, saved[kNormed1]);
    const LinearShape shape = QkvShape(ctx);
    AddParamGrads(ctx, qkv_, dqkv.AsTensor(dtype), normed.AsTensor(dtype), shape);
    const Tensor dnormed = normed.AsTensor(dtype);  // Its values have served.
    LinearInputGrad(ctx.kernels, dnormed, dqkv.AsTensor(dtype), ctx.params[qkv_], shape);
    dqkv.Free();
    shape_.norm.Backward(ctx, dy.AsTensor(dtype), dnormed, x.AsTensor(dtype), stats, kNorm1,
                         ctx.NumTokens(), /*accumulate=*/true);
    saved.clear();
    return dy;
  }

 private:
  static constexpr size_t kNorm1 = 0;
  // Order of Saved.
  enum Kept { kStats, kQkv, kAttnOut, kMiddle, kFcOut, kNormed1, kNormed2, kActive, kNumKept };
  // The f32 numbers that kStats holds.
  struct Stats {
    Tensor norm1, norm2, lse;
  };

  Stats StatsIn(const LayerContext& ctx, const Buffer& buffer) const {
    const int64_t norm = shape_.norm.StatsPerRow() * ctx.NumTokens();
    const Tensor all = buffer.AsTensor(DType::kF32);
    return {all.Slice(0, norm), all.Slice(norm, norm),
            all.Slice(2 * norm, shape_.H * ctx.NumTokens())};
  }

  AttentionShape Attention(const LayerContext& ctx) const {
    return {ctx.batch.B, ctx.batch.T, shape_.C, shape_.H, shape_.G};
  }
  // Columns of fc's output.
  int64_t FcChannels() const { return shape_.gated ? 2 * shape_.F : shape_.F; }
  LinearShape QkvShape(const LayerContext& ctx) const {
    return {ctx.NumTokens(), shape_.C, Attention(ctx).QkvChannels()};
  }
  Tensor Bias(const LayerContext& ctx, size_t weight) const {
    return shape_.bias ? ctx.params[weight + 1] : Tensor{};
  }
  void Apply(const LayerContext& ctx, size_t weight, Tensor y, Tensor x, const LinearShape& shape,
             const LinearExtras& extras = {}) const {
    LinearForward(ctx.kernels, y, x, ctx.params[weight], Bias(ctx, weight), shape, extras);
  }
  void AddParamGrads(const LayerContext& ctx, size_t weight, Tensor dy, Tensor x,
                     const LinearShape& shape) const {
    const Tensor dbias = shape_.bias ? ctx.Grad(weight + 1) : Tensor{};
    LinearParamGrads(ctx.kernels, ctx.Grad(weight), dbias, dy, x, shape);
  }

  Buffer Normed(const LayerContext& ctx, Tensor x, size_t norm, Tensor stats) const {
    Buffer y = ctx.arena.Allocate(ctx.dtype, ctx.NumTokens() * shape_.C, "norm output");
    shape_.norm.Forward(ctx, y.AsTensor(ctx.dtype), stats, x, norm, ctx.NumTokens());
    return y;
  }

  // Normed, for the gradient of the weight that reads it, from forward if that kept it; a frozen
  // one wants no more than the memory, which serves for the output's gradient next.
  Buffer NormedAgain(const LayerContext& ctx, Tensor x, size_t norm, Tensor stats, size_t reader,
                     Buffer& kept) const {
    if (kept) return std::move(kept);
    if (ctx.Trains(reader)) return Normed(ctx, x, norm, stats);
    return ctx.arena.Allocate(ctx.dtype, ctx.NumTokens() * shape_.C, "norm output");
  }

  // Queries and keys, side by side in qkv, by their positions.
  void Rotate(const LayerContext& ctx, Tensor qkv, bool negative) const {
    if (shape_.rotary_frequencies.empty()) return;
    const AttentionShape attention = Attention(ctx);
    ctx.kernels.Run(op::RotateInPlace{qkv,
                                      shape_.rotary_frequencies,
                                      negative,
                                      {.B = attention.B,
                                       .T = attention.T,
                                       .stride = attention.QkvChannels(),
                                       .heads = shape_.H + shape_.G,
                                       .head_channels = attention.HeadChannels()}});
  }

  void Activate(const LayerContext& ctx, Tensor y, Tensor x) const {
    if (shape_.gated) {
      ctx.kernels.Run(op::SwigluForward{y, x, ctx.NumTokens(), shape_.F});
    } else {
      ctx.kernels.Run(op::GeluForward{y, x});
    }
  }

  Buffer AttentionScratch(const LayerContext& ctx) const {
    return ctx.arena.Allocate(ctx.kernels.AttentionScratchBytes(Attention(ctx)),
                              "attention scratch");
  }

  // x (N, C) + projection(attention(norm(x))). The sum is the product's: with the norm that
  // follows, four (N, C) tensors go through memory; with a kernel of sum and norm it would be five.
  Buffer AttendForward(const LayerContext& ctx, const Buffer& x, Saved& saved) const {
    const int64_t N = ctx.NumTokens();
    const int64_t C = shape_.C;
    const DType dtype = ctx.dtype;
    const int64_t stats_per_token = 2 * shape_.norm.StatsPerRow() + shape_.H;
    saved[kStats] = ctx.arena.Allocate(DType::kF32, stats_per_token * N, "block statistics");
    const Stats stats = StatsIn(ctx, saved[kStats]);

    Buffer normed = Normed(ctx, x.AsTensor(dtype), kNorm1, stats.norm1);
    const LinearShape qkv_shape = QkvShape(ctx);
    saved[kQkv] = ctx.arena.Allocate(dtype, N * qkv_shape.out, "attention qkv");
    const Tensor qkv = saved[kQkv].AsTensor(dtype);
    Apply(ctx, qkv_, qkv, normed.AsTensor(dtype), qkv_shape);
    KeepOrFree(ctx, std::move(normed), saved[kNormed1]);
    Rotate(ctx, qkv, /*negative=*/false);

    saved[kAttnOut] = ctx.arena.Allocate(dtype, N * C, "attention output");
    const Tensor attended = saved[kAttnOut].AsTensor(dtype);
    Buffer scratch = AttentionScratch(ctx);
    ctx.kernels.Run(op::AttentionForward{attended, stats.lse, qkv, scratch.AsTensor(DType::kF32),
                                         Attention(ctx)});
    scratch.Free();

    Buffer middle = ctx.arena.Allocate(dtype, N * C, "residual stream");
    Apply(ctx, proj_, middle.AsTensor(dtype), attended, {N, C, C}, {.addend = x.AsTensor(dtype)});
    return middle;
  }

  // middle (N, C) + projection(activation(fc(norm(middle)))).
  Buffer MlpForward(const LayerContext& ctx, Saved& saved) const {
    const int64_t N = ctx.NumTokens();
    const int64_t C = shape_.C;
    const DType dtype = ctx.dtype;
    const Tensor middle = saved[kMiddle].AsTensor(dtype);

    Buffer normed = Normed(ctx, middle, norm2_, StatsIn(ctx, saved[kStats]).norm2);
    saved[kFcOut] = ctx.arena.Allocate(dtype, FcChannels() * N, "MLP before its activation");
    const Tensor fc = saved[kFcOut].AsTensor(dtype);
    Buffer active = ctx.arena.Allocate(dtype, shape_.F * N, "activation output");
    const LinearShape fc_shape{N, C, FcChannels()};
    if (shape_.gated) {
      Apply(ctx, fc_, fc, normed.AsTensor(dtype), fc_shape);
      Activate(ctx, active.AsTensor(dtype), fc);
    } else {
      Apply(ctx, fc_, active.AsTensor(dtype), normed.AsTensor(dtype), fc_shape,
            {.before_gelu = fc});
    }
    KeepOrFree(ctx, std::move(normed), saved[kNormed2]);

    Buffer y = ctx.arena.Allocate(dtype, N * C, "block output");
    Apply(ctx, down_, y.AsTensor(dtype), active.AsTensor(dtype), {N, shape_.F, C},
          {.addend = middle});
    KeepOrFree(ctx, std::move(active), saved[kActive]);
    return y;
  }

  // dy (N, C), the gradient of the block's output, becomes that of `middle`.
  void MlpBackward(const LayerContext& ctx, Tensor dy, Saved& saved) const {
    const DType dtype = ctx.dtype;
    Buffer dfc = FcGrad(ctx, dy, saved);
    const LinearShape shape{ctx.NumTokens(), shape_.C, FcChannels()};
    const Tensor stats = StatsIn(ctx, saved[kStats]).norm2;
    const Tensor middle = saved[kMiddle].AsTensor(dtype);
    Buffer normed = NormedAgain(ctx, middle, norm2_, stats, fc_, saved[kNormed2]);
    AddParamGrads(ctx, fc_, dfc.AsTensor(dtype), normed.AsTensor(dtype), shape);
    const Tensor dnormed = normed.AsTensor(dtype);
    LinearInputGrad(ctx.kernels, dnormed, dfc.AsTensor(dtype), ctx.params[fc_], shape);
    dfc.Free();
    shape_.norm.Backward(ctx, dy, dnormed, middle, stats, norm2_, ctx.NumTokens(),
                         /*accumulate=*/true);
    saved[kMiddle].Free();
  }

  // From dy (N, C) to the gradient of fc's output.
  Buffer FcGrad(const LayerContext& ctx, Tensor dy, Saved& saved) const {
    const DType dtype = ctx.dtype;
    const LinearShape shape{ctx.NumTokens(), shape_.F, shape_.C};
    const Tensor fc = saved[kFcOut].AsTensor(dtype);
    Buffer hidden = std::move(saved[kActive]);
    if (!hidden) {
      hidden = ctx.arena.Allocate(dtype, shape.N * shape.in, "activation output");
      if (ctx.Trains(down_)) Activate(ctx, hidden.AsTensor(dtype), fc);
    }
    AddParamGrads(ctx, down_, dy, hidden.AsTensor(dtype), shape);
    const Tensor dactive = hidden.AsTensor(dtype);  // In the same memory.
    if (!shape_.gated) {
      LinearInputGrad(ctx.kernels, dactive, dy, ctx.params[down_], shape, /*gelu_input=*/fc);
      saved[kFcOut].Free();
      return hidden;
    }
    LinearInputGrad(ctx.kernels, dactive, dy, ctx.params[down_], shape);
    Buffer dfc = ctx.arena.Allocate(dtype, shape.N * FcChannels(), "MLP gradient");
    ctx.kernels.Run(op::SwigluBackward{dfc.AsTensor(dtype), dactive, fc, shape.N, shape_.F});
    saved[kFcOut].Free();
    return dfc;
  }

  // From dy (N, C), the gradient of `middle`, to that of qkv before its rotation.
  Buffer QkvGrad(const LayerContext& ctx, Tensor dy, Saved& saved) const {
    const int64_t N = ctx.NumTokens();
    const DType dtype = ctx.dtype;
    const LinearShape shape{N, shape_.C, shape_.C};
    const Tensor attended = saved[kAttnOut].AsTensor(dtype);
    AddParamGrads(ctx, proj_, dy, attended, shape);
    Buffer dattended = ctx.arena.Allocate(dtype, N * shape_.C, "attention output gradient");
    LinearInputGrad(ctx.kernels, dattended.AsTensor(dtype), dy, ctx.params[proj_], shape);

    Buffer dqkv = ctx.arena.Allocate(dtype, N * QkvShape(ctx).out, "attention qkv gradient");
    Buffer scratch = AttentionScratch(ctx);
    ctx.kernels.Run(op::AttentionBackward{
        dqkv.AsTensor(dtype), dattended.AsTensor(dtype), attended, saved[kQkv].AsTensor(dtype),
        StatsIn(ctx, saved[kStats]).lse, scratch.AsTensor(DType::kF32), Attention(ctx)});
    Rotate(ctx, dqkv.AsTensor(dtype), /*negative=*/true);
    saved[kAttnOut].Free();
    saved[kQkv].Free();
    return dqkv;
  }

  BlockShape shape_;
  size_t norm2_ = 0, qkv_ = 0, proj_ = 0, fc_ = 0, down_ = 0;  // Where each one's weight is.
};

class LanguageHead final : public NamedLayer {
 public:
  LanguageHead(const Norm& norm, int64_t vocab_size, bool tied, ParamSpecs params)
      : NamedLayer("head", std::move(params)),
        norm_(norm),
        V_(vocab_size),
        tied_(tied),
        embedding_(static_cast<size_t>(norm.NumParams())) {}

  std::vector<TiedParam> tied() const override {
    if (!tied_) return {};
    return {{.layer = 0, .param = 0}};
  }

  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override {
    if (ctx.Predicts()) {
      const Buffer last = LastPositions(ctx, x, norm_.C);
      Buffer stats;
      Project(ctx, Normed(ctx, last, ctx.batch.B, stats), ctx.logits, ctx.batch.B, V_);
      return {};
    }
    const int64_t N = ctx.NumTokens();
    const int64_t stride = Stride(ctx);
    saved.resize(kNumKept);
    Buffer normed = Normed(ctx, x, N, saved[kStats]);
    saved[kLogits] = ctx.arena.Allocate(ctx.dtype, N * stride, "logits");
    const Tensor logits = saved[kLogits].AsTensor(ctx.dtype);
    Project(ctx, normed, logits, N, stride);
    KeepOrFree(ctx, std::move(normed), saved[kNormed]);
    SoftmaxLossInPlace(ctx, logits, V_, stride - V_);
    return {};
  }

  Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer /*dy*/,
                  Saved& saved) const override {
    const int64_t N = ctx.NumTokens();
    const int64_t C = norm_.C;
    const int64_t stride = Stride(ctx);
    const Tensor in = x.AsTensor(ctx.dtype);
    const Tensor stats = saved[kStats].AsTensor(DType::kF32);
    const Tensor dlogits = saved[kLogits].AsTensor(ctx.dtype);
    Buffer normed = std::move(saved[kNormed]);
    const bool is_kept = static_cast<bool>(normed);
    if (!is_kept) normed = ctx.arena.Allocate(ctx.dtype, N * C, "final norm output");
    if (ctx.Trains(embedding_)) {
      if (!is_kept) norm_.Forward(ctx, normed.AsTensor(ctx.dtype), stats, in, kNorm, N);
      ctx.kernels.Run(op::Matmul{.M = stride,
                                 .N = C,
                                 .K = N,
                                 .a = dlogits,
                                 .b = normed.AsTensor(ctx.dtype),
                                 .c = ctx.Grad(embedding_),
                                 .transpose_a = true,
                                 .addend = ctx.Grad(embedding_)});
    }
    const Tensor dnormed = normed.AsTensor(ctx.dtype);  // Its values have served.
    ctx.kernels.Run(op::Matmul{
        .M = N, .N = C, .K = stride, .a = dlogits, .b = ctx.params[embedding_], .c = dnormed});
    saved[kLogits].Free();

    Buffer dx = ctx.arena.Allocate(ctx.dtype, N * C, "head input gradient");
    norm_.Backward(ctx, dx.AsTensor(ctx.dtype), dnormed, in, stats, kNorm, N,
                   /*accumulate=*/false);
    saved.clear();
    return dx;
  }

 private:
  static constexpr size_t kNorm = 0;
  enum Kept { kStats, kLogits, kNormed, kNumKept };

  // The norm of N rows; its numbers for backward are left in `stats`.
  Buffer Normed(const LayerContext& ctx, const Buffer& x, int64_t N, Buffer& stats) const {
    stats = ctx.arena.Allocate(DType::kF32, norm_.StatsPerRow() * N, "final norm statistics");
    Buffer y = ctx.arena.Allocate(ctx.dtype, N * norm_.C, "final norm output");
    norm_.Forward(ctx, y.AsTensor(ctx.dtype), stats.AsTensor(DType::kF32), x.AsTensor(ctx.dtype),
                  kNorm, N);
    return y;
  }

  // logits (N, V) = normed (N, C) * the embedding's first V rows^T.
  void Project(const LayerContext& ctx, const Buffer& normed, Tensor logits, int64_t N,
               int64_t V) const {
    ctx.kernels.Run(op::Matmul{.M = N,
                               .N = V,
                               .K = norm_.C,
                               .a = normed.AsTensor(ctx.dtype),
                               .b = ctx.params[embedding_],
                               .c = logits,
                               .transpose_b = true});
  }

  // Rows of the embedding, the padded vocabulary: matrix multiplications take all of them.
  int64_t Stride(const LayerContext& ctx) const {
    return ctx.params[embedding_].num_elems / norm_.C;
  }

  Norm norm_;
  int64_t V_;
  bool tied_;
  size_t embedding_;  // Where it is in ctx.params, own or borrowed.
};

}  // namespace

void Norm::Forward(const LayerContext& ctx, Tensor y, Tensor stats, Tensor x, size_t param,
                   int64_t N) const {
  if (kind == Kind::kRmsNorm) {
    ctx.kernels.Run(op::RmsNormForward{y, stats, x, ctx.params[param], N, C, eps});
  } else {
    ctx.kernels.Run(op::LayerNormForward{y, stats.Slice(0, N), stats.Slice(N, N), x,
                                         ctx.params[param], ctx.params[param + 1], N, C});
  }
}

void Norm::Backward(const LayerContext& ctx, Tensor dx, Tensor dy, Tensor x, Tensor stats,
                    size_t param, int64_t N, bool accumulate) const {
  if (kind == Kind::kRmsNorm) {
    ctx.kernels.Run(op::RmsNormBackward{dx, ctx.Grad(param), dy, x, ctx.params[param], stats, N, C,
                                        accumulate});
  } else {
    ctx.kernels.Run(op::LayerNormBackward{dx, ctx.Grad(param), ctx.Grad(param + 1), dy, x,
                                          ctx.params[param], stats.Slice(0, N), stats.Slice(N, N),
                                          N, C, accumulate});
  }
}

int64_t VocabPadding(int64_t V) {
  constexpr int64_t kMultiple = 64;
  const int64_t padding = (kMultiple - V % kMultiple) % kMultiple;
  return 100 * padding <= V ? padding : 0;
}

std::unique_ptr<Layer> MakeTokenEmbedding(ParamSpecs params) {
  return std::make_unique<TokenEmbedding>(std::move(params));
}

std::unique_ptr<Layer> MakeTransformerBlock(std::string name, const BlockShape& shape,
                                            ParamSpecs params) {
  DSAT_CHECK(shape.C % shape.H == 0 && shape.H % shape.G == 0, "C {}, H {}, G {}", shape.C, shape.H,
             shape.G);
  return std::make_unique<TransformerBlock>(std::move(name), shape, std::move(params));
}

std::unique_ptr<Layer> MakeLanguageHead(const Norm& norm, int64_t vocab_size, bool tied,
                                        ParamSpecs params) {
  return std::make_unique<LanguageHead>(norm, vocab_size, tied, std::move(params));
}

}  // namespace dsat::engine
