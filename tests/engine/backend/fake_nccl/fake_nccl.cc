// A libnccl.so.2 whose ranks are threads of one process: the calls that dsat makes, with their
// documented rules. Communicators do not block: a thread of the library launches what is asked for,
// and only there a stream's handle is looked up. An operation is done when all its ranks have asked
// for it, a send when its peer has asked to receive. Sums are formed in f32 in the order of the
// ranks. What cannot go wrong by itself here is made to by FakeNcclLose, FakeNcclFail,
// FakeNcclLackMemory and FakeNcclHang.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/backend/cuda/nccl.h"
#include "engine/comm/sum_rows.h"
#include "tests/engine/backend/fake_nccl/streams.h"

namespace fake_nccl {
namespace {

namespace nccl = dsat::engine::nccl;
using dsat::engine::DType;

enum Result : int { kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6 };

size_t BytesPerElem(int type) {
  return type == nccl::kFloat32 ? 4 : type == nccl::kUint8 ? 1 : 2;
}

DType DTypeOf(int type) {
  return type == nccl::kFloat32 ? DType::kF32 : type == nccl::kFloat16 ? DType::kF16 : DType::kBF16;
}

struct Operation {
  enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kReceive };
  Kind kind = Kind::kAllReduce;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  int type = nccl::kUint8;
  int peer = 0;  // Or root.
  int rank = 0;
  void* stream = nullptr;
  Place place = nullptr;
};
using Kind = Operation::Kind;

struct Communicator;

// The communicators that were made with one id.
struct Clique {
  int size = 0;
  int num_joined = 0;
  std::vector<Communicator*> members;                     // By rank; nullptr: not there.
  std::map<int64_t, std::vector<Operation>> collectives;  // By number: of those who have come.
  std::map<std::pair<int, int>, std::vector<Operation>> sends, receives;  // By from and to.
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int64_t num_collectives = 0;
  int num_pending = 0;
  int error = nccl::kSuccess;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::jthread launcher = {};  // The thread of the last operations.
};

std::mutex mutex;  // Over all that follows.
std::map<std::string, std::shared_ptr<Clique>> cliques;
uint64_t num_ids = 0;
int losing_rank = -1;
int failing_rank = -1;
bool lacks_memory = false;  // The failing rank's GPU.
bool next_hangs = false;

thread_local int group_depth = 0;
using Operations = std::vector<std::pair<Communicator*, Operation>>;
thread_local Operations group;

std::vector<char> Bytes(const void* data, size_t bytes) {
  const char* begin = static_cast<const char*>(data);
  return {begin, begin + bytes};
}

void Store(void* to, const std::vector<char>& bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

// The sum of everybody's elements [begin, begin + count).
std::vector<char> Sum(const std::vector<Operation>& ranks, size_t begin, size_t count) {
  const int type = ranks[0].type;
  const size_t elem_bytes = BytesPerElem(type);
  std::vector<char> sum(count * elem_bytes);
  std::vector<const void*> rows;
  rows.reserve(ranks.size());
  for (const Operation& rank : ranks)
    rows.push_back(static_cast<const char*>(rank.from) + begin * elem_bytes);
  void* sums[] = {sum.data()};
  if (count > 0) dsat::engine::SumRows(sums, rows, DTypeOf(type), static_cast<int64_t>(count));
  return sum;
}

// The result that each rank is given, made of all that they have brought; by rank.
std::vector<std::vector<char>> Results(const std::vector<Operation>& ranks) {
  const Operation& first = ranks[0];
  const size_t bytes = first.count * BytesPerElem(first.type);
  std::vector<char> gathered;
  std::vector<std::vector<char>> results;
  for (const Operation& rank : ranks) {
    const std::vector<char> own = Bytes(rank.from, first.kind == Kind::kAllGather ? bytes : 0);
    gathered.insert(gathered.end(), own.begin(), own.end());
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    switch (first.kind) {
      case Kind::kAllReduce:
        results.push_back(Sum(ranks, 0, first.count));
        break;
      case Kind::kReduceScatter:
        results.push_back(Sum(ranks, r * first.count, first.count));
        break;
      case Kind::kAllGather:
        results.push_back(gathered);
        break;
      default:
        results.push_back(Bytes(ranks[static_cast<size_t>(first.peer)].from, bytes));
    }
  }
  return results;
}

std::vector<Place> PlacesOf(const std::vector<Operation>& operations) {
  std::vector<Place> places;
  places.reserve(operations.size());
  for (const Operation& operation : operations)
    places.push_back(operation.place);
  return places;
}

void FinishCollective(std::vector<Operation> ranks) {
  std::ranges::sort(ranks, {}, &Operation::rank);
  Do(PlacesOf(ranks), [ranks] {
    const std::vector<std::vector<char>> results = Results(ranks);
    for (size_t r = 0; r < ranks.size(); ++r)
      Store(ranks[r].to, results[r]);
  });
}

void Settle(Clique& clique, int rank) {
  Communicator* member = clique.members[static_cast<size_t>(rank)];
  if (member != nullptr) --member->num_pending;
}

bool Agree(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.peer == b.peer;
}

void PostCollective(Communicator& comm, const Operation& operation) {
  Clique& clique = *comm.clique;
  const int64_t number = comm.num_collectives++;
  std::vector<Operation>& ranks = clique.collectives[number];
  if (!ranks.empty() && !Agree(ranks[0], operation)) comm.error = kInvalidUsage;
  ranks.push_back(operation);
  if (static_cast<int>(ranks.size()) < clique.size) return;
  if (std::exchange(next_hangs, false)) {
    for (const Operation& rank : ranks)
      Block(rank.place, clique.members[static_cast<size_t>(rank.rank)]->aborted);
  } else {
    FinishCollective(ranks);
  }
  clique.collectives.erase(number);
  for (int rank = 0; rank < clique.size; ++rank)
    Settle(clique, rank);
}

void PostMessage(Communicator& comm, const Operation& operation) {
  Clique& clique = *comm.clique;
  const bool sends = operation.kind == Kind::kSend;
  const std::pair<int, int> ends =
      sends ? std::pair(comm.rank, operation.peer) : std::pair(operation.peer, comm.rank);
  std::vector<Operation>& waiting = (sends ? clique.receives : clique.sends)[ends];
  if (waiting.empty()) {
    (sends ? clique.sends : clique.receives)[ends].push_back(operation);
    return;
  }
  const Operation other = waiting.front();
  if (other.count != operation.count || other.type != operation.type) {
    comm.error = kInvalidUsage;
    return;
  }
  waiting.erase(waiting.begin());
  const Operation& from = sends ? operation : other;
  const Operation& to = sends ? other : operation;
  Do({from.place, to.place},
     [from, to] { Store(to.to, Bytes(from.from, from.count * BytesPerElem(from.type))); });
  Settle(clique, ends.first);
  Settle(clique, ends.second);
}

void Post(Communicator& comm, const Operation& operation) {
  if (comm.rank == std::exchange(losing_rank, comm.rank == losing_rank ? -1 : losing_rank)) return;
  if (comm.rank == failing_rank) {
    failing_rank = -1;
    comm.error = lacks_memory ? int{nccl::kUnhandledCudaError} : int{kRemoteError};
    return;
  }
  const bool message = operation.kind == Kind::kSend || operation.kind == Kind::kReceive;
  message ? PostMessage(comm, operation) : PostCollective(comm, operation);
}

// The operations of a group are of one communicator.
int Launch(Operations operations) {
  if (operations.empty()) return nccl::kSuccess;
  Communicator& comm = *operations[0].first;
  comm.launcher = {};  // Ends the one before.
  {
    const std::lock_guard lock(mutex);
    comm.num_pending += static_cast<int>(operations.size());
  }
  comm.launcher = std::jthread([operations = std::move(operations)]() mutable {
    const std::lock_guard lock(mutex);
    for (auto& [member, operation] : operations) {
      operation.place = PlaceIn(operation.stream);
      Post(*member, operation);
    }
  });
  return nccl::kInProgress;
}

int Ask(void* opaque, void* stream, Operation operation) {
  auto* comm = static_cast<Communicator*>(opaque);
  if (comm == nullptr || operation.peer < 0 || operation.peer >= comm->clique->size)
    return kInvalidArgument;
  operation.rank = comm->rank;
  operation.stream = stream;
  if (group_depth == 0) return Launch({{comm, operation}});
  group.emplace_back(comm, operation);
  return nccl::kSuccess;
}

void Leave(Communicator* comm) {
  comm->launcher = {};
  *comm->aborted = true;
  const std::lock_guard lock(mutex);
  comm->clique->members[static_cast<size_t>(comm->rank)] = nullptr;
  delete comm;
}

}  // namespace
}  // namespace fake_nccl

using fake_nccl::Communicator;
using fake_nccl::Kind;

extern "C" {

// From here on the next operation of this rank, in whatever group, never begins.
void FakeNcclLose(int rank) {
  const std::lock_guard lock(fake_nccl::mutex);
  fake_nccl::losing_rank = rank;
}
// ... is an error of the network.
void FakeNcclFail(int rank) {
  const std::lock_guard lock(fake_nccl::mutex);
  fake_nccl::failing_rank = rank;
  fake_nccl::lacks_memory = false;
}
// ... finds no memory on its GPU.
void FakeNcclLackMemory(int rank) {
  const std::lock_guard lock(fake_nccl::mutex);
  fake_nccl::failing_rank = rank;
  fake_nccl::lacks_memory = true;
}
// The next collective is launched on all ranks, whose GPUs do not do it.
void FakeNcclHang() {
  const std::lock_guard lock(fake_nccl::mutex);
  fake_nccl::next_hangs = true;
}

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}

const char* ncclGetErrorString(int result) {
  using dsat::engine::nccl::kUnhandledCudaError;
  return result == fake_nccl::kRemoteError    ? "remote process exited or there was a network error"
         : result == kUnhandledCudaError      ? "unhandled cuda error"
         : result == fake_nccl::kInvalidUsage ? "invalid usage"
                                              : "invalid argument";
}

const char* ncclGetLastError(void*) {
  const std::lock_guard lock(fake_nccl::mutex);
  return fake_nccl::lacks_memory ? "Cuda failure 2 'out of memory'" : "";
}

int ncclGetUniqueId(dsat::engine::nccl::UniqueId* id) {
  const std::lock_guard lock(fake_nccl::mutex);
  std::memset(id, 0, sizeof(*id));
  const std::string name = "fake " + std::to_string(++fake_nccl::num_ids);
  name.copy(id->bytes, sizeof(id->bytes) - 1);
  return 0;
}

int ncclCommInitRankConfig(void** opaque, int size, dsat::engine::nccl::UniqueId id, int rank,
                           dsat::engine::nccl::Config* config) {
  const bool known = config->size == sizeof(*config) && config->magic == 0xcafebeef;
  if (!known || config->blocking != 0 || rank < 0 || rank >= size)
    return fake_nccl::kInvalidArgument;
  const std::lock_guard lock(fake_nccl::mutex);
  auto& clique = fake_nccl::cliques[id.bytes];
  if (clique == nullptr) clique = std::make_shared<fake_nccl::Clique>();
  clique->size = size;
  clique->members.resize(static_cast<size_t>(size));
  ++clique->num_joined;
  auto* comm = new Communicator{.clique = clique, .rank = rank};
  clique->members[static_cast<size_t>(rank)] = comm;
  *opaque = comm;
  return dsat::engine::nccl::kInProgress;
}

int ncclCommGetAsyncError(void* opaque, int* result) {
  const std::lock_guard lock(fake_nccl::mutex);
  const auto* comm = static_cast<Communicator*>(opaque);
  const bool all_came = comm->clique->num_joined == comm->clique->size;
  *result = comm->error;
  if (comm->error == 0 && (comm->num_pending > 0 || !all_came))
    *result = dsat::engine::nccl::kInProgress;
  return 0;
}

int ncclCommFinalize(void*) {
  return 0;
}
int ncclCommDestroy(void* opaque) {
  fake_nccl::Leave(static_cast<Communicator*>(opaque));
  return 0;
}
int ncclCommAbort(void* opaque) {
  fake_nccl::Leave(static_cast<Communicator*>(opaque));
  return 0;
}

int ncclGroupStart() {
  ++fake_nccl::group_depth;
  return 0;
}
int ncclGroupEnd() {
  if (--fake_nccl::group_depth > 0) return 0;
  return fake_nccl::Launch(std::exchange(fake_nccl::group, {}));
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* comm,
                  void* stream) {
  if (operation != dsat::engine::nccl::kSum) return fake_nccl::kInvalidArgument;
  return fake_nccl::Ask(
      comm, stream,
      {.kind = Kind::kAllReduce, .from = from, .to = to, .count = count, .type = type});
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int operation, void* comm,
                      void* stream) {
  if (operation != dsat::engine::nccl::kSum) return fake_nccl::kInvalidArgument;
  return fake_nccl::Ask(
      comm, stream,
      {.kind = Kind::kReduceScatter, .from = from, .to = to, .count = count, .type = type});
}
int ncclAllGather(const void* from, void* to, size_t count, int type, void* comm, void* stream) {
  return fake_nccl::Ask(
      comm, stream,
      {.kind = Kind::kAllGather, .from = from, .to = to, .count = count, .type = type});
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* comm,
                  void* stream) {
  return fake_nccl::Ask(comm, stream,
                        {.kind = Kind::kBroadcast,
                         .from = from,
                         .to = to,
                         .count = count,
                         .type = type,
                         .peer = root});
}
int ncclSend(const void* from, size_t count, int type, int peer, void* comm, void* stream) {
  return fake_nccl::Ask(
      comm, stream,
      {.kind = Kind::kSend, .from = from, .count = count, .type = type, .peer = peer});
}
int ncclRecv(void* to, size_t count, int type, int peer, void* comm, void* stream) {
  return fake_nccl::Ask(
      comm, stream, {.kind = Kind::kReceive, .to = to, .count = count, .type = type, .peer = peer});
}

}  // extern "C"
