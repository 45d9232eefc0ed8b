// Machines and models for bench/search_quality: a known time, memory need and noise for every
// configuration, simulated or recorded.
//
// The simulated laws differ on purpose from those that the method auto assumes: saturation is
// exponential, buckets travel as a pipeline, buffers are allocated at their full size, activations
// grow a little faster than the micro-batch, and fragmentation, kernel choice and a full memory
// leave marks. Of the keys of a wide space, offload counts; the others change nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "profiler/predictor.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// A family of surfaces; a seed makes one of it.
struct Family {
  std::string name;
  bool held_out = false;  // Not used while the method was developed.
  int64_t ranks = 8;
  double params = 350e6;
  int layers = 24;
  double sample_ms = 10;        // To compute one sample, at full efficiency.
  double saturation = 4;        // Micro-batch size at which efficiency approaches 1.
  double micro_batch_ms = 3;    // Besides the samples.
  double small_penalty = 0.85;  // Efficiency that is missing at size 0.
  double large_penalty = 0;     // Slowdown per doubling beyond `large_from`.
  double large_from = 1e9;
  double ripple = 0.02;  // Relative slowdown at sizes that are not multiples of 8.
  double link_gb_s = 150;
  double call_us = 40;
  double contention = 0.03;  // Slowdown of computing while collectives run.
  double memory_bytes_per_s = 1.2e12;
  double host_bytes_per_s = 1e10;  // Copies of offloaded state, for each rank.
  double memory_gb = 40;
  double sample_gb = 0.5;  // Activations.
  double workspace_gb = 1.2;
  double profile_error = 0.85;  // The activation size in the profile over the true one.
  double gather_factor = 1;     // Multiplies the time of stage 3's gathering.
  double noise = 0.01;          // The standard deviation of a step's time, relative.
  double launch_noise = 0.008;  // The standard deviation of a launch's times, relative.
  double outliers = 0.02;       // Share of launches that are 10 to 30 % slower.
  double drift = 0.005;         // Per hour.
  double launch_s = 25;
  double matmul_flops_per_s = 2e14;
  bool reports_peak = true;
  bool exact = false;  // The built-in engine: predicted bytes are exact.
  int64_t accumulation = 1;
  // Laws of drawn machines.
  bool drawn = false;
  int pipeline = 1;                   // Stages, which divide the ranks.
  bool fixed_batch = false;           // A rank has `accumulation` samples in a step.
  bool is_hyperbolic = false;         // Efficiency grows with size / (size + saturation).
  double wave = 0;                    // Samples that a device computes in one wave; 0: no waves.
  double wave_share = 0;              // The part of computing that comes in whole waves.
  double cliff_share = 0, cliff = 0;  // Sizes that are slower, and by how much.
  double size_roughness = 0.004, config_roughness = 0.003;  // Standard deviations, logs.
  bool caps_buckets = false;                                // Buckets are no larger than the model.
  double hidden_gap = 0;            // The part of the device that no reported peak counts.
  double launch_fragmentation = 0;  // The most by which a launch needs more, a share.
  // In a wide space: the part of the activations that checkpointing keeps, and of computing that it
  // repeats.
  bool may_checkpoint = false;
  double checkpointed = 0.25, recomputed = 0.33;
  double place_noise = 0;  // The deviation of log(launch_noise) between stages.
  bool has_heavy_tails = false;
  double throttled = 0;                     // Share of the time in which all is 1.2 times slower.
  double second_kind = 0, second_slow = 1;  // Launches that are slower, and the factor.
  double knob_effect = 0;  // The deviation of the effects of a user's knob; 0: there is none.
  // The profile is that of a dry run, whose times have a common factor and errors of their own.
  bool runs_dry = false;
  std::string space = "published";  // SearchOptions::space.
  // A file of bench/record_surface.py, which replaces everything above but `held_out`.
  std::string recording = {};
};

const std::vector<Family>& Families();
// A machine from broad distributions of all laws.
Family DrawnFamily(uint64_t seed);

class Surface {
 public:
  virtual ~Surface() = default;

  virtual const Family& family() const = 0;
  // The submitted config, and an experiment that tunes it.
  virtual ExperimentSpec Spec(const std::string& method, int64_t seed) const = 0;
  // The measurement of the profiling trial.
  virtual ModelProfile Profile() const = 0;
  // Its predictor, which the surface must outlive.
  virtual std::unique_ptr<Predictor> MakeSurfacePredictor(const ExperimentSpec& spec) const = 0;

  // Without noise; `config` is resolved.
  virtual double PeakBytes(const Json& config) const = 0;
  // ms, infinity if it does not fit. Per sample, so that configurations compare.
  virtual double SampleMs(const Json& config) const = 0;
  // The least SampleMs of the space, over all legal micro-batch sizes up to 1024.
  virtual double BestSampleMs(const SearchSpace& space, const ExperimentSpec& spec) const = 0;

  // Runs a launch that starts at this time: sets the state, points, started_s and ended_s.
  virtual void Run(Trial& trial, double started_s, int64_t launch) const = 0;
};

// Sets what all searches of the benchmark have in common.
void SetSearch(const Family& family, const std::string& method, int64_t seed, ExperimentSpec& spec);

std::unique_ptr<Surface> MakeSurface(const Family& family, uint64_t seed);

// A machine made of laws.
class SimulatedSurface : public Surface {
 public:
  SimulatedSurface(const Family& family, uint64_t seed);

  const Family& family() const override { return family_; }
  ExperimentSpec Spec(const std::string& method, int64_t seed) const override;
  ModelProfile Profile() const override;
  std::unique_ptr<Predictor> MakeSurfacePredictor(const ExperimentSpec& spec) const override;
  double PeakBytes(const Json& config) const override;
  double SampleMs(const Json& config) const override;
  double BestSampleMs(const SearchSpace& space, const ExperimentSpec& spec) const override;
  void Run(Trial& trial, double started_s, int64_t launch) const override;

  // A configuration that fits, as one knows it who knows all laws but the roughness.
  struct Candidate {
    double smooth_ms = 0;  // Per sample, without the roughness.
    double sample_ms = 0;
    double size = 0;          // The micro-batch size.
    double launch_noise = 0;  // The deviation of the log of a launch's time.
  };
  // All of the space, with micro-batch sizes up to 1024.
  std::vector<Candidate> Candidates(const SearchSpace& space, const ExperimentSpec& spec) const;

 private:
  struct Config;
  struct Times {
    double forward = 0, backward = 0, update = 0;
    double all() const { return forward + backward + update; }
  };
  Config Read(const Json& config) const;
  DryPlace RunDry(int64_t stage) const;
  Times TimesOf(const Config& c) const;
  double NeedGb(const Config& c, bool with_jitter) const;
  bool Fits(const Config& c, double fragmented) const;
  double Hash(const Config& c, const char* purpose) const;  // Standard normal.
  double SmoothStepMsOf(const Config& c) const;
  double StepMsOf(const Config& c) const;
  double LaunchNoiseOf(const Config& c) const;

  Family family_;
  uint64_t seed_;
};

}  // namespace dsat
