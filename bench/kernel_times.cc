// Writes what a program's GPU does and when: a line for each kernel, copy and fill.
//
//   CUDA_INJECTION64_PATH=build/libdsat-kernel-times.so DSAT_KERNEL_TIMES=times program
//
// CUDA loads this library into a program that CUDA_INJECTION64_PATH names it to, before the first
// kernel. The file is times.PID; a line is the begin and the end in nanoseconds, the stream and the
// name, separated by tabs. Times are those of CUPTI's activity records, which cost the program some
// 1 % of its time. The part of CUPTI that is used is declared here, by its documented numbers and
// layouts ("CUPTI documentation", Activity API), so that building needs no headers of it. Without
// libcupti.so in the loader's path, a line on stderr says so and the program runs as it would.
#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

namespace {

enum Kind : uint32_t { kMemcpy = 1, kMemset = 2, kConcurrentKernel = 10 };

// The first members of the records; later versions of CUPTI append others.
struct Record {
  uint32_t kind;
};
struct Kernel {
  uint32_t kind, caches[3];
  uint64_t start, end, completed;
  uint32_t device, context, stream, sizes[11];
  int64_t grid_id;
  const char* name;
};
struct Copy {
  uint32_t kind;
  uint8_t copy_kind, more[3];
  uint64_t bytes, start, end;
  uint32_t device, context, stream;  // A fill's record has the same, and its value for copy_kind.
};

using Request = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using Complete = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t bytes,
                          size_t filled);
struct Cupti {
  int (*register_callbacks)(Request, Complete);
  int (*enable)(Kind);
  int (*next_record)(uint8_t* buffer, size_t filled, Record** record);
  int (*flush)(uint32_t flags);
};

Cupti cupti = {};
std::FILE* out = nullptr;
std::mutex mutex;  // Guards `out`.

void GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  constexpr size_t kBytes = 8 << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBytes));
  *bytes = *buffer == nullptr ? 0 : kBytes;
  *most_records = 0;  // No limit.
}

std::string Demangled(const char* name) {
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, nullptr), std::free);
  return text ? text.get() : name;
}

void Write(uint64_t start, uint64_t end, uint32_t stream, const std::string& name) {
  std::fprintf(out, "%llu\t%llu\t%u\t%s\n", static_cast<unsigned long long>(start),
               static_cast<unsigned long long>(end), stream, name.c_str());
}

void WriteRecords(void* /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*bytes*/,
                  size_t filled) {
  const std::lock_guard lock(mutex);
  Record* record = nullptr;
  while (cupti.next_record(buffer, filled, &record) == 0) {
    if (record->kind == kConcurrentKernel) {
      const auto& kernel = *reinterpret_cast<const Kernel*>(record);
      Write(kernel.start, kernel.end, kernel.stream, Demangled(kernel.name));
    } else {
      constexpr const char* kNames[] = {"copy", "copy to the device", "copy to the host"};
      const auto& copy = *reinterpret_cast<const Copy*>(record);
      const char* name = copy.copy_kind < 3 ? kNames[copy.copy_kind] : kNames[0];
      Write(copy.start, copy.end, copy.stream, copy.kind == kMemset ? "fill" : name);
    }
  }
  std::free(buffer);
}

void Finish() {
  constexpr uint32_t kForced = 1;  // Buffers that are not full, too.
  cupti.flush(kForced);
  const std::lock_guard lock(mutex);
  std::fflush(out);
}

bool Load() {
  void* library = nullptr;
  for (const char* name : {"libcupti.so.13", "libcupti.so.12"})
    if (library == nullptr) library = dlopen(name, RTLD_NOW);
  if (library == nullptr) return false;
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  return find(cupti.register_callbacks, "cuptiActivityRegisterCallbacks") &&
         find(cupti.enable, "cuptiActivityEnable") &&
         find(cupti.next_record, "cuptiActivityGetNextRecord") &&
         find(cupti.flush, "cuptiActivityFlushAll");
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* path = std::getenv("DSAT_KERNEL_TIMES");
  if (path == nullptr) return 1;
  const bool loaded = Load();
  if (loaded) out = std::fopen((std::string(path) + "." + std::to_string(getpid())).c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "kernel_times: %s; no times are written\n",
                 loaded ? "DSAT_KERNEL_TIMES cannot be written" : dlerror());
    return 1;
  }
  bool ok = cupti.register_callbacks(GiveBuffer, WriteRecords) == 0;
  for (const Kind kind : {kConcurrentKernel, kMemcpy, kMemset})
    ok = ok && cupti.enable(kind) == 0;
  if (!ok) std::fprintf(stderr, "kernel_times: CUPTI refuses; no times are written\n");
  std::atexit(Finish);
  return 1;
}
