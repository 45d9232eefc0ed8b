// The kinds of devices, and what a model must know of them.
#pragma once

#include <cstdint>

namespace dsat::engine {

enum class DeviceKind : uint8_t { kCpu, kCuda };
// The largest number of channels per head that CUDA attention supports.
inline constexpr int64_t kMaxCudaHeadChannels = 256;

}  // namespace dsat::engine
