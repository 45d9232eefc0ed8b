// The client of TrialService (proto/dsat.proto). This header does not include gRPC.
//
// Every call has a deadline of 60 s, within which it waits for a server that is out of threads. A
// call that fails throws an Error with gRPC's code: kUnavailable (no server, or one that refuses
// the key), kDeadlineExceeded, or the code that the server has thrown.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/trial.h"

namespace dsat {

// Starts gRPC for the rest of this process, which never shuts it down: gRPC 1.51 aborts or hangs
// where it gets no thread. Each call checks that `num_threads` can be started, and throws
// kUnavailable if not. Connect of the clients calls it.
void StartGrpc(int num_threads);

// Names one launch of one trial.
struct AttemptRef {
  ExperimentId experiment = 0;
  TrialId trial = 0;
  int64_t attempt = 0;
  auto operator<=>(const AttemptRef&) const = default;
};

// The name for which the keys of a run have certificates, whatever its hosts are called.
inline constexpr char kKeyName[] = "dsat";

// A rank's connection to the search runner. Thread-safe.
class TrialClient {
 public:
  // Does not wait for the connection; the first call does. `address` and `key` are those of the
  // server; with a key (PEM, RunKeys::client in searcher/service) the connection is mutual TLS.
  static TrialClient Connect(const std::string& address, const std::string& key,
                             const AttemptRef& attempt);
  // Reports `step` completed steps, or that training begins after them, with warnings about the
  // checkpoint. Returns true if the runner has stopped this attempt: the rank must exit with code
  // 0.
  bool Progress(int64_t rank, int64_t step, bool begins = false,
                const std::vector<std::string>& warnings = {});

  // Reports from rank 0 that a point is measured (`profile`: by the profiling trial only). Returns
  // the next point to measure, or nullopt if the rank must exit. The measurement is then recorded.
  std::optional<Point> Measured(const PointResult& result,
                                const std::optional<ModelProfile>& profile);

  // Reports that this configuration cannot run here, before the rank exits. `reason` is one line
  // with the numbers.
  void Infeasible(int64_t rank, const std::string& reason);

 private:
  struct Impl;
  explicit TrialClient(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<Impl> impl_;
};

}  // namespace dsat
