// Optimizer updates: one pass that reads and writes every state once.
#include <bit>
#include <cmath>
#include <type_traits>

#include "engine/backend/cpu/cpu_kernels.h"
#include "engine/backend/cpu/vec.h"
#include "engine/backend/cpu/visit_update.h"

namespace dsat::engine {
namespace {

// Adam (Kingma and Ba 2015), and AdamW (Loshchilov and Hutter 2019).
template <typename Moment>
struct Adam {
  explicit Adam(const AdamArgs& args)
      : m(Data<Moment>(args.m)),
        v(Data<Moment>(args.v)),
        beta1(args.beta1),
        beta2(args.beta2),
        eps(args.eps) {
    shrink = args.decoupled_weight_decay ? 1.0F - args.lr * args.weight_decay : 1.0F;
    l2 = args.decoupled_weight_decay ? 0.0F : args.weight_decay;
    const auto step = static_cast<double>(args.step);
    const double correction1 = args.bias_correction ? 1 - std::pow(double{beta1}, step) : 1;
    const double correction2 = args.bias_correction ? 1 - std::pow(double{beta2}, step) : 1;
    step_size = static_cast<float>(args.lr / correction1);
    v_scale = static_cast<float>(1 / std::sqrt(correction2));
  }

  float operator()(int64_t i, float grad, float before) const {
    const float g = grad + l2 * before;
    const float mean = beta1 * ToFloat(m[i]) + (1.0F - beta1) * g;
    const float square = beta2 * ToFloat(v[i]) + (1.0F - beta2) * g * g;
    m[i] = FromFloat<Moment>(mean);
    v[i] = FromFloat<Moment>(square);
    return shrink * before - step_size * mean / (std::sqrt(square) * v_scale + eps);
  }

  Moment *m, *v;
  float beta1, beta2, eps;
  float shrink = 1;     // Decoupled weight decay multiplies the parameter.
  float l2 = 0;         // The other kind is added to the gradient.
  float step_size = 0;  // lr / (1 - beta1^step)
  float v_scale = 0;    // 1 / sqrt(1 - beta2^step)
};

// To bf16.
struct AtRandom {
  float operator()(float x, int64_t i) const {
    return std::bit_cast<float>(RoundAtRandom(std::bit_cast<uint32_t>(x), bits(i)));
  }
  RoundingBits bits;
};

}  // namespace

void CpuKernels::Run(const op::FindStepScale& op) {
  double sum = 0;
  for (int64_t row = 0; row < op.rows; ++row) {
    double row_sum = 0;
    for (int64_t col = 0; col < op.cols; ++col)
      row_sum += op.squares[row * op.cols + col];
    sum += row_sum;
  }
  *op.scale = StepScaleOf(sum, op.settings);
}

void CpuKernels::Run(const op::AdamStep& args) {
  if (Skips(args)) return;
  const auto update = [&]<typename Param>(const auto& step, Param* param, auto* master,
                                          const auto* grad) {
    if constexpr (std::is_same_v<Param, Bf16>) {
      if (args.rounding) {
        return UpdateElements(num_threads_, args, step, param, master, grad,
                              AtRandom{*args.rounding});
      }
    }
    UpdateElements(num_threads_, args, step, param, master, grad);
  };
  if (args.master.dtype == DType::kBF16) {
    const auto update_bf16 = [&](const auto& step) {
      update(step, args.param.bf16(), args.master.bf16(), args.grad.bf16());
    };
    return args.m.dtype == DType::kBF16 ? update_bf16(Adam<Bf16>(args))
                                        : update_bf16(Adam<float>(args));
  }
  VisitUpdate(args, [&](auto* param, float* master, const auto* grad) {
    update(Adam<float>(args), param, master, grad);
  });
}

void CpuKernels::Run(const op::SgdStep& args) {
  float* buffer = args.momentum == 0 ? nullptr : args.momentum_buffer.f32();
  // The buffer starts as the first gradient, undampened, as in PyTorch.
  const bool first = args.step == 1;
  const float take = 1.0F - args.dampening;
  Update(num_threads_, args, [=, f = args](int64_t i, float grad, float before) {
    const float g = grad + f.weight_decay * before;
    float direction = g;
    if (buffer != nullptr) {
      buffer[i] = first ? g : f.momentum * buffer[i] + take * g;
      direction = f.nesterov ? g + f.momentum * buffer[i] : buffer[i];
    }
    return before - f.lr * direction;
  });
}

void CpuKernels::Run(const op::AdagradStep& args) {
  float* sum = args.sum.f32();
  Update(num_threads_, args, [sum, f = args](int64_t i, float grad, float before) {
    const float g = grad + f.weight_decay * before;
    const float squares = sum[i] + g * g;
    sum[i] = squares;
    return before - f.lr * g / (std::sqrt(squares) + f.eps);
  });
}

void CpuKernels::Run(const op::LionStep& args) {
  float* m = args.m.f32();
  const float shrink = 1.0F - args.lr * args.weight_decay;
  Update(num_threads_, args, [m, shrink, f = args](int64_t i, float g, float before) {
    const float c = f.beta1 * m[i] + (1.0F - f.beta1) * g;
    const float step = c > 0.0F ? f.lr : (c < 0.0F ? -f.lr : 0.0F);
    m[i] = f.beta2 * m[i] + (1.0F - f.beta2) * g;
    return shrink * before - step;
  });
}

}  // namespace dsat::engine
