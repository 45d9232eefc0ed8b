// The events of an experiment's log and their JSON form.
//
// Functions that write and read payloads are in one place, which alone knows the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/enum_names.h"
#include "base/json.h"
#include "proto/experiment.h"
#include "proto/trial.h"

namespace dsat {

enum class ExperimentState { kActive, kCompleted, kFailed, kStopped };
constexpr EnumNames<ExperimentState, 4> NamesOf(ExperimentState) {
  return {"experiment state",
          {{{ExperimentState::kActive, "active"},
            {ExperimentState::kCompleted, "completed"},
            {ExperimentState::kFailed, "failed"},
            {ExperimentState::kStopped, "stopped"}}}};
}

enum class EventKind {
  // A trial was created. payload: kind, assignment, ds_config; confirms?, of a trial that runs
  // another's configuration again; steps?, of a soak trial; give_up_below?
  kAsked,
  // A proposal of the method needs no trial: the event's trial has an equal configuration, or the
  // proposal cannot run and the trial is -1. payload: assignment; reason?, why it cannot run
  kAnswered,
  kAttemptStarted,  // A launch began. payload: attempt, log_dir
  // Something was measured. payload: attempt, (point, measurement, losses?, rank_peak_bytes?,
  // by_hook?)?,
  // profile?
  kMeasured,
  kAttemptEnded,  // A launch ended. payload: attempt, state, reason, log_tail
  // The trial's end, as the method is told. payload: state, reason; started_s?, ended_s?, others?
  // (TrialTimes); space?, the search space that was built from the profile
  kTold,
  // The trial is -1 in the following ones.
  // The method is asked for no more trials. payload: reason
  kSearchEnded,
  // The experiment continues with new limits. payload: as LimitsRaised, each key?; was, the limits
  // before the event
  kLimitsRaised,
  kStateChanged,  // The experiment's state. payload: state, reason; pick?, the trial to use
};
constexpr EnumNames<EventKind, 9> NamesOf(EventKind) {
  return {"event kind",
          {{{EventKind::kAsked, "asked"},
            {EventKind::kAnswered, "answered"},
            {EventKind::kAttemptStarted, "attempt_started"},
            {EventKind::kMeasured, "measured"},
            {EventKind::kAttemptEnded, "attempt_ended"},
            {EventKind::kTold, "told"},
            {EventKind::kSearchEnded, "search_ended"},
            {EventKind::kLimitsRaised, "limits_raised"},
            {EventKind::kStateChanged, "state_changed"}}}};
}

struct Event {
  int64_t seq = 0;  // 1, 2, 3 ... within the experiment; set by Append.
  EventKind kind = EventKind::kAsked;
  TrialId trial = -1;
  Json payload = Json::object();
};

Event AskedEvent(const Trial& trial);
Event AnsweredEvent(const Answered& answered);
Event AttemptStartedEvent(TrialId trial, int64_t attempt, const std::string& log_dir);
Event MeasuredEvent(TrialId trial, int64_t attempt, const std::optional<PointResult>& result,
                    const std::optional<ModelProfile>& profile);
Event AttemptEndedEvent(TrialId trial, int64_t attempt, const Outcome& outcome,
                        const std::string& log_tail);
Event ToldEvent(TrialId trial, const Outcome& outcome,
                const std::optional<SearchSpace>& space = std::nullopt,
                const TrialTimes& times = {});
Event SearchEndedEvent(const std::string& reason);
Event LimitsRaisedEvent(const LimitsRaised& limits, const SearchOptions& was = {});
Event StateChangedEvent(ExperimentState state, const std::string& reason,
                        std::optional<TrialId> pick = std::nullopt);

// Readers of payloads. Throw kDataLoss naming the event if a key is missing or of another type.
Trial AskedTrial(const Event& event);                             // kAsked
Answered AnsweredOf(const Event& event);                          // kAnswered
int64_t AttemptOf(const Event& event);                            // kAttemptStarted ... Ended
std::string TextOf(const Event& event, const char* key);          // Any text of a payload.
std::optional<PointResult> MeasuredPoint(const Event& event);     // kMeasured
std::optional<ModelProfile> MeasuredProfile(const Event& event);  // kMeasured
Outcome OutcomeOf(const Event& event);                            // kAttemptEnded, kTold
std::optional<SearchSpace> ToldSpace(const Event& event);         // kTold
TrialTimes ToldTimes(const Event& event);                         // kTold
LimitsRaised LimitsOf(const Event& event);                        // kLimitsRaised
// Sets the limits of `options` to those before the event.
void UndoLimits(const Event& event, SearchOptions& options);  // kLimitsRaised
ExperimentState StateOf(const Event& event);                  // kStateChanged
std::optional<TrialId> PickOf(const Event& event);            // kStateChanged

}  // namespace dsat
