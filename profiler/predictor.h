// Predicts whether a configuration fits and how long a step takes, for the search and for dsat
// estimate. Predictions come from the engine's own plan (profiler/planner.h) or from the formulas
// of the memory model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/json.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

// Memory of one tier.
struct TierNeed {
  int64_t state_bytes = 0;  // Between steps.
  int64_t peak_bytes = 0;   // Highest point, from the start on.
  int64_t limit_bytes = 0;  // 0: none.
  bool fits() const { return limit_bytes == 0 || peak_bytes <= limit_bytes; }
};

// The predicted memory and time of a configuration on all ranks.
struct Estimate {
  TierNeed device;     // The rank that needs most.
  TierNeed rank_host;  // The rank that needs most.
  TierNeed host;       // The node that needs most.
  TierNeed disk;       // The node that needs most.
  // Estimates of a step; 0 if unknown.
  double step_ms = 0;
  double compute_ms = 0;  // The part in forward and backward.
  double update_ms = 0;   // The part in the optimizer, copies and files included.
  double link_ms = 0;     // The time that collectives take, hidden or not.
  bool exact = false;     // The bytes are what the built-in engine counts when it runs this.
  bool tracked = false;   // They are those of all tensors in a dry run of the script, no others.

  bool fits() const { return device.fits() && rank_host.fits() && host.fits() && disk.fits(); }
  // "It does not fit: ...", with what each tier needs and has; "" if it fits.
  std::string Misfit() const;
};

// A prediction depends on the ds_config alone: equal configs have equal predictions.
class Predictor {
 public:
  virtual ~Predictor() = default;

  // Throws kInvalidArgument or kUnimplemented if the built-in engine refuses the config.
  virtual Estimate Predict(const Json& ds_config) const = 0;

  // The largest micro-batch size with which `ds_config`, otherwise unchanged, is predicted to fit;
  // 0 if not even 1 fits. Throws as Predict.
  virtual int64_t LargestMicroBatch(const Json& ds_config) const = 0;
};

// The calibrated formulas (memory_model.h), which know device memory only. After a dry run, they
// give only the differences to the nearest place that ran, and its operators give the time of a
// step.
std::unique_ptr<Predictor> MakeFormulaPredictor(const ExperimentSpec& spec,
                                                const ModelProfile& profile);

// Predicts for an experiment's trials on the device of the profile. The prediction comes from the
// built-in engine's own plan if the profile names a device; and from the formulas for a command,
// with --compat determined, and for any other profile.
// Throws what MakeModel (models.h) throws if the model cannot be built here.
std::unique_ptr<Predictor> MakePredictor(const ExperimentSpec& spec, const ModelProfile& profile);

// The largest size that fits, up to 65536, found by bisection; 0 if not even 1 fits. REQUIRES: what
// fits also fits with fewer samples.
int64_t LargestMicroBatchThat(const std::function<bool(int64_t)>& fits);

// Returns why `ds_config` cannot run: it is refused, or an exact prediction says that it does not
// fit. "" if it may run.
std::string WhyInfeasible(const Predictor& predictor, const Json& ds_config);

// Calls predict(). Returns why the engine refuses a config in it; "" if it does not. Throws what
// means that something has failed.
std::string RefusalOf(const std::function<void()>& predict);

}  // namespace dsat
