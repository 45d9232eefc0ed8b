// Collectives and messages between GPUs by NCCL.
#include "engine/backend/cuda/nccl_group.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/backend/staged_group.h"
#include "engine/core/arena.h"

namespace dsat::engine {
namespace {

constexpr int64_t kBlockBytes = 64;  // A memory source gives multiples of it.
constexpr auto kCallBytes = static_cast<int64_t>(sizeof(Call));

int TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return nccl::kFloat32;
    case DType::kBF16:
      return nccl::kBfloat16;
    case DType::kF16:
      return nccl::kFloat16;
  }
  DSAT_CHECK(false, "{}", static_cast<int>(dtype));
}

// The call that the peer of rank `rank` has to make.
Call CounterpartOf(const Call& call, int rank) {
  using Kind = Call::Kind;
  const Kind kind = call.kind == Kind::kSend   ? Kind::kRecv
                    : call.kind == Kind::kRecv ? Kind::kSend
                                               : call.kind;
  return {.kind = kind, .rank = rank, .count = call.count};
}

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(std::unique_ptr<ProcessGroup> host, MemorySource& memory, const NcclDevice& device)
      : ProcessGroup(host->rank(), host->size()),
        host_(std::move(host)),
        memory_(memory),
        device_(device),
        calls_(host_->Allocate(size() * kCallBytes)),
        comm_(std::make_unique<NcclComm>(device_, *host_)) {}
  ~NcclGroup() override {
    comm_.reset();  // Nothing uses the buffers any more.
    for (const Block& block : blocks_)
      memory_.Free(block.data, block.bytes);
  }

  CommBuffer Allocate(int64_t bytes) override {
    DSAT_CHECK(bytes >= 0);
    Meet({.kind = Call::Kind::kAllocate, .count = bytes});
    void* data = TakeBlock(bytes);
    const bool failed = data == nullptr && bytes > 0;
    if (host()->MaxScalar(failed ? 1 : 0) > 0) {
      throw OutOfMemory(ErrorCode::kResourceExhausted,
                        fmt::format("device memory: no {} bytes for communication", bytes));
    }
    return {num_buffers_++, data, bytes};
  }

  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
    auto part = host()->Split(color_of_rank);
    if (part == nullptr) return nullptr;
    if (part->size() == 1) return MakeStagedGroup(std::move(part), memory_, StreamOf(device_));
    return std::make_unique<NcclGroup>(std::move(part), memory_, device_);
  }

  std::vector<double> GatherNumbers(Call::Kind kind, double number) override {
    return host()->GatherNumbers(kind, number);
  }
  void CheckPeers(const std::string& call, int peer, Clock::time_point since) override {
    host()->CheckPeers(call, peer, since);
  }

 private:
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  // The host group, which is this thread's for the expression that asks for it.
  struct HeldHost {
    std::unique_lock<std::mutex> hold;
    ProcessGroup* group;
    ProcessGroup* operator->() const { return group; }
  };
  HeldHost host() { return {comm_->Hold(), host_.get()}; }

  // Meets the other ranks, then lets NCCL work.
  void RunCollective(const Call& call, const CommBuffer& buffer) override {
    if (call.kind == Call::Kind::kAllToAll) return AllToAll(call, buffer);
    Meet(call);
    comm_->Run(call.ToString(), kAllPeers,
               [&](nccl::Comm comm) { return Enqueue(call, buffer, comm); });
  }

  // Meets the peer, then lets NCCL work.
  void RunMessage(const Call& call, const void* sent, void* received) override {
    const bool sends = call.kind != Call::Kind::kRecv, receives = call.kind != Call::Kind::kSend;
    if (!memory_.Holds(sends ? sent : received)) return host()->Pass(call, sent, received);
    MeetPeer(call);
    RunTogether(call, call.rank, [&](const auto& send, const auto& receive) {
      if (sends) send(sent, call.count, call.rank);
      if (receives) receive(received, call.count, call.rank);
    });
  }

  // Zeroed. nullptr if there is no more.
  void* TakeBlock(int64_t bytes) {
    const int64_t rounded = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    if (rounded == 0) return nullptr;
    void* data = memory_.Allocate(rounded);
    if (data == nullptr) return nullptr;
    blocks_.push_back({data, rounded});
    device_.kernels->Run(op::Fill{{data, rounded / BytesPerElem(DType::kF32), DType::kF32}, 0});
    return data;
  }

  void Meet(const Call& call) {
    const auto row = [&](int rank) { return calls_.Row(rank, kCallBytes); };
    comm_->Guard([&] {
      std::memcpy(row(rank()), &call, sizeof(Call));
      host_->AllGather(calls_, kCallBytes);
      Call first, other;
      std::memcpy(&first, row(0), sizeof(Call));
      for (int rank = 1; rank < size(); ++rank) {
        std::memcpy(&other, row(rank), sizeof(Call));
        if (other == first) continue;
        throw Error(ErrorCode::kInternal, DifferentCalls(0, first, rank, other));
      }
    });
  }

  void MeetPeer(const Call& call) {
    comm_->Guard([&] {
      Call other;
      host_->Exchange(&call, &other, kCallBytes, call.rank);
      if (other == CounterpartOf(call, rank())) return;
      throw Error(ErrorCode::kInternal, DifferentCalls(rank(), call, call.rank, other));
    });
  }

  // A collective that is one call of NCCL.
  int Enqueue(const Call& call, const CommBuffer& buffer, nccl::Comm comm) const {
    const nccl::Api& api = device_.api;
    const nccl::Stream stream = device_.queue->handle();
    const auto count = static_cast<size_t>(call.count);
    const auto row = [&](int of) { return buffer.Row(of, call.RowBytes()); };
    switch (call.kind) {
      case Call::Kind::kReduceScatter:
        return api.reduce_scatter(buffer.data, row(rank()), count, TypeOf(call.dtype), nccl::kSum,
                                  comm, stream);
      case Call::Kind::kAllReduce:
        return api.all_reduce(buffer.data, buffer.data, static_cast<size_t>(size()) * count,
                              TypeOf(call.dtype), nccl::kSum, comm, stream);
      case Call::Kind::kAllGather:
        return api.all_gather(row(rank()), buffer.data, count, nccl::kUint8, comm, stream);
      case Call::Kind::kBroadcast:
        return api.broadcast(row(call.rank), row(call.rank), count, TypeOf(call.dtype), call.rank,
                             comm, stream);
      default:
        DSAT_CHECK(false, "{}", call.ToString());
    }
  }

  // NCCL cannot exchange rows in place. The way back is a message of this rank to itself, which
  // NCCL makes a copy on the GPU.
  void AllToAll(const Call& call, const CommBuffer& buffer) {
    const int64_t row_bytes = call.RowBytes(), bytes = size() * row_bytes;
    if (exchanged_.bytes < bytes) exchanged_ = Allocate(bytes);
    Meet(call);
    RunTogether(call, kAllPeers, [&](const auto& send, const auto& receive) {
      for (int peer = 0; peer < size(); ++peer) {
        send(buffer.Row(peer, row_bytes), row_bytes, peer);
        receive(exchanged_.Row(peer, row_bytes), row_bytes, peer);
      }
    });
    RunTogether(call, kAllPeers, [&](const auto& send, const auto& receive) {
      send(exchanged_.data, bytes, rank());
      receive(buffer.data, bytes, rank());
    });
  }

  // Calls moves(send, receive) once, for sends and receives (data, bytes, peer) between any ranks,
  // all at once. `peer` as for NcclComm::Run.
  template <typename Moves>
  void RunTogether(const Call& call, int peer, const Moves& moves) {
    const nccl::Api& api = device_.api;
    const nccl::Stream stream = device_.queue->handle();
    comm_->Run(call.ToString(), peer, [&](nccl::Comm comm) {
      int first_error = nccl::kSuccess;
      const auto check = [&](int result) {
        if (first_error == nccl::kSuccess && result != nccl::kInProgress) first_error = result;
      };
      check(api.group_start());
      moves(
          [&](const void* data, int64_t bytes, int to) {
            check(api.send(data, static_cast<size_t>(bytes), nccl::kUint8, to, comm, stream));
          },
          [&](void* data, int64_t bytes, int from) {
            check(api.receive(data, static_cast<size_t>(bytes), nccl::kUint8, from, comm, stream));
          });
      const int end = api.group_end();
      return first_error == nccl::kSuccess ? end : first_error;
    });
  }

  std::unique_ptr<ProcessGroup> host_;
  MemorySource& memory_;
  const NcclDevice device_;
  CommBuffer calls_;  // The call that every rank is about to make.
  std::vector<Block> blocks_;
  int num_buffers_ = 0;
  CommBuffer exchanged_;  // Rows that AllToAll has received.
  std::unique_ptr<NcclComm> comm_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeNcclGroup(std::unique_ptr<ProcessGroup> host,
                                            MemorySource& memory, const NcclDevice& device) {
  return std::make_unique<NcclGroup>(std::move(host), memory, device);
}

std::string NcclMachine() {
  const char* const id = std::getenv("NCCL_HOSTID");
  if (id != nullptr) return id;
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return boot_id;
}

std::string WhyNoNccl(ProcessGroup& host, const std::string& machine, const std::string& gpu,
                      const std::string& missing) {
  constexpr size_t kGpuBytes = 64;
  constexpr size_t kNameBytes = 2 * kGpuBytes;  // The GPU, then the machine.
  const CommBuffer rows = host.Allocate(host.size() * static_cast<int64_t>(kNameBytes));
  char* names = static_cast<char*>(rows.data);
  char* own = names + static_cast<size_t>(host.rank()) * kNameBytes;
  gpu.copy(own, kGpuBytes - 1);
  machine.copy(own + kGpuBytes, kGpuBytes - 1);
  host.AllGather(rows, kNameBytes);
  // Before anything that may differ: a collective call.
  const int without = static_cast<int>(host.MaxScalar(missing.empty() ? 0 : host.rank() + 1));
  const auto name_of = [&](int rank) { return names + static_cast<size_t>(rank) * kNameBytes; };
  for (int rank = 1; rank < host.size(); ++rank) {
    for (int other = 0; other < rank; ++other) {
      if (std::memcmp(name_of(rank), name_of(other), kNameBytes) != 0) continue;
      return fmt::format("ranks {} and {} share GPU {}, which NCCL refuses", other, rank,
                         name_of(rank));
    }
  }
  if (without == 0) return "";
  return fmt::format("rank {} cannot load NCCL{}", without - 1,
                     missing.empty() ? "" : ": " + missing);
}

}  // namespace dsat::engine
