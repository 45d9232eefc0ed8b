// Prints what the CPU kernels make of inputs that a formula gives; kernels_torch_test.py computes
// the same inputs, runs PyTorch and compares. One line per result: its name, then its numbers.
#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/optimizer_kernels.h"
#include "engine/core/half.h"

namespace dsat::engine {
namespace {

using Floats = std::vector<float>;

// Element i of input `seed`, in [-1, 1). The script has the same line.
float Value(uint32_t seed, uint32_t i) {
  const uint32_t mixed = i * 2654435761U + seed * 97U * 40503U;
  return static_cast<float>(static_cast<double>(mixed) / 2147483648.0 - 1.0);
}

Floats Input(uint32_t seed, int64_t n) {
  Floats values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = Value(seed, static_cast<uint32_t>(i));
  return values;
}

Floats Zeros(int64_t n) {
  return Floats(static_cast<size_t>(n), 0.0F);
}

Tensor View(Floats& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

void Print(const std::string& name, const Floats& values) {
  fmt::print("{}", name);
  for (const float x : values)
    fmt::print(" {:.9g}", x);
  fmt::print("\n");
}

void DumpGelu(Kernels& kernels) {
  Floats x = Input(1, 100), dy = Input(2, 100), y = Zeros(100), dx = Zeros(100);
  kernels.Run(op::Scale{View(x), 6});
  kernels.Run(op::GeluForward{View(y), View(x)});
  kernels.Run(op::GeluBackward{View(dx), View(dy), View(x)});
  Print("gelu.y", y);
  Print("gelu.dx", dx);
}

void DumpLayerNorm(Kernels& kernels) {
  constexpr int64_t kN = 9, kC = 21;
  Floats x = Input(1, kN * kC), weight = Input(2, kC), bias = Input(3, kC), dy = Input(4, kN * kC);
  Floats y = Zeros(kN * kC), mean = Zeros(kN), rstd = Zeros(kN);
  Floats dx = Zeros(kN * kC), dweight = Zeros(kC), dbias = Zeros(kC);
  kernels.Run(op::LayerNormForward{View(y), View(mean), View(rstd), View(x), View(weight),
                                   View(bias), kN, kC});
  kernels.Run(op::LayerNormBackward{View(dx), View(dweight), View(dbias), View(dy), View(x),
                                    View(weight), View(mean), View(rstd), kN, kC, false});
  Print("layer_norm.y", y);
  Print("layer_norm.dx", dx);
  Print("layer_norm.dweight", dweight);
  Print("layer_norm.dbias", dbias);
}

void DumpAttention(Kernels& kernels) {
  const AttentionShape s{.B = 2, .T = 133, .C = 24, .H = 3};
  const int64_t n = s.B * s.T * s.C;
  Floats qkv = Input(1, 3 * n), dout = Input(2, n), out = Zeros(n), dqkv = Zeros(3 * n);
  Floats lse = Zeros(s.B * s.H * s.T), scratch = Zeros(kernels.AttentionScratchBytes(s) / 4);
  kernels.Run(op::Scale{View(qkv), 3});
  kernels.Run(op::AttentionForward{View(out), View(lse), View(qkv), View(scratch), s});
  kernels.Run(op::AttentionBackward{View(dqkv), View(dout), View(out), View(qkv), View(lse),
                                    View(scratch), s});
  Print("attention.out", out);
  Print("attention.dqkv", dqkv);
}

// Every third target from `first_ignored` on does not count.
void DumpCrossEntropy(Kernels& kernels, const std::string& name, int32_t first_ignored) {
  constexpr int64_t kN = 11, kV = 50;
  Floats logits = Input(1, kN * kV);
  std::vector<int32_t> targets;
  for (int32_t i = 0; i < kN; ++i)
    targets.push_back(i * 7 % kV);
  int64_t num_ignored = 0;
  for (int32_t i = first_ignored; i < kN; i += 3, ++num_ignored)
    targets[static_cast<size_t>(i)] = kIgnoredTarget;
  kernels.Run(op::Scale{View(logits), 5});
  double loss = 0;
  kernels.Run(op::CrossEntropyInPlace{&loss, View(logits), targets.data(), kN, kV, kV,
                                      1.0F / static_cast<float>(kN - num_ignored), num_ignored});
  Print(name + ".loss", {static_cast<float>(loss)});
  Print(name + ".dlogits", logits);
}

void DumpAdam(Kernels& kernels, const std::string& name, bool decoupled) {
  Floats param = Input(1, 100), m = Zeros(100), v = Zeros(100);
  AdamArgs args{.param = View(param), .master = View(param), .m = View(m), .v = View(v)};
  args.lr = 0.01F;
  args.weight_decay = 0.1F;
  args.decoupled_weight_decay = decoupled;
  for (args.step = 1; args.step <= 3; ++args.step) {
    Floats grad = Input(static_cast<uint32_t>(args.step) + 1, 100);
    args.grad = View(grad);
    kernels.Run(op::AdamStep{args});
  }
  Print(name, param);
}

void DumpSgd(Kernels& kernels, const std::string& name, bool nesterov, float dampening) {
  Floats param = Input(1, 100), buffer = Zeros(100);
  op::SgdStep args{.param = View(param), .master = View(param), .momentum_buffer = View(buffer)};
  args.lr = 0.1F;
  args.momentum = 0.9F;
  args.dampening = dampening;
  args.weight_decay = 0.01F;
  args.nesterov = nesterov;
  for (args.step = 1; args.step <= 3; ++args.step) {
    Floats grad = Input(static_cast<uint32_t>(args.step) + 1, 100);
    args.grad = View(grad);
    kernels.Run(args);
  }
  Print(name, param);
}

void DumpAdagrad(Kernels& kernels) {
  Floats param = Input(1, 100), sum = Zeros(100);
  op::AdagradStep args{.param = View(param), .master = View(param), .sum = View(sum), .lr = 0.1F};
  args.weight_decay = 0.01F;
  for (uint32_t step = 1; step <= 3; ++step) {
    Floats grad = Input(step + 1, 100);
    args.grad = View(grad);
    kernels.Run(args);
  }
  Print("adagrad.param", param);
}

void DumpHalf(Kernels& kernels) {
  Floats x = Input(1, 1000), back = Zeros(1000);
  kernels.Run(op::Scale{View(x), 1e-4F});  // Normal and subnormal numbers.
  std::vector<F16> halves(1000);
  const Tensor half{halves.data(), 1000, DType::kF16};
  kernels.Run(op::Cast{half, View(x)});
  kernels.Run(op::Cast{View(back), half});
  kernels.Run(op::Scale{View(back), 1e4F});
  Print("half.round_trip", back);
}

void DumpAll() {
  const auto kernels = MakeCpuKernels(2);
  DumpGelu(*kernels);
  DumpLayerNorm(*kernels);
  DumpAttention(*kernels);
  DumpCrossEntropy(*kernels, "cross_entropy", 11);
  DumpCrossEntropy(*kernels, "masked", 4);
  DumpAdam(*kernels, "adamw.param", true);
  DumpAdam(*kernels, "adam.param", false);
  DumpSgd(*kernels, "sgd.dampened", false, 0.5F);
  DumpSgd(*kernels, "sgd.nesterov", true, 0);
  DumpAdagrad(*kernels);
  DumpHalf(*kernels);
}

}  // namespace
}  // namespace dsat::engine

int main() {
  dsat::engine::DumpAll();
}
