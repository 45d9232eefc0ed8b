// Checks whether a configuration trains like the submitted one: compares their losses step by step,
// on the same samples from the same start.
//
// The difference is the median over the steps, because rounding errors grow with the steps and make
// single ones stand out, while a defect shows in most of them. It may be as large as
//   - the noise of runs allows: the losses of several runs of the submitted configuration give its
//     standard deviation, and Student's t an interval. Another start or other samples shift a whole
//     curve; therefore the degrees of freedom are those of the runs and not of the steps;
//   - rounding explains: a change of the order of sums changes each update by about the unit
//     roundoff of the precision of training, so that the losses differ by that part of what is
//     learned. docs/proof.md has measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/config/key_table.h"
#include "proto/trial.h"

namespace dsat {

struct SearchState;

using LossCurve = std::vector<double>;  // By optimizer step, from the first one on.

// Why losses were not compared if there are none.
inline constexpr char kNoLosses[] = "no losses are known";

// The causes of a difference of losses besides the noise of runs.
struct LossLimits {
  double unit_roundoff = 0;  // The precision of training: 2^-24 of f32, 2^-8 of bf16.
  // The most that the changed keys may do. What a semantic key changes may cost half of what the
  // submitted configuration learns in these steps.
  engine::KeyClass changes = engine::KeyClass::kRounding;
  // Whether random numbers may depend on how the batch is split, as those of a script's dropout do.
  // If the first losses differ, which no update has touched, the changes count as semantic.
  bool random_by_split = false;
  bool repeats = false;  // Runs repeat to the bit, so that one has no noise.
};

struct LossCheck {
  enum class Result { kNotChecked, kAlike, kDiffers };
  Result result = Result::kNotChecked;
  std::string why;        // kNotChecked: the reason.
  int64_t num_steps = 0;  // The steps that were compared.
  int64_t num_runs = 0;   // The runs of the submitted configuration.
  // The difference of the losses, as a part of them; infinite if some are not finite.
  double difference = 0;
  double allowed = 0;          // The same of the difference that is allowed.
  bool only_learning = false;  // Whether more than noise and rounding is allowed.
  // The most that the keys may do in which the configuration differs from the submitted one, and
  // the semantic ones of them, as JSON pointers. Known whether or not losses were compared; nullopt
  // of the submitted configuration itself.
  std::optional<engine::KeyClass> changes = {};
  std::vector<std::string> semantic_keys = {};
  int64_t num_changed_keys = 0;
};

// A pure function. `submitted` are curves of runs of one configuration. Compares the steps that all
// curves have, except those where the submitted configuration has no finite loss.
LossCheck CompareLosses(const std::vector<LossCurve>& submitted, const LossCurve& curve,
                        const LossLimits& limits);

// The runs of the submitted configuration with this global batch and known losses.
std::vector<const Trial*> SubmittedRuns(const SearchState& search, int64_t train_batch_size);

// Whether at least two runs of the submitted configuration have the same losses to the bit, and
// none has others. Then one run with another global batch says as much as several.
bool SubmittedRepeats(const SearchState& search);

// The comparison for a trial of `search` that has been measured and runs the configuration of
// trial soak.confirms.
LossCheck CheckLosses(const SearchState& search, const Trial& soak);
// The same of the configuration of trial `id`, by its soak if that has succeeded, and by its own
// launch otherwise. Without the comparison if the experiment wants none.
LossCheck CheckLossesOf(const SearchState& search, TrialId id);
// The same without the comparison: only what the configuration of trial `id` changes.
LossCheck NoLossCheck(const SearchState& search, TrialId id);

// "its losses differ by 3.1 % in 8 steps (0.02 % is allowed)", or why they were not compared.
std::string Describe(const LossCheck& check);
// Why a configuration with these losses is no answer.
std::string TrainsOtherwise(const LossCheck& check);
// "exact", "rounding" or "semantic".
std::string ToString(engine::KeyClass key_class);
// result ("not checked", "alike", "differs"), why, steps, runs, difference, allowed, only_learning,
// changes (a class or null), semantic_keys.
Json ToJson(const LossCheck& check);

// The losses of the trial's best point; empty if they are not known.
LossCurve LossesOf(const Trial& trial, const std::string& metric);
// The train_batch_size of a resolved ds_config.
int64_t GlobalBatch(const Json& ds_config);

}  // namespace dsat
