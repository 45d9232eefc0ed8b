// The knowledge of a search: what it was told, and what follows from that. Its phases
// (searcher/search/phases.h) and the verdict (searcher/search/verdict.h) read it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "methods/method.h"
#include "profiler/predictor.h"
#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/search/confirm.h"
#include "searcher/search/proposer.h"

namespace dsat {

// The conclusions of a search, beyond its measurements.
struct Findings {
  std::vector<TrialId> finalists;  // The best configurations in the method's opinion, best first.
  Conclusion conclusion;           // Its finalists are tags of the method.
  std::map<TrialId, double> speeds = {};  // conclusion.speeds by trial.
};

// Adds what the profile says of the trainer's arguments to the submitted config, if the space is a
// wide one, except for those that the user gives or searches otherwise.
void AddTrainer(const ModelProfile& profile, ExperimentSpec& spec);

struct SearchState {
  ExperimentSpec spec;
  std::map<TrialId, Trial> trials;
  std::set<TrialId> running;
  std::vector<TrialId> reruns;  // All trials that measure a configuration again, in their order.
  // The last trial of the submitted configuration, and the first one that was asked for after its
  // end; 0 before.
  std::optional<TrialId> submitted;
  TrialId first_after_submitted = 0;
  // Trials that were stopped because the search had ended; it may continue.
  std::set<TrialId> withdrawn;
  std::string end_reason;  // Why the search asks its method no more; "" while it may.
  // Rounds were asked for without more time: --max-time and --max-device-hours do not count.
  bool ignores_limits = false;
  // These are set together, once the profile is known.
  std::optional<ModelProfile> profile;
  std::optional<SearchSpace> space;
  std::string misfit_by_dry_run;  // SubmittedMisfit, if it is a dry run's.
  std::unique_ptr<Proposer> proposer;
  const Recorded* recorded = nullptr;  // The next proposal of its method, in a replay.
  // The confirmation of which a trial has started, and what those before it have left out.
  std::optional<Confirmation> confirmation;
  std::map<TrialId, std::string> left_out;
  // How many trials had dropped out when the method last tried a configuration.
  size_t num_forgiven = 0;
  std::unique_ptr<Predictor> predictor;         // It is made when it is first asked.
  std::map<std::string, std::string> verdicts;  // Its answers, by effective configuration.

  // Whether two given configurations are compared (dsat check), and nothing is searched.
  bool Compares() const { return !spec.candidate.is_null(); }
  // Whether the limits allow another trial that runs beside those that run now.
  bool HasCapacity() const;
  // The spec whose ds_config the profiling trial runs: as submitted or, after trials that did not
  // fit, with less and less device memory: at ZeRO stage 3, with activation checkpointing (of the
  // built-in engine), and with parameters and optimizer states in host memory. nullopt if all of
  // these did not fit; with --compat determined only the first one is tried.
  std::optional<ExperimentSpec> ProfiledSpec() const;
  // Why the submitted configuration was not profiled: it did not fit, or its tensors alone do not
  // by a dry run. "" if it fit.
  std::string SubmittedMisfit() const;
  void SetProfile(const ModelProfile& learned, const std::optional<SearchSpace>& given);
  // Why the draft cannot run by an exact prediction, "" if it may. Throws what MakePredictor
  // throws.
  std::string Misfit(const Draft& draft);

  // The trial with the best metric so far; trials that run again and profiling excluded; ties keep
  // the first. It is the luckiest of many measurements: a result is a verdict.
  std::optional<TrialId> Best() const;
  Findings Find() const;
  // The config of a trial, with the batch sizes of its best point if it has one.
  Json BestConfigOf(TrialId id) const;
  // A trial that runs the configuration of trial `of` again, without its number: as BestConfigOf.
  Trial RunAgain(TrialKind kind, TrialId of) const;
  // The trials whose configuration a later run has shown to be no answer, each with the reason: it
  // is infeasible when it runs again, or a confirmation has left it out.
  std::map<TrialId, std::string> Dropped() const;
  // Whether so many have dropped out that something else must be wrong.
  bool HasLostMany() const;
  // Whether the trial has succeeded and not dropped out.
  bool MayWin(const std::optional<TrialId>& id) const;
  // Why no configuration that was measured can be the answer, "" if one can.
  std::string WhyNoAnswer() const;
  // Whether the end of a confirm trial says little: it ran out of memory for the first time, and
  // the configuration had needed far less than there is. Another process may have taken the rest.
  bool IsForgiven(const Trial& run) const;
  // The trial that has soaked the configuration of trial `of`, if one has.
  std::optional<TrialId> SoakOf(TrialId of) const;
  // The slot-seconds that trials have used, from their recorded times.
  double SlotSeconds() const;
  // The seconds that --max-time and --max-device-hours leave after the last recorded time of a
  // trial; infinite without them.
  double SecondsLeft() const;
  // How long a launch of the configuration of trial `of` takes: as its last confirm trial, or its
  // own trial by the number of points. 0 if no times are known.
  double LaunchSeconds(TrialId of) const;
  // How long the training to come takes; 0 if no times are known.
  double TrainingSeconds() const;
  // Whether the trial was measured while no other one ran.
  bool RanAlone(TrialId id) const;
  LaunchNoise Noise() const;

 private:
  bool NeedsWhatRanOut(const Trial& trial) const;
};

}  // namespace dsat
