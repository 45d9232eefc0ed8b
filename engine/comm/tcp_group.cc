// A process group over TCP: all pairs of ranks are connected, and a collective sends each peer its
// part directly. Every call begins with a header to all peers, which names the call and carries a
// number; data follows at once.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/comm/counting_group.h"
#include "engine/comm/process_group.h"
#include "engine/comm/shared_file.h"
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
           std::chrono::steady_clock::time_point deadline)
      : ProcessGroup(membership.rank, membership.size()),
        timeout_(timeout),
        own_address_(SocketAddress::OfThisSide(listener.get()).WithPort(0)),
        peers_(membership, std::move(listener), timeout, deadline),
        headers_(static_cast<size_t>(membership.size())) {
    Synchronize({.kind = Call::Kind::kJoin, .count = size()});
  }

  CommBuffer Allocate(int64_t bytes) override {
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

  std::unique_ptr<ProcessGroup> Split(std::span<const int> color_of_rank) override {
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
    if (subgroup.size == 1) return std::make_unique<CountingGroup>();
    return Form(PartOf(color_of_rank, subgroup), std::move(listener));
  }

  std::vector<double> GatherNumbers(Call::Kind kind, double number) override {
    Synchronize({.kind = kind}, number);
    std::vector<double> numbers;
    for (const Header& header : headers_)
      numbers.push_back(header.value);
    return numbers;
  }

  void CheckPeers(const std::string& call, int peer, Clock::time_point since) override {
    peers_.CheckPeers(call, peer, since);
  }

 private:
  // In an all-reduce, a peer sends its sums after it has received all rows, so that no row remains
  // to be sent when its sums arrive.
  void RunCollective(const Call& call, const CommBuffer& buffer) override {
    const bool sums =
        call.kind == Call::Kind::kReduceScatter || call.kind == Call::Kind::kAllReduce;
    Begin(call);
    SendRows(call, buffer);
    ExchangeHeaders();
    if (sums) SumOwnRow(call, buffer);
    if (call.kind == Call::Kind::kAllToAll) {
      PlaceTiles(buffer, call.RowBytes());
    } else if (call.kind != Call::Kind::kReduceScatter) {
      ReceiveRows(call, buffer);
    }
    Finish();
  }

  void RunMessage(const Call& call, const void* sent, void* received) override {
    const bool only_sends = call.kind == Call::Kind::kSend;
    only_sends ? peers_.CheckHere(call.ToString(), call.rank)
               : peers_.CheckNotBroken(call.ToString());
    Link& link = peers_.outgoing(call.rank);
    if (call.kind != Call::Kind::kRecv) {
      header_ = {call, 0};
      link.Send(&header_, sizeof header_);
      link.Send(sent, call.count);
    }
    if (!only_sends) return FetchMessage(call, received);
    peers_.MoveMessages(call, call.rank, [&] { return !link.is_busy(); });
  }

  // Calls fn(peer, link) for every other rank, starting with the next one, so that ranks do not all
  // send to the same peer.
  template <typename Fn>
  void ForOthers(const Fn& fn) {
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      fn(peer, peers_.collectives(peer));
    }
  }
  // Whether holds(link) is true of every link.
  template <typename Fn>
  bool AllLinks(const Fn& holds) {
    bool all = true;
    ForOthers([&](int, const Link& link) { all &= holds(link); });
    return all;
  }
  bool HasReceivedAll() {
    return AllLinks([](const Link& link) { return !link.is_receiving(); });
  }

  // A collective is Begin, the sends, ExchangeHeaders, the receives, Finish.
  void Begin(const Call& call, double value = 0) {
    peers_.CheckNotBroken(call.ToString());
    header_ = {call, value};
    headers_[static_cast<size_t>(rank())] = header_;
    ForOthers([&](int peer, Link& link) {
      link.Send(&header_, sizeof header_);
      link.Receive(&headers_[static_cast<size_t>(peer)], sizeof(Header));
    });
  }

  // Compares the headers after all have arrived, so that every rank names the same two calls.
  void ExchangeHeaders() {
    // A peer that has left may have seen a difference first.
    peers_.MoveCollectives(
        header_.call, [&] { return HasReceivedAll(); }, [&] { CheckHeaders(); });
    CheckHeaders();
  }

  void Finish() {
    const auto is_done = [](const Link& link) { return !link.is_busy(); };
    peers_.MoveCollectives(header_.call, [&] { return AllLinks(is_done); });
  }

  // A collective that exchanges only headers.
  void Synchronize(const Call& call, double value = 0) {
    Begin(call, value);
    ExchangeHeaders();
    Finish();
  }

  // Checks the headers that have arrived.
  void CheckHeaders() {
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

  // Each peer gets its row, this rank's row, or, of the root of a broadcast alone, the root's row.
  void SendRows(const Call& call, const CommBuffer& buffer) {
    if (call.kind == Call::Kind::kBroadcast && rank() != call.rank) return;
    const bool differ = call.kind != Call::Kind::kBroadcast && call.kind != Call::Kind::kAllGather;
    ForOthers([&](int peer, Link& link) {
      link.Send(buffer.Row(differ ? peer : rank(), call.RowBytes()), call.RowBytes());
    });
  }

  // The rows of all peers, or the root's row.
  void ReceiveRows(const Call& call, const CommBuffer& buffer) {
    ForOthers([&](int peer, Link& link) {
      if (call.kind != Call::Kind::kBroadcast || peer == call.rank)
        link.Receive(buffer.Row(peer, call.RowBytes()), call.RowBytes());
    });
  }

  // Calls fn(begin, count) for one part of a row after another, [begin, begin + count), whose
  // counterpart from every peer is being received to its tile.
  template <typename Fn>
  void ForTiles(int64_t row_bytes, const Fn& fn) {
    const int64_t tile_bytes = std::min(kTileBytes, row_bytes);
    tiles_.resize(static_cast<size_t>(size() * tile_bytes));
    for (int64_t begin = 0; begin < row_bytes; begin += tile_bytes) {
      const int64_t count = std::min(tile_bytes, row_bytes - begin);
      ForOthers([&](int peer, Link& link) { link.Receive(TileOf(peer), count); });
      fn(begin, count);
    }
  }
  char* TileOf(int peer) { return tiles_.data() + peer * (std::ssize(tiles_) / size()); }

  // An all-reduce sends the sums to the peers while later ones are computed.
  void SumOwnRow(const Call& call, const CommBuffer& buffer) {
    ForTiles(call.RowBytes(), [&](int64_t begin, int64_t count) {
      void* sum = buffer.Row(rank(), call.RowBytes()) + begin;
      std::vector<const void*> rows(static_cast<size_t>(size()), sum);
      ForOthers([&](int peer, const Link&) { rows[static_cast<size_t>(peer)] = TileOf(peer); });
      peers_.MoveCollectives(header_.call, [&] { return HasReceivedAll(); });
      SumRows({&sum, 1}, rows, call.dtype, count / BytesPerElem(call.dtype));
      if (call.kind == Call::Kind::kAllReduce)
        ForOthers([&](int, Link& link) { link.Send(sum, count); });
    });
  }

  void PlaceTiles(const CommBuffer& buffer, int64_t row_bytes) {
    ForTiles(row_bytes, [&](int64_t begin, int64_t count) {
      // A received tile replaces the one for that peer after it has been sent.
      const auto can_be_placed = [&](const Link& link) {
        return !link.is_receiving() && link.unsent_bytes() <= row_bytes - begin - count;
      };
      peers_.MoveCollectives(header_.call, [&] { return AllLinks(can_be_placed); });
      ForOthers([&](int peer, const Link&) {
        std::memcpy(buffer.Row(peer, row_bytes) + begin, TileOf(peer), static_cast<size_t>(count));
      });
    });
  }

  // Receives a message to `data` after its header has arrived and is as expected.
  void FetchMessage(const Call& call, void* data) {
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

  // The members with this rank's color, at the ports that they have just sent.
  Membership PartOf(std::span<const int> color_of_rank, const Subgroup& subgroup) const {
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

  std::unique_ptr<ProcessGroup> Form(const Membership& part, UniqueFd listener) {
    try {
      return std::make_unique<TcpGroup>(part, std::move(listener), timeout_,
                                        Clock::now() + timeout_);
    } catch (const Error& error) {
      // Peers of the new group would wait for this rank, so this group fails, too.
      const bool seems_usable = error.code() == ErrorCode::kResourceExhausted;
      peers_.Fail(seems_usable ? ErrorCode::kUnavailable : error.code(), error.what());
    }
  }

  milliseconds timeout_;
  SocketAddress own_address_;  // Any port.
  TcpPeers peers_;
  Header header_;                // The header of the current call.
  std::vector<Header> headers_;  // By rank.
  std::vector<char> tiles_;      // One of each rank.
  std::vector<Mapping> memory_;  // By buffer id.
  uint64_t num_splits_ = 0;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeTcpGroup(const TcpGroupArgs& args) {
  DSAT_CHECK(args.rank >= 0 && args.rank < args.size, "rank {} of {}", args.rank, args.size);
  if (args.size == 1) return std::make_unique<CountingGroup>();
  const auto deadline = std::chrono::steady_clock::now() + args.timeout;
  RendezvousResult joined = JoinAtMaster(args, deadline);
  return std::make_unique<TcpGroup>(std::move(joined.membership), std::move(joined.listener),
                                    args.timeout, deadline);
}

}  // namespace dsat::engine
