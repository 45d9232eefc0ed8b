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
      if (staged.is_pinned) memory_.UnpinHost(staged.host.data);
      memory_.Free(staged.device, staged.bytes);
    }
  }

  CommBuffer Allocate(int64_t bytes) override {
    Staged staged;
    staged.host = host_->Allocate(bytes);
    staged.bytes = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    if (staged.bytes > 0) {
      staged.device = memory_.Allocate(staged.bytes);
      if (staged.device == nullptr) {
        throw OutOfMemory(ErrorCode::kResourceExhausted,
                          fmt::format("device memory: no {} bytes for communication", bytes));
      }
      staged.is_pinned = PinForCopies(staged.host);
      copies_->Upload(staged.device, staged.host.data, bytes);  // Zeros.
    }
    buffers_.push_back(staged);
    return {static_cast<int>(buffers_.size()) - 1, staged.device, bytes};
  }

  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
    auto part = host_->Split(color_of_rank);
    if (part == nullptr) return nullptr;
    return std::make_unique<StagedGroup>(std::move(part), memory_, copies_);
  }
  std::vector<double> GatherNumbers(Call::Kind kind, double number) override {
    return host_->GatherNumbers(kind, number);
  }
  void CheckPeers(const std::string& call, int peer, Clock::time_point since) override {
    host_->CheckPeers(call, peer, since);
  }

 private:
  struct Staged {
    void* device = nullptr;
    int64_t bytes = 0;  // The size of `device`.
    CommBuffer host;
    bool is_pinned = false;  // Whether the pages of `host` are pinned.
  };

  bool PinForCopies(const CommBuffer& host) {
    if (size() == 1) return false;
    if (memory_.PinHost(host.data, host.bytes)) return true;
    if (!std::exchange(has_warned_, true)) {
      Log(LogLevel::kWarn, "communication memory cannot be page-locked: copies will be slower",
          {{"rank", rank()}, {"bytes", host.bytes}});
    }
    return false;
  }

  // With one rank all is in place.
  void RunCollective(const Call& call, const CommBuffer& buffer) override {
    const Staged& staged = buffers_[static_cast<size_t>(buffer.id)];
    const int64_t bytes = size() * call.RowBytes();
    Call host_call = call;
    host_call.buffer = staged.host.id;
    if (size() > 1) copies_->Download(staged.host.data, staged.device, bytes);
    host_->Collect(host_call, staged.host);
    if (size() > 1) copies_->Upload(staged.device, staged.host.data, bytes);
  }

  void RunMessage(const Call& call, const void* sent, void* received) override {
    const bool sends = call.kind != Call::Kind::kRecv, receives = call.kind != Call::Kind::kSend;
    if (!memory_.Holds(sends ? sent : received)) return host_->Pass(call, sent, received);
    message_.resize(static_cast<size_t>(2 * call.count));
    char *to_peer = message_.data(), *from_peer = to_peer + call.count;
    if (sends) copies_->Download(to_peer, sent, call.count);
    host_->Pass(call, to_peer, from_peer);
    if (receives) copies_->Upload(received, from_peer, call.count);
  }

  std::unique_ptr<ProcessGroup> host_;
  MemorySource& memory_;
  std::shared_ptr<Stream> copies_;
  std::vector<Staged> buffers_;  // By buffer id.
  std::vector<char> message_;
  bool has_warned_ = false;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeStagedGroup(std::unique_ptr<ProcessGroup> host,
                                              MemorySource& memory,
                                              std::shared_ptr<Stream> copies) {
  return std::make_unique<StagedGroup>(std::move(host), memory, std::move(copies));
}

}  // namespace dsat::engine
