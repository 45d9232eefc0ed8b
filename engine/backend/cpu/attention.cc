// Causal attention, one head of queries at a time and kAttentionTileRows query rows at a time:
// scores never take more than two tiles, and keys after the tile's last query are never touched.
//
// Where the processor multiplies bf16, the operands of a bf16 model's products stay bf16, and so do
// the probabilities and the gradients of the scores once they are known, as in FlashAttention;
// elsewhere all products are f32. Their sums are f32 in any case.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "engine/backend/cost.h"
#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/matmul.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

template <typename To, typename From>
void Convert(To* out, const From* in, int64_t n) {
  if constexpr (std::is_same_v<To, From>) {
    std::copy_n(in, n, out);
  } else {
    for (int64_t i = 0; i < n; ++i)
      out[i] = FromFloat<To>(ToFloat(in[i]));
  }
}

// The (T, hd) part of a tensor that belongs to one head.
template <typename Elem>
using Slice = Strided<Elem>;

// Query rows [begin, end); they see keys [0, end).
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

// One head of one sequence, and what the thread that works on it has. Products take operands of
// type Elem: float or Bf16.
template <typename Elem>
struct Head {
  int64_t T = 0;
  int64_t hd = 0;
  float* scratch = nullptr;
  AttentionScratch layout;
  MatmulRunner* matmul = nullptr;
  int thread = 0;

  float* tile(int i) const { return scratch + i * layout.tile; }
  Elem* operand(int i) const {
    return reinterpret_cast<Elem*>(scratch + 2 * layout.tile) + i * layout.slice;
  }
  float* result(int i) const { return reinterpret_cast<float*>(operand(4)) + i * layout.slice; }

  // An operand: a tensor of Elem = float is used where it is, others are copied as number `i`.
  Slice<const Elem> Load(const Tensor& t, int64_t offset, int64_t stride, int i) const {
    if constexpr (std::is_same_v<Elem, float>) {
      if (t.dtype == DType::kF32) return {t.f32() + offset, stride};
    }
    Elem* copy = operand(i);
    VisitDType(t.dtype, [&](auto type) {
      const auto* in = Data<decltype(type)>(t) + offset;
      for (int64_t row = 0; row < T; ++row)
        Convert(copy + row * hd, in + row * stride, hd);
    });
    return {copy, hd};
  }
  // Where to form a part of `t`: there if it is f32, else in result `i`, whose contents are
  // undefined.
  Slice<float> View(const Tensor& t, int64_t offset, int64_t stride, int i) const {
    if (t.dtype == DType::kF32) return {t.f32() + offset, stride};
    return {result(i), hd};
  }
  // Rounds what was written to a View of `t` into it.
  void Store(const Tensor& t, int64_t offset, int64_t stride, const Slice<float>& view) const {
    if (t.dtype == DType::kF32) return;
    VisitDType(t.dtype, [&]<typename Out>(Out) {
      Out* out = Data<Out>(t) + offset;
      for (int64_t row = 0; row < T; ++row)
        Convert(out + row * stride, view.row(row), hd);
    });
  }
  void Zero(const Slice<float>& view) const {
    for (int64_t row = 0; row < T; ++row)
      std::fill_n(view.row(row), hd, 0.0F);
  }
  // A tile (rows, keys) as an operand; the one before is gone.
  const Elem* AsOperand(const Rows& rows, const float* tile) const {
    if constexpr (std::is_same_v<Elem, float>) {
      return tile;
    } else {
      Elem* rounded = reinterpret_cast<Elem*>(result(3));
      Convert(rounded, tile, rows.count() * rows.end);
      return rounded;
    }
  }

  void Gemm(const GemmArgs<Elem>& gemm) const {
    if constexpr (std::is_same_v<Elem, float>) {
      SgemmOnThisThread(gemm);
    } else {
      matmul->GemmOnThisThread(gemm, thread);
    }
  }
  // tile (rows, keys) = a[rows] (rows, hd) * b (keys, hd)^T.
  void RowsTimesKeys(const Rows& rows, const Slice<const Elem>& a, const Slice<const Elem>& b,
                     float* tile) const {
    GemmArgs<Elem> gemm{.transpose_b = true, .M = rows.count(), .N = rows.end, .K = hd};
    gemm.a = a.From(rows.begin);
    gemm.b = b;
    gemm.c = {tile, rows.end};
    Gemm(gemm);
  }
  // out[rows] (rows, hd) = tile (rows, keys) * b (keys, hd).
  void TileTimesKeys(const Rows& rows, const Elem* tile, const Slice<const Elem>& b,
                     const Slice<float>& out) const {
    GemmArgs<Elem> gemm{.M = rows.count(), .N = hd, .K = rows.end};
    gemm.a = {tile, rows.end};
    gemm.b = b;
    gemm.c = out.From(rows.begin);
    Gemm(gemm);
  }
  // out (keys, hd) += tile (rows, keys)^T * b[rows] (rows, hd).
  void AddTileTransposedTimesRows(const Rows& rows, const Elem* tile, const Slice<const Elem>& b,
                                  const Slice<float>& out) const {
    GemmArgs<Elem> gemm{.transpose_a = true, .accumulate = true};
    gemm.M = rows.end;
    gemm.N = hd;
    gemm.K = rows.count();
    gemm.a = {tile, rows.end};
    gemm.b = b.From(rows.begin);
    gemm.c = out;
    Gemm(gemm);
  }
};

template <typename Fn>
void ForEachTile(int64_t T, const Fn& fn) {
  for (int64_t begin = 0; begin < T; begin += kAttentionTileRows) {
    fn(Rows{begin, std::min(T, begin + kAttentionTileRows)});
  }
}

// Products of one query with `num_keys` keys, `num_seen` of them its past, become
// exp(scale * (product - max)), 0 after the query. Returns their sum; max is written.
float ExpRow(float* products, int64_t num_seen, int64_t num_keys, float scale, float* max) {
  float m = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : m)
  for (int64_t j = 0; j < num_seen; ++j)
    m = products[j] > m ? products[j] : m;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < num_seen; ++j) {
    const float p = Exp((products[j] - m) * scale);
    products[j] = p;
    sum += p;
  }
  std::fill(products + num_seen, products + num_keys, 0.0F);
  *max = m;
  return sum;
}

template <typename Elem>
struct ForwardSlices {
  Slice<const Elem> q, k, v;
  Slice<float> out;
};

template <typename Elem>
void ForwardHead(const Head<Elem>& head, const ForwardSlices<Elem>& s, float* lse) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head.hd));
  float* tile = head.tile(0);
  ForEachTile(head.T, [&](const Rows& rows) {
    float inverse_sum[kAttentionTileRows];
    head.RowsTimesKeys(rows, s.q, s.k, tile);
    for (int64_t i = 0; i < rows.count(); ++i) {
      float max = 0;
      const float sum = ExpRow(tile + i * rows.end, rows.begin + i + 1, rows.end, scale, &max);
      lse[rows.begin + i] = max * scale + std::log(sum);
      inverse_sum[i] = 1.0F / sum;
    }
    head.TileTimesKeys(rows, head.AsOperand(rows, tile), s.v, s.out);
    for (int64_t i = 0; i < rows.count(); ++i) {
      float* row = s.out.row(rows.begin + i);
      for (int64_t c = 0; c < head.hd; ++c)
        row[c] *= inverse_sum[i];
    }
  });
}

// Probabilities from products of queries and keys, and the products' gradient from that of the
// probabilities; both tiles (rows, keys), in place. `delta` = rowsum(dout * out).
void BackwardRow(float* p, float* dp, int64_t num_seen, int64_t num_keys, float lse, float delta,
                 float scale) {
#pragma omp simd
  for (int64_t j = 0; j < num_seen; ++j) {
    p[j] = Exp(p[j] * scale - lse);
    dp[j] = p[j] * (dp[j] - delta) * scale;
  }
  std::fill(p + num_seen, p + num_keys, 0.0F);
  std::fill(dp + num_seen, dp + num_keys, 0.0F);
}

template <typename A, typename B>
float Dot(const A* a, const B* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i)
    sum += ToFloat(a[i]) * ToFloat(b[i]);
  return sum;
}

template <typename Elem>
struct BackwardSlices {
  Slice<const Elem> q, k, v, dout;
  Slice<float> dq, dk, dv;
};

// Writes dq, adds to dk and dv. `out_dot_dout`(t) = the dot product of row t of out and dout.
template <typename Elem, typename OutDotDout>
void BackwardHead(const Head<Elem>& head, const BackwardSlices<Elem>& s, const float* lse,
                  const OutDotDout& out_dot_dout) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head.hd));
  float* p = head.tile(0);
  float* dp = head.tile(1);
  ForEachTile(head.T, [&](const Rows& rows) {
    head.RowsTimesKeys(rows, s.q, s.k, p);
    head.RowsTimesKeys(rows, s.dout, s.v, dp);
    for (int64_t i = 0; i < rows.count(); ++i) {
      const int64_t t = rows.begin + i;
      BackwardRow(p + i * rows.end, dp + i * rows.end, t + 1, rows.end, lse[t], out_dot_dout(t),
                  scale);
    }
    head.AddTileTransposedTimesRows(rows, head.AsOperand(rows, p), s.dout, s.dv);
    const Elem* operand = head.AsOperand(rows, dp);
    head.TileTimesKeys(rows, operand, s.k, s.dq);
    head.AddTileTransposedTimesRows(rows, operand, s.q, s.dk);
  });
}

// Where the heads of one group lie: query heads [first, last), which share one head of keys.
struct Group {
  int64_t first = 0, last = 0;
  int64_t out = 0;     // The offset of the sequence in out.
  int64_t q = 0;       // The offset of the sequence's queries in qkv.
  int64_t k = 0;       // The offset of the head of keys in qkv.
  int64_t v = 0;       // The offset of the head of values in qkv.
  int64_t stride = 0;  // The elements of a row of qkv.
  int64_t lse = 0;     // The offset of the sequence in lse.
};

// Calls fn(head, group) for every group, in parallel, each thread with its part of `scratch`.
template <typename Elem, typename Fn>
void ForEachGroup(const AttentionShape& shape, const Tensor& scratch, int num_threads,
                  MatmulRunner* matmul, const Fn& fn) {
  const AttentionScratch layout = CpuAttentionScratch(shape);
  const int threads = CpuAttentionThreads(shape, num_threads);
  DSAT_CHECK(scratch.num_elems >= layout.num_elems * threads, "scratch {} of {} elements",
             scratch.num_elems, layout.num_elems * threads);
  float* data = scratch.f32();
  const int64_t hd = shape.HeadChannels();
  const int64_t num_groups = shape.KvHeads();
  const int64_t group_heads = shape.H / num_groups;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < shape.B * num_groups; ++i) {
    const int64_t b = i / num_groups;
    const int64_t g = i % num_groups;
    Group group{.first = g * group_heads, .last = (g + 1) * group_heads};
    group.out = b * shape.T * shape.C;
    group.stride = shape.QkvChannels();
    group.q = b * shape.T * group.stride;
    group.k = group.q + shape.C + g * hd;
    group.v = group.k + shape.KvChannels();
    group.lse = b * shape.H * shape.T;
    const int thread = omp_get_thread_num();
    fn(Head<Elem>{shape.T, hd, data + thread * layout.num_elems, layout, matmul, thread}, group);
  }
}

// Whether the matrix multiplications of attention over `qkv` have bf16 operands.
bool AttendsInBf16(const Tensor& qkv, const MatmulRunner& matmul) {
  return qkv.dtype == DType::kBF16 && matmul.bf16_native();
}

}  // namespace

int64_t CpuKernels::AttentionScratchBytes(const AttentionShape& shape) const {
  return CpuAttentionScratchBytes(shape, num_threads_);
}

void CpuKernels::Run(const op::AttentionForward& op) {
  const auto& [out, lse, qkv, scratch, shape] = op;
  const int64_t C = shape.C;
  const auto run = [&]<typename Elem>(Elem) {
    const auto work = [&](const Head<Elem>& head, const Group& group) {
      ForwardSlices<Elem> s;
      s.k = head.Load(qkv, group.k, group.stride, 1);
      s.v = head.Load(qkv, group.v, group.stride, 2);
      for (int64_t h = group.first; h < group.last; ++h) {
        s.q = head.Load(qkv, group.q + h * head.hd, group.stride, 0);
        s.out = head.View(out, group.out + h * head.hd, C, 0);
        ForwardHead(head, s, lse.f32() + group.lse + h * shape.T);
        head.Store(out, group.out + h * head.hd, C, s.out);
      }
    };
    ForEachGroup<Elem>(shape, scratch, num_threads_, matmul_.get(), work);
  };
  AttendsInBf16(qkv, *matmul_) ? run(Bf16{}) : run(float{});
}

void CpuKernels::Run(const op::AttentionBackward& op) {
  const auto& [dqkv, dout, out, qkv, lse, scratch, shape] = op;
  const int64_t C = shape.C;
  const auto run = [&]<typename Elem>(Elem) {
    const auto work = [&](const Head<Elem>& head, const Group& group) {
      BackwardSlices<Elem> s;
      s.k = head.Load(qkv, group.k, group.stride, 1);
      s.v = head.Load(qkv, group.v, group.stride, 2);
      s.dk = head.View(dqkv, group.k, group.stride, 1);
      s.dv = head.View(dqkv, group.v, group.stride, 2);
      head.Zero(s.dk);
      head.Zero(s.dv);
      for (int64_t h = group.first; h < group.last; ++h) {
        const int64_t in = group.q + h * head.hd;
        const int64_t to = group.out + h * head.hd;
        s.q = head.Load(qkv, in, group.stride, 0);
        s.dout = head.Load(dout, to, C, 3);
        s.dq = head.View(dqkv, in, group.stride, 0);
        VisitDType(out.dtype, [&](auto type) {
          const auto* o = Data<decltype(type)>(out) + to;
          BackwardHead(head, s, lse.f32() + group.lse + h * shape.T,
                       [&](int64_t t) { return Dot(s.dout.row(t), o + t * C, head.hd); });
        });
        head.Store(dqkv, in, group.stride, s.dq);
      }
      head.Store(dqkv, group.k, group.stride, s.dk);
      head.Store(dqkv, group.v, group.stride, s.dv);
    };
    ForEachGroup<Elem>(shape, scratch, num_threads_, matmul_.get(), work);
  };
  AttendsInBf16(qkv, *matmul_) ? run(Bf16{}) : run(float{});
}

}  // namespace dsat::engine
