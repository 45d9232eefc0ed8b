// The CUDA backend: its kernels are those of launch.h.
//
// Results do not depend on timing. Every kernel throws kUnavailable, with its name, if the GPU
// reports an error.
#pragma once

#include <memory>
#include <string>

#include "engine/backend/cuda/cuda_stream.h"
#include "engine/backend/kernels.h"
#include "engine/backend/optimizer_kernels.h"

namespace dsat::engine {

// Finds the library that multiplies matrices. Returns why there is none, or "".
std::string FindCublas(std::string& path);

std::unique_ptr<LayerKernels> MakeCudaLayers(std::shared_ptr<CudaWorkspace> workspace);
std::unique_ptr<OptimizerKernels> MakeCudaOptimizers(std::shared_ptr<CudaWorkspace> workspace);

}  // namespace dsat::engine
