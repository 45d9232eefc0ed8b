// Speed of the shared-memory collectives between real processes, beside a plain memory copy between
// the same processes: `bench_collectives [ranks]`.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "engine/comm/mapping.h"
#include "base/unique_fd.h"
#include "engine/comm/process_group.h"

namespace dsat::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxBytes = int64_t{64} << 20;
constexpr std::chrono::milliseconds kTimeout{30'000};

UniqueFd MakeMemoryFile(const char* name) {
  UniqueFd file(memfd_create(name, MFD_CLOEXEC));
  if (!file) ThrowErrno("memfd_create", errno);
  return file;
}

struct Seconds {
  double best = 0;
  double median = 0;
};

// Time of one call, over enough calls for about a third of a second; measured from barrier to
// barrier, so that every rank has finished.
Seconds Measure(ProcessGroup& group, const std::function<void()>& call) {
  const auto once = [&] {
    group.Barrier();
    const auto start = Clock::now();
    call();
    group.Barrier();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  once();
  // All ranks must agree on the number of calls.
  const double warm_seconds = group.MaxScalar(once());
  const int num_calls = std::clamp(static_cast<int>(0.3 / warm_seconds), 9, 2000);
  std::vector<double> seconds;
  for (int i = 0; i < num_calls; ++i)
    seconds.push_back(once());
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

// Time in which every rank, at the same time, copies `bytes` of the next rank's block to its
// own.
Seconds MeasureCopy(ProcessGroup& group, const Mapping& blocks, int64_t bytes) {
  // The sources of all ranks, then their destinations: nobody reads what is being written.
  const char* peer = blocks.data() + (group.rank() + 1) % group.size() * kMaxBytes;
  char* own = blocks.data() + (group.size() + group.rank()) * kMaxBytes;
  return Measure(group, [&] { std::memcpy(own, peer, static_cast<size_t>(bytes)); });
}

void PrintRow(const char* name, const char* type, int64_t bytes, const Seconds& seconds,
              const Seconds& copy) {
  fmt::print("{:<15} {:<5} {:>10} {:>11.1f} {:>11.1f} {:>12.2f} {:>8.2f}\n", name, type, bytes,
             seconds.median * 1e6, seconds.best * 1e6,
             static_cast<double>(bytes) / seconds.best / 1e9, copy.best / seconds.best);
}

void MeasureCollectives(ProcessGroup& group, DType dtype, int64_t bytes, const Seconds& copy) {
  using Collective = void (ProcessGroup::*)(const CommBuffer&, DType, int64_t);
  constexpr std::pair<const char*, Collective> kCollectives[] = {
      {"reduce_scatter", &ProcessGroup::ReduceScatter},
      {"all_gather", &ProcessGroup::AllGather},
      {"all_reduce", &ProcessGroup::AllReduce}};
  const CommBuffer buffer = group.Allocate(bytes);
  const int64_t row_elems = bytes / group.size() / BytesPerElem(dtype);
  for (const auto& [name, collective] : kCollectives) {
    const Seconds seconds = Measure(group, [&] { (group.*collective)(buffer, dtype, row_elems); });
    if (group.rank() == 0) {
      PrintRow(name, dtype == DType::kF32 ? "f32" : "bf16", bytes, seconds, copy);
    }
  }
}

void RunRank(int group_fd, int copy_fd, int rank, int size) {
  const auto group = MakeShmGroup(group_fd, rank, size, kTimeout);
  const Mapping blocks(copy_fd, 0, 2 * size * kMaxBytes);
  const double barrier_seconds = Measure(*group, [&] { group->Barrier(); }).median / 2;
  if (rank == 0) {
    fmt::print(
        "{} processes, barrier {:.1f} us; \"of copy\" is the time of a plain copy of as many "
        "bytes from a peer over the collective's time\n",
        size, barrier_seconds * 1e6);
    fmt::print("{:<15} {:<5} {:>10} {:>11} {:>11} {:>12} {:>8}\n", "call", "type", "bytes",
               "median us", "best us", "algbw GB/s", "of copy");
  }
  for (const int64_t bytes : {int64_t{4} << 10, int64_t{256} << 10, int64_t{4} << 20, kMaxBytes}) {
    const Seconds copy = MeasureCopy(*group, blocks, bytes);
    if (rank == 0) PrintRow("copy", "", bytes, copy, copy);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      MeasureCollectives(*group, dtype, bytes, copy);
    }
  }
}

int Main(int size) {
  const UniqueFd group_file = MakeMemoryFile("bench-group");
  const UniqueFd copy_file = MakeMemoryFile("bench-copy");
  if (ftruncate(copy_file.get(), 2 * size * kMaxBytes) != 0) ThrowErrno("ftruncate", errno);
  for (int rank = 1; rank < size; ++rank) {
    if (fork() != 0) continue;
    RunRank(group_file.get(), copy_file.get(), rank, size);
    _exit(0);
  }
  RunRank(group_file.get(), copy_file.get(), 0, size);
  while (wait(nullptr) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace dsat::engine

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  if (size < 2 || size > 64) {
    fmt::print(stderr, "bench_collectives: {} ranks; expected 2 to 64\n", argv[1]);
    return 2;
  }
  try {
    return dsat::engine::Main(size);
  } catch (const dsat::Error& error) {
    fmt::print(stderr, "bench_collectives: {}\n", error.what());
    return 1;
  }
}
