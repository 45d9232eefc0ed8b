// The memory that one rank of a command on this machine may use, as far as it can be determined.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dsat {

// The smallest number of MiB in the lines of `text`, in bytes; nullopt if a line is not a number or
// there is none. The format is that of nvidia-smi --query-gpu=memory.total
// --format=csv,noheader,nounits.
std::optional<int64_t> SmallestMib(const std::string& text);

// The memory of the smallest NVIDIA device according to nvidia-smi; nullopt without one.
std::optional<int64_t> NvidiaMemoryBytes();

// MemTotal of this host.
int64_t HostMemoryBytes();

}  // namespace dsat
