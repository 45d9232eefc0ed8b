// The dispatch of optimizer kernels on the dtypes of their operands.
#ifndef DSAT_ENGINE_BACKEND_CPU_VISIT_UPDATE_H_
#define DSAT_ENGINE_BACKEND_CPU_VISIT_UPDATE_H_

#include "engine/backend/cpu/vec.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

// Calls update(param, master, grad) with pointers to the elements of `args`' tensors of that name.
template <typename Args, typename Update>
void VisitUpdate(const Args& args, const Update& update) {
  VisitDType(args.param.dtype, [&](auto param_type) {
    VisitDType(args.grad.dtype, [&](auto grad_type) {
      update(Data<decltype(param_type)>(args.param), args.master.f32(),
             static_cast<const decltype(grad_type)*>(Data<decltype(grad_type)>(args.grad)));
    });
  });
}

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_VISIT_UPDATE_H_
