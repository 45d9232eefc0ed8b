// Causal attention, one head of queries at a time and kAttentionTileRows query rows at a time:
// scores never take more than two tiles, and keys after the tile's last query are never touched.
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

// Writes dq, adds to dk and dv. `out_dot_dout`(t) = the dot product of row t of out and dout.
template <typename OutDotDout>
void BackwardHead(const Head& head, const BackwardSlices& s, const float* lse,
                  const OutDotDout& out_dot_dout) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head.hd));
  float* p = head.tile(0);
  float* dp = head.tile(1);
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

// Where the heads of one group lie: query heads [first, last), which share one head of keys.
struct Group {
  int64_t first = 0, last = 0;
  int64_t out = 0;     // Of the sequence in out.
  int64_t q = 0;       // Of the sequence in qkv.
  int64_t k = 0;       // Of the head of keys in qkv.
  int64_t v = 0;       // Of the head of values in qkv.
  int64_t stride = 0;  // Of the rows of qkv.
  int64_t lse = 0;     // Of the sequence in lse.
};

// Calls fn(head, group) for every group, in parallel, each thread with its part of `scratch`.
template <typename Fn>
void ForEachGroup(const AttentionShape& shape, const Tensor& scratch, int num_threads,
                  const Fn& fn) {
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
    fn(Head{shape.T, hd, data + omp_get_thread_num() * layout.num_elems, layout}, group);
  }
}

void CheckSizes(const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                const Tensor& lse) {
  DSAT_CHECK(shape.H > 0 && shape.C % shape.H == 0, "{} channels, {} heads", shape.C, shape.H);
  DSAT_CHECK(shape.H % shape.KvHeads() == 0, "{} heads, {} of keys", shape.H, shape.KvHeads());
  const int64_t N = shape.B * shape.T;
  DSAT_CHECK(qkv.num_elems >= N * shape.QkvChannels() && out.num_elems >= N * shape.C,
             "qkv {}, out {} of {} x {}", qkv.num_elems, out.num_elems, N, shape.C);
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
  ForEachGroup(shape, scratch, num_threads_, [&](const Head& head, const Group& group) {
    const Slice k = head.Load(qkv, group.k, group.stride, 1);
    const Slice v = head.Load(qkv, group.v, group.stride, 2);
    for (int64_t h = group.first; h < group.last; ++h) {
      const Slice q = head.Load(qkv, group.q + h * head.hd, group.stride, 0);
      const Slice o = head.View(out, group.out + h * head.hd, C, 3);
      ForwardHead(head, q, k, v, o, lse.f32() + group.lse + h * shape.T);
      head.Store(out, group.out + h * head.hd, C, o);
    }
  });
}

void CpuKernels::AttentionBackward(Tensor dqkv, Tensor dout, Tensor out, Tensor qkv, Tensor lse,
                                   Tensor scratch, const AttentionShape& shape) {
  flops_ += AttentionBackwardFlops(shape);
  CheckSizes(shape, qkv, out, lse);
  CheckSizes(shape, dqkv, dout, lse);
  const int64_t C = shape.C;
  ForEachGroup(shape, scratch, num_threads_, [&](const Head& head, const Group& group) {
    BackwardSlices s;
    s.k = head.Load(qkv, group.k, group.stride, 1);
    s.v = head.Load(qkv, group.v, group.stride, 2);
    s.dk = head.View(dqkv, group.k, group.stride, 5);
    s.dv = head.View(dqkv, group.v, group.stride, 6);
    head.Zero(s.dk);
    head.Zero(s.dv);
    for (int64_t h = group.first; h < group.last; ++h) {
      const int64_t in = group.q + h * head.hd;
      const int64_t to = group.out + h * head.hd;
      s.q = head.Load(qkv, in, group.stride, 0);
      s.dout = head.Load(dout, to, C, 3);
      s.dq = head.View(dqkv, in, group.stride, 4);
      VisitDType(out.dtype, [&](auto type) {
        const auto* o = Data<decltype(type)>(out) + to;
        BackwardHead(head, s, lse.f32() + group.lse + h * shape.T,
                     [&](int64_t t) { return Dot(s.dout.row(t), o + t * C, head.hd); });
      });
      head.Store(dqkv, in, group.stride, s.dq);
    }
    head.Store(dqkv, group.k, group.stride, s.dk);
    head.Store(dqkv, group.v, group.stride, s.dv);
  });
}

}  // namespace dsat::engine
