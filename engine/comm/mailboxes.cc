// Messages from one rank of a shared-memory group to another.
#include "engine/comm/mailboxes.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"

namespace dsat::engine {
namespace {

// Small enough to be in the cache when the receiver reads it, and large enough that waking the
// receiver costs little.
constexpr int64_t kChunkBytes = 256 << 10;

}  // namespace

// Zero pages are a valid initial state.
struct Mailboxes::Mailbox {
  // The sender's progress: one step when bytes, offset and capacity are set, and one for each
  // chunk.
  alignas(64) std::atomic<uint32_t> progress;
  int64_t bytes;
  int64_t offset;
  int64_t capacity;
  // The receiver's progress: the sender's progress at the end of the last message received.
  alignas(64) std::atomic<uint32_t> taken;
};

int64_t Mailboxes::TableBytes(int size) {
  return RoundUpToPage(int64_t{size} * size * static_cast<int64_t>(sizeof(Mailbox)));
}

Mailboxes::Mailboxes(SharedFile& file, Rendezvous& rendezvous, int64_t table_offset, int rank,
                     int size)
    : file_(file),
      rendezvous_(rendezvous),
      rank_(rank),
      size_(size),
      table_(file.Map(table_offset, TableBytes(size))),
      outgoing_(static_cast<size_t>(size)),
      incoming_(static_cast<size_t>(size)) {}

Mailboxes::~Mailboxes() {
  for (int peer = 0; peer < size_; ++peer) {
    const Side& side = outgoing_[static_cast<size_t>(peer)];
    if (BoxOf(rank_, peer).taken.load() == side.progress) {
      file_.Release(side.offset, side.memory.bytes());
    }
  }
}

Mailboxes::Mailbox& Mailboxes::BoxOf(int sender, int receiver) const {
  return reinterpret_cast<Mailbox*>(table_.data())[sender * size_ + receiver];
}

void Mailboxes::GrowTo(Side& side, int64_t bytes) {
  if (bytes <= side.memory.bytes()) return;
  const int64_t capacity = RoundUpToPage(bytes);
  const int64_t offset = SharedFile::OffsetOf(
      fmt::format("communication memory, a message of {} bytes", bytes), file_.Reserve(capacity));
  Mapping memory = file_.Map(offset, capacity);
  file_.Release(side.offset, side.memory.bytes());
  side.memory = std::move(memory);
  side.offset = offset;
}

void Mailboxes::Send(const void* data, int64_t bytes, int peer) {
  Mailbox& box = BoxOf(rank_, peer);
  Side& side = outgoing_[static_cast<size_t>(peer)];
  const Call call{.kind = Call::Kind::kSend, .rank = peer, .count = bytes};
  rendezvous_.WaitForPeer(peer, box.taken, side.progress, call);
  GrowTo(side, bytes);
  box.bytes = bytes;
  box.offset = side.offset;
  box.capacity = side.memory.bytes();
  Rendezvous::Publish(box.progress, ++side.progress);
  for (int64_t begin = 0; begin < bytes; begin += kChunkBytes) {
    std::memcpy(side.memory.data() + begin, static_cast<const char*>(data) + begin,
                static_cast<size_t>(std::min(kChunkBytes, bytes - begin)));
    Rendezvous::Publish(box.progress, ++side.progress);
  }
}

void Mailboxes::Recv(void* data, int64_t bytes, int peer) {
  Mailbox& box = BoxOf(peer, rank_);
  Side& side = incoming_[static_cast<size_t>(peer)];
  const Call call{.kind = Call::Kind::kRecv, .rank = peer, .count = bytes};
  rendezvous_.WaitForPeer(peer, box.progress, ++side.progress, call);
  if (box.bytes != bytes) {
    const Call sent{.kind = Call::Kind::kSend, .rank = rank_, .count = box.bytes};
    rendezvous_.Fail(ErrorCode::kInternal, DifferentCalls(peer, sent, rank_, call));
  }
  if (side.offset != box.offset) {
    side.memory = file_.Map(box.offset, box.capacity);
    side.offset = box.offset;
  }
  for (int64_t begin = 0; begin < bytes; begin += kChunkBytes) {
    rendezvous_.WaitForPeer(peer, box.progress, ++side.progress, call);
    std::memcpy(static_cast<char*>(data) + begin, side.memory.data() + begin,
                static_cast<size_t>(std::min(kChunkBytes, bytes - begin)));
  }
  Rendezvous::Publish(box.taken, side.progress);
}

}  // namespace dsat::engine
