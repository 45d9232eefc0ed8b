// A custom language model, a gated linear recurrence over bytes, trained with dsat's engine.
//
//   own_model [ds_config.json]     or DSAT_CONFIG=ds_config.json own_model, or the settings below
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "engine/model/linear.h"
#include "engine/model/softmax_loss.h"
#include "engine/runtime/initialize.h"
#include "engine/runtime/rank_environment.h"

using namespace dsat::engine;

constexpr int64_t kVocab = 256, kChannels = 64, kSeqLen = 64;

// [gate | value] = w[token]; state_t = decay * state_{t-1} + value_t, where decay = sigmoid(d) for
// each channel; y (B, T, kChannels) = silu(gate) * state. In f32 only.
class GatedMemory final : public Layer {
 public:
  std::string name() const override { return "memory"; }
  const std::vector<ParamSpec>& params() const override { return params_; }

  Buffer Forward(const LayerContext& ctx, const Buffer&, Saved& saved) const override {
    if (ctx.dtype != DType::kF32) {
      dsat::Throw(dsat::ErrorCode::kUnimplemented, "memory: f32 only; remove bf16 and fp16");
    }
    if (!ctx.arena.host_visible()) {  // The loops below run on the host.
      dsat::Throw(dsat::ErrorCode::kUnimplemented, "memory: on the CPU only");
    }
    const int64_t N = ctx.NumTokens();
    saved.push_back(ctx.arena.Allocate(ctx.dtype, N * 2 * kChannels, "gates and states"));
    const Tensor u = saved[0].AsTensor(ctx.dtype);
    ctx.kernels.Run(
        op::EmbeddingForward{u, ctx.batch.tokens, ctx.params[0], Tensor(), N, 1, 2 * kChannels});
    // Values become states in place. A counting arena has no data, and nothing is computed.
    if (float* state = u.f32(); state != nullptr) {
      const auto decay = Decay(ctx);
      for (int64_t row = 0; row < N; ++row) {
        for (size_t c = 0; row % ctx.batch.T != 0 && c < kChannels; ++c)
          state[At(row, c)] += decay[c] * state[At(row - 1, c)];
      }
    }
    Buffer y = ctx.arena.Allocate(ctx.dtype, N * kChannels, "memory output");
    ctx.kernels.Run(op::SwigluForward{y.AsTensor(ctx.dtype), u, N, kChannels});
    return y;
  }

  Buffer Backward(const LayerContext& ctx, const Buffer&, Buffer dy, Saved& saved) const override {
    if (!ctx.Trains(0)) return {};
    const int64_t N = ctx.NumTokens();
    const Tensor u = saved[0].AsTensor(ctx.dtype);
    const Buffer grad = ctx.arena.Allocate(ctx.dtype, N * 2 * kChannels, "gradient of states");
    const Tensor du = grad.AsTensor(ctx.dtype);
    ctx.kernels.Run(op::SwigluBackward{du, dy.AsTensor(ctx.dtype), u, N, kChannels});
    // From the last position to the first, a state's gradient flows decayed to the previous state.
    if (float* dstate = du.f32(); dstate != nullptr) {
      const auto decay = Decay(ctx);
      for (int64_t row = N - 1; row >= 0; --row) {
        for (size_t c = 0; row % ctx.batch.T != 0 && c < kChannels; ++c) {
          const float before = u.f32()[At(row - 1, c)] * decay[c];
          ctx.Grad(1).f32()[c] += dstate[At(row, c)] * before * (1 - decay[c]);
          dstate[At(row - 1, c)] += dstate[At(row, c)] * decay[c];
        }
      }
    }
    ctx.kernels.Run(
        op::EmbeddingBackward{ctx.Grad(0), Tensor(), du, ctx.batch.tokens, N, 1, 2 * kChannels});
    saved.clear();
    return {};
  }

 private:
  // The index of channel c in the second half of a row.
  static size_t At(int64_t row, size_t c) {
    return static_cast<size_t>((2 * row + 1) * kChannels) + c;
  }
  static std::array<float, kChannels> Decay(const LayerContext& ctx) {
    std::array<float, kChannels> decay;
    for (size_t c = 0; c < kChannels; ++c)
      decay[c] = 1 / (1 + std::exp(-ctx.params[1].f32()[c]));
    return decay;
  }

  const std::vector<ParamSpec> params_ = {
      {"memory.weight", {kVocab, 2 * kChannels}, ParamSpec::Init::kNormal, 0.5F},
      {"memory.decay", {kChannels}, ParamSpec::Init::kNormal, 2.0F}};
};

// Computes logits = x W + b and the loss.
class Head final : public Layer {
 public:
  std::string name() const override { return "head"; }
  const std::vector<ParamSpec>& params() const override { return params_; }

  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override {
    if (ctx.Predicts()) {
      const Buffer last = LastPositions(ctx, x, kChannels);
      LinearForward(ctx.kernels, ctx.logits, last.AsTensor(ctx.dtype), ctx.params[0], ctx.params[1],
                    {ctx.batch.B, kChannels, kVocab});
      return {};
    }
    const LinearShape shape{ctx.NumTokens(), kChannels, kVocab};
    saved.push_back(ctx.arena.Allocate(ctx.dtype, shape.N * kVocab, "logits"));
    const Tensor logits = saved[0].AsTensor(ctx.dtype);
    LinearForward(ctx.kernels, logits, x.AsTensor(ctx.dtype), ctx.params[0], ctx.params[1], shape);
    SoftmaxLossInPlace(ctx, logits, kVocab);  // The logits become their gradient.
    return {};
  }

  Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer, Saved& saved) const override {
    const LinearShape shape{ctx.NumTokens(), kChannels, kVocab};
    const Tensor dlogits = saved[0].AsTensor(ctx.dtype);
    LinearParamGrads(ctx.kernels, ctx.Grad(0), ctx.Grad(1), dlogits, x.AsTensor(ctx.dtype), shape);
    Buffer dx = ctx.arena.Allocate(ctx.dtype, shape.N * kChannels, "head input gradient");
    LinearInputGrad(ctx.kernels, dx.AsTensor(ctx.dtype), dlogits, ctx.params[0], shape);
    saved.clear();
    return dx;
  }

 private:
  const std::vector<ParamSpec> params_ = {
      {"head.weight", {kChannels, kVocab}, ParamSpec::Init::kNormal, 0.1F},
      {"head.bias", {kVocab}, ParamSpec::Init::kZero}};
};

Model MakeGatedMemoryModel() {
  Model model;
  model.layers.push_back(std::make_unique<GatedMemory>());
  model.layers.push_back(std::make_unique<Head>());
  model.vocab_size = kVocab;
  model.max_seq_len = kSeqLen;
  return model;
}

NamedConfig ReadConfig(int argc, char** argv) {
  if (argc > 1) return ConfigFromFile(argv[1]);
  if (std::getenv(kEnvConfig) != nullptr) return ConfigFromEnvironment();
  return {{{"train_micro_batch_size_per_gpu", 8},
           {"gradient_accumulation_steps", 2},
           {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}}};
}

void Train(const NamedConfig& config) {
  const dsat::Json text = {
      {"type", "text"}, {"path", "/usr/share/common-licenses"}, {"validation", {{"split", 0.05}}}};
  const auto validation = OpenValidationDataset(text, "", 42, "text");
  const RankEnvironment environment = ReadRankEnvironment();
  const auto world = JoinGroup(environment);
  const auto start = [&] {
    return Initialize(*world, {.model = MakeGatedMemoryModel(),
                               .config = config,
                               .device = MakeCpuDevice(environment.num_threads),
                               .dataset = OpenDataset(text, "", 42, "text")});
  };
  const auto training = start();
  Engine& engine = training->engine();
  while (engine.num_steps() < 200) {
    engine.Forward(engine.NextBatch());
    engine.Backward();
    const std::optional<StepResult> step = engine.Step();  // Every second micro-batch, here.
    if (!step || environment.rank != 0 || engine.num_steps() % 40 != 1) continue;
    std::printf("step %3ld  loss %.4f\n", engine.num_steps(), step->loss);
  }
  const double loss = engine.Evaluate(*validation, 4);
  engine.SaveCheckpoint("checkpoints", "", {{"validation_loss", loss}});

  // A second engine beside the first, with its own memory and communication.
  const auto twin = start();
  const double untrained = twin->engine().Evaluate(*validation, 4);
  const dsat::Json saved = twin->engine().LoadCheckpoint("checkpoints");
  const double loaded = twin->engine().Evaluate(*validation, 4);
  if (environment.rank != 0) return;
  std::printf("validation: untrained %.4f, trained %.4f, loaded %.4f, in the checkpoint %.4f\n",
              untrained, loss, loaded, saved.at("validation_loss").get<double>());
}

int main(int argc, char** argv) {
  try {
    Train(ReadConfig(argc, argv));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "own_model: %s\n", e.what());
    return 1;
  }
}
