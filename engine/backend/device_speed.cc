// Measures how fast a device computes and copies, and how fast ranks exchange data.
#include "engine/backend/device_speed.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>

#include "base/rng.h"
#include "engine/backend/kernels.h"
#include "engine/backend/stream.h"
#include "engine/comm/process_group.h"
#include "engine/core/arena.h"

namespace dsat::engine {
namespace {

// The largest copies in host memory, between host and device, and within a device are larger than
// the caches of a processor's core and of a GPU. The last one takes a quarter of a millisecond of
// an H200.
constexpr int64_t kMostHostBytes = int64_t{64} << 20, kMostTransferBytes = int64_t{256} << 20;
constexpr int64_t kMostDeviceBytes = int64_t{512} << 20;
constexpr const char* kUse = "a measurement of speed";

int64_t BytesLeft(const Arena& arena) {
  return arena.limit_bytes() == 0 ? INT64_MAX : arena.limit_bytes() - arena.live_bytes();
}

// Calls `prepare` before each of a few measurements.
double BestSeconds(
    const std::function<void()>& work, const std::function<void()>& prepare = [] {}) {
  constexpr int kTries = 4;
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    best = i == 0 ? passed.count() : std::min(best, passed.count());
  }
  return best;
}

// A GPU has done all when it has handed over what was written last.
void Finish(Stream& stream, Tensor written) {
  std::array<char, 4> bytes{};
  stream.Download(bytes.data(), written.data, BytesPerElem(written.dtype));
}

// (n, n) numbers in [-1, 1): products of equal numbers take less power, and so less time.
Buffer Matrix(Kernels& kernels, Arena& device, Arena& host, int64_t n, DType dtype) {
  constexpr int64_t kPeriod = 4099;
  const Buffer numbers = host.Allocate(DType::kF32, n * n, kUse);
  auto* out = static_cast<float*>(numbers.data());
  Rng rng(0, 0, "device_speed");
  for (int64_t i = 0; i < std::min(kPeriod, n * n); ++i)
    out[i] = static_cast<float>(2 * rng.Uniform() - 1);
  for (int64_t i = kPeriod; i < n * n; ++i)
    out[i] = out[i - kPeriod];
  const Buffer wide = device.Allocate(DType::kF32, n * n, kUse);
  kernels.stream().Upload(wide.data(), numbers.data(), wide.bytes());
  Buffer matrix = device.Allocate(dtype, n * n, kUse);
  kernels.Run(op::Cast{matrix.AsTensor(dtype), wide.AsTensor(DType::kF32)});
  Finish(kernels.stream(), matrix.AsTensor(dtype));
  return matrix;
}

double MatmulFlops(Kernels& kernels, Arena& device, Arena& host, int64_t n, DType dtype) {
  const Buffer a = Matrix(kernels, device, host, n, dtype);
  const Buffer b = Matrix(kernels, device, host, n, dtype);
  const Buffer c = device.Allocate(dtype, n * n, kUse);
  const double seconds = BestSeconds([&] {
    kernels.Run(op::Matmul{.M = n,
                           .N = n,
                           .K = n,
                           .a = a.AsTensor(dtype),
                           .b = b.AsTensor(dtype),
                           .c = c.AsTensor(dtype)});
    Finish(kernels.stream(), c.AsTensor(dtype));
  });
  const double flops = 2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  return flops / seconds;
}

// Larger products are nearer to the limit, and take longer.
double BestMatmulFlops(Kernels& kernels, Arena& device, Arena& host, DType dtype) {
  constexpr int64_t kLeast = 256, kMost = 8192;
  constexpr double kLongEnoughSeconds = 5e-3;
  const int64_t bytes_per_number = 3 * BytesPerElem(dtype) + 4;  // See Matrix.
  double best = 0;
  for (int64_t n = kLeast; n <= kMost; n *= 2) {
    if (n * n * bytes_per_number > BytesLeft(device) || n * n * 4 > BytesLeft(host)) break;
    const double flops = MatmulFlops(kernels, device, host, n, dtype);
    best = std::max(best, flops);
    if (2 * static_cast<double>(n * n * n) / flops > kLongEnoughSeconds) break;
  }
  return best;
}

}  // namespace

DeviceSpeed MeasureDeviceSpeed(Kernels& kernels, Arena& device, Arena& host, DType dtype) {
  DeviceSpeed speed;
  speed.matmul_flops = BestMatmulFlops(kernels, device, host, dtype);
  constexpr int64_t kLine = 64;
  const int64_t most = device.host_visible() ? kMostHostBytes : kMostDeviceBytes;
  const int64_t bytes = std::min(most, BytesLeft(device) / 2) / kLine * kLine;
  const int64_t moved = std::min({bytes, kMostTransferBytes, BytesLeft(host)}) / kLine * kLine;
  if (moved == 0) return speed;
  const Buffer from = device.Allocate(bytes, kUse), to = device.Allocate(bytes, kUse);
  const Buffer other = host.Allocate(moved, kUse);
  std::memset(other.data(), 0, static_cast<size_t>(moved));
  const auto rate = [](int64_t copied, const std::function<void()>& copy) {
    return static_cast<double>(copied) / BestSeconds(copy);
  };
  Stream& stream = kernels.stream();
  const double to_device = rate(moved, [&] { stream.Upload(from.data(), other.data(), moved); });
  const double to_host = rate(moved, [&] { stream.Download(other.data(), from.data(), moved); });
  if (!device.host_visible()) {
    speed.to_device = to_device;
    speed.to_host = to_host;
  }
  // In the type in which a device's kernels copy fastest.
  const DType copied = device.host_visible() ? DType::kF32 : DType::kBF16;
  speed.copy = rate(bytes, [&] {
    kernels.Run(op::Cast{to.AsTensor(copied), from.AsTensor(copied)});
    Finish(kernels.stream(), to.AsTensor(copied));
  });
  return speed;
}

double MeasureLink(ProcessGroup& group, Stream& stream, DType dtype, int64_t num_elems) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  if (group.size() == 1) return 0;
  const int64_t row_elems = std::min(kMostBytes / BytesPerElem(dtype), num_elems) / group.size();
  const CommBuffer buffer = group.Allocate(group.size() * row_elems * BytesPerElem(dtype));
  int64_t sent_before = 0;
  const auto prepare = [&] {
    group.Barrier();
    sent_before = group.traffic().sent_bytes;
  };
  const double seconds = BestSeconds(
      [&] {
        group.AllReduce(buffer, dtype, row_elems);
        Finish(stream, {buffer.data, 1, dtype});
      },
      prepare);
  return static_cast<double>(group.traffic().sent_bytes - sent_before) / seconds;
}

}  // namespace dsat::engine
