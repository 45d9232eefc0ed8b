// auto's belief about device memory: which configurations fit, with what probability.
//
// The need of a configuration is linear in a few unknown factors: of the forecast states of each
// stage, of communication buffers, of activations, a constant, and the part that stays of what
// checkpointing is predicted to save. A measured peak says what the need is. What the device cannot
// give beyond that (context, collectives, the allocator's reserve) is one more unknown, which fits
// and misfits bound.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "methods/auto_factors.h"
#include "methods/auto_space.h"

namespace dsat {

class AutoMemory {
 public:
  explicit AutoMemory(const SearchSpace& space);

  // Takes the factors of an earlier search of this belief as a prior; `widen` is by how much their
  // standard deviations grow, because the model or the machine may differ. Factors that are a share
  // of other forecasts hold for these, too.
  void Inherit(const AutoMemory& earlier, double widen);

  // A configuration ran with this peak, in bytes; 0 if it was not measured.
  void Fitted(const AutoConfig& config, double peak_bytes);
  // A configuration was infeasible; `reason` is what the trial says. False: it cannot have been the
  // memory.
  bool DidNotFit(const AutoConfig& config, const std::string& reason);
  // Whether a misfit is so far below the limit, by the peak that it reached or by the belief, that
  // something else may have used the device; 0: the peak is unknown.
  bool IsDoubtful(const AutoConfig& config, double peak_bytes) const;

  double ProbabilityFits(const AutoConfig& config) const {
    return factors_.ProbabilityBelow(Need(config), 1);
  }
  // The expected peak as a share of the device.
  double Share(const AutoConfig& config) const { return factors_.MeanOf(Row(config)); }
  // ProbabilityFits at the first of these ascending micro-batch sizes, up to those that certainly
  // do not fit; what certainly fits has 1.
  std::vector<double> ProbabilitiesFit(const AutoConfig& config,
                                       const std::vector<int64_t>& sizes) const;
  // Whether a configuration that needs no more than this one did not fit: at the same stage and
  // switches, with at most the same sizes.
  bool IsRuledOut(const AutoConfig& config) const;
  // The logarithm of the probability of what was told, beforehand.
  double log_evidence() const { return factors_.log_evidence() + other_evidence_; }

 private:
  using Vector = AutoFactors::Vector;

  // The forecasts of one place, as shares of the device.
  struct Place {
    bool is_refused = false;                     // The engine does not run this place.
    double state = 0;                            // The need between steps, without buffers.
    double submitted_buffers = 0;                // A part of the forecasts.
    std::vector<std::array<double, 2>> samples;  // Micro-batch size, activations.
    size_t most_activations = 0;                 // The place of the same stage that has the most.
  };

  AutoFactors Prior() const;
  Place PlaceOf(const StageSpace& stage) const;
  // Whether the forecasts have the buffers that are really used, and not those of the formulas.
  bool HasBuffers() const { return space_.exact || space_.tracked; }
  double Buffers(int stage, const AutoKnobs& knobs) const;
  double Activations(const Place& place, double micro_batch) const;
  void SetActivations(const AutoConfig& config, int64_t micro_batch, Vector& row) const;
  Vector Row(const AutoConfig& config) const;   // The peak that a trial reports.
  Vector Need(const AutoConfig& config) const;  // Besides, what no peak counts.
  // The distance to the limit in standard deviations.
  double Margin(const Vector& row, double limit) const {
    return (limit - factors_.MeanOf(row)) / factors_.SdOf(row);
  }

  SearchSpace space_;
  bool has_capacity_ = false;
  std::vector<Place> places_;
  AutoFactors factors_;         // In the order of AutoPriors::Memory.
  int surprises_in_a_row_ = 0;  // Misfits that were believed to fit, without a fit between them.
  double other_evidence_ = 0;   // From misfits that were not the memory's.
  std::vector<AutoConfig> did_not_fit_;
};

}  // namespace dsat
