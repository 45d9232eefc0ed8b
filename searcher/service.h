// The servers of the two services of proto/dsat.proto, without a trace of gRPC in this header.
//
// Both listen within this machine only (CheckLocalAddress in proto/client.h), but for ranks on
// other hosts. Every call must carry the server's token; a call without it ends with
// UNAUTHENTICATED before it is looked at.
#ifndef DSAT_SEARCHER_SERVICE_H_
#define DSAT_SEARCHER_SERVICE_H_

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "proto/client.h"
#include "proto/trial.h"
#include "searcher/event_queue.h"

namespace dsat {

// What the ranks of running trials say, as the runner's loop hears it.
struct ProgressMessage {
  AttemptRef attempt;
  int64_t rank = 0;
  int64_t step = 0;
  double latency_ms = 0;
  double loss = 0;
  std::string phase;
};
struct MeasuredMessage {
  AttemptRef attempt;
  PointResult result;
  std::optional<ModelProfile> profile;
  // The rank waits for this: the next point, or nullopt to exit. Dropped = the call fails.
  std::promise<std::optional<Point>> next_point;
};
struct InfeasibleMessage {
  AttemptRef attempt;
  int64_t rank = 0;
  std::string reason;
};
using TrialMessage = std::variant<ProgressMessage, MeasuredMessage, InfeasibleMessage>;

// TrialService of a runner. Its threads only push onto the queue; the loop decides.
class TrialServer {
 public:
  // `host` "": listens on an abstract unix socket of a random name: it is no file, so that nothing
  // is left behind even if this process is killed. Else at any free port of `host`, a numeric
  // address of this machine's that ranks on other hosts reach: their token travels in clear, as
  // what they tell each other does. `queue` must outlive the server. Throws kUnavailable if it
  // cannot listen.
  explicit TrialServer(EventQueue<TrialMessage>* queue, const std::string& host = "");
  // Closes the queue, so that no call keeps waiting for an answer.
  ~TrialServer();

  const std::string& address() const;  // For TrialClient::Connect.
  const std::string& token() const;

  // Ranks of `attempt` are heard from now on, or no longer: their Progress is then answered with
  // "stop", and all else refused with kFailedPrecondition. Thread-safe.
  void Admit(const AttemptRef& attempt);
  void Dismiss(const AttemptRef& attempt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ExperimentService over all experiments of one database (`dsat serve`). Calls are worked on one at
// a time; other processes may append to the same experiments meanwhile.
class ExperimentServer {
 public:
  // `address` as CheckLocalAddress takes it; port 0 = any free one; "" = an abstract unix socket of
  // a random name. Throws as Store::Open and CheckLocalAddress,
  // kAlreadyExists if another server (or a file that is no socket) is there, kUnavailable if it
  // cannot listen.
  ExperimentServer(const std::string& database, const std::string& address);
  // Ends calls that still run after 1 s.
  ~ExperimentServer();

  const std::string& address() const;  // With the port that was found.
  const std::string& token() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SERVICE_H_
