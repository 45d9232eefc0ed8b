// The kernels of optimizers, each a struct of its operands, as in layer_ops.h, and the interface of
// a backend.
//
// Optimizer states are f32, but for AdamStep's.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "engine/backend/kernels.h"
#include "engine/backend/step_scale.h"
#include "engine/backend/stochastic_rounding.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

// All of an update's tensors have as many elements as its parameter; `states` are f32.
inline void CheckUpdate(const Tensor& param, std::initializer_list<Tensor> tensors,
                        std::initializer_list<Tensor> states) {
  for (const Tensor& t : tensors)
    DSAT_CHECK(t.num_elems == param.num_elems, "{} and {} elements", t.num_elems, param.num_elems);
  for (const Tensor& t : states) {
    DSAT_CHECK(t.num_elems == param.num_elems && t.dtype == DType::kF32,
               "optimizer state {} of {} elements", t.num_elems, param.num_elems);
  }
}

struct AdamArgs {
  Tensor param{};   // (n) written; the parameter in the model's dtype
  Tensor master{};  // (n) f32; read and written. The same memory as `param` if the model is f32.
  Tensor grad{};    // (n)
  Tensor m{};       // (n) f32
  Tensor v{};       // (n) f32
  // AdamStep only: if `param` and `grad` are bf16, `master` may be bf16, too, in `param`'s memory
  // or its own; then `m` and `v` may also be bf16. Arithmetic is f32; each is rounded once, when it
  // is written.
  float lr = 0, beta1 = 0.9F, beta2 = 0.999F, eps = 1e-8F, weight_decay = 0;
  bool decoupled_weight_decay = true;  // AdamW; false: L2 added to the gradient (Adam)
  bool bias_correction = true;
  int64_t step = 1;                  // 1 at the first update
  const StepScale* scale = nullptr;  // nullptr: as if its members had their defaults
  // AdamStep only: stochastic rounding of `param`, which is then bf16, and of a bf16 `master`.
  // Without it both are rounded to nearest.
  std::optional<RoundingBits> rounding = {};

  void Visit(auto&& on) {
    on("param", param, param.num_elems), on("master", master, param.num_elems),
        on("grad", grad, param.num_elems), on("m", m, param.num_elems), on("v", v, param.num_elems),
        on("scale", scale, scale == nullptr ? 0 : 1);
  }
  void Check() const { CheckUpdate(param, {grad}, {master, m, v}); }
};

// Sums of squares, for LAMB's trust ratio.
struct LambSums {
  double param = 0;
  double direction = 0;
  LambSums operator+(const LambSums& other) const {
    return {param + other.param, direction + other.direction};
  }
};

namespace op {

// *scale from sums of squares (rows, cols), which are added in order: each row's, then the rows'.
struct FindStepScale {
  StepScale* scale;
  const double* squares;
  int64_t rows, cols;
  ClipSettings settings;
  void Visit(auto&& on) { on("scale", scale, 1), on("squares", squares, rows * cols); }
};

struct AdamStep : AdamArgs {
  void Check() const {
    DSAT_CHECK(!rounding || param.dtype == DType::kBF16);
    if (master.dtype == DType::kF32 && m.dtype == DType::kF32) return AdamArgs::Check();
    for (const Tensor& t : {param, master, grad})
      DSAT_CHECK(t.dtype == DType::kBF16);
    DSAT_CHECK(m.dtype == v.dtype && m.dtype != DType::kF16);
    CheckUpdate(param, {master, grad, m, v}, {});
  }
};

struct SgdStep {
  Tensor param{}, master{}, grad{};  // as in AdamArgs
  Tensor momentum_buffer{};          // (n) f32; empty if momentum == 0
  float lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  int64_t step = 1;
  const StepScale* scale = nullptr;
  void Visit(auto&& on) {
    on("param", param, param.num_elems), on("master", master, param.num_elems),
        on("grad", grad, param.num_elems),
        on("momentum_buffer", momentum_buffer, momentum == 0 ? 0 : param.num_elems),
        on("scale", scale, scale == nullptr ? 0 : 1);
  }
  void Check() const {
    CheckUpdate(param, {grad}, {master});
    if (momentum != 0) CheckUpdate(param, {}, {momentum_buffer});
  }
};

// sum += grad^2; param -= lr grad / (sqrt(sum) + eps) (Duchi et al. 2011). Weight decay is L2.
struct AdagradStep {
  Tensor param{}, master{}, grad{};  // as in AdamArgs
  Tensor sum{};                      // (n) f32, of squared gradients
  float lr = 0, eps = 1e-10F, weight_decay = 0;
  const StepScale* scale = nullptr;
  void Visit(auto&& on) {
    on("param", param, param.num_elems), on("master", master, param.num_elems),
        on("grad", grad, param.num_elems), on("sum", sum, param.num_elems),
        on("scale", scale, scale == nullptr ? 0 : 1);
  }
  void Check() const { CheckUpdate(param, {grad}, {master, sum}); }
};

// param -= lr (sign(beta1 m + (1 - beta1) grad) + weight_decay param), sign(0) = 0; then
// m = beta2 m + (1 - beta2) grad (Chen et al. 2023).
struct LionStep {
  Tensor param{}, master{}, grad{};  // as in AdamArgs
  Tensor m{};                        // (n) f32
  float lr = 0, beta1 = 0.9F, beta2 = 0.99F, weight_decay = 0;
  const StepScale* scale = nullptr;
  void Visit(auto&& on) {
    on("param", param, param.num_elems), on("master", master, param.num_elems),
        on("grad", grad, param.num_elems), on("m", m, param.num_elems),
        on("scale", scale, scale == nullptr ? 0 : 1);
  }
  void Check() const { CheckUpdate(param, {grad}, {master, m}); }
};

// LAMB (You et al. 2020) in the form of DeepSpeed's FusedLamb, in two halves, since every
// parameter's norms are needed in between. The direction is m / (sqrt(v) + eps) + weight_decay
// param, not bias-corrected. The kind of weight decay is ignored.
//
// Updates m and v; param is not written. *sums, in host memory, becomes the sums over the operands'
// elements.
struct LambMoments : AdamArgs {
  LambSums* sums;  // In host memory. The counting backend does not write it.
};
// param -= step size * trust_ratio * direction, with the m and v of LambMoments; the step size is
// lr, times sqrt(1 - beta2^step) / (1 - beta1^step) if bias_correction.
struct LambApply : AdamArgs {
  float trust_ratio;
};

// 1-bit Adam (Tang et al. 2021): ranks exchange signs of momentum; the variance is constant.
//
// m = beta1 m + (1 - beta1) grad; nothing else is written.
struct MomentumStep : AdamArgs {};
// param -= lr (m / (sqrt(v) + eps) + weight_decay param); m and v are not written, grad is not
// read. The first term is 0 where v is 0: an element that never had a gradient has no direction,
// whatever sign was exchanged for its momentum.
struct FrozenAdamStep : AdamArgs {};

// With x (n) = values (n) + error (n), both f32, and *scale = |x| / sqrt(n): bit i % 8 of byte
// i / 8 of `signs` is 1 where x[i] >= 0, and error[i] becomes x[i] minus *scale times that sign.
// n is a multiple of 8. values may not be error.
struct CompressSigns {
  Tensor error;
  uint8_t* signs;
  float* scale;
  Tensor values;
  void Visit(auto&& on) {
    on("error", error, values.num_elems), on("values", values, error.num_elems),
        on("signs", signs, values.num_elems / 8), on("scale", scale, 1);
  }
  void Check() const {
    DSAT_CHECK(values.num_elems > 0 && values.num_elems % 8 == 0, "{} values", values.num_elems);
  }
};
// values (n) f32 = or, if `accumulate`, += factor * *scale where the bit is 1, minus that
// elsewhere.
struct DecompressSigns {
  Tensor values;
  const uint8_t* signs;
  const float* scale;
  float factor;
  bool accumulate;
  void Visit(auto&& on) {
    on("values", values, 0), on("signs", signs, values.num_elems / 8), on("scale", scale, 1);
  }
  void Check() const { DSAT_CHECK(values.num_elems % 8 == 0, "{} values", values.num_elems); }
};

// All of them, each once.
using OptimizerOps =
    OpList<FindStepScale, AdamStep, SgdStep, AdagradStep, LionStep, LambMoments, LambApply,
           MomentumStep, FrozenAdamStep, CompressSigns, DecompressSigns>;

}  // namespace op

// The kernels of a device: the interface that a backend implements.
class AllKernels : public LayerKernels, public Runs<op::OptimizerOps> {
 public:
  using LayerKernels::Run;
  using Runs<op::OptimizerOps>::Run;
};

}  // namespace dsat::engine
