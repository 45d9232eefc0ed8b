// The CPU as a device whose memory the host cannot see.
#include "tests/engine/backend/guarded_device.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "engine/backend/staged_group.h"
#include "engine/core/device_kind.h"

namespace dsat::engine {
namespace {

// The range of addresses; a page costs when it is used.
constexpr int64_t kRangeBytes = int64_t{4} << 30;

}  // namespace

// The kernel makes it of huge pages where it has them: it changes the rights of each page by
// itself, and they change with every kernel.
GuardedMemory::GuardedMemory()
    : data_(static_cast<char*>(mmap(nullptr, kRangeBytes, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  DSAT_CHECK(data_ != MAP_FAILED);
  madvise(data_, kRangeBytes, MADV_HUGEPAGE);
}

GuardedMemory::~GuardedMemory() {
  munmap(data_, kRangeBytes);
}

void* GuardedMemory::Allocate(int64_t bytes) {
  void* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.find(bytes); found != free_.end()) {
      block = found->second;
      free_.erase(found);
    } else {
      if (bytes > kRangeBytes - used_bytes_) return nullptr;
      block = data_ + used_bytes_;
      used_bytes_ += bytes;
    }
  }
  const Access access(*this);
  std::memset(block, 0xFF, static_cast<size_t>(bytes));
  return block;
}

void GuardedMemory::Free(void* block, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  free_.emplace(bytes, block);
}

bool GuardedMemory::Holds(const void* data, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const char* begin = static_cast<const char*>(data);
  return begin >= data_ && begin + bytes <= data_ + used_bytes_;
}

void GuardedMemory::Enter() {
  const std::lock_guard lock(mutex_);
  if (num_open_++ == 0) Protect(PROT_READ | PROT_WRITE);
}

void GuardedMemory::Leave() {
  const std::lock_guard lock(mutex_);
  if (--num_open_ == 0) Protect(PROT_NONE);
}

void GuardedMemory::Protect(int rights) {
  DSAT_CHECK(mprotect(data_, kRangeBytes, rights) == 0);
}

namespace {

class GuardedDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "guarded cpu"; }
  std::unique_ptr<Kernels> MakeKernels() override {
    return MakeGuardedKernels(cpu_->MakeKernels(), memory_);
  }
  std::unique_ptr<Kernels> MakeHostKernels() override { return cpu_->MakeHostKernels(); }
  MemorySource& memory() override { return memory_; }
  MemorySource& host_memory() override { return cpu_->memory(); }
  int64_t MemoryBytes(int local_world_size) const override {
    return cpu_->MemoryBytes(local_world_size);
  }
  std::unique_ptr<ProcessGroup> MakeGroup(std::unique_ptr<ProcessGroup> host) override {
    return MakeStagedGroup(std::move(host), memory_, MakeGuardedStream(memory_));
  }

 private:
  std::unique_ptr<Device> cpu_ = MakeCpuDevice(1);
  GuardedMemory memory_;
};

}  // namespace

std::unique_ptr<Device> MakeGuardedDevice() {
  return std::make_unique<GuardedDevice>();
}

}  // namespace dsat::engine
