// Clients of the two services of proto/dsat.proto, without a trace of gRPC in this header.
//
// Every call has a deadline of 10 s (a conversation has none). A call that fails throws Error with
// gRPC's code: kUnavailable (nobody listens), kUnauthenticated (wrong token), kDeadlineExceeded, or
// what the server threw.
#ifndef DSAT_PROTO_CLIENT_H_
#define DSAT_PROTO_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/trial.h"

namespace dsat {

// Names one launch of one trial.
struct AttemptRef {
  ExperimentId experiment = 0;
  TrialId trial = 0;
  int64_t attempt = 0;
  auto operator<=>(const AttemptRef&) const = default;
};

// Accepts the addresses that dsat listens on and connects to: "unix:/absolute/path" and
// "unix-abstract:name" (a socket that is no file) of at most 107 bytes each, and 127.0.0.1:PORT,
// [::1]:PORT or localhost:PORT. Throws kInvalidArgument otherwise: the token travels in clear, so
// it must not leave the machine.
void CheckLocalAddress(const std::string& address);

// A rank's line to the search runner. Thread-safe.
class TrialClient {
 public:
  // Does not wait for the connection: the first call does. `address` is what the rank's launcher
  // says, which may be on another host.
  static TrialClient Connect(const std::string& address, const std::string& token,
                             const AttemptRef& attempt);
  TrialClient(TrialClient&&) noexcept;
  TrialClient& operator=(TrialClient&&) noexcept;
  ~TrialClient();

  // A sign of life. True if the runner has decided against this attempt: end now, with exit code 0.
  // With the phase kValidated, `loss` is that of the validation data.
  bool Progress(int64_t rank, int64_t step, double latency_ms, double loss,
                const std::string& phase);

  // From rank 0: a point is measured (`profile` by the profiling trial only). Gives the next point
  // to measure, or nullopt: exit. On return the measurement is on disk.
  std::optional<Point> Measured(const PointResult& result,
                                const std::optional<ModelProfile>& profile);

  // This configuration cannot run here; `reason` is one line with the numbers. Then exit.
  void Infeasible(int64_t rank, const std::string& reason);

 private:
  struct Impl;
  explicit TrialClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// How programs outside dsat drive an experiment with executors of their own. Thread-safe.
class ExperimentClient {
 public:
  struct Asked {
    std::optional<Trial> trial;  // nullopt: none now; tell of a running one first.
    bool finished = false;       // No trial will ever come again.
  };
  struct View {
    std::string spec_json;  // As in the database (proto/experiment.h).
    std::string state;      // active, completed, failed, stopped
    std::vector<Trial> trials;
    std::optional<TrialId> best_trial;
  };

  static ExperimentClient Connect(const std::string& address, const std::string& token);
  ExperimentClient(ExperimentClient&&) noexcept;
  ExperimentClient& operator=(ExperimentClient&&) noexcept;
  ~ExperimentClient();

  Asked Ask(ExperimentId id);

  // A running trial has ended. `measurement` is needed if it succeeded, `profile` if it was the
  // profiling trial as well. True if the search has finished. After kUnavailable or
  // kDeadlineExceeded the tell may or may not be recorded: a second one then throws
  // kFailedPrecondition.
  bool Tell(ExperimentId id, TrialId trial, const Outcome& outcome, const Measurement& measurement,
            const std::optional<ModelProfile>& profile);

  // A conversation of asks and tells: one message each way for a pair, where Tell and Ask take two
  // calls. It is the fast way for a program that runs one trial at a time. Not thread-safe; ends
  // with the object. After an error no more can be said in it.
  class Conversation {
   public:
    Conversation(Conversation&&) noexcept;
    ~Conversation();
    Asked Ask();
    // As ExperimentClient::Tell, and asks for the next trial.
    Asked TellAndAsk(TrialId trial, const Outcome& outcome, const Measurement& measurement,
                     const std::optional<ModelProfile>& profile);

   private:
    friend class ExperimentClient;
    struct Stream;
    explicit Conversation(std::unique_ptr<Stream> stream);
    std::unique_ptr<Stream> stream_;
  };
  Conversation Drive(ExperimentId id);  // The client must outlive the conversation.

  View GetExperiment(ExperimentId id);

 private:
  struct Impl;
  explicit ExperimentClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat

#endif  // DSAT_PROTO_CLIENT_H_
