// Several ranks in one test process: a thread each. They talk through shared memory, or over TCP if
// DSAT_TEST_GROUP is "tcp".
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/process_group.h"
#include "tests/engine/comm/tcp_ranks.h"

namespace dsat::engine {

// Long enough for a loaded machine; a test that waits for it has failed.
constexpr std::chrono::milliseconds kTestTimeout{60'000};

// For tests that wait for a time-out: long enough for ranks to meet on a loaded machine.
constexpr std::chrono::milliseconds kShortTestTimeout{3'000};

// An empty memory file, as the supervisor makes it.
inline UniqueFd MakeMemoryFile() {
  UniqueFd file(memfd_create("dsat-test", MFD_CLOEXEC));
  if (!file) ThrowErrno("memfd_create", errno);
  return file;
}

// Runs fn(rank) on `size` threads and, when all have ended, throws again what was thrown first.
inline void RunThreads(int size, const std::function<void(int rank)>& fn) {
  std::mutex mutex;
  std::exception_ptr first_failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        fn(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first_failure) first_failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  if (first_failure) std::rethrow_exception(first_failure);
}

// The ends of a group of `size` over shared memory, by rank.
inline std::vector<std::unique_ptr<ProcessGroup>> MakeThreadGroups(
    int size, std::chrono::milliseconds timeout) {
  const UniqueFd file = MakeMemoryFile();
  std::vector<std::unique_ptr<ProcessGroup>> groups(static_cast<size_t>(size));
  RunThreads(size, [&](int rank) {
    groups[static_cast<size_t>(rank)] = MakeShmGroup(file.get(), rank, size, timeout);
  });
  return groups;
}

// Where the ranks of a group meet: at a memory file, or at an address if DSAT_TEST_GROUP is "tcp".
class MeetingPlace {
 public:
  static bool IsTcp() {
    const char* kind = std::getenv("DSAT_TEST_GROUP");
    return kind != nullptr && std::string(kind) == "tcp";
  }
  MeetingPlace() {
    if (IsTcp()) {
      tcp_.emplace();
    } else {
      file_ = MakeMemoryFile();
    }
  }

  std::unique_ptr<ProcessGroup> Join(int rank, int size,
                                     std::chrono::milliseconds timeout = kTestTimeout) const {
    return tcp_ ? tcp_->Join(rank, size, timeout) : MakeShmGroup(file_.get(), rank, size, timeout);
  }

 private:
  std::optional<TcpPlace> tcp_;
  UniqueFd file_;
};

// The same for ranks that meet there.
inline std::vector<std::unique_ptr<ProcessGroup>> MakeRanks(int size,
                                                            std::chrono::milliseconds timeout) {
  const MeetingPlace place;
  std::vector<std::unique_ptr<ProcessGroup>> groups(static_cast<size_t>(size));
  RunThreads(
      size, [&](int rank) { groups[static_cast<size_t>(rank)] = place.Join(rank, size, timeout); });
  return groups;
}

// Runs fn(group) on every rank of a group of `size`. As RunThreads about failures; the ranks that
// wait for one that failed end with it.
inline void RunRanks(int size, const std::function<void(ProcessGroup& group)>& fn,
                     std::chrono::milliseconds timeout = kTestTimeout) {
  auto groups = MakeRanks(size, timeout);
  RunThreads(size, [&](int rank) {
    // Ends with its thread: peers that wait for a rank that failed must see it go.
    const auto group = std::move(groups[static_cast<size_t>(rank)]);
    fn(*group);
  });
}

}  // namespace dsat::engine
