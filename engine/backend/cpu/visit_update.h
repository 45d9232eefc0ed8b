// Shared by the updates of optimizers: the dispatch on the dtypes of their operands, and a step's
// factor.
#ifndef DSAT_ENGINE_BACKEND_CPU_VISIT_UPDATE_H_
#define DSAT_ENGINE_BACKEND_CPU_VISIT_UPDATE_H_

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
  VisitDType(args.param.dtype, [&](auto param_type) {
    VisitDType(args.grad.dtype, [&](auto grad_type) {
      update(Data<decltype(param_type)>(args.param), args.master.f32(),
             static_cast<const decltype(grad_type)*>(Data<decltype(grad_type)>(args.grad)));
    });
  });
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_VISIT_UPDATE_H_
