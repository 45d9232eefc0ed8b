// The CUDA runtime's functions on the emulated GPU.
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/engine/backend/emulated_cuda/gpu.h"
#include "tests/engine/backend/emulated_cuda/memory.h"

using emulated_cuda::Gpu;
using emulated_cuda::Memory;
using emulated_cuda::Point;

struct CUevent_st {
  bool timed = true;
  Point point = {};
  std::shared_ptr<int64_t> time = {};  // In ticks.
};

namespace {

thread_local cudaError_t last_error = cudaSuccess;

// The machine has two GPUs, and no process uses both: with the one that it has chosen first, every
// thread has to choose that, as where a rank's GPU is not the first. Who has chosen none is not
// held to it.
constexpr int kNumGpus = 2;
std::atomic<int> own_gpu = -1;
thread_local int current_gpu = 0;

bool IsOnOwnGpu() {
  return own_gpu < 0 || current_gpu == own_gpu;
}

struct {
  std::atomic<int64_t> num_made = 0, num_timed = 0, num_alive = 0;
} events;

std::atomic<int64_t> num_host_waits = 0;
// The event that the thread has asked about last, without asking for work since.
thread_local cudaEvent_t polled = nullptr;

void WaitFor(const Point& point) {
  if (!Gpu::Get().IsDone(point)) ++num_host_waits;
  while (!Gpu::Get().Finish(point))
    std::this_thread::yield();
}
void WaitForAll() {
  ++num_host_waits;
  while (!Gpu::Get().FinishAll())
    std::this_thread::yield();
}

cudaError_t Report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Whether the addresses are of the kind that `kind` says. A block has all of them.
bool IsAllowed(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const auto on_device = [&](const void* data) { return Memory::Get().Holds(data, bytes); };
  const auto on_host = [&](const void* data) { return !Memory::Get().Owns(data); };
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return on_device(to) && on_host(from);
    case cudaMemcpyDeviceToHost:
      return on_host(to) && on_device(from);
    case cudaMemcpyDeviceToDevice:
      return on_device(to) && on_device(from);
  }
  return false;
}

// From pageable memory: what it holds now, though it comes to the device later.
Point EnqueueCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                  const std::shared_ptr<emulated_cuda::Queue>& queue) {
  if (kind != cudaMemcpyHostToDevice || Memory::Get().IsPinned(from, bytes))
    return Gpu::Get().Enqueue(queue, [=] { std::memcpy(to, from, bytes); });
  const auto* first = static_cast<const char*>(from);
  return Gpu::Get().Enqueue(queue, [to, staged = std::vector<char>(first, first + bytes)] {
    std::memcpy(to, staged.data(), staged.size());
  });
}

// The sizes that cudaFuncSetAttribute has allowed.
struct SharedLimits {
  std::mutex mutex;
  std::map<const void*, size_t> bytes;

  static SharedLimits& Get() {
    static auto& limits = *new SharedLimits;
    return limits;
  }
};

bool IsPossible(const emulated_cuda::Launch& launch) {
  constexpr unsigned kMaxThreads = 1024, kMaxGridX = 0x7FFFFFFF, kMaxGridYZ = 65535;
  const dim3 &grid = launch.grid, &block = launch.block;
  const bool all = grid.x > 0 && grid.y > 0 && grid.z > 0 && block.x > 0 && block.y > 0 &&
                   block.z > 0 && grid.x <= kMaxGridX && grid.y <= kMaxGridYZ &&
                   grid.z <= kMaxGridYZ && block.z <= 64;
  if (!all || size_t{block.x} * block.y * block.z > kMaxThreads) return false;
  SharedLimits& limits = SharedLimits::Get();
  const std::lock_guard lock(limits.mutex);
  const auto found = limits.bytes.find(launch.kernel);
  const size_t most =
      found == limits.bytes.end() ? emulated_cuda::kDefaultSharedBytes : found->second;
  return launch.dynamic_bytes <= most;
}

}  // namespace

namespace emulated_cuda {

EventCounts CountEvents() {
  return {
      .num_made = events.num_made, .num_timed = events.num_timed, .num_alive = events.num_alive};
}

int64_t CountHostWaits() {
  return num_host_waits;
}

void CheckArgument(int position, const void* data) {
  DSAT_CHECK(data == nullptr || Memory::Get().Owns(data),
             "argument {} of a kernel points into host memory", position);
}

cudaError_t Enqueue(const Launch& launch, cudaStream_t stream) {
  polled = nullptr;
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  if (!IsPossible(launch)) return Report(cudaErrorInvalidConfiguration);
  const auto queue = Gpu::Get().Find(stream);
  if (queue == nullptr) return Report(cudaErrorInvalidResourceHandle);
  const bool descending = Gpu::Get().Now(queue).count % 2 == 1;
  Gpu::Get().Enqueue(queue, [=] { RunGrid(launch, descending); });
  return cudaSuccess;
}

}  // namespace emulated_cuda

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
  }
  return "unknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kNumGpus;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= kNumGpus) return Report(cudaErrorInvalidDevice);
  *properties = {.name = "emulated",
                 .totalGlobalMem = Memory::Get().limit(),
                 .major = 8,
                 .minor = 0,
                 .multiProcessorCount = 1,
                 .pciDomainID = 0,
                 .pciBusID = 1 + device,
                 .pciDeviceID = 0};
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kNumGpus) return Report(cudaErrorInvalidDevice);
  current_gpu = device;
  int none = -1;
  own_gpu.compare_exchange_strong(none, device);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  WaitForAll();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  *data = bytes == 0 ? nullptr : Memory::Get().Allocate(bytes);
  return *data == nullptr && bytes > 0 ? Report(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  WaitForAll();
  return Memory::Get().Free(data) ? cudaSuccess : Report(cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  *total_bytes = Memory::Get().limit();
  *free_bytes = *total_bytes - Memory::Get().used();
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  attributes->type = Memory::Get().Holds(data)         ? cudaMemoryTypeDevice
                     : Memory::Get().IsPinned(data, 1) ? cudaMemoryTypeHost
                                                       : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  *data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*data == MAP_FAILED) return Report(cudaErrorMemoryAllocation);
  Memory::Get().Pin(*data, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  WaitForAll();
  const size_t bytes = Memory::Get().Unpin(data);
  if (bytes == 0) return Report(cudaErrorInvalidValue);
  munmap(data, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  Memory::Get().Pin(data, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  WaitForAll();
  return Memory::Get().Unpin(data) > 0 ? cudaSuccess : Report(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  polled = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  const auto queue = Gpu::Get().Find(stream);
  if (queue == nullptr) return Report(cudaErrorInvalidResourceHandle);
  if (!IsAllowed(to, from, bytes, kind)) return Report(cudaErrorInvalidValue);
  const Point done = EnqueueCopy(to, from, bytes, kind, queue);
  const bool waits = kind == cudaMemcpyDeviceToHost && !Memory::Get().IsPinned(to, bytes);
  if (waits) WaitFor(done);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, cudaStreamLegacy);
  const bool staged = kind == cudaMemcpyHostToDevice && !Memory::Get().IsPinned(from, bytes);
  if (error == cudaSuccess && !staged && kind != cudaMemcpyDeviceToDevice)
    return cudaStreamSynchronize(cudaStreamLegacy);
  return error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  *stream = Gpu::Get().MakeStream(/*blocking=*/flags != cudaStreamNonBlocking);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Gpu::Get().DestroyStream(stream) ? cudaSuccess : Report(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  const auto queue = Gpu::Get().Find(stream);
  if (queue == nullptr) return Report(cudaErrorInvalidResourceHandle);
  WaitFor(Gpu::Get().Now(queue));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  const auto queue = Gpu::Get().Find(stream);
  if (queue == nullptr) return Report(cudaErrorInvalidResourceHandle);
  if (event->point.queue == nullptr) return cudaSuccess;  // Never recorded.
  Gpu::Get().Enqueue(queue, nullptr, {event->point});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  *event = new CUevent_st{.timed = flags != cudaEventDisableTiming};
  ++events.num_made;
  ++events.num_alive;
  if ((*event)->timed) ++events.num_timed;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  --events.num_alive;
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  polled = nullptr;
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  const auto queue = Gpu::Get().Find(stream);
  if (queue == nullptr) return Report(cudaErrorInvalidResourceHandle);
  if (!event->timed) {
    event->point = Gpu::Get().Enqueue(queue, nullptr);
    return cudaSuccess;
  }
  event->time = std::make_shared<int64_t>();
  event->point = Gpu::Get().TakeTime(queue, event->time);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->point.queue != nullptr) WaitFor(event->point);
  return cudaSuccess;
}
// Who asks again finds that it is done. What is not is the last error, too.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->point.queue == nullptr || Gpu::Get().IsDone(event->point)) {
    if (std::exchange(polled, nullptr) == event) ++num_host_waits;
    return cudaSuccess;
  }
  polled = event;
  Gpu::Get().Finish(event->point);
  return Report(cudaErrorNotReady);
}
// A tick is a millisecond.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const bool timed = begin->time != nullptr && end->time != nullptr;
  if (!timed) return Report(cudaErrorInvalidResourceHandle);
  if (!Gpu::Get().IsDone(begin->point) || !Gpu::Get().IsDone(end->point))
    return Report(cudaErrorNotReady);
  *milliseconds = static_cast<float>(*end->time - *begin->time);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_gpu;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = static_cast<int>(emulated_cuda::MaxSharedBytes());
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (!IsOnOwnGpu()) return Report(cudaErrorInvalidDevice);
  if (value < 0 || static_cast<size_t>(value) > emulated_cuda::MaxSharedBytes())
    return Report(cudaErrorInvalidValue);
  SharedLimits& limits = SharedLimits::Get();
  const std::lock_guard lock(limits.mutex);
  limits.bytes[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}
