// The checksum of zip files and of checkpoints: CRC-32 (IEEE 802.3), as zlib computes it.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string_view>

namespace dsat::engine {

// The checksum of data with the checksum `crc` (0 if there is none) followed by `data`.
inline uint32_t Crc32(uint32_t crc, std::string_view data) {
  return static_cast<uint32_t>(
      crc32_z(crc, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

}  // namespace dsat::engine
