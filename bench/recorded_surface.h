// Launches that bench/record_surface.py measured, as a surface.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/search_surfaces.h"

namespace dsat {

// Predictions are those of the built-in engine. A launch is a recorded one of its configuration,
// chosen by the seed, and the time without noise is the geometric mean of all of them.
class RecordedSurface : public Surface {
 public:
  // REQUIRES: family.recording is a file, relative to the root of the sources.
  RecordedSurface(const Family& family, uint64_t seed);

  const Family& family() const override { return family_; }
  ExperimentSpec Spec(const std::string& method, int64_t seed) const override;
  ModelProfile Profile() const override { return profile_; }
  std::unique_ptr<Predictor> MakeSurfacePredictor(const ExperimentSpec& spec) const override;
  double PeakBytes(const Json& config) const override;
  double SampleMs(const Json& config) const override;
  double BestSampleMs(const SearchSpace& space, const ExperimentSpec& spec) const override;
  void Run(Trial& trial, double started_s, int64_t launch) const override;

 private:
  struct Recorded {
    double latency_ms, spread_ms, forward_ms, backward_ms, update_ms, peak_bytes, seconds;
  };
  struct Launches {
    double samples = 0;  // The samples of a step on a rank.
    std::vector<Recorded> all;
    double SampleMs() const;
  };
  std::string KeyOf(const Json& config) const;
  const Launches* Find(const Json& config) const;  // nullptr if it was not recorded.

  Family family_;
  uint64_t seed_;
  ExperimentSpec spec_;
  ModelProfile profile_;
  std::map<std::string, Launches> launches_;  // By the key of the configuration.
};

}  // namespace dsat
