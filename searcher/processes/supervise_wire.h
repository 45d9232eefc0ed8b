// What a runner and a supervisor say to each other: one line of JSON per message, over a socket or
// over what ssh makes of one.
//
//   supervisor → runner:  {"hello": ...} at once; {"failed_rank": n} when one ends badly by itself;
//                         {"report": ...}, last
//   runner → supervisor:  the order, once; then, at any time, {"stop_grace_ms": n},
//                         {"sibling_failed": true} (a rank on another host) or {"alive": true};
//                         its end = the end
#ifndef DSAT_SEARCHER_PROCESSES_SUPERVISE_WIRE_H_
#define DSAT_SEARCHER_PROCESSES_SUPERVISE_WIRE_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/unique_fd.h"
#include "searcher/hosts/launch_host.h"
#include "searcher/processes/rank_command.h"

namespace dsat {

struct SuperviseOrder {
  std::vector<RankCommand> ranks;
  std::string work_dir;
  GraceTimes grace;
  bool remote = false;                            // The runner is on another host.
  std::map<std::string, std::string> files = {};  // Of the ranks, by path; for a remote supervisor.
};

// Who a supervisor is.
struct SuperviseHello {
  std::string version;
  int64_t num_cores = 0;
  std::string address = {};         // Of its host, as ssh reaches it; "" = not known.
  std::string runner_address = {};  // Of the runner's host, as its host sees it; "" = not known.
};

// What is told about ranks after their end.
struct SuperviseReport {
  ExitReport exit;  // log_tail: the supervisor's own words, if it could not start a rank.
  // The ends of the ranks' logs by their paths here, of a host that has had them to itself.
  std::map<std::string, std::string> logs = {};
};

// The FromJson functions throw nlohmann's exceptions: both ends are the same program.
Json ToJson(const SuperviseOrder& order);
SuperviseOrder SuperviseOrderFromJson(const Json& json);
Json ToJson(const SuperviseHello& hello);
SuperviseHello SuperviseHelloFromJson(const Json& json);
Json ToJson(const SuperviseReport& report);
SuperviseReport SuperviseReportFromJson(const Json& json);

// Lines from one stream and to another, which it owns: sockets or pipes. Not thread-safe.
class LineChannel {
 public:
  LineChannel(UniqueFd in, UniqueFd out) : in_(std::move(in)), out_(std::move(out)) {}
  // Both directions of a socket.
  explicit LineChannel(UniqueFd socket);

  // Readable when something has arrived; -1 once closed.
  int fd() const { return in_.get(); }
  void Close();
  // Sends a line; blocks while the peer's buffer is full. False if the peer is gone.
  bool Send(const Json& message);
  // Takes what has arrived; does not block. False if nothing can come any more.
  bool Receive();
  // The next whole line received.
  std::optional<std::string> NextLine();

 private:
  UniqueFd in_;
  UniqueFd out_;
  std::string received_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_PROCESSES_SUPERVISE_WIRE_H_
