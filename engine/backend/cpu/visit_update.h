// Shared by the updates of optimizers: the dispatch on the dtypes of their operands, a step's
// factor, and the loop over the elements.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

// Whether the step's updates write nothing, and what multiplies gradients.
template <typename Args>
bool Skips(const Args& args) {
  return args.scale != nullptr && args.scale->skips != 0;
}
template <typename Args>
float GradScale(const Args& args) {
  return args.scale == nullptr ? 1.0F : args.scale->grad_scale;
}

// Calls update(param, master, grad) with pointers to the elements of `args`' tensors of that name,
// unless the step is skipped.
template <typename Args, typename Update>
void VisitUpdate(const Args& args, const Update& update) {
  if (Skips(args)) return;
  VisitDType(args.param.dtype, [&]<typename Param>(Param) {
    VisitDType(args.grad.dtype, [&]<typename Grad>(Grad) {
      update(Data<Param>(args.param), args.master.f32(),
             static_cast<const Grad*>(Data<Grad>(args.grad)));
    });
  });
}

// As FromFloat rounds.
struct Nearest {
  float operator()(float x, int64_t) const { return x; }
};

// Sets the parameter and its master copy to step(i, gradient, master), for each element i of their
// gradient. round(x, i) is what the parameter gets, and a master copy in its type.
template <typename Args, typename Step, typename Param, typename Master, typename Grad,
          typename Round = Nearest>
void UpdateElements(int num_threads, const Args& args, const Step& step, Param* param,
                    Master* master, const Grad* grad, const Round& round = {}) {
  const float grad_scale = GradScale(args);
  ParallelBlocks(num_threads, args.param.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
    const Step own = step;  // Through the closure it would be loaded anew for every element.
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float after = own(i, ToFloat(grad[i]) * grad_scale, ToFloat(master[i]));
      const float rounded = round(after, i);
      master[i] = FromFloat<Master>(std::is_same_v<Master, Param> ? rounded : after);
      param[i] = FromFloat<Param>(rounded);
    }
  });
}

// The same for an f32 master copy, unless the step is skipped.
template <typename Args, typename Step>
void Update(int num_threads, const Args& args, const Step& step) {
  VisitUpdate(args, [&](auto* param, float* master, const auto* grad) {
    UpdateElements(num_threads, args, step, param, master, grad);
  });
}

}  // namespace dsat::engine
