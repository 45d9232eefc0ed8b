// Kernels that treat a tensor as a flat list of numbers.
#include <algorithm>
#include <cstring>
#include <functional>
#include <type_traits>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// By way of f32: the compiler has no vector code from bf16 to double.
template <typename T>
double SumOfSquaresOfBlock(const T* data, int64_t n) {
  constexpr int64_t kStage = 512;
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kStage) {
    float stage[kStage];
    const int64_t count = std::min(kStage, n - begin);
    for (int64_t i = 0; i < count; ++i)
      stage[i] = ToFloat(data[begin + i]);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<double>(stage[i]);
      sum += x * x;
    }
  }
  return sum;
}

// out[i] = fn(in[i]...) in f32.
template <typename Out, typename Fn, typename... In>
void Map(int num_threads, int64_t n, Out* out, const Fn& fn, const In*... in) {
  ParallelBlocks(num_threads, n, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i)
      out[i] = FromFloat<Out>(fn(ToFloat(in[i])...));
  });
}

}  // namespace

void CpuKernels::Run(const op::Fill& op) {
  VisitDType(op.t.dtype, [&]<typename T>(T) {
    Map(num_threads_, op.t.num_elems, Data<T>(op.t), [value = op.value] { return value; });
  });
}

void CpuKernels::Run(const op::Cast& op) {
  const int64_t n = op.dst.num_elems;
  VisitDType(op.dst.dtype, [&]<typename Dst>(Dst) {
    VisitDType(op.src.dtype, [&]<typename Src>(Src) {
      Dst* out = Data<Dst>(op.dst);
      const Src* in = Data<Src>(op.src);
      if constexpr (std::is_same_v<Dst, Src>) {
        ParallelBlocks(num_threads_, n, kBlockElems, [=](int64_t begin, int64_t end) {
          std::memmove(out + begin, in + begin, static_cast<size_t>(end - begin) * sizeof(Dst));
        });
      } else {
        Map(num_threads_, n, out, std::identity(), in);
      }
    });
  });
}

void CpuKernels::Run(const op::Accumulate& op) {
  VisitDType(op.dst.dtype, [&]<typename Dst>(Dst) {
    VisitDType(op.src.dtype, [&]<typename Src>(Src) {
      Map(num_threads_, op.dst.num_elems, Data<Dst>(op.dst), std::plus<float>(), Data<Dst>(op.dst),
          Data<Src>(op.src));
    });
  });
}

void CpuKernels::Run(const op::Scale& op) {
  VisitDType(op.t.dtype, [&]<typename T>(T) {
    const auto scaled = [factor = op.factor](float x) { return x * factor; };
    Map(num_threads_, op.t.num_elems, Data<T>(op.t), scaled, Data<T>(op.t));
  });
}

void CpuKernels::Run(const op::SumOfSquares& op) {
  const auto& [sum, t] = op;
  VisitDType(t.dtype, [&](auto type) {
    const auto* data = Data<decltype(type)>(t);
    *sum = SumOverBlocks<double>(
        scratch_, num_threads_, t.num_elems,
        [=](int64_t begin, int64_t end) { return SumOfSquaresOfBlock(data + begin, end - begin); });
  });
}

void CpuKernels::Run(const op::Add& op) {
  VisitDType(op.y.dtype, [&]<typename T>(T) {
    Map(num_threads_, op.y.num_elems, Data<T>(op.y), std::plus<float>(), Data<T>(op.a),
        Data<T>(op.b));
  });
}

}  // namespace dsat::engine
