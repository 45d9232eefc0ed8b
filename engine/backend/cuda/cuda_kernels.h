// The CUDA backend: its kernels are those of launch.h.
//
// Results do not depend on timing. Every kernel throws kUnavailable, with its name, if the GPU
// reports an error.
#pragma once

#include <memory>

#include "engine/backend/cuda/cuda_stream.h"
#include "engine/backend/kernels.h"
#include "engine/backend/optimizer_kernels.h"

namespace dsat::engine {

// `stream` must outlive them.
std::unique_ptr<AllKernels> MakeCudaKernels(int gpu, CudaStream& stream);

}  // namespace dsat::engine
