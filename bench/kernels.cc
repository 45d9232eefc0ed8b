// Measures the speed of the CPU kernels at the sizes of a GPT of 10 M parameters (C 384, T 256,
// micro-batch 8).
//
//   bench_kernels --benchmark_filter=Matmul
//
// FLOP/s and bytes/s are of wall time. The number of threads is the last argument.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/backend/optimizer_kernels.h"
#include "engine/core/arena.h"

namespace dsat::engine {
namespace {

constexpr int64_t kRows = 8 * 256;  // B T
constexpr int64_t kC = 384;
constexpr int64_t kVocabulary = 8192;

// Tensors filled with small numbers, and kernels to run on them.
class Bench {
 public:
  explicit Bench(int64_t num_threads) : kernels_(MakeCpuKernels(static_cast<int>(num_threads))) {}

  Tensor New(DType dtype, int64_t num_elems) {
    buffers_.push_back(arena_.Allocate(dtype, num_elems, "benchmark"));
    const Tensor t = buffers_.back().AsTensor(dtype);
    kernels_->Run(op::Fill{t, 0.01F});
    return t;
  }
  Kernels& kernels() { return *kernels_; }

 private:
  Arena arena_{"benchmark memory", Arena::Kind::kReal, 0};
  std::vector<Buffer> buffers_;
  std::unique_ptr<Kernels> kernels_;
};

void SetRates(benchmark::State& state, const Kernels& kernels, int64_t bytes_per_iteration) {
  if (kernels.flops() > 0) {
    state.counters["FLOP/s"] =
        benchmark::Counter(static_cast<double>(kernels.flops()), benchmark::Counter::kIsRate);
  }
  if (bytes_per_iteration > 0) state.SetBytesProcessed(state.iterations() * bytes_per_iteration);
}

void RunMatmul(benchmark::State& state, Bench& bench, const op::Matmul& args) {
  bench.kernels().Run(args);  // Generates code.
  const int64_t before = bench.kernels().flops();
  for (auto _ : state)
    bench.kernels().Run(args);
  state.counters["FLOP/s"] = benchmark::Counter(
      static_cast<double>(bench.kernels().flops() - before), benchmark::Counter::kIsRate);
}

// Arguments M, N, K, transpose_a, transpose_b, threads.
void BM_Matmul(benchmark::State& state, DType dtype) {
  Bench bench(state.range(5));
  op::Matmul args{.M = state.range(0), .N = state.range(1), .K = state.range(2)};
  args.transpose_a = state.range(3) != 0;
  args.transpose_b = state.range(4) != 0;
  args.a = bench.New(dtype, args.M * args.K);
  args.b = bench.New(dtype, args.K * args.N);
  args.c = bench.New(dtype, args.M * args.N);
  RunMatmul(state, bench, args);
}

// The matrix multiplications of a linear layer of in x out features: y = x w^T, dx = dy w,
// dw = dy^T x.
void LinearLayer(benchmark::internal::Benchmark* b, int64_t in, int64_t out) {
  for (const int64_t threads : {1, 2}) {
    b->Args({kRows, out, in, 0, 1, threads});
    b->Args({kRows, in, out, 0, 0, threads});
    b->Args({out, in, kRows, 1, 0, threads});
  }
}

void GptLayers(benchmark::internal::Benchmark* b) {
  LinearLayer(b, kC, 3 * kC);
  LinearLayer(b, kC, 4 * kC);
  LinearLayer(b, 4 * kC, kC);
  LinearLayer(b, kC, kVocabulary);
  b->Args({512, 1536, 384, 0, 0, 1})->Args({512, 1536, 384, 0, 0, 2});
  b->ArgNames({"M", "N", "K", "ta", "tb", "threads"})->UseRealTime();
}
BENCHMARK_CAPTURE(BM_Matmul, f32, DType::kF32)->Apply(GptLayers);
BENCHMARK_CAPTURE(BM_Matmul, bf16, DType::kBF16)->Apply(GptLayers);

// Argument threads.
void Threads(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(2)->ArgName("threads")->UseRealTime();
}

// The matrix multiplications of an MLP from C to 4 C channels, alone and with one fused operation.
enum class Extra { kNone, kAddend, kGelu, kGeluGradient, kColumnSums };
void BM_MatmulWith(benchmark::State& state, DType dtype, Extra extra) {
  Bench bench(state.range(0));
  const bool of_weight = extra == Extra::kColumnSums;
  op::Matmul args{.M = of_weight ? kC : kRows, .N = 4 * kC, .K = of_weight ? kRows : kC};
  args.transpose_a = of_weight;
  args.a = bench.New(dtype, args.M * args.K);
  args.b = bench.New(dtype, args.K * args.N);
  args.c = bench.New(dtype, args.M * args.N);
  const Tensor other = bench.New(dtype, args.M * args.N);
  if (extra == Extra::kAddend) args.addend = other;
  if (extra == Extra::kGelu) args.before_gelu = other;
  if (extra == Extra::kGeluGradient) args.gelu_input = other;
  if (extra == Extra::kColumnSums) args.column_sums = bench.New(dtype, args.N);
  RunMatmul(state, bench, args);
}
BENCHMARK_CAPTURE(BM_MatmulWith, f32_nothing, DType::kF32, Extra::kNone)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, f32_addend, DType::kF32, Extra::kAddend)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, f32_gelu, DType::kF32, Extra::kGelu)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, f32_dgelu, DType::kF32, Extra::kGeluGradient)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, f32_dbias, DType::kF32, Extra::kColumnSums)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, bf16_nothing, DType::kBF16, Extra::kNone)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, bf16_addend, DType::kBF16, Extra::kAddend)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, bf16_gelu, DType::kBF16, Extra::kGelu)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, bf16_dgelu, DType::kBF16, Extra::kGeluGradient)->Apply(Threads);
BENCHMARK_CAPTURE(BM_MatmulWith, bf16_dbias, DType::kBF16, Extra::kColumnSums)->Apply(Threads);

// Arguments T, threads. FLOP/s count the full products, of which the causal mask drops half.
void BM_Attention(benchmark::State& state, DType dtype, bool backward) {
  const AttentionShape s{.B = kRows / state.range(0), .T = state.range(0), .C = kC, .H = 6};
  Bench bench(state.range(1));
  Kernels& kernels = bench.kernels();
  const Tensor qkv = bench.New(dtype, 3 * kRows * kC);
  const Tensor dqkv = bench.New(dtype, 3 * kRows * kC);
  const Tensor out = bench.New(dtype, kRows * kC);
  const Tensor lse = bench.New(DType::kF32, s.B * s.H * s.T);
  const Tensor scratch = bench.New(DType::kF32, kernels.AttentionScratchBytes(s) / 4);
  for (auto _ : state) {
    if (backward) {
      kernels.Run(op::AttentionBackward{dqkv, out, out, qkv, lse, scratch, s});
    } else {
      kernels.Run(op::AttentionForward{out, lse, qkv, scratch, s});
    }
  }
  SetRates(state, kernels, 0);
}

void Sequences(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{256, 1024}, {1, 2}})->ArgNames({"T", "threads"})->UseRealTime();
}
BENCHMARK_CAPTURE(BM_Attention, f32_forward, DType::kF32, false)->Apply(Sequences);
BENCHMARK_CAPTURE(BM_Attention, f32_backward, DType::kF32, true)->Apply(Sequences);
BENCHMARK_CAPTURE(BM_Attention, bf16_forward, DType::kBF16, false)->Apply(Sequences);
BENCHMARK_CAPTURE(BM_Attention, bf16_backward, DType::kBF16, true)->Apply(Sequences);

// Everything below has the argument threads, and counts the bytes that must be read and written.
void SetParameters(benchmark::State& state, int64_t num_parameters) {
  state.counters["parameters/s"] = benchmark::Counter(
      static_cast<double>(state.iterations() * num_parameters), benchmark::Counter::kIsRate);
}

// Updates 10 M parameters. bf16 has bf16 gradients and parameters and f32 states; bf16_master has
// no f32 master weights, bf16_states also bf16 moments, and *_at_random uses stochastic rounding.
void BM_Adam(benchmark::State& state, DType dtype, DType master = DType::kF32,
             DType moments = DType::kF32, bool rounds_at_random = false) {
  constexpr int64_t kParameters = 10'000'000;
  Bench bench(state.range(0));
  AdamArgs args;
  args.master = bench.New(master, kParameters);
  args.param = dtype == master ? args.master : bench.New(dtype, kParameters);
  args.grad = bench.New(dtype, kParameters);
  args.m = bench.New(moments, kParameters);
  args.v = bench.New(moments, kParameters);
  args.lr = 1e-3F;
  if (rounds_at_random) args.rounding = RoundingBits{.key = 1};
  for (auto _ : state)
    bench.kernels().Run(op::AdamStep{args});
  SetParameters(state, kParameters);
  const int64_t state_bytes = 2 * BytesPerElem(master) + 4 * BytesPerElem(moments);
  const int64_t model_bytes = BytesPerElem(dtype) * (dtype == master ? 1 : 2);
  SetRates(state, bench.kernels(), kParameters * (state_bytes + model_bytes));
}
BENCHMARK_CAPTURE(BM_Adam, f32, DType::kF32)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Adam, bf16, DType::kBF16)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Adam, f16, DType::kF16)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Adam, bf16_master, DType::kBF16, DType::kBF16)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Adam, bf16_states, DType::kBF16, DType::kBF16, DType::kBF16)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Adam, bf16_at_random, DType::kBF16, DType::kF32, DType::kF32, true)
    ->Apply(Threads);
BENCHMARK_CAPTURE(BM_Adam, bf16_states_at_random, DType::kBF16, DType::kBF16, DType::kBF16, true)
    ->Apply(Threads);

// The same update with one pass over memory per operation, as in a tensor library without fusion.
// The ratio of parameters/s is what fusion saves.
void BM_AdamUnfused(benchmark::State& state) {
  constexpr int64_t kParameters = 10'000'000;
  Bench bench(1);
  const auto floats = [&] { return bench.New(DType::kF32, kParameters).f32(); };
  float* param = floats();
  float* grad = floats();
  float* m = floats();
  float* v = floats();
  float* scaled = floats();
  float* denominator = floats();
  const auto pass = [](const auto& update) {
    for (int64_t i = 0; i < kParameters; ++i)
      update(i);
    benchmark::ClobberMemory();
  };
  for (auto _ : state) {
    pass([=](int64_t i) { param[i] *= 0.99999F; });
    pass([=](int64_t i) { m[i] *= 0.9F; });
    pass([=](int64_t i) { m[i] += 0.1F * grad[i]; });
    pass([=](int64_t i) { v[i] *= 0.999F; });
    pass([=](int64_t i) { v[i] += 0.001F * grad[i] * grad[i]; });
    pass([=](int64_t i) { denominator[i] = std::sqrt(v[i]); });
    pass([=](int64_t i) { denominator[i] = denominator[i] * 1.01F + 1e-8F; });
    pass([=](int64_t i) { scaled[i] = m[i] / denominator[i]; });
    pass([=](int64_t i) { param[i] -= 1e-3F * scaled[i]; });
  }
  SetParameters(state, kParameters);
}
BENCHMARK(BM_AdamUnfused)->UseRealTime();

void BM_Gelu(benchmark::State& state, DType dtype, bool backward) {
  constexpr int64_t kElems = kRows * 4 * kC;
  Bench bench(state.range(0));
  const Tensor x = bench.New(dtype, kElems);
  const Tensor y = bench.New(dtype, kElems);
  for (auto _ : state) {
    if (backward) {
      bench.kernels().Run(op::GeluBackward{y, y, x});
    } else {
      bench.kernels().Run(op::GeluForward{y, x});
    }
  }
  SetRates(state, bench.kernels(), (backward ? 3 : 2) * x.bytes());
}
BENCHMARK_CAPTURE(BM_Gelu, f32_forward, DType::kF32, false)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Gelu, f32_backward, DType::kF32, true)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Gelu, bf16_forward, DType::kBF16, false)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Gelu, bf16_backward, DType::kBF16, true)->Apply(Threads);

void BM_LayerNorm(benchmark::State& state, DType dtype, bool backward) {
  Bench bench(state.range(0));
  const Tensor x = bench.New(dtype, kRows * kC);
  const Tensor y = bench.New(dtype, kRows * kC);
  const Tensor mean = bench.New(DType::kF32, kRows);
  const Tensor rstd = bench.New(DType::kF32, kRows);
  const Tensor weight = bench.New(dtype, kC);
  const Tensor bias = bench.New(dtype, kC);
  for (auto _ : state) {
    if (backward) {
      bench.kernels().Run(
          op::LayerNormBackward{y, weight, bias, y, x, weight, mean, rstd, kRows, kC, false});
    } else {
      bench.kernels().Run(op::LayerNormForward{y, mean, rstd, x, weight, bias, kRows, kC});
    }
  }
  SetRates(state, bench.kernels(), (backward ? 3 : 2) * x.bytes());
}
BENCHMARK_CAPTURE(BM_LayerNorm, f32_forward, DType::kF32, false)->Apply(Threads);
BENCHMARK_CAPTURE(BM_LayerNorm, f32_backward, DType::kF32, true)->Apply(Threads);
BENCHMARK_CAPTURE(BM_LayerNorm, bf16_forward, DType::kBF16, false)->Apply(Threads);
BENCHMARK_CAPTURE(BM_LayerNorm, bf16_backward, DType::kBF16, true)->Apply(Threads);

void BM_RmsNorm(benchmark::State& state, DType dtype, bool backward) {
  Bench bench(state.range(0));
  const Tensor x = bench.New(dtype, kRows * kC);
  const Tensor y = bench.New(dtype, kRows * kC);
  const Tensor rstd = bench.New(DType::kF32, kRows);
  const Tensor weight = bench.New(dtype, kC);
  for (auto _ : state) {
    if (backward) {
      bench.kernels().Run(op::RmsNormBackward{y, weight, y, x, weight, rstd, kRows, kC, false});
    } else {
      bench.kernels().Run(op::RmsNormForward{y, rstd, x, weight, kRows, kC, 1e-5F});
    }
  }
  SetRates(state, bench.kernels(), (backward ? 3 : 2) * x.bytes());
}
BENCHMARK_CAPTURE(BM_RmsNorm, f32_forward, DType::kF32, false)->Apply(Threads);
BENCHMARK_CAPTURE(BM_RmsNorm, f32_backward, DType::kF32, true)->Apply(Threads);
BENCHMARK_CAPTURE(BM_RmsNorm, bf16_forward, DType::kBF16, false)->Apply(Threads);
BENCHMARK_CAPTURE(BM_RmsNorm, bf16_backward, DType::kBF16, true)->Apply(Threads);

void BM_Swiglu(benchmark::State& state, DType dtype, bool backward) {
  Bench bench(state.range(0));
  const Tensor x = bench.New(dtype, kRows * 8 * kC);
  const Tensor dx = bench.New(dtype, kRows * 8 * kC);
  const Tensor y = bench.New(dtype, kRows * 4 * kC);
  for (auto _ : state) {
    if (backward) {
      bench.kernels().Run(op::SwigluBackward{dx, y, x, kRows, 4 * kC});
    } else {
      bench.kernels().Run(op::SwigluForward{y, x, kRows, 4 * kC});
    }
  }
  SetRates(state, bench.kernels(), (backward ? 2 : 1) * x.bytes() + y.bytes());
}
BENCHMARK_CAPTURE(BM_Swiglu, f32_forward, DType::kF32, false)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Swiglu, f32_backward, DType::kF32, true)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Swiglu, bf16_forward, DType::kBF16, false)->Apply(Threads);
BENCHMARK_CAPTURE(BM_Swiglu, bf16_backward, DType::kBF16, true)->Apply(Threads);

void BM_CrossEntropy(benchmark::State& state, DType dtype) {
  Bench bench(state.range(0));
  const Tensor logits = bench.New(dtype, kRows * kVocabulary);
  const std::vector<int32_t> targets(kRows, 17);
  for (auto _ : state) {
    bench.kernels().Run(op::CrossEntropyInPlace{nullptr, logits, targets.data(), kRows, kVocabulary,
                                                kVocabulary, 1});
  }
  SetRates(state, bench.kernels(), 2 * logits.bytes());
}
BENCHMARK_CAPTURE(BM_CrossEntropy, f32, DType::kF32)->Apply(Threads);
BENCHMARK_CAPTURE(BM_CrossEntropy, bf16, DType::kBF16)->Apply(Threads);

}  // namespace
}  // namespace dsat::engine

BENCHMARK_MAIN();
