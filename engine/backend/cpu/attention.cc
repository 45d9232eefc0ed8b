// Causal attention, one head at a time and kAttentionTileRows query rows at a time: scores never
// take more than two tiles, and keys after the tile's last query are never touched.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/backend/cost.h"
#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// The (T, hd) part of a tensor that belongs to one head, as f32 with `stride` elements a row.
struct Slice {
  float* data = nullptr;
  int64_t stride = 0;

  float* row(int64_t t) const { return data + t * stride; }
};

// One head of one sequence, and the scratch of the thread that works on it.
struct Head {
  int64_t T = 0;
  int64_t hd = 0;
  float* scratch = nullptr;
  AttentionScratch layout;

  float* tile(int i) const { return scratch + i * layout.tile; }
  float* slice(int i) const { return scratch + 2 * layout.tile + i * layout.slice; }

  // An f32 tensor is used where it is; others get slice `i`, whose contents are undefined.
  Slice View(const Tensor& t, int64_t offset, int64_t stride, int i) const {
    if (t.dtype == DType::kF32) return {t.f32() + offset, stride};
    return {slice(i), hd};
  }
  // View, with the tensor's values.
  Slice Load(const Tensor& t, int64_t offset, int64_t stride, int i) const {
    const Slice view = View(t, offset, stride, i);
    if (t.dtype == DType::kF32) return view;
    VisitDType(t.dtype, [&](auto type) {
      const auto* in = Data<decltype(type)>(t) + offset;
      for (int64_t row = 0; row < T; ++row) {
        for (int64_t c = 0; c < hd; ++c)
          view.row(row)[c] = ToFloat(in[row * stride + c]);
      }
    });
    return view;
  }
  // Rounds what was written to a View of `t` into it.
  void Store(const Tensor& t, int64_t offset, int64_t stride, const Slice& view) const {
    if (t.dtype == DType::kF32) return;
    VisitDType(t.dtype, [&](auto type) {
      using Elem = decltype(type);
      Elem* out = Data<Elem>(t) + offset;
      for (int64_t row = 0; row < T; ++row) {
        for (int64_t c = 0; c < hd; ++c)
          out[row * stride + c] = FromFloat<Elem>(view.row(row)[c]);
      }
    });
  }
  void Zero(const Slice& view) const {
    for (int64_t row = 0; row < T; ++row)
      std::fill_n(view.row(row), hd, 0.0F);
  }
};

// Query rows [begin, end); they see keys [0, end).
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

template <typename Fn>
void ForEachTile(int64_t T, const Fn& fn) {
  for (int64_t begin = 0; begin < T; begin += kAttentionTileRows) {
    fn(Rows{begin, std::min(T, begin + kAttentionTileRows)});
  }
}

// tile (rows, keys) = alpha * a[rows] (rows, hd) * b (keys, hd)^T.
void RowsTimesKeys(const Rows& rows, int64_t hd, float alpha, const Slice& a, const Slice& b,
                   float* tile) {
  SgemmArgs gemm{.transpose_b = true, .M = rows.count(), .N = rows.end, .K = hd, .alpha = alpha};
  gemm.a = a.row(rows.begin);
  gemm.lda = a.stride;
  gemm.b = b.data;
  gemm.ldb = b.stride;
  gemm.c = tile;
  gemm.ldc = rows.end;
  SgemmOnThisThread(gemm);
}

// out[rows] (rows, hd) = tile (rows, keys) * b (keys, hd).
void TileTimesKeys(const Rows& rows, int64_t hd, const float* tile, const Slice& b,
                   const Slice& out) {
  SgemmArgs gemm{.M = rows.count(), .N = hd, .K = rows.end};
  gemm.a = tile;
  gemm.lda = rows.end;
  gemm.b = b.data;
  gemm.ldb = b.stride;
  gemm.c = out.row(rows.begin);
  gemm.ldc = out.stride;
  SgemmOnThisThread(gemm);
}

// out (keys, hd) += tile (rows, keys)^T * b[rows] (rows, hd).
void AddTileTransposedTimesRows(const Rows& rows, int64_t hd, const float* tile, const Slice& b,
                                const Slice& out) {
  SgemmArgs gemm{.transpose_a = true, .M = rows.end, .N = hd, .K = rows.count()};
  gemm.a = tile;
  gemm.lda = rows.end;
  gemm.b = b.row(rows.begin);
  gemm.ldb = b.stride;
  gemm.beta = 1;
  gemm.c = out.data;
  gemm.ldc = out.stride;
  SgemmOnThisThread(gemm);
}

// Scores of one query (`num_seen` of `num_keys` are its past) become exp(score - max), 0 after the
// query. Returns their sum; max is written.
float ExpRow(float* scores, int64_t num_seen, int64_t num_keys, float* max) {
  float m = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : m)
  for (int64_t j = 0; j < num_seen; ++j)
    m = scores[j] > m ? scores[j] : m;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < num_seen; ++j) {
    const float p = Exp(scores[j] - m);
    scores[j] = p;
    sum += p;
  }
  std::fill(scores + num_seen, scores + num_keys, 0.0F);
  *max = m;
  return sum;
}

void ForwardHead(const Head& head, const Slice& q, const Slice& k, const Slice& v, const Slice& out,
                 float* lse) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head.hd));
  float* tile = head.tile(0);
  ForEachTile(head.T, [&](const Rows& rows) {
    float inverse_sum[kAttentionTileRows];
    RowsTimesKeys(rows, head.hd, scale, q, k, tile);
    for (int64_t i = 0; i < rows.count(); ++i) {
      float max = 0;
      const float sum = ExpRow(tile + i * rows.end, rows.begin + i + 1, rows.end, &max);
      lse[rows.begin + i] = max + std::log(sum);
      inverse_sum[i] = 1.0F / sum;
    }
    TileTimesKeys(rows, head.hd, tile, v, out);
    for (int64_t i = 0; i < rows.count(); ++i) {
      float* row = out.row(rows.begin + i);
      for (int64_t c = 0; c < head.hd; ++c)
        row[c] *= inverse_sum[i];
    }
  });
}

// Probabilities from scores, and the scores' gradient (times `scale`) from that of the
// probabilities; both tiles (rows, keys), in place. `delta` = rowsum(dout * out).
void BackwardRow(float* p, float* dp, int64_t num_seen, int64_t num_keys, float lse, float delta,
                 float scale) {
#pragma omp simd
  for (int64_t j = 0; j < num_seen; ++j) {
    p[j] = Exp(p[j] - lse);
    dp[j] = p[j] * (dp[j] - delta) * scale;
  }
  std::fill(p + num_seen, p + num_keys, 0.0F);
  std::fill(dp + num_seen, dp + num_keys, 0.0F);
}

template <typename T>
float Dot(const float* a, const T* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i)
    sum += a[i] * ToFloat(b[i]);
  return sum;
}

struct BackwardSlices {
  Slice q, k, v, dout, dq, dk, dv;
};

// `out_dot_dout`(t) = the dot product of row t of out and dout.
template <typename OutDotDout>
void BackwardHead(const Head& head, const BackwardSlices& s, const float* lse,
                  const OutDotDout& out_dot_dout) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head.hd));
  float* p = head.tile(0);
  float* dp = head.tile(1);
  head.Zero(s.dk);
  head.Zero(s.dv);
  ForEachTile(head.T, [&](const Rows& rows) {
    RowsTimesKeys(rows, head.hd, scale, s.q, s.k, p);
    RowsTimesKeys(rows, head.hd, 1.0F, s.dout, s.v, dp);
    for (int64_t i = 0; i < rows.count(); ++i) {
      const int64_t t = rows.begin + i;
      BackwardRow(p + i * rows.end, dp + i * rows.end, t + 1, rows.end, lse[t], out_dot_dout(t),
                  scale);
    }
    AddTileTransposedTimesRows(rows, head.hd, p, s.dout, s.dv);
    TileTimesKeys(rows, head.hd, dp, s.k, s.dq);
    AddTileTransposedTimesRows(rows, head.hd, dp, s.q, s.dk);
  });
}

// Calls fn(head, b, h) for every head, in parallel, each thread with its part of `scratch`.
template <typename Fn>
void ForEachHead(const AttentionShape& shape, const Tensor& scratch, int num_threads,
                 const Fn& fn) {
  const AttentionScratch layout = CpuAttentionScratch(shape);
  const int threads = CpuAttentionThreads(shape, num_threads);
  DSAT_CHECK(scratch.num_elems >= layout.num_elems * threads, "scratch {} of {} elements",
             scratch.num_elems, layout.num_elems * threads);
  float* data = scratch.f32();
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < shape.B * shape.H; ++i) {
    const Head head{shape.T, shape.C / shape.H, data + omp_get_thread_num() * layout.num_elems,
                    layout};
    fn(head, i / shape.H, i % shape.H);
  }
}

void CheckSizes(const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                const Tensor& lse) {
  DSAT_CHECK(shape.H > 0 && shape.C % shape.H == 0, "{} channels, {} heads", shape.C, shape.H);
  const int64_t num_elems = shape.B * shape.T * shape.C;
  DSAT_CHECK(qkv.num_elems >= 3 * num_elems && out.num_elems >= num_elems, "qkv {}, out {} of {}",
             qkv.num_elems, out.num_elems, num_elems);
  DSAT_CHECK(lse.num_elems >= shape.B * shape.H * shape.T, "lse {}", lse.num_elems);
}

}  // namespace

int64_t CpuKernels::AttentionScratchBytes(const AttentionShape& shape) {
  return CpuAttentionScratchBytes(shape, num_threads_);
}

void CpuKernels::AttentionForward(Tensor out, Tensor lse, Tensor qkv, Tensor scratch,
                                  const AttentionShape& shape) {
  flops_ += AttentionForwardFlops(shape);
  CheckSizes(shape, qkv, out, lse);
  const int64_t C = shape.C;
  ForEachHead(shape, scratch, num_threads_, [&](const Head& head, int64_t b, int64_t h) {
    const int64_t in = b * shape.T * 3 * C + h * head.hd;
    const int64_t to = b * shape.T * C + h * head.hd;
    const Slice q = head.Load(qkv, in, 3 * C, 0);
    const Slice k = head.Load(qkv, in + C, 3 * C, 1);
    const Slice v = head.Load(qkv, in + 2 * C, 3 * C, 2);
    const Slice o = head.View(out, to, C, 3);
    ForwardHead(head, q, k, v, o, lse.f32() + (b * shape.H + h) * shape.T);
    head.Store(out, to, C, o);
  });
}

void CpuKernels::AttentionBackward(Tensor dqkv, Tensor dout, Tensor out, Tensor qkv, Tensor lse,
                                   Tensor scratch, const AttentionShape& shape) {
  flops_ += AttentionBackwardFlops(shape);
  CheckSizes(shape, qkv, out, lse);
  CheckSizes(shape, dqkv, dout, lse);
  const int64_t C = shape.C;
  ForEachHead(shape, scratch, num_threads_, [&](const Head& head, int64_t b, int64_t h) {
    const int64_t in = b * shape.T * 3 * C + h * head.hd;
    const int64_t to = b * shape.T * C + h * head.hd;
    BackwardSlices s;
    s.q = head.Load(qkv, in, 3 * C, 0);
    s.k = head.Load(qkv, in + C, 3 * C, 1);
    s.v = head.Load(qkv, in + 2 * C, 3 * C, 2);
    s.dout = head.Load(dout, to, C, 3);
    s.dq = head.View(dqkv, in, 3 * C, 4);
    s.dk = head.View(dqkv, in + C, 3 * C, 5);
    s.dv = head.View(dqkv, in + 2 * C, 3 * C, 6);
    VisitDType(out.dtype, [&](auto type) {
      const auto* o = Data<decltype(type)>(out) + to;
      BackwardHead(head, s, lse.f32() + (b * shape.H + h) * shape.T,
                   [&](int64_t t) { return Dot(s.dout.row(t), o + t * C, head.hd); });
    });
    head.Store(dqkv, in, 3 * C, s.dq);
    head.Store(dqkv, in + C, 3 * C, s.dk);
    head.Store(dqkv, in + 2 * C, 3 * C, s.dv);
  });
}

}  // namespace dsat::engine
