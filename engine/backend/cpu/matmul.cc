// Matrix multiplications on CPU: sgemm for f32, oneDNN primitives for bf16.
#include "engine/backend/cpu/matmul.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

// Large enough that packing the operands anew for every tile costs a few percent at most.
constexpr int64_t kMaxTileRows = 256;
constexpr int64_t kMaxTileCols = 512;

// `extent` cut into equal parts of at most `max_part`, in multiples of 16: the size of a part.
int64_t PartSize(int64_t extent, int64_t max_part) {
  const int64_t num_parts = (extent + max_part - 1) / max_part;
  const int64_t part = (extent + num_parts - 1) / num_parts;
  return std::min(extent, (part + 15) / 16 * 16);
}

using Tile = MatmulTile;

int64_t RowStrideA(const op::Matmul& args) {
  return args.transpose_a ? args.M : args.K;
}
int64_t RowStrideB(const op::Matmul& args) {
  return args.transpose_b ? args.K : args.N;
}

// Where the tile's rows of op(a), columns of op(b), and c itself begin.
int64_t OffsetA(const op::Matmul& args, const Tile& tile) {
  return args.transpose_a ? tile.row : tile.row * args.K;
}
int64_t OffsetB(const op::Matmul& args, const Tile& tile) {
  return args.transpose_b ? tile.col * args.K : tile.col;
}
int64_t OffsetC(const op::Matmul& args, const Tile& tile) {
  return tile.row * args.N + tile.col;
}

bool IsF32(const Tensor& t) {
  return t.dtype == DType::kF32;
}

// True for the dtypes that oneDNN multiplies in bf16 units. It has no f16 on CPU.
bool IsBf16Product(const op::Matmul& args) {
  return args.a.dtype == DType::kBF16 && args.b.dtype == DType::kBF16 &&
         args.c.dtype != DType::kF16 && args.bias.dtype != DType::kF16;
}

// dst (rows, cols, row stride ld) = the block of `src` that begins at `offset` and has `stride`
// elements a row.
void LoadBlock(float* dst, int64_t ld, const Tensor& src, int64_t offset, int64_t stride,
               int64_t rows, int64_t cols) {
  VisitDType(src.dtype, [&](auto type) {
    const auto* block = Data<decltype(type)>(src) + offset;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c)
        dst[r * ld + c] = ToFloat(block[r * stride + c]);
    }
  });
}

// The reverse, from a dense block.
void StoreBlock(const Tensor& dst, int64_t offset, int64_t stride, const float* src, int64_t rows,
                int64_t cols) {
  VisitDType(dst.dtype, [&]<typename T>(T) {
    T* block = Data<T>(dst) + offset;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c)
        block[r * stride + c] = FromFloat<T>(src[r * cols + c]);
    }
  });
}

char* At(const Tensor& t, int64_t offset) {
  return static_cast<char*>(t.data) + offset * BytesPerElem(t.dtype);
}

// The tile of sums (rows, cols) that a product is added to = bias + addend. False if it has
// neither: then nothing is written.
bool StartFromAddends(const Strided<float>& sums, const op::Matmul& args, const Tile& tile) {
  const bool has_addend = args.addend.num_elems > 0;
  const int64_t offset = OffsetC(args, tile);
  if (has_addend && At(args.addend, offset) != reinterpret_cast<char*>(sums.data))
    LoadBlock(sums.data, sums.stride, args.addend, offset, args.N, tile.rows, tile.cols);
  if (args.bias.num_elems == 0) return has_addend;
  VisitDType(args.bias.dtype, [&](auto type) {
    const auto* bias = Data<decltype(type)>(args.bias) + tile.col;
    for (int64_t row = 0; row < tile.rows; ++row) {
      float* out = sums.row(row);
      for (int64_t col = 0; col < tile.cols; ++col)
        out[col] = (has_addend ? out[col] : 0.0F) + ToFloat(bias[col]);
    }
  });
  return true;
}

// A tile of `to` = that of `from`, both in matrices like c; they may be the same.
void CopyRows(char* to, const char* from, const op::Matmul& args, const Tile& tile) {
  if (to == from) return;
  const int64_t bytes = BytesPerElem(args.c.dtype);
  for (int64_t row = 0; row < tile.rows; ++row) {
    const int64_t begin = row * args.N * bytes;
    std::memcpy(to + begin, from + begin, static_cast<size_t>(tile.cols * bytes));
  }
}

// c = the tile of args.c, from tiles of args.a and args.b.
void MultiplyTile(const op::Matmul& args, const Tile& tile, const Strided<const float>& a,
                  const Strided<const float>& b, const Strided<float>& c) {
  GemmArgs<float> gemm{.transpose_a = args.transpose_a, .transpose_b = args.transpose_b};
  gemm.M = tile.rows;
  gemm.N = tile.cols;
  gemm.K = args.K;
  gemm.a = a;
  gemm.b = b;
  gemm.c = c;
  gemm.accumulate = StartFromAddends(c, args, tile);
  SgemmOnThisThread(gemm);
}

}  // namespace

void SgemmOnThisThread(const GemmArgs<float>& args) {
  const OneThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(args.transpose_a ? 'T' : 'N', args.transpose_b ? 'T' : 'N', args.M, args.N, args.K,
                 1.0F, args.a.data, args.a.stride, args.b.data, args.b.stride,
                 args.accumulate ? 1.0F : 0.0F, args.c.data, args.c.stride);
  DSAT_CHECK(status == dnnl_success, "dnnl_sgemm: status {}", static_cast<int>(status));
}

template <typename Fn>
void MatmulRunner::ForEachTile(const op::Matmul& args, const Fn& fn) {
  const int64_t tile_rows = PartSize(args.M, kMaxTileRows);
  const int64_t tile_cols = PartSize(args.N, kMaxTileCols);
  const int64_t num_down = (args.M + tile_rows - 1) / tile_rows;
  const int64_t num_across = (args.N + tile_cols - 1) / tile_cols;
  const int64_t num_tiles = num_down * num_across;
  const int num_threads = static_cast<int>(std::min<int64_t>(num_threads_, num_tiles));
#pragma omp parallel for schedule(dynamic) num_threads(num_threads) if (num_threads > 1)
  for (int64_t i = 0; i < num_tiles; ++i) {
    Tile tile;
    tile.row = i / num_across * tile_rows;
    tile.col = i % num_across * tile_cols;
    tile.rows = std::min(tile_rows, args.M - tile.row);
    tile.cols = std::min(tile_cols, args.N - tile.col);
    fn(tile, omp_get_thread_num());
  }
}

void MatmulRunner::Run(const op::Matmul& args) {
  if (IsF32(args.a) && IsF32(args.b) && IsF32(args.c)) {
    ForEachTile(args, [&](const Tile& tile, int) {
      MultiplyTile(args, tile, {args.a.f32() + OffsetA(args, tile), RowStrideA(args)},
                   {args.b.f32() + OffsetB(args, tile), RowStrideB(args)},
                   {args.c.f32() + OffsetC(args, tile), args.N});
    });
  } else if (bf16_native_ && IsBf16Product(args)) {
    ForEachTile(args, [&](const Tile& tile, int thread) { RunBf16Tile(args, tile, thread); });
  } else {
    ForEachTile(args, [&](const Tile& tile, int thread) { RunConvertedTile(args, tile, thread); });
  }
}

void MatmulRunner::RunConvertedTile(const op::Matmul& args, const Tile& tile, int thread) {
  float* a = scratch_[static_cast<size_t>(thread)].GetArray<float>(
      tile.rows * args.K + args.K * tile.cols + tile.rows * tile.cols);
  float* b = a + tile.rows * args.K;
  float* c = b + args.K * tile.cols;
  const int64_t lda = args.transpose_a ? tile.rows : args.K;
  LoadBlock(a, lda, args.a, OffsetA(args, tile), RowStrideA(args),
            args.transpose_a ? args.K : tile.rows, lda);
  const int64_t ldb = args.transpose_b ? args.K : tile.cols;
  LoadBlock(b, ldb, args.b, OffsetB(args, tile), RowStrideB(args),
            args.transpose_b ? tile.cols : args.K, ldb);
  MultiplyTile(args, tile, {a, lda}, {b, ldb}, {c, tile.cols});
  StoreBlock(args.c, OffsetC(args, tile), args.N, c, tile.rows, tile.cols);
}

void MatmulRunner::RunBf16Tile(const op::Matmul& args, const Tile& tile, int thread) {
  Shape shape{.M = tile.rows, .N = tile.cols, .K = args.K};
  shape.lda = RowStrideA(args);
  shape.ldb = RowStrideB(args);
  shape.ldc = args.N;
  shape.transpose_a = args.transpose_a;
  shape.transpose_b = args.transpose_b;
  shape.accumulate = args.addend.num_elems > 0;
  shape.c = args.c.dtype;
  if (args.bias.num_elems > 0) shape.bias = args.bias.dtype;
  char* const c = At(args.c, OffsetC(args, tile));
  if (shape.accumulate) CopyRows(c, At(args.addend, OffsetC(args, tile)), args, tile);
  const void* bias = shape.bias ? At(args.bias, tile.col) : nullptr;
  RunPrimitive(shape, {At(args.a, OffsetA(args, tile)), At(args.b, OffsetB(args, tile)), bias, c},
               thread);
}

void MatmulRunner::GemmOnThisThread(const GemmArgs<Bf16>& args, int thread) {
  Shape shape{.M = args.M, .N = args.N, .K = args.K};
  shape.lda = args.a.stride;
  shape.ldb = args.b.stride;
  shape.ldc = args.c.stride;
  shape.transpose_a = args.transpose_a;
  shape.transpose_b = args.transpose_b;
  shape.accumulate = args.accumulate;
  RunPrimitive(shape, {args.a.data, args.b.data, nullptr, args.c.data}, thread);
}

MatmulRunner::Primitive& MatmulRunner::FindPrimitive(const Shape& shape) {
  std::lock_guard lock(mutex_);
  const auto it = primitives_.find(shape);
  if (it != primitives_.end()) return it->second;
  return primitives_.emplace(shape, MakePrimitive(shape)).first->second;
}

MatmulRunner::Primitive MatmulRunner::MakePrimitive(const Shape& shape) const {
  using dnnl::memory;
  const OneThread one_thread;  // The blocking is chosen for this many threads.
  const auto bf16 = memory::data_type::bf16;
  const memory::desc a({shape.M, shape.K}, bf16,
                       shape.transpose_a ? memory::dims{1, shape.lda} : memory::dims{shape.lda, 1});
  const memory::desc b({shape.K, shape.N}, bf16,
                       shape.transpose_b ? memory::dims{1, shape.ldb} : memory::dims{shape.ldb, 1});
  const memory::desc c({shape.M, shape.N}, ToDnnl(shape.c), memory::dims{shape.ldc, 1});
  dnnl::primitive_attr attributes;
  // Library-owned scratch belongs to the thread that made the primitive; ours is per thread.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops post_ops;
    post_ops.append_sum(1.0F);
    attributes.set_post_ops(post_ops);
  }
  const auto primitive_desc = [&] {
    if (!shape.bias) return Describe<dnnl::matmul>(engine_, attributes, a, b, c);
    const memory::desc bias({1, shape.N}, ToDnnl(*shape.bias), memory::dims{shape.N, 1});
    return Describe<dnnl::matmul>(engine_, attributes, a, b, bias, c);
  }();
  Primitive primitive;
  primitive.scratch_bytes = static_cast<int64_t>(primitive_desc.scratchpad_desc().get_size());
  primitive.matmul = dnnl::matmul(primitive_desc);
  const auto memory = [&](const dnnl::memory::desc& of) {
    return dnnl::memory(of, engine_, nullptr);
  };
  for (int i = 0; i < num_threads_; ++i) {
    std::unordered_map<int, dnnl::memory>& args = primitive.args.emplace_back();
    args[DNNL_ARG_SRC] = memory(primitive_desc.src_desc());
    args[DNNL_ARG_WEIGHTS] = memory(primitive_desc.weights_desc());
    args[DNNL_ARG_DST] = memory(primitive_desc.dst_desc());
    args[DNNL_ARG_SCRATCHPAD] = memory(primitive_desc.scratchpad_desc());
    if (shape.bias) args[DNNL_ARG_BIAS] = memory(primitive_desc.bias_desc());
  }
  return primitive;
}

void MatmulRunner::RunPrimitive(const Shape& shape, const Operands& operands, int thread) {
  Primitive& primitive = FindPrimitive(shape);
  const OneThread one_thread;
  const auto index = static_cast<size_t>(thread);
  std::unordered_map<int, dnnl::memory>& args = primitive.args[index];
  const auto set = [&](int arg, const void* data) {
    args.at(arg).set_data_handle(const_cast<void*>(data));
  };
  set(DNNL_ARG_SRC, operands.a);
  set(DNNL_ARG_WEIGHTS, operands.b);
  set(DNNL_ARG_DST, operands.c);
  set(DNNL_ARG_SCRATCHPAD, scratch_[index].Get(primitive.scratch_bytes));
  if (shape.bias) set(DNNL_ARG_BIAS, operands.bias);
  primitive.matmul.execute(streams_[index], args);
}

}  // namespace dsat::engine
