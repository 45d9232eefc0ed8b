// Measures how fast the nvme tier would write and read a folder.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/io/async_file.h"

namespace dsat::cli {

struct DiskSpeed {
  bool direct = false;  // Not through the page cache.
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
};

struct FreeMemory {
  void operator()(char* data) const { std::free(data); }
};
using NoiseMemory = std::unique_ptr<char, FreeMemory>;

// Aligned random data, which no file system can compress. Throws kResourceExhausted. REQUIRES:
// `bytes` is a multiple of kAioAlignment.
NoiseMemory MakeNoise(int64_t bytes);

// Medians of `repeats` transfers of `bytes` from and to `memory`, through a file without a name in
// `folder`. Throws what AsyncFile throws.
DiskSpeed MeasureDisk(const std::string& folder, char* memory, int64_t bytes, int64_t repeats,
                      const engine::AioOptions& options);

}  // namespace dsat::cli
