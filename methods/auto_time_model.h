// auto's model of the time of an optimizer step: a sum of terms with unknown factors.
//
// All terms count in units of the time that a device computes one sample, so that the model knows
// how the terms compare before anything was measured. docs/dev/auto.md has the formulas.
#pragma once

#include <Eigen/Core>
#include <string>
#include <vector>

#include "methods/auto_space.h"

namespace dsat {

class AutoTimeModel {
 public:
  // The parameters. Most are logarithms of factors, so that their effect on the logarithm of the
  // time is the share of their term.
  enum Parameter {
    kScale,                 // The whole objective.
    kPartsScale,            // All measured parts.
    kOverhead,              // The size at which a device is half as efficient as it can be.
    kCurve,                 // How fast efficiency approaches its limit beyond that size.
    kLink,                  // Sends every parameter once.
    kCall,                  // Issues a collective.
    kHidden,                // The share of the backward pass that hides reductions.
    kPrefetch,              // The share of a micro-batch that hides the gathering of parameters.
    kGather,                // Gathering at stage 3, beside kLink.
    kUpdate,                // The update of all parameters.
    kStep,                  // Everything else that happens once per step.
    kPressure,              // Not a logarithm: the slowdown of computing when memory is full.
    kForwardShare,          // The forward pass in computing, besides a third.
    kTraffic,               // Communication, by stage (4).
    kStage = kTraffic + 4,  // Everything, by stage (4).
    kTrend = kStage + 4,    // Larger micro-batches, per doubling.
    kOdd,                   // Sizes are not multiples of 2.
    kNot4,                  // Sizes are not multiples of 4.
    kNot8,                  // Sizes are not multiples of 8.
    kScattered,             // contiguous_gradients is off.
    kContention,            // Collectives run while a pass computes.
    kRecompute,             // A place computes it besides, for activation checkpointing.
    kMove,                  // A place moves it besides, for offload.
    kOthers,                // Not a logarithm: of the predicted effects of other knobs.
    kNum,
  };
  using Vector = Eigen::Matrix<double, kNum, 1>;

  // The objective, or a measured part of the step in ms.
  enum class Part { kObjective, kForward, kBackward, kUpdate };

  // The terms of one step, for people.
  struct Shares {
    double compute = 0;
    double communication = 0;  // Without what is hidden.
    double update = 0;
    double overhead = 0;
  };

  AutoTimeModel(const SearchSpace& space, const std::string& metric);

  const Vector& prior_mean() const { return prior_mean_; }
  const Vector& prior_sd() const { return prior_sd_; }

  // The logarithm of the time, per sample if the objective is a throughput. `memory_share` is the
  // part of the device's memory that the configuration needs. `gradient` may be null.
  double Log(const AutoConfig& config, double memory_share, const Vector& parameters, Part part,
             Vector* gradient) const;
  Shares SharesOf(const AutoConfig& config, const Vector& parameters) const;

 private:
  struct Terms;
  // The exponentials of the parameters, which are those of the last call as a rule.
  const Vector& FactorsOf(const Vector& parameters) const;
  // The costs of a place besides those of its stage, in samples.
  struct Extra {
    double computed = 0;  // For each sample.
    double moved = 0;     // For each sample.
    double updated = 0;   // For each step.
  };
  void SetPrior();
  void SetExtras(double sample_ms);
  void AddExtra(const AutoConfig& config, const Vector& factors, Terms& terms) const;
  Terms TermsOf(const AutoConfig& config, double memory_share, const Vector& parameters) const;
  void AddReduction(const AutoConfig& config, const Vector& factors, Terms& terms) const;
  void AddGathering(const AutoConfig& config, const Vector& factors, Terms& terms) const;

  SearchSpace space_;
  Part objective_;
  bool per_sample_;
  double ranks_;
  double idle_;    // Micro-batches for which the first and the last pipeline stage wait.
  double params_;  // 0 if unknown.
  std::vector<Extra> extras_;  // By place.
  Vector prior_mean_ = Vector::Zero();
  Vector prior_sd_ = Vector::Zero();
  mutable Vector last_parameters_ = Vector::Zero(), last_factors_ = Vector::Ones();
};

}  // namespace dsat
