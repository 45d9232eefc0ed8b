// What the files that call oneDNN share.
#ifndef DSAT_ENGINE_BACKEND_CPU_ONEDNN_H_
#define DSAT_ENGINE_BACKEND_CPU_ONEDNN_H_

#include <omp.h>

#include <dnnl.hpp>

#include "engine/tensor.h"

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

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_BACKEND_CPU_ONEDNN_H_
