// Kernels on the CPU.
#include "tests/engine/emulated_cuda/grid.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace emulated_cuda {

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

using Fiber = boost::context::fiber;

constexpr size_t kStackBytes = size_t{128} << 10;

enum class State : uint8_t { kRuns, kWaits, kReturned };

struct Thread {
  State state = State::kRuns;
  Fiber* fiber = nullptr;
  Site site;  // Where it waits.
};

// Of some threads of a block that wait for each other, again and again.
struct Barrier {
  int first = 0, size = 0;  // Threads.
  int arrived = 0;
  bool odd = false;  // Every second time.
};

struct Warp {
  Barrier barrier;
  // Two, for lanes that have yet to look at what the last exchange brought.
  alignas(16) std::byte slots[2][kLanes][kExchangeBytes];
};

// A library's thread-local memory, as the calling thread has it.
struct StaticShared {
  char* begin = nullptr;
  size_t bytes = 0;
};

StaticShared StaticSharedAt(void* address) {
  StaticShared found;
  const auto look = [&](const dl_phdr_info& info) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      auto* begin = static_cast<char*>(info.dlpi_tls_data);
      const size_t bytes = info.dlpi_phdr[i].p_memsz;
      if (info.dlpi_phdr[i].p_type != PT_TLS || begin == nullptr) continue;
      if (address >= begin && address < begin + bytes) found = {begin, bytes};
    }
  };
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* fn) {
        (*static_cast<decltype(look)*>(fn))(*info);
        return 0;
      },
      const_cast<void*>(static_cast<const void*>(&look)));
  DSAT_CHECK(found.begin != nullptr);
  return found;
}

// Pages before one that cannot be touched.
class DynamicMemory {
 public:
  DynamicMemory() {
    void* data = mmap(nullptr, kBytes + kPageBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DSAT_CHECK(data != MAP_FAILED);
    end_ = static_cast<char*>(data) + kBytes;
    DSAT_CHECK(mprotect(end_, kPageBytes, PROT_NONE) == 0);
  }

  void Fill(size_t bytes) {
    begin_ = end_ - (bytes + 255) / 256 * 256;
    std::memset(begin_, 0xFF, static_cast<size_t>(end_ - begin_));
  }
  void* begin() const { return begin_; }

 private:
  static constexpr size_t kPageBytes = 4096;
  static constexpr size_t kBytes = (kMaxSharedBytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  char* end_ = nullptr;
  char* begin_ = nullptr;
};

class Block {
 public:
  void Run(const Launch& launch, const StaticShared& shared, bool descending);
  int lane() const { return current_ % kLanes; }
  void* dynamic() const { return dynamic_.begin(); }
  int SyncBlock(int value, const Site& site);
  const std::byte* Exchange(unsigned mask, const void* mine, size_t bytes, const Site& site);

 private:
  int num_threads() const { return static_cast<int>(threads_.size()); }
  int ThreadAt(int position) const { return descending_ ? num_threads() - 1 - position : position; }
  Thread& current() { return threads_[static_cast<size_t>(current_)]; }
  void Prepare(const Launch& launch);
  void SetCurrent(int thread);
  void Resume(Fiber& fiber) { fiber = std::move(fiber).resume(); }
  void AddFiber();
  void RunFiber(Fiber& self);
  void StartAll();
  bool ResumeReady();
  void Wait(Barrier& barrier, const Site& site);
  [[noreturn]] void ReportDivergence() const;

  DynamicMemory dynamic_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Barrier barrier_;
  int results_[2] = {};  // Of SyncBlock, in turn.

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber scheduler_;  // While another runs.
  const std::function<void()>* body_ = nullptr;
  bool descending_ = false;
  int started_ = 0, returned_ = 0;  // Threads.
  int current_ = 0;
};

// One for the whole process, since fibers are dear to make.
Block& TheBlock() {
  static auto& block = *new Block;
  return block;
}

void Block::Run(const Launch& launch, const StaticShared& shared, bool descending) {
  std::memset(shared.begin, 0xFF, shared.bytes);
  dynamic_.Fill(launch.dynamic_bytes);
  descending_ = descending;
  Prepare(launch);
  StartAll();
  while (returned_ < num_threads())
    if (!ResumeReady()) ReportDivergence();
}

void Block::Prepare(const Launch& launch) {
  body_ = &launch.thread;
  started_ = returned_ = 0;
  threads_.assign(size_t{launch.block.x} * launch.block.y * launch.block.z, Thread());
  barrier_ = {.size = num_threads()};
  warps_.resize((threads_.size() + kLanes - 1) / kLanes);
  int first = 0;
  for (Warp& warp : warps_) {
    warp.barrier = {.first = first, .size = std::min(kLanes, num_threads() - first)};
    first += kLanes;
  }
}

void Block::SetCurrent(int thread) {
  current_ = thread;
  const auto t = static_cast<unsigned>(thread);
  threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
}

void Block::AddFiber() {
  fibers_.push_back(std::make_unique<Fiber>());
  Fiber& fiber = *fibers_.back();
  idle_.push_back(&fiber);
  fiber = Fiber(std::allocator_arg, boost::context::protected_fixedsize_stack(kStackBytes),
                [this, &fiber](Fiber&& scheduler) {
                  scheduler_ = std::move(scheduler);
                  while (true) {
                    RunFiber(fiber);
                    scheduler_ = std::move(scheduler_).resume();
                  }
                  return Fiber();
                });
}

// Threads that never wait run one after another on one fiber.
void Block::RunFiber(Fiber& self) {
  idle_.pop_back();
  while (started_ < num_threads()) {
    SetCurrent(ThreadAt(started_++));
    current().fiber = &self;
    (*body_)();
    current().state = State::kReturned;
    ++returned_;
  }
  idle_.push_back(&self);
}

void Block::StartAll() {
  while (started_ < num_threads()) {
    if (idle_.empty()) AddFiber();
    Resume(*idle_.back());
  }
}

bool Block::ResumeReady() {
  bool any = false;
  for (int position = 0; position < num_threads(); ++position) {
    const int thread = ThreadAt(position);
    if (threads_[static_cast<size_t>(thread)].state != State::kRuns) continue;
    any = true;
    SetCurrent(thread);
    Resume(*current().fiber);
  }
  return any;
}

// The last to come goes on at once.
void Block::Wait(Barrier& barrier, const Site& site) {
  const auto begin = threads_.begin() + barrier.first, end = begin + barrier.size;
  current().site = site;
  current().state = State::kWaits;
  if (++barrier.arrived < barrier.size) {
    scheduler_ = std::move(scheduler_).resume();
    return;
  }
  for (auto thread = begin; thread != end; ++thread) {
    const bool same_place = thread->site.line() == site.line() &&
                            std::strcmp(thread->site.file_name(), site.file_name()) == 0;
    if (!same_place) ReportDivergence();
  }
  for (auto thread = begin; thread != end; ++thread)
    thread->state = State::kRuns;
  barrier.arrived = 0;
  barrier.odd = !barrier.odd;
}

int Block::SyncBlock(int value, const Site& site) {
  int& result = results_[barrier_.odd ? 1 : 0];
  if (barrier_.arrived == 0) result = 0;
  if (value != 0) result = 1;
  Wait(barrier_, site);
  return result;
}

const std::byte* Block::Exchange(unsigned mask, const void* mine, size_t bytes, const Site& site) {
  Warp& warp = warps_[static_cast<size_t>(current_ / kLanes)];
  // Some of a warp's lanes by themselves are not emulated.
  DSAT_CHECK(std::popcount(mask) >= warp.barrier.size, "{}:{}: mask {:x}", site.file_name(),
             site.line(), mask);
  auto& slots = warp.slots[warp.barrier.odd ? 1 : 0];
  std::memcpy(slots[lane()], mine, bytes);
  Wait(warp.barrier, site);
  return slots[0];
}

void Block::ReportDivergence() const {
  std::map<std::string, std::string> threads;  // By what they do.
  for (size_t i = 0; i < threads_.size(); ++i) {
    const Thread& thread = threads_[i];
    const std::string what = thread.state == State::kReturned
                                 ? "returned"
                                 : fmt::format("{}:{} in {}", thread.site.file_name(),
                                               thread.site.line(), thread.site.function_name());
    threads[what] += fmt::format(" {}", i);
  }
  std::string report;
  for (const auto& [what, which] : threads)
    report += fmt::format("\n{}: threads{}", what, which);
  DSAT_CHECK(false, "block ({}, {}, {}): threads wait at different places{}", blockIdx.x,
             blockIdx.y, blockIdx.z, report);
  std::abort();
}

}  // namespace

void RunGrid(const Launch& launch, bool descending) {
  gridDim = launch.grid;
  blockDim = launch.block;
  const StaticShared shared = StaticSharedAt(launch.shared());
  const int64_t count = int64_t{gridDim.x} * gridDim.y * gridDim.z;
  for (int64_t i = 0; i < count; ++i) {
    const auto block = static_cast<uint64_t>(descending ? count - 1 - i : i);
    blockIdx = {static_cast<unsigned>(block % gridDim.x),
                static_cast<unsigned>(block / gridDim.x % gridDim.y),
                static_cast<unsigned>(block / gridDim.x / gridDim.y)};
    TheBlock().Run(launch, shared, descending);
  }
}

int Lane() {
  return TheBlock().lane();
}
void* DynamicShared() {
  return TheBlock().dynamic();
}
int SyncBlock(int value, const Site& site) {
  return TheBlock().SyncBlock(value, site);
}
const std::byte* ExchangeBytes(unsigned mask, const void* mine, size_t bytes, const Site& site) {
  return TheBlock().Exchange(mask, mine, bytes, site);
}

}  // namespace emulated_cuda
