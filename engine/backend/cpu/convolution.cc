// Convolutions on CPU: oneDNN primitives over pieces of the batch.
//
// The size of a batch alone determines how it is divided into pieces of images, and each piece is
// one oneDNN call on one thread. Results do not depend on the number of threads, and the gradients
// of the weights are summed over the pieces in order. bf16 is multiplied natively if the processor
// supports it; otherwise, and for f16, pieces are converted to f32.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/float_tiles.h"
#include "engine/backend/cpu/onednn.h"
#include "engine/backend/cpu/partial_sums.h"
#include "engine/backend/cpu/scratch.h"
#include "engine/backend/cpu/vec.h"

namespace dsat::engine {
namespace {

using dnnl::memory;

// Enough for the threads of one rank; each has a copy of the weights' gradient.
constexpr int64_t kMaxPieces = 8;

enum class Pass : uint8_t { kForward, kInputGrad, kWeightGrad };

// A primitive and the layouts it wants: images are always (N, H, W, C) as ours, weights its own.
struct Primitive {
  dnnl::primitive primitive;
  memory::desc images_in, images_out, weights, scratchpad;
  int64_t overrun = 0;  // Bytes that it may write behind its scratchpad.
};

// oneDNN 2.6 gathers the pixels that a 1 x 1 convolution with strides uses, and writes whole
// vectors of channels although it reserves room only for those that there are (seen for the
// gradient of the weights with AVX2).
int64_t OverrunOf(const ConvShape& s) {
  constexpr int64_t kWidestVector = 64;
  return s.kernel == 1 && s.stride > 1 ? kWidestVector * s.OutH() * s.OutW() : 0;
}

// Images of a piece; the last may have fewer.
int64_t PieceImages(int64_t N) {
  return (N + kMaxPieces - 1) / kMaxPieces;
}

int64_t NumPieces(int64_t N) {
  return (N + PieceImages(N) - 1) / PieceImages(N);
}

void ToF32(float* out, const Tensor& t) {
  VisitDType(t.dtype, [&]<typename T>(T) { Widen(out, Data<T>(t), t.num_elems); });
}

void FromF32(const Tensor& t, const float* in) {
  VisitDType(t.dtype, [&]<typename T>(T) {
    for (int64_t i = 0; i < t.num_elems; ++i)
      Data<T>(t)[i] = FromFloat<T>(in[i]);
  });
}

}  // namespace

class ConvRunner : private OneDnnThreads {
 public:
  using OneDnnThreads::OneDnnThreads;

  // kForward: out = y, in = x; kInputGrad: out = dx, in = dy.
  void Map(Pass pass, const Tensor& out, const Tensor& in, const Tensor& weight,
           const ConvShape& shape);
  void WeightGrad(const Tensor& dweight, const Tensor& dy, const Tensor& x, const ConvShape& shape);

 private:
  // Images [begin, end) of the batch.
  struct Piece {
    int64_t index = 0, begin = 0, end = 0;
    int64_t count() const { return end - begin; }
  };
  using Key = std::tuple<Pass, DType, ConvShape>;

  DType ComputeType(DType dtype) const {
    return dtype == DType::kBF16 && bf16_native_ ? DType::kBF16 : DType::kF32;
  }
  memory::desc OihwDesc(DType dtype, const ConvShape& s) const {
    return {{s.out, s.in, s.kernel, s.kernel}, ToDnnl(dtype), memory::format_tag::oihw};
  }
  // The primitive for `images` images of such a batch.
  const Primitive& Find(Pass pass, DType dtype, int64_t images, ConvShape shape);
  Primitive Make(Pass pass, DType dtype, const ConvShape& piece) const;
  template <typename Fn>
  void ForEachPiece(Pass pass, DType dtype, const ConvShape& shape, const Fn& fn);
  void Reorder(const memory::desc& to, void* dst, const memory::desc& from, void* src, int thread);
  void* ReorderedWeights(const Primitive& primitive, DType dtype, const Tensor& weight,
                         const ConvShape& shape, Scratch& scratch);
  // A thread's scratch for one call: the scratchpad, then f32 copies of two pieces of images.
  struct Work {
    void* scratchpad = nullptr;
    float* first = nullptr;
    float* second = nullptr;
  };
  Work WorkOf(int thread, const Primitive& primitive, int64_t first_elems, int64_t second_elems);
  void Execute(const Primitive& primitive, int thread, const Work& work,
               std::unordered_map<int, memory> operands);

  Scratch weights_, rest_weights_, converted_weights_, partial_;
  std::map<Key, Primitive> primitives_;
};

Primitive ConvRunner::Make(Pass pass, DType dtype, const ConvShape& s) const {
  const OneThread one_thread;  // The blocking is chosen for this many threads.
  const auto type = ToDnnl(dtype);
  const auto nhwc = memory::format_tag::nhwc;
  const memory::desc x({s.N, s.in, s.H, s.W}, type, nhwc);
  const memory::desc y({s.N, s.out, s.OutH(), s.OutW()}, type, nhwc);
  const memory::dims weight_dims = {s.out, s.in, s.kernel, s.kernel};
  const memory::desc weights(weight_dims, type, memory::format_tag::any);
  const memory::dims strides = {s.stride, s.stride};
  const memory::dims padding = {s.kernel / 2, s.kernel / 2};
  const auto direct = dnnl::algorithm::convolution_direct;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto forward =
      Describe<dnnl::convolution_forward>(engine_, attributes, dnnl::prop_kind::forward_training,
                                          direct, x, weights, y, strides, padding, padding);
  if (pass == Pass::kForward) {
    return {dnnl::convolution_forward(forward), x, y, forward.weights_desc(),
            forward.scratchpad_desc()};
  }
  if (pass == Pass::kInputGrad) {
    const auto desc = DescribeBackward<dnnl::convolution_backward_data>(
        engine_, attributes, forward, direct, x, weights, y, strides, padding, padding);
    return {dnnl::convolution_backward_data(desc), y, x, desc.weights_desc(),
            desc.scratchpad_desc()};
  }
  const memory::desc gradient(weight_dims, memory::data_type::f32, memory::format_tag::any);
  const auto desc = DescribeBackward<dnnl::convolution_backward_weights>(
      engine_, attributes, forward, direct, x, gradient, y, strides, padding, padding);
  return {dnnl::convolution_backward_weights(desc), x, y, desc.diff_weights_desc(),
          desc.scratchpad_desc()};
}

const Primitive& ConvRunner::Find(Pass pass, DType dtype, int64_t images, ConvShape shape) {
  shape.N = images;
  const Key key = {pass, dtype, shape};
  const auto it = primitives_.find(key);
  if (it != primitives_.end()) return it->second;
  Primitive made = Make(pass, dtype, shape);
  made.overrun = OverrunOf(shape);
  return primitives_.emplace(key, std::move(made)).first->second;
}

// Calls fn(piece, primitive, thread), in parallel.
template <typename Fn>
void ConvRunner::ForEachPiece(Pass pass, DType dtype, const ConvShape& shape, const Fn& fn) {
  const int64_t size = PieceImages(shape.N);
  const int64_t num_pieces = NumPieces(shape.N);
  const int64_t rest = shape.N % size;
  const Primitive& whole = Find(pass, dtype, size, shape);
  const Primitive& last = rest == 0 ? whole : Find(pass, dtype, rest, shape);
  const int num_threads = static_cast<int>(std::min<int64_t>(num_threads_, num_pieces));
#pragma omp parallel for schedule(dynamic) num_threads(num_threads) if (num_threads > 1)
  for (int64_t i = 0; i < num_pieces; ++i) {
    const Piece piece{i, i * size, std::min(shape.N, (i + 1) * size)};
    fn(piece, piece.count() == size ? whole : last, omp_get_thread_num());
  }
}

void ConvRunner::Reorder(const memory::desc& to, void* dst, const memory::desc& from, void* src,
                         int thread) {
  const OneThread one_thread;
  memory source(from, engine_, src);
  memory target(to, engine_, dst);
  dnnl::reorder(source, target).execute(streams_[static_cast<size_t>(thread)], source, target);
}

// The weights in the primitive's layout and the type it computes in.
void* ConvRunner::ReorderedWeights(const Primitive& primitive, DType dtype, const Tensor& weight,
                                   const ConvShape& shape, Scratch& scratch) {
  void* source = weight.data;
  if (weight.dtype != dtype) {
    auto* converted = converted_weights_.GetArray<float>(weight.num_elems);
    ToF32(converted, weight);
    source = converted;
  }
  void* out = scratch.Get(static_cast<int64_t>(primitive.weights.get_size()));
  Reorder(primitive.weights, out, OihwDesc(dtype, shape), source, 0);
  return out;
}

ConvRunner::Work ConvRunner::WorkOf(int thread, const Primitive& primitive, int64_t first_elems,
                                    int64_t second_elems) {
  const auto bytes =
      (static_cast<int64_t>(primitive.scratchpad.get_size()) + primitive.overrun + 63) / 64 * 64;
  Scratch& scratch = scratch_[static_cast<size_t>(thread)];
  auto* data = static_cast<char*>(scratch.Get(bytes + 4 * (first_elems + second_elems)));
  auto* first = reinterpret_cast<float*>(data + bytes);
  return {data, first, first + first_elems};
}

void ConvRunner::Execute(const Primitive& primitive, int thread, const Work& work,
                         std::unordered_map<int, memory> operands) {
  const OneThread one_thread;
  operands.emplace(DNNL_ARG_SCRATCHPAD, memory(primitive.scratchpad, engine_, work.scratchpad));
  primitive.primitive.execute(streams_[static_cast<size_t>(thread)], operands);
}

void ConvRunner::Map(Pass pass, const Tensor& out, const Tensor& in, const Tensor& weight,
                     const ConvShape& shape) {
  const DType dtype = ComputeType(in.dtype);
  const bool convert = dtype != in.dtype;
  const bool forward = pass == Pass::kForward;
  // The elements of an image.
  const int64_t out_elems = (forward ? shape.NumOut() : shape.NumIn()) / shape.N;
  const int64_t in_elems = (forward ? shape.NumIn() : shape.NumOut()) / shape.N;
  // Pieces of two sizes, which may want the weights in two layouts.
  const int64_t size = PieceImages(shape.N);
  void* weights = ReorderedWeights(Find(pass, dtype, size, shape), dtype, weight, shape, weights_);
  void* last_weights = weights;
  if (shape.N % size != 0) {
    last_weights = ReorderedWeights(Find(pass, dtype, shape.N % size, shape), dtype, weight, shape,
                                    rest_weights_);
  }
  ForEachPiece(pass, dtype, shape, [&](const Piece& piece, const Primitive& primitive, int thread) {
    const Tensor from = in.Slice(piece.begin * in_elems, piece.count() * in_elems);
    const Tensor to = out.Slice(piece.begin * out_elems, piece.count() * out_elems);
    const Work work =
        WorkOf(thread, primitive, convert ? from.num_elems : 0, convert ? to.num_elems : 0);
    if (convert) ToF32(work.first, from);
    void* images_in = convert ? work.first : from.data;
    void* images_out = convert ? work.second : to.data;
    Execute(primitive, thread, work,
            {{forward ? DNNL_ARG_SRC : DNNL_ARG_DIFF_DST,
              memory(primitive.images_in, engine_, images_in)},
             {forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_SRC,
              memory(primitive.images_out, engine_, images_out)},
             {DNNL_ARG_WEIGHTS,
              memory(primitive.weights, engine_, piece.count() == size ? weights : last_weights)}});
    if (convert) FromF32(to, work.second);
  });
}

void ConvRunner::WeightGrad(const Tensor& dweight, const Tensor& dy, const Tensor& x,
                            const ConvShape& shape) {
  const DType dtype = ComputeType(x.dtype);
  const bool convert = dtype != x.dtype;
  const int64_t x_elems = shape.NumIn() / shape.N;
  const int64_t y_elems = shape.NumOut() / shape.N;
  const int64_t num_weights = shape.NumWeights();
  const int64_t num_pieces = NumPieces(shape.N);
  auto* partial = partial_.GetArray<float>(num_pieces * num_weights);
  ForEachPiece(Pass::kWeightGrad, dtype, shape,
               [&](const Piece& piece, const Primitive& primitive, int thread) {
                 const Tensor in = x.Slice(piece.begin * x_elems, piece.count() * x_elems);
                 const Tensor grad = dy.Slice(piece.begin * y_elems, piece.count() * y_elems);
                 const auto gradient_elems =
                     static_cast<int64_t>(primitive.weights.get_size() / sizeof(float));
                 const int64_t image_elems = convert ? in.num_elems + grad.num_elems : 0;
                 const Work work = WorkOf(thread, primitive, gradient_elems, image_elems);
                 float* images = work.second;
                 if (convert) {
                   ToF32(images, in);
                   ToF32(images + in.num_elems, grad);
                 }
                 void* from = convert ? images : in.data;
                 void* dfrom = convert ? images + in.num_elems : grad.data;
                 Execute(primitive, thread, work,
                         {{DNNL_ARG_SRC, memory(primitive.images_in, engine_, from)},
                          {DNNL_ARG_DIFF_DST, memory(primitive.images_out, engine_, dfrom)},
                          {DNNL_ARG_DIFF_WEIGHTS, memory(primitive.weights, engine_, work.first)}});
                 Reorder(OihwDesc(DType::kF32, shape), partial + piece.index * num_weights,
                         primitive.weights, work.first, thread);
               });
  VisitDType(dweight.dtype, [&](auto type) {
    AddPartialSums<decltype(type)>(dweight, partial, num_pieces, num_weights, num_weights);
  });
}

std::shared_ptr<ConvRunner> MakeConvRunner(int num_threads) {
  return std::make_shared<ConvRunner>(num_threads);
}

void CpuKernels::Run(const op::ConvForward& op) {
  conv_->Map(Pass::kForward, op.y, op.x, op.weight, op.shape);
}

void CpuKernels::Run(const op::ConvInputGrad& op) {
  conv_->Map(Pass::kInputGrad, op.dx, op.dy, op.weight, op.shape);
}

void CpuKernels::Run(const op::ConvWeightGrad& op) {
  conv_->WeightGrad(op.dweight, op.dy, op.x, op.shape);
}

}  // namespace dsat::engine
