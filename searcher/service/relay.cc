// One connection between a client and the gRPC server.
#include "searcher/service/relay.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace dsat {
namespace {

constexpr std::chrono::seconds kHandshakeTime{10};
constexpr std::chrono::seconds kTakeTime{20};    // For a client to take a part of an answer.
constexpr std::chrono::seconds kQuietTime{600};  // Clients connect again when they have a call.
// A call has about five frames.
constexpr double kFramesPerSecond = 2000;
constexpr double kMostAllowance = 4000;
constexpr double kFramesPerReset = 30;  // A call that is given up costs as many more.
constexpr int kRounds = 8;              // Before it is another connection's turn.

ssize_t Counted(ssize_t result) {
  if (result > 0) return result;
  const bool waits = result < 0 && (errno == EAGAIN || errno == EINTR);
  return waits ? kWouldBlock : kEnded;
}

ssize_t Receive(int fd, std::span<char> bytes) {
  return Counted(recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT));
}

ssize_t Send(int fd, std::string_view bytes) {
  return Counted(send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
}

}  // namespace

Relay::Relay(UniqueFd outside, const std::optional<TlsContext>& tls,
             std::function<void(int fd)> hand_over)
    : outside_(std::move(outside)),
      hand_over_(std::move(hand_over)),
      allowance_(kMostAllowance),
      refilled_(Clock::now()),
      moved_(refilled_) {
  if (tls) tls_.emplace(*tls, outside_.get());
}

// Ends the handshake and connects to the server.
bool Relay::Meet(bool may_enter) {
  const ssize_t met = tls_ ? tls_->Handshake() : 1;
  waits_to_enter_ = met > 0 && !may_enter;
  pollfd line = {outside_.get(), POLLRDHUP, 0};
  if (waits_to_enter_) return poll(&line, 1, 0) == 0;  // Or it has left.
  if (met == kWouldBlock) return true;
  std::array<int, 2> ends = {-1, -1};
  if (met == kEnded ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    return false;
  inside_ = UniqueFd(ends[0]);
  moved_ = Clock::now();
  hand_over_(ends[1]);
  return true;
}

bool Relay::Step(bool may_enter) {
  if (is_stranger() && !Meet(may_enter)) return false;
  if (is_stranger()) return true;
  RefillAllowance();
  has_more_ = true;
  for (int round = 0; has_more_ && round < kRounds; ++round) {
    has_more_ = false;
    if (!MoveIn() || !MoveOut()) return false;
    if (has_more_) moved_ = refilled_;
  }
  return true;
}

void Relay::RefillAllowance() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - refilled_).count();
  allowance_ = std::min(kMostAllowance, allowance_ + seconds * kFramesPerSecond);
  refilled_ = now;
}

// From the client to the server.
bool Relay::MoveIn() {
  std::array<char, 16384> bytes;
  if (to_inside_.empty() && !is_paused()) {
    const ssize_t size = tls_ ? tls_->Read(bytes) : Receive(outside_.get(), bytes);
    if (size == kEnded) return false;
    if (size > 0) {
      const int64_t frames = check_.num_frames(), resets = check_.num_resets();
      to_inside_.assign(bytes.data(), static_cast<size_t>(size));
      if (!check_.FromClient(to_inside_)) return false;
      allowance_ -= static_cast<double>(check_.num_frames() - frames) +
                    kFramesPerReset * static_cast<double>(check_.num_resets() - resets);
      has_more_ = true;
    }
  }
  if (to_inside_.empty()) return true;
  const ssize_t size = Send(inside_.get(), to_inside_);
  if (size > 0) to_inside_.erase(0, static_cast<size_t>(size));
  has_more_ |= size > 0;
  return size != kEnded;
}

// From the server to the client.
bool Relay::MoveOut() {
  std::array<char, 16384> bytes;
  if (to_outside_.empty()) {
    const ssize_t size = Receive(inside_.get(), bytes);
    if (size == kEnded) return false;
    if (size > 0) {
      to_outside_.assign(bytes.data(), static_cast<size_t>(size));
      check_.FromServer(to_outside_);
      has_more_ = true;
    }
  }
  if (to_outside_.empty()) return true;
  const ssize_t size = tls_ ? tls_->Write(to_outside_) : Send(outside_.get(), to_outside_);
  if (size > 0) to_outside_.erase(0, static_cast<size_t>(size));
  has_more_ |= size > 0;
  return size != kEnded;
}

bool Relay::IsOverdue(Clock::time_point now) const {
  const auto limit = is_stranger() ? kHandshakeTime : to_outside_.empty() ? kQuietTime : kTakeTime;
  return now - moved_ > limit;
}

short Relay::OutsideEvents() const {
  const bool reads = to_inside_.empty() && !is_paused();
  return static_cast<short>((reads ? POLLIN : 0) | (to_outside_.empty() ? 0 : POLLOUT));
}

short Relay::InsideEvents() const {
  return static_cast<short>((to_outside_.empty() ? POLLIN : 0) |
                            (to_inside_.empty() ? 0 : POLLOUT));
}

}  // namespace dsat
