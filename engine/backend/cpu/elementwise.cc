// Kernels that treat a tensor as a flat list of numbers.
#include <algorithm>
#include <cstring>
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

}  // namespace

void CpuLayers::Run(const op::Fill& op) {
  const auto& [t, value] = op;
  VisitDType(t.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = Data<T>(t);
    const T converted = FromFloat<T>(value);
    ParallelBlocks(num_threads_, t.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
      std::fill(out + begin, out + end, converted);
    });
  });
}

void CpuLayers::Run(const op::Cast& op) {
  const auto& [dst, src] = op;
  VisitDType(dst.dtype, [&](auto dst_type) {
    VisitDType(src.dtype, [&](auto src_type) {
      using Dst = decltype(dst_type);
      using Src = decltype(src_type);
      Dst* out = Data<Dst>(dst);
      const Src* in = Data<Src>(src);
      ParallelBlocks(num_threads_, dst.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
        if constexpr (std::is_same_v<Dst, Src>) {
          std::memmove(out + begin, in + begin, static_cast<size_t>(end - begin) * sizeof(Dst));
        } else {
          for (int64_t i = begin; i < end; ++i)
            out[i] = FromFloat<Dst>(ToFloat(in[i]));
        }
      });
    });
  });
}

void CpuLayers::Run(const op::Accumulate& op) {
  const auto& [dst, src] = op;
  VisitDType(dst.dtype, [&](auto dst_type) {
    VisitDType(src.dtype, [&](auto src_type) {
      using Dst = decltype(dst_type);
      Dst* out = Data<Dst>(dst);
      const auto* in = Data<decltype(src_type)>(src);
      ParallelBlocks(num_threads_, dst.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
          out[i] = FromFloat<Dst>(ToFloat(out[i]) + ToFloat(in[i]));
        }
      });
    });
  });
}

void CpuLayers::Run(const op::Scale& op) {
  const auto& [t, factor] = op;
  VisitDType(t.dtype, [&](auto type) {
    using T = decltype(type);
    T* data = Data<T>(t);
    ParallelBlocks(num_threads_, t.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i)
        data[i] = FromFloat<T>(ToFloat(data[i]) * factor);
    });
  });
}

void CpuLayers::Run(const op::SumOfSquares& op) {
  const auto& [sum, t] = op;
  const int64_t num_blocks = (t.num_elems + kBlockElems - 1) / kBlockElems;
  auto* sums = scratch_.GetArray<double>(num_blocks);
  VisitDType(t.dtype, [&](auto type) {
    const auto* data = Data<decltype(type)>(t);
    ParallelBlocks(num_threads_, t.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
      sums[begin / kBlockElems] = SumOfSquaresOfBlock(data + begin, end - begin);
    });
  });
  double total = 0;
  for (int64_t i = 0; i < num_blocks; ++i)
    total += sums[i];
  *sum = total;
}

void CpuLayers::Run(const op::Add& op) {
  const auto& [y, a, b] = op;
  VisitDType(y.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = Data<T>(y);
    const T* left = Data<T>(a);
    const T* right = Data<T>(b);
    ParallelBlocks(num_threads_, y.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        out[i] = FromFloat<T>(ToFloat(left[i]) + ToFloat(right[i]));
      }
    });
  });
}

}  // namespace dsat::engine
