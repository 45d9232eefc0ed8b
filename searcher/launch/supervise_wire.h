// What a runner and a supervisor say to each other: one line of JSON per message on a socket.
//
//   runner → supervisor:  the order, once; then {"stop_grace_ms": n} at any time; its end = the end
//   supervisor → runner:  the report, once
#ifndef DSAT_SEARCHER_LAUNCH_SUPERVISE_WIRE_H_
#define DSAT_SEARCHER_LAUNCH_SUPERVISE_WIRE_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "searcher/launch/launcher.h"
#include "base/unique_fd.h"

namespace dsat {

struct SuperviseOrder {
  std::vector<RankCommand> ranks;
  std::string work_dir;
  GraceTimes grace;
};

// The FromJson functions throw nlohmann's exceptions: both ends are the same program.
Json ToJson(const SuperviseOrder& order);
SuperviseOrder SuperviseOrderFromJson(const Json& json);
// log_tail carries the supervisor's own words, if it could not start a rank.
Json ToJson(const ExitReport& report);
ExitReport ExitReportFromJson(const Json& json);

// Lines over a stream socket that it owns. Not thread-safe.
class LineSocket {
 public:
  explicit LineSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  // -1 once closed.
  int fd() const { return fd_.get(); }
  void Close() { fd_.Reset(); }
  // Sends a line; blocks while the peer's buffer is full. False if the peer is gone.
  bool Send(const Json& message);
  // Takes what has arrived; does not block. False if nothing can come any more.
  bool Receive();
  // The next whole line received.
  std::optional<std::string> NextLine();

 private:
  UniqueFd fd_;
  std::string received_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_LAUNCH_SUPERVISE_WIRE_H_
