// CRC-32 by zlib.
#include "engine/files/crc32.h"

#include <zlib.h>

namespace dsat::engine {

uint32_t Crc32(uint32_t crc, std::string_view data) {
  return static_cast<uint32_t>(
      crc32_z(crc, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

}  // namespace dsat::engine
