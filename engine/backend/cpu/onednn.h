// Helpers for the files that call oneDNN.
#pragma once

#include <omp.h>

#include <dnnl.hpp>
#include <vector>

#include "engine/backend/cpu/scratch.h"
#include "engine/core/tensor.h"

namespace dsat::engine {

// Makes oneDNN use one thread while it lives.
class OneThread {
 public:
  OneThread() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { omp_set_num_threads(saved_); }

 private:
  int saved_;
};

inline dnnl::memory::data_type ToDnnl(DType dtype) {
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

inline bool ProcessorMultipliesBf16() {
  // Values of dnnl::cpu_isa are sets of features.
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto bf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (isa & bf16) == bf16;
}

// The streams and scratch that a runner of oneDNN's primitives has for each of its threads.
struct OneDnnThreads {
  explicit OneDnnThreads(int num_threads)
      : num_threads_(num_threads),
        bf16_native_(ProcessorMultipliesBf16()),
        engine_(dnnl::engine::kind::cpu, 0),
        scratch_(static_cast<size_t>(num_threads)) {
    for (int i = 0; i < num_threads; ++i)
      streams_.emplace_back(engine_);
  }

  int num_threads_;
  bool bf16_native_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;  // One per thread, as `scratch_`.
  std::vector<Scratch> scratch_;
};

// Makes the description of a primitive such as dnnl::matmul. `operands` are the arguments of its
// oneDNN 2 descriptor, in that order. Throws dnnl::error if the library has no implementation.
template <typename Primitive, typename... Operands>
typename Primitive::primitive_desc Describe(const dnnl::engine& engine,
                                            const dnnl::primitive_attr& attributes,
                                            const Operands&... operands) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, operands..., attributes);
#else
  return typename Primitive::primitive_desc({operands...}, attributes, engine);
#endif
}

// Makes the description of a backward primitive; `forward` describes its forward pass.
template <typename Primitive, typename Forward, typename... Operands>
typename Primitive::primitive_desc DescribeBackward(const dnnl::engine& engine,
                                                    const dnnl::primitive_attr& attributes,
                                                    const Forward& forward,
                                                    const Operands&... operands) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, operands..., forward, attributes);
#else
  return typename Primitive::primitive_desc({operands...}, attributes, engine, forward);
#endif
}

}  // namespace dsat::engine
