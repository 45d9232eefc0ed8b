// A language model without attention: an MLP over the last `context` tokens (Bengio et al.
// 2003).
//
// Bytes kept per token between forward and backward, e = bytes per element of the dtype:
//   embedding  nothing
//   hidden.i   e hidden[i]: its output before the ReLU
//   head       e V: the gradient of the logits
// and e times its width for each layer's output, which the executor keeps.
//
// N = B * T throughout.
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/backend/kernels.h"
#include "engine/model/from_json.h"
#include "engine/model/linear.h"
#include "engine/model/softmax_loss.h"

namespace dsat::engine {
namespace {

using Init = ParamSpec::Init;

struct MlpShape {
  int64_t context = 16;    // Tokens that each prediction sees: its own and those before.
  int64_t embedding = 64;  // Channels per token.
  std::vector<int64_t> hidden = {512, 512};
  int64_t n_positions = 1024;  // The longest sequence; no parameter depends on it.
  int64_t vocab_size = 256;
};

// The vectors of a token's context, side by side: (N, context * E).
class ContextEmbedding final : public NamedLayer {
 public:
  explicit ContextEmbedding(const MlpShape& shape)
      : NamedLayer("embedding"), context_(shape.context), E_(shape.embedding) {
    params_ = {{"wte.weight", {shape.vocab_size, E_}, Init::kNormal, 0.1F}};
  }

  Buffer Forward(const LayerContext& ctx, const Buffer&, Saved&) const override {
    const int64_t N = ctx.NumTokens();
    Buffer y = ctx.arena.Allocate(ctx.dtype, N * context_ * E_, "embedding output");
    const Buffer windows = Windows(ctx);
    // A window is a short sequence of its own: N sequences of `context` tokens.
    ctx.kernels.Run(op::EmbeddingForward{y.AsTensor(ctx.dtype),
                                         static_cast<int32_t*>(windows.data()), ctx.params[0],
                                         Tensor(), N, context_, E_});
    return y;
  }

  Buffer Backward(const LayerContext& ctx, const Buffer&, Buffer dy, Saved&) const override {
    if (!ctx.Trains(0)) return {};
    const Buffer windows = Windows(ctx);
    ctx.kernels.Run(op::EmbeddingBackward{ctx.Grad(0), Tensor(), dy.AsTensor(ctx.dtype),
                                          static_cast<int32_t*>(windows.data()), ctx.NumTokens(),
                                          context_, E_});
    return {};
  }

 private:
  Buffer Windows(const LayerContext& ctx) const {
    constexpr int64_t kTokenBytes = sizeof(int32_t);
    Buffer windows = ctx.arena.Allocate(ctx.NumTokens() * context_ * kTokenBytes, "token windows");
    ctx.kernels.Run(op::TokenWindows{static_cast<int32_t*>(windows.data()), ctx.batch.tokens,
                                     ctx.batch.B, ctx.batch.T, context_});
    return windows;
  }

  int64_t context_;
  int64_t E_;
};

// relu(x W + b).
class HiddenLayer final : public NamedLayer {
 public:
  HiddenLayer(int64_t index, int64_t in, int64_t out)
      : NamedLayer(fmt::format("hidden.{}", index)), in_(in), out_(out) {
    // He et al. 2015: keeps the size of activations through ReLU.
    const float stddev = std::sqrt(2.0F / static_cast<float>(in));
    params_ = {{name_ + ".weight", {in, out}, Init::kNormal, stddev},
               {name_ + ".bias", {out}, Init::kZero}};
  }

  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override {
    const LinearShape shape{ctx.NumTokens(), in_, out_};
    saved.push_back(ctx.arena.Allocate(ctx.dtype, shape.N * out_, "hidden layer before relu"));
    const Tensor linear = saved[0].AsTensor(ctx.dtype);
    LinearForward(ctx.kernels, linear, x.AsTensor(ctx.dtype), ctx.params[0], ctx.params[1], shape);
    Buffer y = ctx.arena.Allocate(ctx.dtype, shape.N * out_, "hidden layer output");
    ctx.kernels.Run(op::ReluForward{y.AsTensor(ctx.dtype), linear});
    return y;
  }

  Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer dy,
                  Saved& saved) const override {
    const LinearShape shape{ctx.NumTokens(), in_, out_};
    const Tensor dlinear = dy.AsTensor(ctx.dtype);
    ctx.kernels.Run(op::ReluBackward{dlinear, dlinear, saved[0].AsTensor(ctx.dtype)});
    saved.clear();
    LinearParamGrads(ctx.kernels, ctx.Grad(0), ctx.Grad(1), dlinear, x.AsTensor(ctx.dtype), shape);
    Buffer dx = ctx.arena.Allocate(ctx.dtype, shape.N * in_, "hidden layer input gradient");
    LinearInputGrad(ctx.kernels, dx.AsTensor(ctx.dtype), dlinear, ctx.params[0], shape);
    return dx;
  }

 private:
  int64_t in_;
  int64_t out_;
};

// Logits and loss.
class OutputLayer final : public NamedLayer {
 public:
  OutputLayer(int64_t in, int64_t vocab_size) : NamedLayer("head"), in_(in), V_(vocab_size) {
    // Small against the softmax's scale: the first loss is near ln V.
    const float stddev = 1 / std::sqrt(static_cast<float>(in));
    params_ = {{"head.weight", {in, V_}, Init::kNormal, stddev}, {"head.bias", {V_}, Init::kZero}};
  }

  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override {
    if (ctx.Predicts()) {
      const Buffer last = LastPositions(ctx, x, in_);
      LinearForward(ctx.kernels, ctx.logits, last.AsTensor(ctx.dtype), ctx.params[0], ctx.params[1],
                    {ctx.batch.B, in_, V_});
      return {};
    }
    const LinearShape shape{ctx.NumTokens(), in_, V_};
    saved.push_back(ctx.arena.Allocate(ctx.dtype, shape.N * V_, "logits"));
    const Tensor logits = saved[0].AsTensor(ctx.dtype);
    LinearForward(ctx.kernels, logits, x.AsTensor(ctx.dtype), ctx.params[0], ctx.params[1], shape);
    SoftmaxLossInPlace(ctx, logits, V_);
    return {};
  }

  Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer, Saved& saved) const override {
    const LinearShape shape{ctx.NumTokens(), in_, V_};
    const Tensor dlogits = saved[0].AsTensor(ctx.dtype);
    LinearParamGrads(ctx.kernels, ctx.Grad(0), ctx.Grad(1), dlogits, x.AsTensor(ctx.dtype), shape);
    Buffer dx = ctx.arena.Allocate(ctx.dtype, shape.N * in_, "head input gradient");
    LinearInputGrad(ctx.kernels, dx.AsTensor(ctx.dtype), dlogits, ctx.params[0], shape);
    saved.clear();
    return dx;
  }

 private:
  int64_t in_;
  int64_t V_;
};

// Embedding and concatenation of the context, the hidden layers with ReLU, the output layer. Before
// the start of a sequence the context is filled with token 0.
Model MakeMlp(const MlpShape& shape) {
  Model model;
  model.vocab_size = shape.vocab_size;
  model.max_seq_len = shape.n_positions;
  model.layers.push_back(std::make_unique<ContextEmbedding>(shape));
  int64_t width = shape.context * shape.embedding;
  for (size_t i = 0; i < shape.hidden.size(); ++i) {
    model.layers.push_back(
        std::make_unique<HiddenLayer>(static_cast<int64_t>(i), width, shape.hidden[i]));
    width = shape.hidden[i];
  }
  model.layers.push_back(std::make_unique<OutputLayer>(width, shape.vocab_size));
  return model;
}

std::vector<int64_t> HiddenFrom(const JsonBlock& block) {
  const Json& list = block.At("hidden");
  const std::string what = block.PointerTo("hidden");
  if (!list.is_array() || list.empty() || list.size() > kMaxLayers) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a list of widths, as [512, 512]", what,
          list.dump());
  }
  std::vector<int64_t> hidden;
  for (size_t i = 0; i < list.size(); ++i) {
    hidden.push_back(IntInRange(list[i], 1, kMaxWidth, fmt::format("{}/{}", what, i)));
  }
  return hidden;
}

}  // namespace

Model MlpFromJson(const JsonBlock& block, const std::string&) {
  block.CheckKeys(
      {"type", "frozen", "context", "embedding", "hidden", "n_positions", "vocab_size"});
  MlpShape shape;
  shape.context = block.Int("context", shape.context, 1, kMaxPositions);
  shape.embedding = block.Int("embedding", shape.embedding, 1, kMaxWidth);
  if (block.Has("hidden")) shape.hidden = HiddenFrom(block);
  shape.n_positions = block.Int("n_positions", shape.n_positions, 1, kMaxPositions);
  shape.vocab_size = block.Int("vocab_size", shape.vocab_size, 2, kMaxVocab);
  Model model = MakeMlp(shape);
  model.description = fmt::format("mlp {} hidden layers, context {}, {} parameters",
                                  shape.hidden.size(), shape.context, HumanCount(NumParams(model)));
  return model;
}

}  // namespace dsat::engine
