// Stands for libcupti.so: when it is flushed, it hands over a kernel's record, a copy's and a
// fill's, with their members at the offsets that CUPTI's headers give them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

using Request = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using Complete = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t bytes,
                          size_t filled);

constexpr size_t kRecordBytes = 160;
constexpr const char* kName = "_ZN4dsat4KernEi";  // dsat::Kern(int)
Request request = nullptr;
Complete complete = nullptr;
uint32_t enabled = 0;  // A bit for each kind.
size_t given = 0;

template <typename T>
void Put(uint8_t* record, size_t offset, T value) {
  std::memcpy(record + offset, &value, sizeof(value));
}

}  // namespace

extern "C" {

int cuptiActivityRegisterCallbacks(Request requested, Complete completed) {
  request = requested;
  complete = completed;
  return 0;
}

int cuptiActivityEnable(uint32_t kind) {
  enabled |= 1U << kind;
  return 0;
}

int cuptiActivityGetNextRecord(uint8_t* buffer, size_t filled, uint8_t** record) {
  if (given == filled) return 11;  // No more.
  *record = buffer + given;
  given += kRecordBytes;
  return 0;
}

int cuptiActivityFlushAll(uint32_t flags) {
  if (flags != 1 || enabled != (1U << 1 | 1U << 2 | 1U << 10)) return 1;
  uint8_t* buffer = nullptr;
  size_t bytes = 0, most = 1;
  request(&buffer, &bytes, &most);
  if (bytes < 3 * kRecordBytes || most != 0) return 1;
  uint8_t *kernel = buffer, *copy = buffer + kRecordBytes, *fill = buffer + 2 * kRecordBytes;
  Put<uint32_t>(kernel, 0, 10);
  Put<uint64_t>(kernel, 16, 1000);
  Put<uint64_t>(kernel, 24, 3000);
  Put<uint32_t>(kernel, 48, 7);
  Put(kernel, 104, kName);
  uint32_t kind = 1;
  for (uint8_t* record : {copy, fill}) {
    Put<uint32_t>(record, 0, kind++);
    Put<uint32_t>(record, 4, 2);  // A copy to the host; what is filled in.
    Put<uint64_t>(record, 16, 4000);
    Put<uint64_t>(record, 24, 4500);
    Put<uint32_t>(record, 40, 8);
  }
  complete(nullptr, 0, buffer, bytes, 3 * kRecordBytes);
  return 0;
}

}  // extern "C"
