// A simulated device: the end of a trial is a function of its configuration. It runs searches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "proto/experiment.h"
#include "proto/trial.h"
#include "searcher/search/search.h"

namespace dsat {

// The arguments of Search::Tell.
struct Ending {
  Outcome outcome;
  std::vector<PointResult> points;
  std::optional<ModelProfile> profile;
};

using EndTrial = std::function<Ending(const Trial&)>;

ModelProfile SimulatedProfile();

// A spec for two ranks without a profile, whose space no search below exhausts.
ExperimentSpec SimulatedSpec(const std::string& method);

// A binary search by throughput of ten trials, one at a time, with a confirmation of `rounds`.
ExperimentSpec ConfirmedSpec(int64_t rounds = 3);

Ending Success(const Trial& trial, double value);  // Every metric has this value.
Ending Failure(TrialState state);
Ending AllSucceed(const Trial& trial);  // The metric is the trial's number.

// Out of memory beyond a micro-batch size that depends on the stage; otherwise a throughput with a
// peak below that size, as every metric. With `flaky`, some configurations crash or are stopped.
Ending OnDevice(const Trial& trial, bool flaky);

// The speed of a trial in the search is a lucky draw; measured again, it is `truth`.
using SpeedOfTrial = std::function<double(const Trial&)>;
EndTrial Device(SpeedOfTrial lucky, SpeedOfTrial truth);
// Trials that confirm differ by up to a factor, without a winner.
EndTrial NoisyDevice(double factor);

// The number of trials of this kind.
int64_t NumOf(const Search& search, TrialKind kind);

void Tell(Search& search, TrialId id, const Ending& ending);

// One event of a search: a proposal that was answered without a trial, a trial that was asked for,
// or the end that the search was told.
struct SearchEvent {
  TrialId trial = 0;
  Json asked;  // The trial's config; null for a tell.
  Ending ending;
  std::optional<Answered> answered = {};
};

// Asks until there is no trial, then ends a random running trial (`order`), until the search has
// finished.
std::vector<SearchEvent> RunToEnd(Search& search, const EndTrial& end, uint64_t order = 1);

}  // namespace dsat
