// A process group over TCP: all pairs of ranks are connected, and a collective sends each peer its
// part directly. Every call begins with a header to all peers, which names the call and carries a
// number; data follows at once.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/comm/counting_group.h"
#include "engine/comm/mapping.h"
#include "engine/comm/mesh.h"
#include "engine/comm/process_group.h"
#include "engine/comm/sum_rows.h"
#include "engine/comm/tcp_peers.h"
#include "engine/comm/tcp_rendezvous.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;

// The part of a row that is received before it is summed: it is still in the cache then, while the
// kernel receives the next part. A multiple of the tile of SumRows.
constexpr int64_t kTileBytes = 256 << 10;

// The first bytes of every call.
struct Header {
  Call call;
  double value = 0;
};

class TcpGroup final : public ProcessGroup {
 public:
  TcpGroup(Membership membership, UniqueFd listener, milliseconds timeout,
           std::chrono::steady_clock::time_point deadline);

  CommBuffer Allocate(int64_t bytes) override;
  void ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) override;
  void AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) override;
  void AllGather(const CommBuffer& buffer, int64_t row_bytes) override;
  void Broadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems, int root_row) override;
  void AllToAll(const CommBuffer& buffer, int64_t row_bytes) override;
  void Send(const void* data, int64_t bytes, int peer) override;
  void Recv(void* data, int64_t bytes, int peer) override;
  void Exchange(const void* sent, void* received, int64_t bytes, int peer) override;
  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override;
  double SumScalar(double value) override;
  double MaxScalar(double value) override;
  void Barrier() override { Synchronize({.kind = Call::Kind::kBarrier}); }
  void CheckPeers(const std::string& call, int peer, Clock::time_point since) override {
    peers_.CheckPeers(call, peer, since);
  }

 private:
  static char* Row(const CommBuffer& buffer, int row, int64_t row_bytes) {
    return static_cast<char*>(buffer.data) + row * row_bytes;
  }
  // Calls fn(peer, link) for every other rank, starting with the next one, so that ranks do not all
  // send to the same peer.
  template <typename Fn>
  void ForOthers(const Fn& fn);
  // Whether holds(link) is true of every link.
  template <typename Fn>
  bool AllLinks(const Fn& holds);
  bool HasReceivedAll() {
    return AllLinks([](const Link& link) { return !link.is_receiving(); });
  }

  // A collective is Begin, the sends, ExchangeHeaders, the receives, Finish.
  void Begin(const Call& call, double value = 0);
  void ExchangeHeaders();
  void Receive();
  void Finish();
  // A collective that exchanges only headers.
  void Synchronize(const Call& call, double value = 0);

  void CheckHeaders();
  void BeginRows(const Call& call, const CommBuffer& buffer, int64_t row_bytes);
  void SumOwnRow(const CommBuffer& buffer, DType dtype, int64_t row_bytes, bool for_all);
  void FetchMessage(const Call& call, void* data);
  Membership PartOf(std::span<const int> color_of_rank, const Subgroup& subgroup) const;
  std::unique_ptr<ProcessGroup> Form(const Membership& part, UniqueFd listener);

  milliseconds timeout_;
  SocketAddress own_address_;  // Any port.
  TcpPeers peers_;
  Header header_;                // The header of the current call.
  std::vector<Header> headers_;  // By rank.
  std::vector<char> tiles_;      // One of each rank.
  std::vector<Mapping> memory_;  // By buffer id.
  uint64_t num_splits_ = 0;
};

TcpGroup::TcpGroup(Membership membership, UniqueFd listener, milliseconds timeout,
                   std::chrono::steady_clock::time_point deadline)
    : ProcessGroup(membership.rank, membership.size()),
      timeout_(timeout),
      own_address_(SocketAddress::OfThisSide(listener.get()).WithPort(0)),
      peers_(membership, ConnectMembers(membership, std::move(listener), deadline), timeout),
      headers_(static_cast<size_t>(membership.size())) {
  Synchronize({.kind = Call::Kind::kJoin, .count = size()});
}

template <typename Fn>
void TcpGroup::ForOthers(const Fn& fn) {
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    fn(peer, peers_.collectives(peer));
  }
}

template <typename Fn>
bool TcpGroup::AllLinks(const Fn& holds) {
  bool all = true;
  ForOthers([&](int, const Link& link) { all &= holds(link); });
  return all;
}

void TcpGroup::Begin(const Call& call, double value) {
  peers_.CheckNotBroken(call.ToString());
  header_ = {call, value};
  headers_[static_cast<size_t>(rank())] = header_;
  ForOthers([&](int peer, Link& link) {
    link.Send(&header_, sizeof header_);
    link.Receive(&headers_[static_cast<size_t>(peer)], sizeof(Header));
  });
}

// Compares the headers after all have arrived, so that every rank names the same two calls.
void TcpGroup::ExchangeHeaders() {
  // A peer that has left may have seen a difference first.
  peers_.MoveCollectives(
      header_.call, [&] { return HasReceivedAll(); }, [&] { CheckHeaders(); });
  CheckHeaders();
}

// Checks the headers that have arrived.
void TcpGroup::CheckHeaders() {
  const auto has_come = [&](int other) {
    return other == rank() || !peers_.collectives(other).is_receiving();
  };
  const int first = has_come(0) ? 0 : rank();
  for (int other = 0; other < size(); ++other) {
    const Call& call = headers_[static_cast<size_t>(first)].call;
    const Call& other_call = headers_[static_cast<size_t>(other)].call;
    if (!has_come(other) || other_call == call) continue;
    peers_.Fail(ErrorCode::kInternal, DifferentCalls(first, call, other, other_call));
  }
}

void TcpGroup::Receive() {
  peers_.MoveCollectives(header_.call, [&] { return HasReceivedAll(); });
}

void TcpGroup::Finish() {
  const auto is_done = [](const Link& link) { return !link.is_busy(); };
  peers_.MoveCollectives(header_.call, [&] { return AllLinks(is_done); });
}

void TcpGroup::Synchronize(const Call& call, double value) {
  Begin(call, value);
  ExchangeHeaders();
  Finish();
}

CommBuffer TcpGroup::Allocate(int64_t bytes) {
  DSAT_CHECK(bytes >= 0);
  const Call call{.kind = Call::Kind::kAllocate, .count = bytes};
  peers_.CheckNotBroken(call.ToString());
  std::string problem;
  try {
    memory_.push_back(Mapping::Private(bytes));
  } catch (const Error& error) {
    problem = error.what();
  }
  Synchronize(call, problem.empty() ? 0 : 1);
  for (int other = 0; other < size(); ++other) {
    if (headers_[static_cast<size_t>(other)].value == 0) continue;
    if (problem.empty()) memory_.pop_back();
    Throw(ErrorCode::kResourceExhausted, "communication memory, {} bytes on each of {} ranks: {}",
          bytes, size(), problem.empty() ? fmt::format("not on rank {}", other) : problem);
  }
  return {static_cast<int>(memory_.size()) - 1, memory_.back().data(), bytes};
}

// Sends every peer its row.
void TcpGroup::BeginRows(const Call& call, const CommBuffer& buffer, int64_t row_bytes) {
  Begin(call);
  ForOthers([&](int peer, Link& link) { link.Send(Row(buffer, peer, row_bytes), row_bytes); });
  ExchangeHeaders();
}

// If `for_all`, sends the sums to the peers while later ones are computed.
void TcpGroup::SumOwnRow(const CommBuffer& buffer, DType dtype, int64_t row_bytes, bool for_all) {
  const int64_t tile_bytes = std::min(kTileBytes, row_bytes);
  tiles_.resize(static_cast<size_t>(size() * tile_bytes));
  for (int64_t begin = 0; begin < row_bytes; begin += tile_bytes) {
    const int64_t count = std::min(tile_bytes, row_bytes - begin);
    void* sum = Row(buffer, rank(), row_bytes) + begin;
    std::vector<const void*> rows(static_cast<size_t>(size()), sum);
    ForOthers([&](int peer, Link& link) {
      char* tile = tiles_.data() + peer * tile_bytes;
      rows[static_cast<size_t>(peer)] = tile;
      link.Receive(tile, count);
    });
    Receive();
    SumRows({&sum, 1}, rows, dtype, count / BytesPerElem(dtype));
    if (for_all) ForOthers([&](int, Link& link) { link.Send(sum, count); });
  }
}

void TcpGroup::ReduceScatter(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  CountRows(buffer, dtype, row_elems, size() - 1);
  const int64_t row_bytes = row_elems * BytesPerElem(dtype);
  BeginRows({Call::Kind::kReduceScatter, dtype, buffer.id, -1, row_elems}, buffer, row_bytes);
  SumOwnRow(buffer, dtype, row_bytes, /*for_all=*/false);
  Finish();
}

// A peer sends its sums after it has received all rows, so that no row remains to be sent when its
// sums arrive.
void TcpGroup::AllReduce(const CommBuffer& buffer, DType dtype, int64_t row_elems) {
  CountRows(buffer, dtype, row_elems, 2 * (size() - 1));
  const int64_t row_bytes = row_elems * BytesPerElem(dtype);
  BeginRows({Call::Kind::kAllReduce, dtype, buffer.id, -1, row_elems}, buffer, row_bytes);
  SumOwnRow(buffer, dtype, row_bytes, /*for_all=*/true);
  ForOthers([&](int peer, Link& link) { link.Receive(Row(buffer, peer, row_bytes), row_bytes); });
  Finish();
}

void TcpGroup::AllGather(const CommBuffer& buffer, int64_t row_bytes) {
  CountRows(buffer, row_bytes, size() - 1);
  Begin({.kind = Call::Kind::kAllGather, .buffer = buffer.id, .count = row_bytes});
  ForOthers([&](int, Link& link) { link.Send(Row(buffer, rank(), row_bytes), row_bytes); });
  ExchangeHeaders();
  ForOthers([&](int peer, Link& link) { link.Receive(Row(buffer, peer, row_bytes), row_bytes); });
  Finish();
}

void TcpGroup::Broadcast(const CommBuffer& buffer, DType dtype, int64_t row_elems, int root_row) {
  CountBroadcast(buffer, dtype, row_elems, root_row);
  const int64_t row_bytes = row_elems * BytesPerElem(dtype);
  char* row = Row(buffer, root_row, row_bytes);
  Begin({Call::Kind::kBroadcast, dtype, buffer.id, root_row, row_elems});
  if (rank() == root_row) ForOthers([&](int, Link& link) { link.Send(row, row_bytes); });
  ExchangeHeaders();
  if (rank() != root_row) peers_.collectives(root_row).Receive(row, row_bytes);
  Finish();
}

void TcpGroup::AllToAll(const CommBuffer& buffer, int64_t row_bytes) {
  CountRows(buffer, row_bytes, size() - 1);
  BeginRows({.kind = Call::Kind::kAllToAll, .buffer = buffer.id, .count = row_bytes}, buffer,
            row_bytes);
  const int64_t tile_bytes = std::min(kTileBytes, row_bytes);
  tiles_.resize(static_cast<size_t>(size() * tile_bytes));
  for (int64_t begin = 0; begin < row_bytes; begin += tile_bytes) {
    const int64_t count = std::min(tile_bytes, row_bytes - begin);
    ForOthers(
        [&](int peer, Link& link) { link.Receive(tiles_.data() + peer * tile_bytes, count); });
    // A received tile replaces the one for that peer after it has been sent.
    const auto can_be_placed = [&](const Link& link) {
      return !link.is_receiving() && link.unsent_bytes() <= row_bytes - begin - count;
    };
    peers_.MoveCollectives(header_.call, [&] { return AllLinks(can_be_placed); });
    ForOthers([&](int peer, const Link&) {
      std::memcpy(Row(buffer, peer, row_bytes) + begin, tiles_.data() + peer * tile_bytes,
                  static_cast<size_t>(count));
    });
  }
  Finish();
}

void TcpGroup::Send(const void* data, int64_t bytes, int peer) {
  CountSend(bytes, peer);
  const Call call{.kind = Call::Kind::kSend, .rank = peer, .count = bytes};
  peers_.CheckHere(call.ToString(), peer);
  Link& link = peers_.outgoing(peer);
  header_ = {call, 0};
  link.Send(&header_, sizeof header_);
  link.Send(data, bytes);
  peers_.MoveMessages(call, peer, [&] { return !link.is_busy(); });
}

// Receives a message to `data` after its header has arrived and is as expected.
void TcpGroup::FetchMessage(const Call& call, void* data) {
  const int peer = call.rank;
  Link& link = peers_.incoming(peer);
  Header header;
  link.Receive(&header, sizeof header);
  peers_.MoveMessages(call, peer, [&] { return !link.is_receiving(); });
  if (header.call.count != call.count) {
    peers_.Fail(ErrorCode::kInternal, DifferentCalls(peer, header.call, rank(), call));
  }
  link.Receive(data, call.count);
  peers_.MoveMessages(call, peer,
                      [&] { return !link.is_busy() && !peers_.outgoing(peer).is_busy(); });
}

void TcpGroup::Recv(void* data, int64_t bytes, int peer) {
  CheckPeer(bytes, peer);
  const Call call{.kind = Call::Kind::kRecv, .rank = peer, .count = bytes};
  peers_.CheckNotBroken(call.ToString());
  FetchMessage(call, data);
}

void TcpGroup::Exchange(const void* sent, void* received, int64_t bytes, int peer) {
  CountSend(bytes, peer);
  const Call call{.kind = Call::Kind::kExchange, .rank = peer, .count = bytes};
  peers_.CheckNotBroken(call.ToString());
  header_ = {call, 0};
  peers_.outgoing(peer).Send(&header_, sizeof header_);
  peers_.outgoing(peer).Send(sent, bytes);
  FetchMessage(call, received);
}

std::unique_ptr<ProcessGroup> TcpGroup::Split(std::span<const int> color_of_rank) {
  const Subgroup subgroup = SubgroupOf(color_of_rank);
  const Call call = SplitCall(color_of_rank);
  peers_.CheckNotBroken(call.ToString());
  ++num_splits_;
  UniqueFd listener;
  double port = 0;  // -1 if no socket is available.
  std::string problem;
  if (subgroup.size > 1) {
    try {
      listener = ListenAt(own_address_);
      port = SocketAddress::OfThisSide(listener.get()).port();
    } catch (const Error& error) {
      port = -1;
      problem = error.what();
    }
  }
  Synchronize(call, port);
  for (int other = 0; other < size(); ++other) {
    if (headers_[static_cast<size_t>(other)].value >= 0) continue;
    Throw(ErrorCode::kResourceExhausted, "connections for subgroups: {}",
          problem.empty() ? fmt::format("none on rank {}", other) : problem);
  }
  if (subgroup.size == 0) return nullptr;
  if (subgroup.size == 1)
    return std::make_unique<CountingGroup>(0, 1, CountingGroup::Memory::kReal);
  return Form(PartOf(color_of_rank, subgroup), std::move(listener));
}

// The members with this rank's color, at the ports that they have just sent.
Membership TcpGroup::PartOf(std::span<const int> color_of_rank, const Subgroup& subgroup) const {
  const Membership& all = peers_.membership();
  const std::string name = fmt::format("{:x} {} {}", all.token, num_splits_, subgroup.first);
  Membership part{.rank = subgroup.rank, .members = {}, .token = StableHash(name)};
  for (size_t other = 0; other < all.members.size(); ++other) {
    if (color_of_rank[other] != color_of_rank[static_cast<size_t>(rank())]) continue;
    const Member& member = all.members[other];
    const auto port = static_cast<int>(headers_[other].value);
    part.members.push_back({member.address.WithPort(port), member.pid});
  }
  return part;
}

std::unique_ptr<ProcessGroup> TcpGroup::Form(const Membership& part, UniqueFd listener) {
  try {
    return std::make_unique<TcpGroup>(part, std::move(listener), timeout_, Clock::now() + timeout_);
  } catch (const Error& error) {
    // Peers of the new group would wait for this rank, so this group fails, too.
    const bool seems_usable = error.code() == ErrorCode::kResourceExhausted;
    peers_.Fail(seems_usable ? ErrorCode::kUnavailable : error.code(), error.what());
  }
}

double TcpGroup::SumScalar(double value) {
  Synchronize({.kind = Call::Kind::kSum}, value);
  double sum = 0;
  for (const Header& header : headers_)
    sum += header.value;
  return sum;
}

double TcpGroup::MaxScalar(double value) {
  Synchronize({.kind = Call::Kind::kMax}, value);
  double maximum = headers_[0].value;
  for (const Header& header : headers_)
    maximum = Larger(maximum, header.value);
  return maximum;
}

}  // namespace

std::unique_ptr<ProcessGroup> MakeTcpGroup(const TcpGroupArgs& args) {
  DSAT_CHECK(args.size >= 1 && args.rank >= 0 && args.rank < args.size, "rank {} of {}", args.rank,
             args.size);
  if (args.size == 1) return std::make_unique<CountingGroup>(0, 1, CountingGroup::Memory::kReal);
  const auto deadline = std::chrono::steady_clock::now() + args.timeout;
  RendezvousResult joined = JoinAtMaster(args, deadline);
  return std::make_unique<TcpGroup>(std::move(joined.membership), std::move(joined.listener),
                                    args.timeout, deadline);
}

}  // namespace dsat::engine
