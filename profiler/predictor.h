// Does a configuration fit, and how long does a step take? One question, asked by the search and by
// dsat estimate, and two answers: from the engine's own plan (profiler/planner.h), and from the
// formulas of the memory model.
#ifndef DSAT_PROFILER_PREDICTOR_H_
#define DSAT_PROFILER_PREDICTOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
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

struct Predicted {
  TierNeed device;     // Of the rank that needs most.
  TierNeed rank_host;  // The same.
  TierNeed host;       // Of the node that needs most.
  TierNeed disk;       // The same.
  double step_ms = 0;  // An estimate; 0 if unknown.
  bool exact = false;  // The bytes are what the built-in engine counts when it runs this.

  bool fits() const { return device.fits() && rank_host.fits() && host.fits() && disk.fits(); }
  // "It does not fit: ...", with what each tier needs and has; "" if it fits.
  std::string Misfit() const;
};

// A prediction is a function of the ds_config alone: the same question has the same answer.
class Predictor {
 public:
  virtual ~Predictor() = default;

  // Throws kInvalidArgument or kUnimplemented if the built-in engine refuses the config.
  virtual Predicted Predict(const Json& ds_config) const = 0;

  // The largest micro-batch size with which `ds_config` is predicted to fit, and nothing else
  // changed; 0 if not even 1 is. Throws as Predict.
  virtual int64_t LargestMicroBatch(const Json& ds_config) const = 0;
};

// The calibrated formulas (memory_model.h), which know device memory only.
std::unique_ptr<Predictor> MakeFormulaPredictor(const ExperimentSpec& spec,
                                                const ModelProfile& profile);

// What an experiment's trials will need on the device that `profile` was measured on: from the
// engine's own plan if the built-in engine has measured it, else from the formulas; these also with
// compat_determined, and if the profile was given by hand. Throws what MakeModel (models.h) throws
// if the model cannot be built here.
std::unique_ptr<Predictor> MakePredictor(const ExperimentSpec& spec, const ModelProfile& profile);

// Why `ds_config` cannot run: it is refused, or predicted, and exactly, not to fit. "" if it may
// run.
std::string WhyInfeasible(const Predictor& predictor, const Json& ds_config);

// Whether `error` says that the engine does not run such a config, and not that something broke.
bool IsRefusal(const Error& error);

}  // namespace dsat

#endif  // DSAT_PROFILER_PREDICTOR_H_
