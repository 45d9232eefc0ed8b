// The front of the kernels: what needs all of a backend's classes.
#include "engine/backend/kernels.h"

#include <utility>

#include "engine/backend/optimizer_kernels.h"
#include "engine/backend/stream.h"

namespace dsat::engine {

Kernels::Kernels(std::unique_ptr<Stream> stream, std::unique_ptr<AllKernels> backend)
    : stream_(std::move(stream)), backend_(std::move(backend)), layers_(*backend_) {}

Kernels::~Kernels() = default;

}  // namespace dsat::engine
