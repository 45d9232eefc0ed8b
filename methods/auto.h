// auto: predicts the memory and the time of every configuration, measures those that promise the
// most, and stops when the best one is known well enough (docs/dev/auto.md).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "methods/auto_belief.h"
#include "methods/auto_policy.h"
#include "methods/method.h"

namespace dsat {

class AutoMethod : public Method {
 public:
  AutoMethod(const SearchSpace& space, const SearchOptions& options)
      : options_(options), belief_(space, options) {}

  const AutoSpace& space() const { return belief_.space(); }

  // The configuration with the largest expected gain per device-second, at first the one that is
  // predicted to be the best. nullopt once no further measurement is worth its time.
  std::optional<Proposal> Ask() override;
  std::optional<Proposal> Replay(const std::optional<Assignment>& recorded) override;
  void Tell(int64_t tag, const Trial& finished) override;
  void Observe(const Trial& finished) override;
  void Measured(int64_t tag, const Trial& running) override;
  std::optional<Point> NextPoint(int64_t tag, const Trial& running) override;
  Conclusion Conclude() const override;
  std::optional<OthersBound> BoundOthers(const Trial& pick) const override;
  std::optional<Point> LargerBatch(const Trial& pick) const override;
  std::string BoundOf(const Trial& pick) const override;
  std::optional<double> LaunchNoise() const override;

  // A configuration that would be proposed if everything that promises less were left out.
  struct Expected {
    Assignment assignment;
    double fits = 0;  // The probability.
    // How long a step takes, or a sample if the metric is a throughput, relative to the first one.
    double factor = 1;
    double step_ms = 0;  // 0 if no time was measured.
  };
  // The `count` configurations with the best expected metric of those that probably fit.
  std::vector<Expected> BestExpected(size_t count) const;

 private:
  void Learn(const Trial& finished, const std::optional<AutoConfig>& config, int64_t tag);
  void Record(const AutoConfig& config, bool leads, int64_t tag);
  Proposal Propose(const AutoPolicy::Launch& launch, double give_up_below);
  AutoPolicy Policy() const;
  // The index in record_.measured of a trial's best point.
  std::optional<int64_t> MeasuredOf(const Trial& trial) const;

  SearchOptions options_;
  AutoBelief belief_;
  AutoRecord record_;
  std::set<TrialId> learned_;
  // The candidates by the present belief, once a proposal was asked for.
  std::optional<std::vector<AutoCandidate>> screened_;
};

}  // namespace dsat
