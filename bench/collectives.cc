// Compares the speed of shared-memory collectives and messages between processes with that of a
// plain memory copy, and the speed of those over TCP on this host with that of shared memory:
// `bench_collectives [ranks]`. docs/dev/benchmarks.md defines the columns.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/process_group.h"
#include "engine/comm/shared_file.h"
#include "engine/comm/socket.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxBytes = int64_t{64} << 20;
constexpr std::chrono::milliseconds kTimeout{30'000};

struct Seconds {
  double best = 0;
  double median = 0;
};

Seconds Summarize(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

// Times two calls in alternation for about half a second, so that other work on the machine affects
// both alike. Each is timed from barrier to barrier, so that every rank has finished.
std::pair<Seconds, Seconds> Measure(ProcessGroup& group, const std::function<void()>& first,
                                    const std::function<void()>& second) {
  const auto once = [&](const std::function<void()>& call) {
    group.Barrier();
    const auto start = Clock::now();
    call();
    group.Barrier();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  once(first);
  once(second);
  // All ranks must agree on the number of calls.
  const double warm_seconds = group.MaxScalar(once(first) + once(second));
  const int num_calls = std::clamp(static_cast<int>(0.5 / warm_seconds), 9, 2000);
  std::pair<std::vector<double>, std::vector<double>> seconds;
  for (int i = 0; i < num_calls; ++i) {
    seconds.first.push_back(once(first));
    seconds.second.push_back(once(second));
  }
  return {Summarize(seconds.first), Summarize(seconds.second)};
}

// Every rank, at the same time, copies `bytes` of the next rank's block to its own.
void CopyFromPeer(const ProcessGroup& group, const Mapping& blocks, int64_t bytes) {
  // The sources of all ranks precede their destinations, so that no rank reads what another writes.
  const char* peer = blocks.data() + (group.rank() + 1) % group.size() * kMaxBytes;
  char* own = blocks.data() + (group.size() + group.rank()) * kMaxBytes;
  std::memcpy(own, peer, static_cast<size_t>(bytes));
}

// One call that is measured on buffers of one size. `ring_share` is the share of the buffer that a
// rank sends in a ring.
struct Case {
  const char* name;
  const char* type;
  double ring_share;
  std::function<void()> call;
};

void PrintRow(const Case& what, int64_t bytes, const Seconds& seconds, const Seconds& copy) {
  const double of_copy = copy.best / seconds.best;
  fmt::print("{:<15} {:<5} {:>10} {:>11.1f} {:>11.1f} {:>12.2f} {:>8.2f} {:>13.2f}\n", what.name,
             what.type, bytes, seconds.median * 1e6, seconds.best * 1e6,
             static_cast<double>(bytes) / seconds.best / 1e9, of_copy, what.ring_share * of_copy);
}

// The calls on one buffer of `bytes` and on messages of the same size.
std::vector<Case> MakeCases(ProcessGroup& group, int64_t bytes) {
  const CommBuffer buffer = group.Allocate(bytes);
  const auto message = std::make_shared<std::vector<char>>(static_cast<size_t>(bytes));
  const int64_t row_bytes = bytes / group.size();
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  const double others = static_cast<double>(group.size() - 1) / group.size();
  std::vector<Case> cases;
  for (const auto& [dtype, type] : {std::pair{DType::kF32, "f32"}, std::pair{DType::kBF16, "bf16"},
                                    std::pair{DType::kF16, "f16"}}) {
    const DType of = dtype;
    const int64_t row_elems = row_bytes / BytesPerElem(dtype);
    cases.push_back({"reduce_scatter", type, others,
                     [=, &group] { group.ReduceScatter(buffer, of, row_elems); }});
    cases.push_back(
        {"all_reduce", type, 2 * others, [=, &group] { group.AllReduce(buffer, of, row_elems); }});
  }
  cases.push_back(
      {"all_gather", "bytes", others, [=, &group] { group.AllGather(buffer, row_bytes); }});
  cases.push_back(
      {"all_to_all", "bytes", others, [=, &group] { group.AllToAll(buffer, row_bytes); }});
  cases.push_back({"send+recv", "bytes", 1, [=, &group] {
                     group.Send(message->data(), bytes, next);
                     group.Recv(message->data(), bytes, previous);
                   }});
  return cases;
}

// The cases of both kinds of groups, with messages that cross between two ranks.
std::vector<Case> MakeSharedCases(ProcessGroup& group, int64_t bytes) {
  std::vector<Case> cases = MakeCases(group, bytes);
  cases.pop_back();  // Over TCP a large Send waits for its receiver.
  const int peer = group.rank() ^ 1;
  if (group.size() % 2 != 0) return cases;
  const auto messages = std::make_shared<std::vector<char>>(static_cast<size_t>(2 * bytes));
  cases.push_back({"exchange", "bytes", 1, [=, &group] {
                     group.Exchange(messages->data(), messages->data() + bytes, bytes, peer);
                   }});
  return cases;
}

// Times each call over TCP in alternation with the same call through shared memory.
void CompareOverTcp(ProcessGroup& shm, ProcessGroup& tcp) {
  const auto [tcp_barrier, shm_barrier] = Measure(
      shm, [&] { tcp.Barrier(); }, [&] { shm.Barrier(); });
  if (shm.rank() == 0) {
    fmt::print("\nover TCP on this host, barrier {:.1f} us including one of shared memory\n",
               tcp_barrier.median * 1e6);
    fmt::print("{:<15} {:<5} {:>10} {:>11} {:>11} {:>12} {:>8}\n", "call", "type", "bytes",
               "median us", "best us", "algbw GB/s", "of shm");
  }
  for (const int64_t bytes : {int64_t{4} << 10, int64_t{256} << 10, int64_t{4} << 20, kMaxBytes}) {
    const std::vector<Case> over_tcp = MakeSharedCases(tcp, bytes);
    const std::vector<Case> over_shm = MakeSharedCases(shm, bytes);
    for (size_t i = 0; i < over_tcp.size(); ++i) {
      const auto [seconds, shm_seconds] = Measure(shm, over_tcp[i].call, over_shm[i].call);
      if (shm.rank() != 0) continue;
      fmt::print("{:<15} {:<5} {:>10} {:>11.1f} {:>11.1f} {:>12.2f} {:>8.2f}\n", over_tcp[i].name,
                 over_tcp[i].type, bytes, seconds.median * 1e6, seconds.best * 1e6,
                 static_cast<double>(bytes) / seconds.best / 1e9, shm_seconds.best / seconds.best);
    }
  }
}

void RunRank(int group_fd, int copy_fd, const UniqueFd& listener, int rank, int size) {
  const auto group = MakeShmGroup(group_fd, rank, size, kTimeout);
  const auto tcp = MakeTcpGroup({.rank = rank,
                                 .size = size,
                                 .master_address = "127.0.0.1",
                                 .master_port = SocketAddress::OfThisSide(listener.get()).port(),
                                 .key = "",
                                 .timeout = kTimeout,
                                 .listening_fd = rank == 0 ? listener.get() : -1});
  const Mapping blocks(copy_fd, 0, 2 * size * kMaxBytes);
  const auto barrier = [&] { group->Barrier(); };
  const double barrier_seconds = Measure(*group, barrier, barrier).first.median / 2;
  if (rank == 0) {
    fmt::print("{} processes, barrier {:.1f} us\n", size, barrier_seconds * 1e6);
    fmt::print("{:<15} {:<5} {:>10} {:>11} {:>11} {:>12} {:>8} {:>13}\n", "call", "type", "bytes",
               "median us", "best us", "algbw GB/s", "of copy", "ring of copy");
  }
  for (const int64_t bytes : {int64_t{4} << 10, int64_t{256} << 10, int64_t{4} << 20, kMaxBytes}) {
    const auto copy = [&] { CopyFromPeer(*group, blocks, bytes); };
    for (const Case& each : MakeCases(*group, bytes)) {
      const auto [seconds, copy_seconds] = Measure(*group, each.call, copy);
      if (rank == 0) PrintRow(each, bytes, seconds, copy_seconds);
    }
  }
  CompareOverTcp(*group, *tcp);
}

int Main(int size) {
  const UniqueFd group_file = MakeMemoryFile();
  const UniqueFd copy_file = MakeMemoryFile();
  if (ftruncate(copy_file.get(), 2 * size * kMaxBytes) != 0) ThrowErrno("ftruncate", errno);
  const UniqueFd listener = ListenAt(Resolve("127.0.0.1", 0).front());
  for (int rank = 1; rank < size; ++rank) {
    if (fork() != 0) continue;
    RunRank(group_file.get(), copy_file.get(), listener, rank, size);
    _exit(0);
  }
  RunRank(group_file.get(), copy_file.get(), listener, 0, size);
  while (wait(nullptr) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace dsat::engine

int main(int argc, char** argv) {
  const std::string ranks = argc > 1 ? argv[1] : "2";
  if (ranks == "--help") {
    fmt::print(
        "usage: bench_collectives [RANKS]\n"
        "Compares collectives and messages between processes with a plain copy of memory.\n"
        "  RANKS  2 to 64 processes (default: 2)\n");
    return 0;
  }
  const int size = std::atoi(ranks.c_str());
  if (size < 2 || size > 64) {
    fmt::print(stderr, "bench_collectives: {} ranks; expected 2 to 64\n", ranks);
    return 2;
  }
  try {
    return dsat::engine::Main(size);
  } catch (const dsat::Error& error) {
    fmt::print(stderr, "bench_collectives: {}\n", error.what());
    return 1;
  }
}
