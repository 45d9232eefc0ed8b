// The servers of the two services of proto/dsat.proto. This header does not include gRPC.
//
// On one machine both listen at a unix socket, whose clients must be this user's. On the network
// every connection is mutual TLS with keys of this server. What one client may cost is limited
// (searcher/service/service_listener.cc); a server whose threads are all at work answers
// RESOURCE_EXHAUSTED.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/client.h"
#include "proto/trial.h"
#include "searcher/service/event_queue.h"
#include "searcher/service/service_listener.h"

namespace dsat {

// The messages of the ranks of running trials to the runner's loop.
struct ProgressMessage {
  AttemptRef attempt;
  int64_t rank = 0;
  int64_t step = 0;
  bool begins = false;  // Training begins after `step`.
  std::vector<std::string> warnings = {};
};
struct MeasuredMessage {
  AttemptRef attempt;
  PointResult result;
  std::optional<ModelProfile> profile;
  // The answer for which the rank waits: the next point, or nullopt to exit. The call fails if it
  // is dropped.
  std::promise<std::optional<Point>> next_point;
};
struct InfeasibleMessage {
  AttemptRef attempt;
  int64_t rank = 0;
  std::string reason;
};
using TrialMessage = std::variant<ProgressMessage, MeasuredMessage, InfeasibleMessage>;

class TrialServiceImpl;
class ExperimentServiceImpl;

// TrialService of a runner. Its threads only push to the queue; the loop decides.
class TrialServer {
 public:
  // If `host` is "", listens on a unix socket that only this user can reach, which leaves no file
  // behind even if this process is killed. Otherwise listens at a free port of `host`, an
  // address of this machine that ranks on other hosts can reach. `queue` must outlive the server.
  // Throws kUnavailable if it cannot listen.
  explicit TrialServer(EventQueue<TrialMessage>* queue, const std::string& host = "");
  // Closes the queue, so that no call waits for an answer.
  ~TrialServer();

  // For TrialClient::Connect.
  const std::string& address() const { return listener_.address(); }
  const std::string& key() const { return listener_.key(); }

  // Admit accepts the messages of the ranks of `attempt`. After Dismiss, Progress is answered with
  // "stop", and other messages fail with kFailedPrecondition. Thread-safe.
  void Admit(const AttemptRef& attempt);
  void Dismiss(const AttemptRef& attempt);

 private:
  EventQueue<TrialMessage>* queue_;
  std::unique_ptr<TrialServiceImpl> service_;
  Listener listener_;
};

// ExperimentService for all experiments of one database (`dsat serve`). The calls of one experiment
// are processed one at a time, up to 24 wait; other processes may append to it meanwhile.
class ExperimentServer {
 public:
  // `address` is "unix:/absolute/path" of at most 107 bytes, HOST:PORT (port 0 = any free port), or
  // "": a unix socket as TrialServer's. Throws as Store::Open, kInvalidArgument for other
  // addresses, kAlreadyExists if another server (or a file that is not a socket) is there,
  // kUnavailable if it cannot listen.
  ExperimentServer(const std::string& database, const std::string& address);
  // Ends calls that are still running after 1 s.
  ~ExperimentServer();

  // For clients, as docs/ask-tell.md shows. The address has the actual port.
  const std::string& address() const { return listener_.address(); }
  const std::string& key() const { return listener_.key(); }

 private:
  std::unique_ptr<ExperimentServiceImpl> service_;
  Listener listener_;
};

}  // namespace dsat
