// A process group in shared memory: all ranks map each rank's buffers, so that a peer's rows are
// read in place. A collective is one pass over the data and two or three barriers.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/comm/counting_group.h"
#include "engine/comm/process_group.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/shared_file.h"
#include "engine/comm/sum_rows.h"

namespace dsat::engine {
namespace {

// Small enough to be in the cache when the receiver reads it, and large enough that waking the
// receiver costs little.
constexpr int64_t kChunkBytes = 256 << 10;

// Messages from one rank to another: one rank's view of a table with a mailbox for each ordered
// pair of ranks. A mailbox holds one message in memory of the sender, which grows to the largest
// message. The receiver copies each chunk when the sender has written it, so that the two copies
// overlap. Not thread-safe.
class Mailboxes {
 public:
  // The table is TableBytes(size) of `file` from `table_offset` on and initially zero. `file` and
  // `rendezvous` must outlive this object.
  Mailboxes(SharedFile& file, Rendezvous& rendezvous, int64_t table_offset, int rank, int size)
      : file_(file),
        rendezvous_(rendezvous),
        rank_(rank),
        size_(size),
        table_(file.Map(table_offset, TableBytes(size))),
        outgoing_(static_cast<size_t>(size)),
        incoming_(static_cast<size_t>(size)) {}
  Mailboxes(const Mailboxes&) = delete;
  Mailboxes& operator=(const Mailboxes&) = delete;
  // Releases the memory of received messages, but not of messages that are still to be received.
  ~Mailboxes() {
    for (int peer = 0; peer < size_; ++peer) {
      const Side& side = outgoing_[static_cast<size_t>(peer)];
      if (BoxOf(rank_, peer).taken.load() == side.progress) {
        file_.Release(side.offset, side.memory.bytes());
      }
    }
  }

  static int64_t TableBytes(int size) {
    return RoundUpToPage(int64_t{size} * size * static_cast<int64_t>(sizeof(Mailbox)));
  }

  // As ProcessGroup::Send and Recv of a group made by MakeShmGroup.
  void Send(const void* data, int64_t bytes, int peer) {
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

  void Recv(void* data, int64_t bytes, int peer) {
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

 private:
  // Zero pages are a valid initial state.
  struct Mailbox {
    // The sender's progress: one step when bytes, offset and capacity are set, and one for each
    // chunk.
    alignas(64) std::atomic<uint32_t> progress;
    int64_t bytes;
    int64_t offset;
    int64_t capacity;
    // The receiver's progress: the sender's progress at the end of the last message received.
    alignas(64) std::atomic<uint32_t> taken;
  };
  // This rank's side of one mailbox.
  struct Side {
    Mapping memory;
    int64_t offset = -1;    // Where `memory` begins in the file.
    uint32_t progress = 0;  // The number of messages and chunks so far. Wraps around.
  };

  Mailbox& BoxOf(int sender, int receiver) const {
    return reinterpret_cast<Mailbox*>(table_.data())[sender * size_ + receiver];
  }

  void GrowTo(Side& side, int64_t bytes) {
    if (bytes <= side.memory.bytes()) return;
    const int64_t capacity = RoundUpToPage(bytes);
    const int64_t offset = SharedFile::OffsetOf(
        fmt::format("communication memory, a message of {} bytes", bytes), file_.Reserve(capacity));
    Mapping memory = file_.Map(offset, capacity);
    file_.Release(side.offset, side.memory.bytes());
    side.memory = std::move(memory);
    side.offset = offset;
  }

  SharedFile& file_;
  Rendezvous& rendezvous_;
  int rank_;
  int size_;
  Mapping table_;
  std::vector<Side> outgoing_;  // By peer.
  std::vector<Side> incoming_;
};

class ShmGroup final : public ProcessGroup {
 public:
  // The rendezvous uses the header at `header_offset` of the file.
  ShmGroup(std::shared_ptr<SharedFile> file, int64_t header_offset, int rank, int size,
           std::chrono::milliseconds timeout)
      : ProcessGroup(rank, size),
        file_(std::move(file)),
        timeout_(timeout),
        rendezvous_(*file_, header_offset, rank, size, timeout),
        mailboxes_(*file_, rendezvous_, ReserveTable(), rank, size) {}

  ~ShmGroup() override {
    // Releases this rank's pages, although others may still have the file open. No peer reads them,
    // because every collective ends with a barrier.
    for (const Region& region : regions_) {
      file_->Release(region.file_offset + rank() * region.block_bytes, region.block_bytes);
    }
  }

  CommBuffer Allocate(int64_t bytes) override {
    DSAT_CHECK(bytes >= 0);
    const Call call{.kind = Call::Kind::kAllocate, .count = bytes};
    rendezvous_.Synchronize(call);  // Before memory is reserved: all ranks make the same call.
    const int64_t block_bytes = RoundUpToPage(bytes);
    const int64_t region_bytes = block_bytes * size();
    const int64_t offset = ReserveTogether(
        call, region_bytes,
        fmt::format("communication memory, {} bytes on each of {} ranks", bytes, size()));
    Region region{file_->Map(offset, region_bytes), offset, block_bytes};
    char* data =
        region.blocks.data() == nullptr ? nullptr : region.blocks.data() + rank() * block_bytes;
    regions_.push_back(std::move(region));
    return {static_cast<int>(regions_.size()) - 1, data, bytes};
  }

  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
    const Subgroup subgroup = SubgroupOf(color_of_rank);
    // The first rank of each color reserves the header of its group and sends the offset to the
    // others. The header is not released before the file is, because no rank knows which one leaves
    // last.
    const bool leads = subgroup.size > 1 && subgroup.rank == 0;
    const int64_t offset = leads ? file_->Reserve(Rendezvous::HeaderBytes()) : 0;
    rendezvous_.Synchronize(SplitCall(color_of_rank), static_cast<double>(offset));
    for (int rank = 0; rank < size(); ++rank) {
      SharedFile::OffsetOf("communication memory for subgroups",
                           static_cast<int64_t>(rendezvous_.ValueOf(rank)));
    }
    if (subgroup.size == 0) return nullptr;
    if (subgroup.size == 1) return std::make_unique<CountingGroup>();
    return std::make_unique<ShmGroup>(file_,
                                      static_cast<int64_t>(rendezvous_.ValueOf(subgroup.first)),
                                      subgroup.rank, subgroup.size, timeout_);
  }

  std::vector<double> GatherNumbers(Call::Kind kind, double number) override {
    rendezvous_.Synchronize({.kind = kind}, number);
    std::vector<double> numbers;
    for (int rank = 0; rank < size(); ++rank)
      numbers.push_back(rendezvous_.ValueOf(rank));
    return numbers;
  }

  void CheckPeers(const std::string& call, int peer, Clock::time_point since) override {
    rendezvous_.CheckPeers(call, peer, since);
  }

 private:
  // One allocation: the blocks of all ranks in sequence.
  struct Region {
    Mapping blocks;
    int64_t file_offset = 0;
    int64_t block_bytes = 0;
  };

  void RunCollective(const Call& call, const CommBuffer& buffer) override {
    const int64_t row_bytes = call.RowBytes();
    rendezvous_.Synchronize(call);
    if (call.kind == Call::Kind::kBroadcast) CopyRow(buffer, row_bytes, call.rank);
    if (call.kind == Call::Kind::kReduceScatter || call.kind == Call::Kind::kAllReduce)
      SumOwnRow(call, buffer);
    // Each rank starts with another peer, so that ranks do not all read the same memory at once.
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      if (call.kind == Call::Kind::kAllGather) CopyRow(buffer, row_bytes, peer);
      if (call.kind == Call::Kind::kAllToAll) SwapHalfRow(buffer, row_bytes, peer);
    }
    rendezvous_.Wait();
  }

  void RunMessage(const Call& call, const void* sent, void* received) override {
    if (call.kind != Call::Kind::kRecv) mailboxes_.Send(sent, call.count, call.rank);
    if (call.kind != Call::Kind::kSend) mailboxes_.Recv(received, call.count, call.rank);
  }

  // Rank 0 reserves new memory for all ranks, which synchronize with `call`. Throws as OffsetOf.
  int64_t ReserveTogether(const Call& call, int64_t bytes, const std::string& what) {
    const int64_t offset = rank() == 0 ? file_->Reserve(bytes) : 0;
    rendezvous_.Synchronize(call, static_cast<double>(offset));  // Exact: offsets are whole pages.
    return SharedFile::OffsetOf(what, static_cast<int64_t>(rendezvous_.ValueOf(0)));
  }

  int64_t ReserveTable() {
    const int64_t bytes = Mailboxes::TableBytes(size());
    return ReserveTogether({.kind = Call::Kind::kJoin, .count = size()}, bytes,
                           fmt::format("communication memory, {} bytes for mailboxes", bytes));
  }

  char* Row(const CommBuffer& buffer, int owner, int row, int64_t row_bytes) const {
    const Region& region = regions_[static_cast<size_t>(buffer.id)];
    return region.blocks.data() + owner * region.block_bytes + row * row_bytes;
  }

  // While this runs, only this rank accesses row rank() of its own and of its peers' blocks. An
  // all-reduce writes the sum to all of them while the sum is still in the cache.
  void SumOwnRow(const Call& call, const CommBuffer& buffer) {
    if (call.count == 0) return;
    std::vector<const void*> rows;
    std::vector<void*> sums;
    for (int owner = 0; owner < size(); ++owner) {
      void* row = Row(buffer, owner, rank(), call.RowBytes());
      rows.push_back(row);
      if (call.kind == Call::Kind::kAllReduce || owner == rank()) sums.push_back(row);
    }
    SumRows(sums, rows, call.dtype, call.count);
  }

  // From the owner's block to this rank's.
  void CopyRow(const CommBuffer& buffer, int64_t row_bytes, int owner) {
    if (owner == rank() || row_bytes == 0) return;
    std::memcpy(Row(buffer, rank(), owner, row_bytes), Row(buffer, owner, owner, row_bytes),
                static_cast<size_t>(row_bytes));
  }

  // The lower rank of a pair swaps the first half of the two rows that they exchange, and the
  // higher rank the second half.
  void SwapHalfRow(const CommBuffer& buffer, int64_t row_bytes, int peer) {
    const int64_t half = row_bytes / 2 / 64 * 64;
    const int64_t begin = rank() < peer ? 0 : half;
    const int64_t end = rank() < peer ? half : row_bytes;
    char* mine = Row(buffer, rank(), peer, row_bytes);
    char* other = Row(buffer, peer, rank(), row_bytes);
    std::array<char, 4096> tile;
    for (int64_t at = begin; at < end; at += static_cast<int64_t>(tile.size())) {
      const size_t count = std::min(tile.size(), static_cast<size_t>(end - at));
      std::memcpy(tile.data(), mine + at, count);
      std::memcpy(mine + at, other + at, count);
      std::memcpy(other + at, tile.data(), count);
    }
  }

  std::shared_ptr<SharedFile> file_;  // Shared with the groups made by Split.
  std::chrono::milliseconds timeout_;
  Rendezvous rendezvous_;
  Mailboxes mailboxes_;
  std::vector<Region> regions_;  // By buffer id.
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeShmGroup(int shared_fd, int rank, int size,
                                           std::chrono::milliseconds timeout) {
  DSAT_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  if (size == 1) return std::make_unique<CountingGroup>();
  return std::make_unique<ShmGroup>(
      std::make_shared<SharedFile>(shared_fd, Rendezvous::HeaderBytes()), SharedFile::HeadOffset(),
      rank, size, timeout);
}

}  // namespace dsat::engine
