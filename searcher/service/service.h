// The servers of the two services of proto/dsat.proto. This header does not include gRPC.
//
// Both listen on this machine only (CheckLocalAddress in proto/client.h), except for ranks on other
// hosts. Every call must carry the server's token, otherwise it ends with UNAUTHENTICATED.
#ifndef DSAT_SEARCHER_SERVICE_SERVICE_H_
#define DSAT_SEARCHER_SERVICE_SERVICE_H_

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "proto/client.h"
#include "proto/trial.h"
#include "searcher/service/event_queue.h"

namespace dsat {

// The messages of the ranks of running trials to the runner's loop.
struct ProgressMessage {
  AttemptRef attempt;
  int64_t rank = 0;
  int64_t step = 0;
  bool begins = false;  // Training begins after `step`.
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

// TrialService of a runner. Its threads only push to the queue; the loop decides.
class TrialServer {
 public:
  // If `host` is "", listens on a unix socket that only this user can reach, which leaves no file
  // behind even if this process is killed. Otherwise listens at a free port of `host`, a
  // numeric address of this machine that ranks on other hosts can reach; their token is sent
  // unencrypted, as the data between ranks is. `queue` must outlive the server. Throws kUnavailable
  // if it cannot listen.
  explicit TrialServer(EventQueue<TrialMessage>* queue, const std::string& host = "");
  // Closes the queue, so that no call waits for an answer.
  ~TrialServer();

  const std::string& address() const;  // For TrialClient::Connect.
  const std::string& token() const;

  // Admit accepts the messages of the ranks of `attempt`. After Dismiss, Progress is answered with
  // "stop", and other messages fail with kFailedPrecondition. Thread-safe.
  void Admit(const AttemptRef& attempt);
  void Dismiss(const AttemptRef& attempt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ExperimentService for all experiments of one database (`dsat serve`). Calls are processed one at
// a time; other processes may append to the same experiments meanwhile.
class ExperimentServer {
 public:
  // `address` is one that CheckLocalAddress accepts; port 0 = any free port; "" = a unix
  // socket as TrialServer's. Throws as Store::Open and CheckLocalAddress, kAlreadyExists if
  // another server (or a file that is not a socket) is at the address, kUnavailable if it cannot
  // listen.
  ExperimentServer(const std::string& database, const std::string& address);
  // Ends calls that are still running after 1 s.
  ~ExperimentServer();

  const std::string& address() const;  // With the actual port.
  const std::string& token() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SERVICE_SERVICE_H_
