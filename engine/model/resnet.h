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
#ifndef DSAT_ENGINE_MODEL_RESNET_H_
#define DSAT_ENGINE_MODEL_RESNET_H_

#include <cstdint>

#include "engine/model/layer.h"

namespace dsat::engine {

struct ResnetShape {
  int64_t depth = 20;       // 6 n + 2: n blocks of two convolutions in each of three stages.
  int64_t width = 16;       // Channels of the first stage.
  int64_t groups = 8;       // Groups of every norm, which divide the width.
  int64_t image_size = 32;  // Rows and columns.
  int64_t channels = 3;
  int64_t classes = 10;
};

// Parameters are named as in torchvision's ResNet, `norm` for its `bn`; convolutions are (out, in,
// rows, columns), the classifier is (in, out). REQUIRES: as the fields say.
Model MakeResnet(const ResnetShape& shape);

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_MODEL_RESNET_H_
