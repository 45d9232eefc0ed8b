// One connection between a client and the gRPC server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "searcher/service/frame_check.h"
#include "searcher/service/tls.h"

namespace dsat {

// Copies the bytes of both directions, each only after those before it have left, so that a
// connection holds at most 16 KiB of each.
class Relay {
 public:
  using Clock = std::chrono::steady_clock;

  // `outside` is the client's connection. `hand_over` gets the server's side of it once the client
  // is known.
  Relay(UniqueFd outside, const std::optional<TlsContext>& tls,
        std::function<void(int fd)> hand_over);

  // Does what can be done without waiting. A client that is not in gets in only if `may_enter`.
  // Returns false if the connection is over: it was closed, or the client has broken a limit.
  bool Step(bool may_enter);
  // Whether the time of the client is over: for its handshake, to take an answer, or to say
  // anything at all.
  bool IsOverdue(Clock::time_point now) const;

  // Whether the client is not known yet, and whether a call of it has been answered.
  bool is_stranger() const { return !inside_; }
  bool is_proven() const { return check_.num_answered() > 0; }
  // When something has moved, and what the client costs.
  Clock::time_point moved() const { return moved_; }
  int64_t unfinished_bytes() const { return check_.unfinished_bytes(); }
  // The calls that the client has given up, and would if it left now.
  int64_t num_resets() const { return check_.num_resets(); }
  int64_t num_open() const { return check_.num_open(); }

  // The descriptors, -1 if there is none, and the events of poll that each waits for.
  int outside() const { return outside_.get(); }
  int inside() const { return inside_.get(); }
  short OutsideEvents() const;
  short InsideEvents() const;
  // Whether it waits for no event, but for its turn, which comes with time if it is paused.
  bool waits_for_turn() const { return has_more_ || is_paused(); }
  bool is_paused() const { return waits_to_enter_ || allowance_ <= 0; }

 private:
  bool Meet(bool may_enter);
  void RefillAllowance();
  bool MoveIn();
  bool MoveOut();

  UniqueFd outside_, inside_;
  std::optional<TlsSession> tls_;
  std::function<void(int)> hand_over_;
  FrameCheck check_;
  std::string to_inside_, to_outside_;
  bool has_more_ = false, waits_to_enter_ = false;
  double allowance_;  // The frames that the client may send now.
  Clock::time_point refilled_, moved_;
};

}  // namespace dsat
