// Shared by the updates of optimizers: the dispatch on the dtypes of their operands, and the loop
// over the elements.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/backend/cpu/parallel.h"
#include "engine/backend/cpu/vec.h"
#include "engine/backend/update_rules.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

// Calls update(param, master, grad) with pointers to the elements of `args`' tensors of that name,
// unless the step is skipped.
template <typename Args, typename Update>
void VisitUpdate(const Args& args, const Update& update) {
  if (Skips(args.scale)) return;
  VisitDType(args.param.dtype, [&]<typename Param>(Param) {
    VisitDType(args.grad.dtype, [&]<typename Grad>(Grad) {
      update(Data<Param>(args.param), args.master.f32(),
             static_cast<const Grad*>(Data<Grad>(args.grad)));
    });
  });
}

// The moments m, or v, of all elements, which a rule reads and writes in f32.
template <typename T>
struct Moments {
  T* data;
  float Get(int64_t i) const { return ToFloat(data[i]); }
  void Set(int64_t i, float x) const { data[i] = FromFloat<T>(x); }
};
template <typename T = float>
Moments<T> MomentsOf(const Tensor& t) {
  return {Data<T>(t)};
}
// The place of moments that a rule does without.
struct NoMoments {
  float Get(int64_t) const { return 0.0F; }
  void Set(int64_t, float) const {}
};

// Applies a rule of update_rules.h, with these moments, to every element of the parameter and its
// master copy. round(x, i) is what the parameter gets, and a master copy in its type.
template <typename Args, typename Rule, typename M, typename V, typename Param, typename Master,
          typename Grad, typename Round = Nearest>
void UpdateElements(int num_threads, const Args& args, const Rule& rule, M m, V v, Param* param,
                    Master* master, const Grad* grad, const Round& round = {}) {
  const float grad_scale = GradScale(args.scale);
  ParallelBlocks(num_threads, args.param.num_elems, kBlockElems, [=](int64_t begin, int64_t end) {
    const Rule own = rule;  // Through the closure it would be loaded anew for every element.
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float g = Rule::kReadsGrad ? ToFloat(grad[i]) * grad_scale : 0.0F;
      float mean = m.Get(i), square = v.Get(i);
      const float after = own(g, ToFloat(master[i]), mean, square);
      if constexpr (Rule::kWritesMoments) {
        m.Set(i, mean);
        v.Set(i, square);
      }
      const float rounded = round(after, i);
      master[i] = FromFloat<Master>(std::is_same_v<Master, Param> ? rounded : after);
      param[i] = FromFloat<Param>(rounded);
    }
  });
}

// The same for an f32 master copy, unless the step is skipped.
template <typename Args, typename Rule, typename M, typename V = NoMoments>
void Update(int num_threads, const Args& args, const Rule& rule, M m, V v = {}) {
  VisitUpdate(args, [&](auto* param, float* master, const auto* grad) {
    UpdateElements(num_threads, args, rule, m, v, param, master, grad);
  });
}

}  // namespace dsat::engine
