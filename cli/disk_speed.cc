// Times requests of a scratch file.
#include "cli/disk_speed.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/rng.h"
#include "proto/trial.h"

namespace dsat::cli {
namespace {

double MedianBytesPerS(int64_t bytes, int64_t repeats, const std::function<void()>& transfer) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    transfer();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<double>(bytes) / Summarize(std::move(seconds)).value;
}

}  // namespace

NoiseMemory MakeNoise(int64_t bytes) {
  NoiseMemory memory(
      static_cast<char*>(std::aligned_alloc(engine::kAioAlignment, static_cast<size_t>(bytes))));
  if (memory == nullptr)
    Throw(ErrorCode::kResourceExhausted, "no memory for {} of random data", HumanBytes(bytes));
  Rng rng(0, 0, "disk-speed");
  auto* words = reinterpret_cast<uint64_t*>(memory.get());
  std::generate(words, words + bytes / 8, [&rng] { return rng.NextU64(); });
  return memory;
}

DiskSpeed MeasureDisk(const std::string& folder, char* memory, int64_t bytes, int64_t repeats,
                      const engine::AioOptions& options) {
  const auto file = engine::AsyncFile::Create(folder, bytes, options);
  const auto write = [&] { file->Wait(file->WriteAsync(0, memory, bytes)); };
  const auto read = [&] { file->Wait(file->ReadAsync(0, memory, bytes)); };
  write();  // The first write may also have to allocate the file's blocks.
  DiskSpeed speed{.direct = file->direct()};
  speed.write_bytes_per_s = MedianBytesPerS(bytes, repeats, write);
  speed.read_bytes_per_s = MedianBytesPerS(bytes, repeats, read);
  return speed;
}

}  // namespace dsat::cli
