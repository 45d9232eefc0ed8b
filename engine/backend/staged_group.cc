// Collectives over a device's memory by way of host memory.
#include "engine/backend/staged_group.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "engine/core/arena.h"

namespace dsat::engine {
namespace {

constexpr int64_t kBlockBytes = 64;  // A memory source gives multiples of it.

class StagedGroup final : public ProcessGroup {
 public:
  StagedGroup(std::unique_ptr<ProcessGroup> host, MemorySource& memory,
              std::shared_ptr<Stream> copies)
      : ProcessGroup(host->rank(), host->size()),
        host_(std::move(host)),
        memory_(memory),
        copies_(std::move(copies)) {}
  ~StagedGroup() override {
    for (const Staged& staged : buffers_) {
      if (staged.bytes == 0) continue;
      memory_.UnpinHost(staged.host.data);
      memory_.Free(staged.device, staged.bytes);
    }
  }

  CommBuffer Allocate(int64_t bytes) override;
  void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) override {
    CountRows(buffer, dtype, row_elems, size() - 1);
    Run(buffer, row_elems * BytesPerElem(dtype),
        [&](const CommBuffer& host) { host_->ReduceScatter(host, dtype, row_elems); });
  }
  void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) override {
    CountRows(buffer, dtype, row_elems, 2 * (size() - 1));
    Run(buffer, row_elems * BytesPerElem(dtype),
        [&](const CommBuffer& host) { host_->AllReduce(host, dtype, row_elems); });
  }
  void AllGather(const CommBuffer& buffer, int64_t row_bytes) override {
    CountRows(buffer, row_bytes, size() - 1);
    Run(buffer, row_bytes, [&](const CommBuffer& host) { host_->AllGather(host, row_bytes); });
  }
  void Broadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems, int root_row) override {
    CountBroadcast(buffer, dtype, row_elems, root_row);
    Run(buffer, row_elems * BytesPerElem(dtype),
        [&](const CommBuffer& host) { host_->Broadcast(host, dtype, row_elems, root_row); });
  }
  void AllToAll(const CommBuffer& buffer, int64_t row_bytes) override {
    CountRows(buffer, row_bytes, size() - 1);
    Run(buffer, row_bytes, [&](const CommBuffer& host) { host_->AllToAll(host, row_bytes); });
  }
  void Send(const void* data, int64_t bytes, int peer) override;
  void Recv(void* data, int64_t bytes, int peer) override;
  void Exchange(const void* sent, void* received, int64_t bytes, int peer) override;
  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
    auto part = host_->Split(color_of_rank);
    if (part == nullptr) return nullptr;
    return std::make_unique<StagedGroup>(std::move(part), memory_, copies_);
  }
  double SumScalar(double value) override { return host_->SumScalar(value); }
  double MaxScalar(double value) override { return host_->MaxScalar(value); }
  void Barrier() override { host_->Barrier(); }
  void CheckPeers(const std::string& call, int peer, Clock::time_point since) override {
    host_->CheckPeers(call, peer, since);
  }

 private:
  struct Staged {
    void* device = nullptr;
    int64_t bytes = 0;  // The size of `device`.
    CommBuffer host;
  };

  void LockForCopies(const CommBuffer& host);
  // With one rank all is in place.
  template <typename Call>
  void Run(const CommBuffer& buffer, int64_t row_bytes, const Call& call) {
    const Staged& staged = buffers_[static_cast<size_t>(buffer.id)];
    const int64_t bytes = size() * row_bytes;
    if (size() > 1) copies_->Download(staged.host.data, staged.device, bytes);
    call(staged.host);
    if (size() > 1) copies_->Upload(staged.device, staged.host.data, bytes);
  }

  std::unique_ptr<ProcessGroup> host_;
  MemorySource& memory_;
  std::shared_ptr<Stream> copies_;
  std::vector<Staged> buffers_;  // By buffer id.
  std::vector<char> message_;
  bool has_warned_ = false;
};

CommBuffer StagedGroup::Allocate(int64_t bytes) {
  Staged staged;
  staged.host = host_->Allocate(bytes);
  staged.bytes = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  if (staged.bytes > 0) {
    staged.device = memory_.Allocate(staged.bytes);
    if (staged.device == nullptr) {
      throw OutOfMemory(ErrorCode::kResourceExhausted,
                        fmt::format("device memory: no {} bytes for communication", bytes));
    }
    LockForCopies(staged.host);
    copies_->Upload(staged.device, staged.host.data, bytes);  // Zeros.
  }
  buffers_.push_back(staged);
  return {static_cast<int>(buffers_.size()) - 1, staged.device, bytes};
}

void StagedGroup::LockForCopies(const CommBuffer& host) {
  if (size() == 1 || memory_.PinHost(host.data, host.bytes) || std::exchange(has_warned_, true))
    return;
  Log(LogLevel::kWarn, "communication memory cannot be page-locked: copies will be slower",
      {{"rank", rank()}, {"bytes", host.bytes}});
}

void StagedGroup::Send(const void* data, int64_t bytes, int peer) {
  CountSend(bytes, peer);
  if (!memory_.Holds(data)) return host_->Send(data, bytes, peer);
  message_.resize(static_cast<size_t>(bytes));
  copies_->Download(message_.data(), data, bytes);
  host_->Send(message_.data(), bytes, peer);
}

void StagedGroup::Recv(void* data, int64_t bytes, int peer) {
  if (!memory_.Holds(data)) return host_->Recv(data, bytes, peer);
  message_.resize(static_cast<size_t>(bytes));
  host_->Recv(message_.data(), bytes, peer);
  copies_->Upload(data, message_.data(), bytes);
}

void StagedGroup::Exchange(const void* sent, void* received, int64_t bytes, int peer) {
  CountSend(bytes, peer);
  if (!memory_.Holds(sent)) return host_->Exchange(sent, received, bytes, peer);
  message_.resize(static_cast<size_t>(2 * bytes));
  char* from_peer = message_.data() + bytes;
  copies_->Download(message_.data(), sent, bytes);
  host_->Exchange(message_.data(), from_peer, bytes, peer);
  copies_->Upload(received, from_peer, bytes);
}

}  // namespace

std::unique_ptr<ProcessGroup> MakeStagedGroup(std::unique_ptr<ProcessGroup> host,
                                              MemorySource& memory,
                                              std::shared_ptr<Stream> copies) {
  return std::make_unique<StagedGroup>(std::move(host), memory, std::move(copies));
}

}  // namespace dsat::engine
