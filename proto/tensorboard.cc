// The records of which TensorBoard's event files consist.
#include "proto/tensorboard.h"

#include <bit>
#include <chrono>

#include "tensorboard.pb.h"

namespace dsat {
namespace {

// CRC-32C (RFC 3720, appendix B.4), rotated and shifted as TensorFlow's record files want it.
uint32_t MaskedCrc(const std::string& bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

// The bytes of an integer, the lowest first as on this machine.
template <typename T>
std::string Bytes(T value) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The length and the event, with a checksum of each.
std::string RecordOf(tensorboard::Event event) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  event.set_wall_time(std::chrono::duration<double>(now).count());
  const std::string data = event.SerializeAsString();
  const std::string length = Bytes(uint64_t{data.size()});
  return length + Bytes(MaskedCrc(length)) + data + Bytes(MaskedCrc(data));
}

}  // namespace

std::string EventFileBegin(int64_t first_step) {
  tensorboard::Event version;
  version.set_file_version("brain.Event:2");
  tensorboard::Event start;
  start.set_step(first_step);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return RecordOf(version) + RecordOf(start);
}

std::string ScalarRecord(const std::string& tag, int64_t step, double value) {
  tensorboard::Event event;
  event.set_step(step);
  tensorboard::Summary::Value& scalar = *event.mutable_summary()->add_value();
  scalar.set_tag(tag);
  scalar.set_simple_value(static_cast<float>(value));
  return RecordOf(event);
}

}  // namespace dsat
