// The formulas by which optimizers change one element. For .cc and .cu files.
//
// rule(gradient, master, m, v) gives the new master copy (LambMomentsRule: the direction), all in
// f32; m and v are the moments, or in `m` the momentum buffer or the sum of squares.
#pragma once

#include <cmath>

#include "engine/backend/optimizer_kernels.h"

namespace dsat::engine {

// A rule that changes its moments by the gradient.
struct Learns {
  static constexpr bool kReadsGrad = true, kWritesMoments = true;
};
// One by moments that rest.
struct Applies {
  static constexpr bool kReadsGrad = false, kWritesMoments = false;
};

// Leaves an element as it is: storing it rounds to nearest.
struct Nearest {
  DSAT_HOST_DEVICE float operator()(float x, int64_t) const { return x; }
};

// Adam (Kingma and Ba 2015), and AdamW (Loshchilov and Hutter 2019).
struct AdamRule : Learns {
  explicit AdamRule(const AdamArgs& args) : beta1(args.beta1), beta2(args.beta2), eps(args.eps) {
    shrink = args.decoupled_weight_decay ? 1.0F - args.lr * args.weight_decay : 1.0F;
    l2 = args.decoupled_weight_decay ? 0.0F : args.weight_decay;
    const auto step = static_cast<double>(args.step);
    const double correction1 = args.bias_correction ? 1 - std::pow(double{beta1}, step) : 1;
    const double correction2 = args.bias_correction ? 1 - std::pow(double{beta2}, step) : 1;
    step_size = static_cast<float>(args.lr / correction1);
    v_scale = static_cast<float>(1 / std::sqrt(correction2));
  }

  DSAT_HOST_DEVICE float operator()(float grad, float before, float& m, float& v) const {
    const float g = grad + l2 * before;
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * g * g;
    return shrink * before - step_size * m / (sqrtf(v) * v_scale + eps);
  }

  float beta1, beta2, eps;
  float shrink = 1;     // Decoupled weight decay multiplies the parameter.
  float l2 = 0;         // The other kind is added to the gradient.
  float step_size = 0;  // lr / (1 - beta1^step)
  float v_scale = 0;    // 1 / sqrt(1 - beta2^step)
};

struct SgdRule : Learns {
  explicit SgdRule(const op::SgdStep& args)
      : lr(args.lr),
        weight_decay(args.weight_decay),
        momentum(args.momentum),
        dampening(args.dampening),
        nesterov(args.nesterov),
        first(args.step == 1) {}

  DSAT_HOST_DEVICE float operator()(float grad, float before, float& buffer, float&) const {
    const float g = grad + weight_decay * before;
    // It starts as the first gradient, undampened, as in PyTorch. Without momentum there is none.
    buffer = first ? g : momentum * buffer + (1.0F - dampening) * g;
    const float direction = nesterov ? g + momentum * buffer : buffer;
    return before - lr * (momentum == 0.0F ? g : direction);
  }

  float lr, weight_decay, momentum, dampening;
  bool nesterov, first;
};

struct AdagradRule : Learns {
  explicit AdagradRule(const op::AdagradStep& args)
      : lr(args.lr), eps(args.eps), weight_decay(args.weight_decay) {}

  DSAT_HOST_DEVICE float operator()(float grad, float before, float& sum, float&) const {
    const float g = grad + weight_decay * before;
    sum += g * g;
    return before - lr * g / (sqrtf(sum) + eps);
  }

  float lr, eps, weight_decay;
};

struct LionRule : Learns {
  explicit LionRule(const op::LionStep& args)
      : lr(args.lr),
        beta1(args.beta1),
        beta2(args.beta2),
        shrink(1.0F - args.lr * args.weight_decay) {}

  DSAT_HOST_DEVICE float operator()(float g, float before, float& m, float&) const {
    const float c = beta1 * m + (1.0F - beta1) * g;
    const float step = c > 0.0F ? lr : (c < 0.0F ? -lr : 0.0F);
    m = beta2 * m + (1.0F - beta2) * g;
    return shrink * before - step;
  }

  float lr, beta1, beta2, shrink;
};

DSAT_HOST_DEVICE inline float LambDirection(float m, float v, float param, float eps,
                                            float weight_decay) {
  return m / (sqrtf(v) + eps) + weight_decay * param;
}

// LAMB's first half: changes the moments and gives the direction.
struct LambMomentsRule : Learns {
  explicit LambMomentsRule(const AdamArgs& args)
      : beta1(args.beta1), beta2(args.beta2), eps(args.eps), weight_decay(args.weight_decay) {}

  DSAT_HOST_DEVICE float operator()(float g, float before, float& m, float& v) const {
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * g * g;
    return LambDirection(m, v, before, eps, weight_decay);
  }

  float beta1, beta2, eps, weight_decay;
};

// Its second half.
struct LambRule : Applies {
  explicit LambRule(const op::LambApply& args) : eps(args.eps), weight_decay(args.weight_decay) {
    double rate = args.lr;
    if (args.bias_correction) {
      const auto step = static_cast<double>(args.step);
      rate = args.lr * std::sqrt(1 - std::pow(double{args.beta2}, step)) /
             (1 - std::pow(double{args.beta1}, step));
    }
    step_size = static_cast<float>(rate) * args.trust_ratio;
  }

  DSAT_HOST_DEVICE float operator()(float, float before, float m, float v) const {
    return before - step_size * LambDirection(m, v, before, eps, weight_decay);
  }

  float eps, weight_decay, step_size = 0;
};

struct FrozenAdamRule : Applies {
  explicit FrozenAdamRule(const AdamArgs& args)
      : lr(args.lr), eps(args.eps), weight_decay(args.weight_decay) {}

  DSAT_HOST_DEVICE float operator()(float, float before, float m, float v) const {
    const float direction = v > 0.0F ? m / (sqrtf(v) + eps) : 0.0F;
    return before - lr * (direction + weight_decay * before);
  }

  float lr, eps, weight_decay;
};

}  // namespace dsat::engine
