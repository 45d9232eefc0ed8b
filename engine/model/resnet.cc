// A residual network for small images (He et al. 2016, section 4.2): a 3 x 3 convolution, three
// stages of residual blocks that halve the image and double the channels, the mean over the pixels,
// a linear classifier. Normalized in groups of channels (Wu and He 2018): batch norm would need
// running statistics and a mean over the ranks, and its result would depend on the micro-batch size
// that dsat searches.
//
// Bytes kept per image between forward and backward, P = pixels and C = channels of the layer's
// output; e = bytes per element of the dtype:
//   stem   e P C + 8 G: the convolution's output; the groups' mean and rstd in f32
//   block  e 2 P C + 16 G: both convolutions' outputs; where the image shrinks, e 3 P C + 24 G
//   head   e (C + classes): the mean over the pixels, the gradient of the logits
// and each layer's output, which the executor keeps. Norms and ReLUs are computed again in
// backward.
//
// N = B images; T is 1.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/backend/kernels.h"
#include "engine/model/from_json.h"
#include "engine/model/linear.h"
#include "engine/model/softmax_loss.h"

namespace dsat::engine {
namespace {

using Init = ParamSpec::Init;

struct ResnetShape {
  int64_t depth = 20;       // 6 n + 2: n blocks of two convolutions in each of three stages.
  int64_t width = 16;       // Channels of the first stage.
  int64_t groups = 8;       // Groups of every norm, which divide the width.
  int64_t image_size = 32;  // Rows and columns.
  int64_t channels = 3;
  int64_t classes = 10;
};

void ReluInPlace(const LayerContext& ctx, const Buffer& x) {
  ctx.kernels.Run(op::ReluForward{x.AsTensor(ctx.dtype), x.AsTensor(ctx.dtype)});
}

// A convolution and the norm after it: parameters `param` (weight), + 1 and + 2 (the norm's).
struct ConvNorm {
  ConvShape conv;  // N is that of the batch.
  int64_t groups = 1;
  size_t param = 0;

  void AddParams(const std::string& conv_name, const std::string& norm_name,
                 std::vector<ParamSpec>& params) const {
    // He et al. 2015, by the size of the output: keeps the gradients' size through ReLU.
    const auto fan_out = static_cast<float>(conv.out * conv.kernel * conv.kernel);
    params.push_back({conv_name + ".weight",
                      {conv.out, conv.in, conv.kernel, conv.kernel},
                      Init::kNormal,
                      std::sqrt(2.0F / fan_out)});
    params.push_back({norm_name + ".weight", {conv.out}, Init::kOne});
    params.push_back({norm_name + ".bias", {conv.out}, Init::kZero});
  }

  ConvShape Shape(const LayerContext& ctx) const {
    ConvShape shape = conv;
    shape.N = ctx.batch.B;
    return shape;
  }
  GroupNormShape NormShape(const LayerContext& ctx) const {
    return {ctx.batch.B, conv.OutH() * conv.OutW(), conv.out, groups};
  }
  int64_t NumStats(const LayerContext& ctx) const { return 2 * ctx.batch.B * groups; }

  Buffer Convolve(const LayerContext& ctx, Tensor x) const {
    const ConvShape shape = Shape(ctx);
    Buffer y = ctx.arena.Allocate(ctx.dtype, shape.NumOut(), "convolution output");
    ctx.kernels.Run(op::ConvForward{y.AsTensor(ctx.dtype), x, ctx.params[param], shape});
    return y;
  }
  // Normalizes the convolution's output; stats (NumStats) f32 is written.
  Buffer Normalize(const LayerContext& ctx, const Buffer& convolved, Tensor stats) const {
    const GroupNormShape shape = NormShape(ctx);
    const int64_t half = NumStats(ctx) / 2;
    Buffer y = ctx.arena.Allocate(ctx.dtype, shape.NumElems(), "norm output");
    ctx.kernels.Run(op::GroupNormForward{y.AsTensor(ctx.dtype), stats.Slice(0, half),
                                         stats.Slice(half, half), convolved.AsTensor(ctx.dtype),
                                         ctx.params[param + 1], ctx.params[param + 2], shape});
    return y;
  }
  // relu of what Normalize returns.
  Buffer Activate(const LayerContext& ctx, const Buffer& convolved, Tensor stats) const {
    Buffer y = Normalize(ctx, convolved, stats);
    ReluInPlace(ctx, y);
    return y;
  }
  // The gradient dy of the norm's output becomes that of the convolution's, in `dx`, which may be
  // dy.
  void NormGrad(const LayerContext& ctx, Tensor dx, Tensor dy, const Buffer& convolved,
                Tensor stats) const {
    const int64_t half = NumStats(ctx) / 2;
    ctx.kernels.Run(op::GroupNormBackward{
        dx, ctx.Grad(param + 1), ctx.Grad(param + 2), dy, convolved.AsTensor(ctx.dtype),
        ctx.params[param + 1], stats.Slice(0, half), stats.Slice(half, half), NormShape(ctx)});
  }
  void WeightGrad(const LayerContext& ctx, Tensor dy, Tensor x) const {
    if (ctx.Trains(param)) ctx.kernels.Run(op::ConvWeightGrad{ctx.Grad(param), dy, x, Shape(ctx)});
  }
  Buffer InputGrad(const LayerContext& ctx, Tensor dy) const {
    const ConvShape shape = Shape(ctx);
    Buffer dx = ctx.arena.Allocate(ctx.dtype, shape.NumIn(), "convolution input gradient");
    ctx.kernels.Run(op::ConvInputGrad{dx.AsTensor(ctx.dtype), dy, ctx.params[param], shape});
    return dx;
  }
};

// dy, the gradient of the ReLU's output y, becomes that of its input: both have the same signs.
void ReluGradInPlace(const LayerContext& ctx, const Buffer& dy, const Buffer& y) {
  ctx.kernels.Run(
      op::ReluBackward{dy.AsTensor(ctx.dtype), dy.AsTensor(ctx.dtype), y.AsTensor(ctx.dtype)});
}

// relu(norm(conv(pixels))).
class Stem final : public NamedLayer {
 public:
  explicit Stem(const ResnetShape& shape) : NamedLayer("stem") {
    unit_.conv = {
        .H = shape.image_size, .W = shape.image_size, .in = shape.channels, .out = shape.width};
    unit_.groups = shape.groups;
    unit_.AddParams("conv1", "norm1", params_);
  }

  Buffer Forward(const LayerContext& ctx, const Buffer&, Saved& saved) const override {
    saved.resize(kNumKept);
    saved[kStats] = ctx.arena.Allocate(DType::kF32, unit_.NumStats(ctx), "stem statistics");
    saved[kConv] = unit_.Convolve(ctx, Pixels(ctx).AsTensor(ctx.dtype));
    return Output(ctx, saved);
  }

  Buffer Backward(const LayerContext& ctx, const Buffer&, Buffer dy, Saved& saved) const override {
    if (ctx.Trains(0)) {
      ReluGradInPlace(ctx, dy, Output(ctx, saved));
      unit_.NormGrad(ctx, dy.AsTensor(ctx.dtype), dy.AsTensor(ctx.dtype), saved[kConv],
                     saved[kStats].AsTensor(DType::kF32));
      unit_.WeightGrad(ctx, dy.AsTensor(ctx.dtype), Pixels(ctx).AsTensor(ctx.dtype));
    }
    saved.clear();
    return {};
  }

 private:
  enum Kept { kStats, kConv, kNumKept };

  Buffer Pixels(const LayerContext& ctx) const {
    const int64_t num_elems = unit_.Shape(ctx).NumIn();
    Buffer pixels = ctx.arena.Allocate(ctx.dtype, num_elems, "pixels");
    ctx.kernels.Run(op::Cast{pixels.AsTensor(ctx.dtype).Slice(0, num_elems),
                             {const_cast<float*>(ctx.batch.pixels), num_elems, DType::kF32}});
    return pixels;
  }
  Buffer Output(const LayerContext& ctx, const Saved& saved) const {
    return unit_.Activate(ctx, saved[kConv], saved[kStats].AsTensor(DType::kF32));
  }

  ConvNorm unit_;
};

// relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)); the shortcut is x itself, or, where the
// image shrinks, a norm of a 1 x 1 convolution of every second pixel.
class ResidualBlock final : public NamedLayer {
 public:
  // x (N, size, size, in); the output has `out` channels and 1 / stride of the rows and columns.
  ResidualBlock(std::string name, int64_t size, int64_t in, int64_t out, int64_t groups)
      : NamedLayer(std::move(name)), shrinks_(in != out) {
    const int64_t stride = shrinks_ ? 2 : 1;
    first_.conv = {.H = size, .W = size, .in = in, .out = out, .stride = stride};
    second_.conv = {.H = first_.conv.OutH(), .W = first_.conv.OutW(), .in = out, .out = out};
    second_.param = 3;
    shortcut_.conv = {.H = size, .W = size, .in = in, .out = out, .kernel = 1, .stride = stride};
    shortcut_.param = 6;
    first_.groups = second_.groups = shortcut_.groups = groups;
    first_.AddParams(name_ + ".conv1", name_ + ".norm1", params_);
    second_.AddParams(name_ + ".conv2", name_ + ".norm2", params_);
    if (shrinks_) shortcut_.AddParams(name_ + ".downsample.0", name_ + ".downsample.1", params_);
  }

  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override {
    saved.resize(kNumKept);
    const int64_t num_units = shrinks_ ? 3 : 2;
    saved[kStats] =
        ctx.arena.Allocate(DType::kF32, num_units * first_.NumStats(ctx), "block statistics");
    saved[kConv1] = first_.Convolve(ctx, x.AsTensor(ctx.dtype));
    saved[kConv2] = second_.Convolve(ctx, Middle(ctx, saved).AsTensor(ctx.dtype));
    if (shrinks_) saved[kShortcut] = shortcut_.Convolve(ctx, x.AsTensor(ctx.dtype));
    return Output(ctx, x, saved);
  }

  Buffer Backward(const LayerContext& ctx, const Buffer& x, Buffer dy,
                  Saved& saved) const override {
    ReluGradInPlace(ctx, dy, Output(ctx, x, saved));
    Buffer dx = MainGrad(ctx, x, dy, saved);
    const Buffer other = ShortcutGrad(ctx, x, std::move(dy), saved);
    ctx.kernels.Run(
        op::Add{dx.AsTensor(ctx.dtype), dx.AsTensor(ctx.dtype), other.AsTensor(ctx.dtype)});
    saved.clear();
    return dx;
  }

 private:
  enum Kept { kStats, kConv1, kConv2, kShortcut, kNumKept };

  // The i-th unit's numbers.
  Tensor Stats(const LayerContext& ctx, const Saved& saved, int64_t i) const {
    const int64_t num_stats = first_.NumStats(ctx);
    return saved[kStats].AsTensor(DType::kF32).Slice(i * num_stats, num_stats);
  }

  // relu(norm(first convolution)).
  Buffer Middle(const LayerContext& ctx, const Saved& saved) const {
    return first_.Activate(ctx, saved[kConv1], Stats(ctx, saved, 0));
  }

  // relu(norm(second convolution) + shortcut).
  Buffer Output(const LayerContext& ctx, const Buffer& x, const Saved& saved) const {
    Buffer y = second_.Normalize(ctx, saved[kConv2], Stats(ctx, saved, 1));
    Buffer projected;
    if (shrinks_) projected = shortcut_.Normalize(ctx, saved[kShortcut], Stats(ctx, saved, 2));
    const Buffer& other = shrinks_ ? projected : x;
    ctx.kernels.Run(
        op::Add{y.AsTensor(ctx.dtype), y.AsTensor(ctx.dtype), other.AsTensor(ctx.dtype)});
    ReluInPlace(ctx, y);
    return y;
  }

  // The part that comes through the shortcut.
  Buffer ShortcutGrad(const LayerContext& ctx, const Buffer& x, Buffer dy, Saved& saved) const {
    if (!shrinks_) return dy;
    const Tensor grad = dy.AsTensor(ctx.dtype);
    shortcut_.NormGrad(ctx, grad, grad, saved[kShortcut], Stats(ctx, saved, 2));
    shortcut_.WeightGrad(ctx, grad, x.AsTensor(ctx.dtype));
    return shortcut_.InputGrad(ctx, grad);
  }

  // The part of the input's gradient that comes through both convolutions.
  Buffer MainGrad(const LayerContext& ctx, const Buffer& x, const Buffer& dy, Saved& saved) const {
    const DType dtype = ctx.dtype;
    Buffer dconv2 = ctx.arena.Allocate(dtype, second_.Shape(ctx).NumOut(), "convolution gradient");
    second_.NormGrad(ctx, dconv2.AsTensor(dtype), dy.AsTensor(dtype), saved[kConv2],
                     Stats(ctx, saved, 1));
    saved[kConv2].Free();
    Buffer middle = Middle(ctx, saved);
    second_.WeightGrad(ctx, dconv2.AsTensor(dtype), middle.AsTensor(dtype));
    Buffer dmiddle = second_.InputGrad(ctx, dconv2.AsTensor(dtype));
    dconv2.Free();
    ReluGradInPlace(ctx, dmiddle, middle);
    middle.Free();
    first_.NormGrad(ctx, dmiddle.AsTensor(dtype), dmiddle.AsTensor(dtype), saved[kConv1],
                    Stats(ctx, saved, 0));
    saved[kConv1].Free();
    first_.WeightGrad(ctx, dmiddle.AsTensor(dtype), x.AsTensor(dtype));
    return first_.InputGrad(ctx, dmiddle.AsTensor(dtype));
  }

  bool shrinks_;
  ConvNorm first_, second_, shortcut_;
};

// The mean over the pixels, the classifier and the loss.
class ImageHead final : public NamedLayer {
 public:
  ImageHead(int64_t pixels, int64_t in, int64_t classes)
      : NamedLayer("head"), P_(pixels), in_(in), classes_(classes) {
    // Small: the first loss is ln(classes).
    params_ = {{"fc.weight", {in, classes}, Init::kNormal, 0.01F},
               {"fc.bias", {classes}, Init::kZero}};
  }

  Buffer Forward(const LayerContext& ctx, const Buffer& x, Saved& saved) const override {
    const int64_t B = ctx.batch.B;
    Buffer pooled = ctx.arena.Allocate(ctx.dtype, B * in_, "mean over the pixels");
    ctx.kernels.Run(
        op::MeanPoolForward{pooled.AsTensor(ctx.dtype), x.AsTensor(ctx.dtype), B, P_, in_});
    if (ctx.Predicts()) {
      Classify(ctx, ctx.logits, pooled);
      return {};
    }
    saved.resize(kNumKept);
    saved[kLogits] = ctx.arena.Allocate(ctx.dtype, B * classes_, "logits");
    const Tensor logits = saved[kLogits].AsTensor(ctx.dtype);
    Classify(ctx, logits, pooled);
    SoftmaxLossInPlace(ctx, logits, classes_);
    saved[kPooled] = std::move(pooled);
    return {};
  }

  Buffer Backward(const LayerContext& ctx, const Buffer&, Buffer, Saved& saved) const override {
    const LinearShape shape{ctx.batch.B, in_, classes_};
    const Tensor dlogits = saved[kLogits].AsTensor(ctx.dtype);
    const Tensor pooled = saved[kPooled].AsTensor(ctx.dtype);
    LinearParamGrads(ctx.kernels, ctx.Grad(0), ctx.Grad(1), dlogits, pooled, shape);
    const Tensor dpooled = pooled;  // Its values have served.
    LinearInputGrad(ctx.kernels, dpooled, dlogits, ctx.params[0], shape);
    Buffer dx = ctx.arena.Allocate(ctx.dtype, shape.N * P_ * in_, "head input gradient");
    ctx.kernels.Run(op::MeanPoolBackward{dx.AsTensor(ctx.dtype), dpooled, shape.N, P_, in_});
    saved.clear();
    return dx;
  }

 private:
  enum Kept { kPooled, kLogits, kNumKept };

  void Classify(const LayerContext& ctx, Tensor logits, const Buffer& pooled) const {
    LinearForward(ctx.kernels, logits, pooled.AsTensor(ctx.dtype), ctx.params[0], ctx.params[1],
                  {ctx.batch.B, in_, classes_});
  }

  int64_t P_;
  int64_t in_;
  int64_t classes_;
};

// Parameters are named as in torchvision's ResNet, `norm` for its `bn`; convolutions are (out, in,
// rows, columns), the classifier is (in, out). REQUIRES: as the fields say.
Model MakeResnet(const ResnetShape& shape) {
  constexpr int64_t kStages = 3;
  Model model;
  model.vocab_size = shape.classes;
  model.max_seq_len = 1;
  model.image = {shape.image_size, shape.image_size, shape.channels};
  model.layers.push_back(std::make_unique<Stem>(shape));
  int64_t size = shape.image_size;
  int64_t channels = shape.width;
  for (int64_t stage = 0; stage < kStages; ++stage) {
    const int64_t out = shape.width << stage;
    for (int64_t i = 0; i < (shape.depth - 2) / (2 * kStages); ++i) {
      model.layers.push_back(std::make_unique<ResidualBlock>(
          fmt::format("layer{}.{}", stage + 1, i), size, channels, out, shape.groups));
      if (channels != out) size = (size + 1) / 2;
      channels = out;
    }
  }
  model.layers.push_back(std::make_unique<ImageHead>(size * size, channels, shape.classes));
  return model;
}

constexpr int64_t kPresetDepths[] = {20, 32, 44, 56, 110};  // "resnet20" and so on.

int64_t DepthFrom(const JsonBlock& block, int64_t fallback) {
  if (block.Has("preset")) {
    std::vector<std::string> names;
    for (const int64_t depth : kPresetDepths)
      names.push_back(fmt::format("resnet{}", depth));
    const auto named = std::ranges::find(names, block.Word("preset", names));
    fallback = kPresetDepths[named - names.begin()];
  }
  const int64_t depth = block.Int("depth", fallback, 8, 6 * kMaxLayers + 2);
  if (depth % 6 == 2) return depth;
  Throw(ErrorCode::kInvalidArgument, "{} is {}; expected 6 n + 2, as 20, 32, 44, 56 or 110",
        block.PointerTo("depth"), depth);
}

}  // namespace

Model ResnetFromJson(const JsonBlock& block, const std::string&) {
  block.CheckKeys({"type", "frozen", "preset", "depth", "width", "groups", "image_size", "channels",
                   "classes"});
  ResnetShape shape;
  shape.depth = DepthFrom(block, shape.depth);
  shape.width = block.Int("width", shape.width, 1, kMaxWidth);
  shape.groups = block.Int("groups", std::min(shape.groups, shape.width), 1, shape.width);
  shape.image_size = block.Int("image_size", shape.image_size, 4, 4096);
  shape.channels = block.Int("channels", shape.channels, 1, 1024);
  shape.classes = block.Int("classes", shape.classes, 2, kMaxVocab);
  if (shape.width % shape.groups != 0) {
    Throw(ErrorCode::kInvalidArgument, "{} is {}; expected a divisor of width, which is {}",
          block.PointerTo("groups"), shape.groups, shape.width);
  }
  Model model = MakeResnet(shape);
  model.description = fmt::format("resnet {} layers, {} wide, images {} x {} x {}, {} parameters",
                                  shape.depth, shape.width, shape.image_size, shape.image_size,
                                  shape.channels, HumanCount(NumParams(model)));
  return model;
}

}  // namespace dsat::engine
