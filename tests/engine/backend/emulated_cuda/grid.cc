// Kernels on the CPU.
#include "tests/engine/backend/emulated_cuda/grid.h"

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
using GuardedStack = boost::context::protected_fixedsize_stack;

constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr size_t kStackBytes = size_t{128} << 10;

// Stacks begin at different places of a page: a cache could not keep the ends of many pages. They
// are never given back.
class ShiftedStack : public GuardedStack {
 public:
  explicit ShiftedStack(size_t shift) : GuardedStack(kStackBytes), shift_(shift) {}
  boost::context::stack_context allocate() {
    auto stack = GuardedStack::allocate();
    stack.sp = static_cast<char*>(stack.sp) - shift_;
    stack.size -= shift_;
    return stack;
  }

 private:
  size_t shift_;
};

enum class State : uint8_t { kNew, kRuns, kWaits, kReturned };

struct Thread {
  State state = State::kNew;
  Fiber* fiber = nullptr;
  Site site;  // Where it waits.
};

// A barrier of some threads of a block that wait for each other, again and again.
struct Barrier {
  int first = 0, size = 0;  // Threads.
  int arrived = 0;
  bool odd = false;  // Every second time.
};

// Without comparing names, where it can be told.
bool IsSame(const Site& a, const Site& b) {
  return a.line() == b.line() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

struct Warp {
  Barrier barrier;
  // Two, for lanes that have yet to look at what the last exchange brought.
  alignas(16) std::byte slots[2][kLanes * kExchangeBytes];
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
  Thread& current() { return threads_[static_cast<size_t>(current_)]; }
  void Prepare(const Launch& launch);
  void SetCurrent(int position);
  Fiber& IdleFiber();
  Fiber& FiberOfCurrent() {
    return current().state == State::kNew ? IdleFiber() : *current().fiber;
  }
  void RunThreads(Fiber& self);
  void Switch(Fiber& from, Fiber& to);
  void Advance();
  void Wait(Barrier& barrier, const Site& site);
  [[noreturn]] void ReportDivergence() const;

  DynamicMemory dynamic_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Barrier barrier_;
  int results_[2] = {};  // The results of SyncBlock, in turn.

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber caller_;                    // The fiber of Run, while a thread runs.
  Fiber* switched_from_ = nullptr;  // Where whoever is switched to keeps the one before.
  const std::function<void()>* body_ = nullptr;
  bool descending_ = false;
  int returned_ = 0;                // Threads.
  int current_ = 0, position_ = 0;  // The running thread, and its place in their order.
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
  SetCurrent(0);
  Switch(caller_, FiberOfCurrent());
}

void Block::Prepare(const Launch& launch) {
  body_ = &launch.thread;
  returned_ = 0;
  threads_.assign(size_t{launch.block.x} * launch.block.y * launch.block.z, Thread());
  barrier_ = {.size = num_threads()};
  warps_.resize((threads_.size() + kLanes - 1) / kLanes);
  int first = 0;
  for (Warp& warp : warps_) {
    warp.barrier = {.first = first, .size = std::min(kLanes, num_threads() - first)};
    first += kLanes;
  }
}

void Block::SetCurrent(int position) {
  position_ = position;
  current_ = descending_ ? num_threads() - 1 - position : position;
  const auto t = static_cast<unsigned>(current_);
  threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
}

void Block::Switch(Fiber& from, Fiber& to) {
  switched_from_ = &from;
  Fiber before = std::move(to).resume();
  *switched_from_ = std::move(before);
}

// One that has no thread.
Fiber& Block::IdleFiber() {
  if (!idle_.empty()) return *idle_.back();
  fibers_.push_back(std::make_unique<Fiber>());
  Fiber& fiber = *fibers_.back();
  idle_.push_back(&fiber);
  fiber = Fiber(std::allocator_arg, ShiftedStack(fibers_.size() * 5 % 64 * 64),
                [this, &fiber](Fiber&& before) {
                  *switched_from_ = std::move(before);
                  RunThreads(fiber);
                  return Fiber();
                });
  return fiber;
}

// Threads that never wait run one after another on one fiber.
void Block::RunThreads(Fiber& self) {
  idle_.pop_back();
  while (true) {
    current().state = State::kRuns;
    current().fiber = &self;
    (*body_)();
    current().state = State::kReturned;
    const bool all = ++returned_ == num_threads();
    if (!all) Advance();
    if (!all && current().state == State::kNew) continue;
    idle_.push_back(&self);
    Switch(self, all ? caller_ : *current().fiber);
    idle_.pop_back();
  }
}

// To the next thread, round and round, that does not wait.
void Block::Advance() {
  for (int i = 1; i <= num_threads(); ++i) {
    SetCurrent(position_ + 1 == num_threads() ? 0 : position_ + 1);
    if (current().state == State::kNew || current().state == State::kRuns) return;
  }
  ReportDivergence();
}

// The last to come goes on at once.
void Block::Wait(Barrier& barrier, const Site& site) {
  const auto begin = threads_.begin() + barrier.first, end = begin + barrier.size;
  current().site = site;
  current().state = State::kWaits;
  if (++barrier.arrived < barrier.size) {
    Fiber& own = *current().fiber;
    Advance();
    return Switch(own, FiberOfCurrent());
  }
  for (auto thread = begin; thread != end; ++thread) {
    if (!IsSame(thread->site, site)) ReportDivergence();
    thread->state = State::kRuns;
  }
  barrier.arrived = 0;
  barrier.odd = !barrier.odd;
}

int Block::SyncBlock(int value, const Site& site) {
  int& result = results_[barrier_.odd ? 1 : 0];
  if (barrier_.arrived == 0) result = 0;
  if (value != 0) ++result;
  Wait(barrier_, site);
  return result;
}

const std::byte* Block::Exchange(unsigned mask, const void* mine, size_t bytes, const Site& site) {
  Warp& warp = warps_[static_cast<size_t>(current_ / kLanes)];
  // Some of a warp's lanes by themselves are not emulated.
  DSAT_CHECK(mask == kAllLanes || std::popcount(mask) >= warp.barrier.size, "{}:{}: mask {:x}",
             site.file_name(), site.line(), mask);
  std::byte* slots = warp.slots[warp.barrier.odd ? 1 : 0];
  std::memcpy(slots + static_cast<size_t>(lane()) * bytes, mine, bytes);
  Wait(warp.barrier, site);
  return slots;
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
