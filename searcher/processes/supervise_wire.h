// The messages between a runner and a supervisor, one line of JSON each, over a socket or through
// ssh.
//
//   supervisor → runner:  {"hello": ...} first; {"rank_failed": true} when one fails by itself;
//                         {"report": ...} last
//   runner → supervisor:  the order, once; then, at any time, {"stop_grace_ms": n},
//                         {"sibling_failed": true} (a rank on another host) or {"alive": true};
//                         the end of the connection ends the supervisor
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/unique_fd.h"
#include "searcher/processes/exit_report.h"
#include "searcher/processes/rank_command.h"

namespace dsat {

struct SuperviseOrder {
  std::vector<RankCommand> ranks;
  std::string work_dir;
  GraceTimes grace;
  bool remote = false;                            // The runner is on another host.
  std::map<std::string, std::string> files = {};  // Files of the ranks by path; remote only.
};

// A supervisor's description of itself.
struct SuperviseHello {
  std::string version;
  int64_t num_cores = 0;
  std::string devices = {};         // Its CUDA_VISIBLE_DEVICES, as of a job of Slurm; "" = not set.
  std::string address = {};         // Its host, as ssh reaches it; "" = unknown.
  std::string runner_address = {};  // The runner's host, as seen from its host; "" = unknown.
};

// The report on ranks after their end.
struct SuperviseReport {
  ExitReport exit;  // log_tail: the supervisor's error if it could not start a rank.
  // The ends of the ranks' logs by the runner's paths, if the host does not share the folder.
  std::map<std::string, std::string> logs = {};
};

// The FromJson functions throw kInvalidArgument for another form.
Json ToJson(const SuperviseOrder& order);
SuperviseOrder SuperviseOrderFromJson(const Json& json);
Json ToJson(const SuperviseHello& hello);
SuperviseHello SuperviseHelloFromJson(const Json& json);
Json ToJson(const SuperviseReport& report);
SuperviseReport SuperviseReportFromJson(const Json& json);

// Above the size of a report with the ends of all logs (remote_folder.cc).
inline constexpr size_t kMaxLineBytes = size_t{32} << 20;
inline constexpr std::chrono::milliseconds kSendTimeout{10'000};

// Reads lines from one stream and writes lines to another, which are sockets or pipes. Not
// thread-safe.
class LineChannel {
 public:
  LineChannel(UniqueFd in, UniqueFd out) : in_(std::move(in)), out_(std::move(out)) {}
  // Uses both directions of a socket.
  explicit LineChannel(UniqueFd socket);

  // Readable when data has arrived; -1 after Close.
  int fd() const { return in_.get(); }
  void Close();
  // Sends a line; blocks while the buffer is full. Returns false if the peer is gone or has read
  // nothing for kSendTimeout.
  bool Send(const Json& message);
  // Whether the last Send has returned false because the peer reads nothing.
  bool IsStuck() const { return is_stuck_; }
  // Reads a limited amount of the data that has arrived. Does not block. Returns false at the end
  // of the stream, and if a line has more than kMaxLineBytes.
  bool Receive();
  // Whether Receive has returned false because of a line.
  bool IsTooLong() const { return received_.size() - begin_ > kMaxLineBytes; }
  // The next complete line received.
  std::optional<std::string> NextLine();

 private:
  UniqueFd in_;
  UniqueFd out_;
  std::string received_;
  size_t begin_ = 0;     // The first line of `received_` that NextLine has not given begins here.
  size_t searched_ = 0;  // The first line does not end before this position.
  bool is_stuck_ = false;
};

}  // namespace dsat
