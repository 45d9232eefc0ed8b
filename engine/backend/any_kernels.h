// Backends whose kernels are one template: that which counts, that which launches on a GPU, and
// those of tests.
#pragma once

#include "engine/backend/kernels.h"
#include "engine/backend/optimizer_kernels.h"

namespace dsat::engine {

// Implements the kernels Ops of Base: each calls Self::RunAny(op).
template <typename Self, typename Base, typename Ops>
class RunsAny;
template <typename Self, typename Base>
class RunsAny<Self, Base, OpList<>> : public Base {};
template <typename Self, typename Base, typename Op, typename... Rest>
class RunsAny<Self, Base, OpList<Op, Rest...>> : public RunsAny<Self, Base, OpList<Rest...>> {
 public:
  using RunsAny<Self, Base, OpList<Rest...>>::Run;
  void Run(const Op& op) final { static_cast<Self*>(this)->RunAny(op); }
};
// Implements AllKernels: every kernel calls Self::RunAny(op).
template <typename Self>
using AnyKernels = RunsAny<Self, RunsAny<Self, AllKernels, op::LayerOps>, op::OptimizerOps>;

}  // namespace dsat::engine
