// The events of an experiment's log, to and from JSON.
#include "db/event.h"

#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace dsat {
namespace {

// Runs `read` on the payload. A payload that does not fit its kind is damaged.
template <typename Read>
auto ReadPayload(const Event& event, const Read& read) {
  std::string what;
  try {
    return read(event.payload);
  } catch (const Json::exception& error) {
    what = JsonMessage(error);
  } catch (const Error& error) {
    what = error.what();
  }
  Throw(ErrorCode::kDataLoss, "event {} ({}, trial {}): {}", event.seq, ToString(event.kind),
        event.trial, what);
}

std::optional<int64_t> OptionalInteger(const Json& payload, const char* key) {
  return payload.contains(key) ? std::optional(IntegerIn(payload.at(key))) : std::nullopt;
}

std::optional<double> OptionalNumber(const Json& payload, const char* key) {
  return payload.contains(key) ? std::optional(payload.at(key).get<double>()) : std::nullopt;
}

template <typename T>
void WriteOptional(Json& payload, const char* key, const std::optional<T>& value) {
  if (value) payload[key] = *value;
}

}  // namespace

Event AskedEvent(const Trial& trial) {
  Json payload{{"kind", ToString(trial.kind)},
               {"assignment", trial.assignment},
               {"ds_config", trial.ds_config}};
  WriteOptional(payload, "confirms", trial.confirms);
  if (trial.give_up_below > 0) payload["give_up_below"] = trial.give_up_below;
  if (trial.steps > 0) payload["steps"] = trial.steps;
  return {0, EventKind::kAsked, trial.id, std::move(payload)};
}

Event AnsweredEvent(const Answered& answered) {
  Json payload{{"assignment", answered.assignment}};
  if (!answered.reason.empty()) payload["reason"] = ValidUtf8(answered.reason);
  return {0, EventKind::kAnswered, answered.trial.value_or(-1), std::move(payload)};
}

Event AttemptStartedEvent(TrialId trial, int64_t attempt, const std::string& log_dir) {
  return {0, EventKind::kAttemptStarted, trial, Json{{"attempt", attempt}, {"log_dir", log_dir}}};
}

Event MeasuredEvent(TrialId trial, int64_t attempt, const std::optional<PointResult>& result,
                    const std::optional<ModelProfile>& profile) {
  Json payload{{"attempt", attempt}};
  if (result) {
    payload["point"] = {{"micro_batch_size", result->point.micro_batch_size},
                        {"accumulation_steps", result->point.accumulation_steps}};
    payload["measurement"] = ToJson(result->measurement);
    if (!result->losses.empty()) payload["losses"] = result->losses;
    if (!result->rank_peak_bytes.empty()) payload["rank_peak_bytes"] = result->rank_peak_bytes;
    if (result->by_hook) payload["by_hook"] = true;
  }
  if (profile) payload["profile"] = ToJson(*profile);
  return {0, EventKind::kMeasured, trial, std::move(payload)};
}

Event AttemptEndedEvent(TrialId trial, int64_t attempt, const Outcome& outcome,
                        const std::string& log_tail) {
  return {0, EventKind::kAttemptEnded, trial,
          Json{{"attempt", attempt},
               {"state", ToString(outcome.state)},
               {"reason", ValidUtf8(outcome.reason)},
               {"log_tail", ValidUtf8(log_tail)}}};
}

Event ToldEvent(TrialId trial, const Outcome& outcome, const std::optional<SearchSpace>& space,
                const TrialTimes& times) {
  Json payload{{"state", ToString(outcome.state)}, {"reason", ValidUtf8(outcome.reason)}};
  if (times.started_s > 0) payload["started_s"] = times.started_s;
  if (times.ended_s > 0) payload["ended_s"] = times.ended_s;
  if (times.others > 0) payload["others"] = times.others;
  if (space) payload["space"] = ToJson(*space);
  return {0, EventKind::kTold, trial, std::move(payload)};
}

Event SearchEndedEvent(const std::string& reason) {
  return {0, EventKind::kSearchEnded, -1, Json{{"reason", ValidUtf8(reason)}}};
}

Event LimitsRaisedEvent(const LimitsRaised& limits, const SearchOptions& was) {
  Json payload{{"was", {{"max_trials", was.max_trials}}}};
  WriteOptional(payload["was"], "max_time_s", was.max_time_s);
  WriteOptional(payload["was"], "max_device_hours", was.max_device_hours);
  payload["was"]["confirm_rounds"] = was.confirm_rounds;
  WriteOptional(payload, "max_trials", limits.max_trials);
  WriteOptional(payload, "max_time_s", limits.max_time_s);
  WriteOptional(payload, "max_device_hours", limits.max_device_hours);
  WriteOptional(payload, "confirm_rounds", limits.confirm_rounds);
  return {0, EventKind::kLimitsRaised, -1, std::move(payload)};
}

Event StateChangedEvent(ExperimentState state, const std::string& reason,
                        std::optional<TrialId> pick) {
  Json payload{{"state", ToString(state)}, {"reason", ValidUtf8(reason)}};
  WriteOptional(payload, "pick", pick);
  return {0, EventKind::kStateChanged, -1, std::move(payload)};
}

Trial AskedTrial(const Event& event) {
  return ReadPayload(event, [&event](const Json& payload) {
    Trial trial;
    trial.id = event.trial;
    trial.kind = Parse<TrialKind>(payload.at("kind").get<std::string>());
    trial.assignment = AssignmentFromJson(payload.at("assignment"));
    trial.ds_config = payload.at("ds_config");
    trial.confirms = OptionalInteger(payload, "confirms");
    trial.give_up_below = payload.value("give_up_below", 0.0);
    trial.steps = IntegerIn(payload.value("steps", Json(0)));
    return trial;
  });
}

Answered AnsweredOf(const Event& event) {
  return ReadPayload(event, [&event](const Json& payload) {
    return Answered{AssignmentFromJson(payload.at("assignment")), payload.value("reason", ""),
                    event.trial < 0 ? std::nullopt : std::optional(event.trial)};
  });
}

std::optional<SearchSpace> ToldSpace(const Event& event) {
  return ReadPayload(event, [](const Json& payload) -> std::optional<SearchSpace> {
    if (!payload.contains("space")) return std::nullopt;
    return SearchSpaceFromJson(payload.at("space"));
  });
}

int64_t AttemptOf(const Event& event) {
  return ReadPayload(event, [](const Json& payload) { return IntegerIn(payload.at("attempt")); });
}

std::string TextOf(const Event& event, const char* key) {
  return ReadPayload(event,
                     [key](const Json& payload) { return payload.at(key).get<std::string>(); });
}

std::optional<PointResult> MeasuredPoint(const Event& event) {
  return ReadPayload(event, [](const Json& payload) -> std::optional<PointResult> {
    if (!payload.contains("point")) return std::nullopt;
    const Json& point = payload.at("point");
    return PointResult{
        {IntegerIn(point.at("micro_batch_size")), IntegerIn(point.at("accumulation_steps"))},
        MeasurementFromJson(payload.at("measurement"), "measurement"),
        LossesFromJson(payload.value("losses", Json::array())),
        IntegersIn(payload.value("rank_peak_bytes", Json::array())),
        payload.value("by_hook", false)};
  });
}

std::optional<ModelProfile> MeasuredProfile(const Event& event) {
  return ReadPayload(event, [](const Json& payload) -> std::optional<ModelProfile> {
    if (!payload.contains("profile")) return std::nullopt;
    return ProfileFromJson(payload.at("profile"), "profile");
  });
}

Outcome OutcomeOf(const Event& event) {
  return ReadPayload(event, [](const Json& payload) {
    return Outcome{Parse<TrialState>(payload.at("state").get<std::string>()),
                   payload.at("reason").get<std::string>()};
  });
}

TrialTimes ToldTimes(const Event& event) {
  return ReadPayload(event, [](const Json& payload) {
    return TrialTimes{payload.value("started_s", 0.0), payload.value("ended_s", 0.0),
                      payload.value("others", 0.0)};
  });
}

LimitsRaised LimitsOf(const Event& event) {
  return ReadPayload(event, [](const Json& payload) {
    return LimitsRaised{
        OptionalInteger(payload, "max_trials"), OptionalNumber(payload, "max_time_s"),
        OptionalNumber(payload, "max_device_hours"), OptionalInteger(payload, "confirm_rounds")};
  });
}

void UndoLimits(const Event& event, SearchOptions& options) {
  ReadPayload(event, [&options](const Json& payload) {
    const Json& was = payload.at("was");
    options.max_trials = IntegerIn(was.at("max_trials"));
    options.max_time_s = OptionalNumber(was, "max_time_s");
    options.max_device_hours = OptionalNumber(was, "max_device_hours");
    if (const auto rounds = OptionalInteger(was, "confirm_rounds"))
      options.confirm_rounds = *rounds;
  });
}

std::optional<TrialId> PickOf(const Event& event) {
  return ReadPayload(event, [](const Json& payload) { return OptionalInteger(payload, "pick"); });
}

ExperimentState StateOf(const Event& event) {
  return ReadPayload(event, [](const Json& payload) {
    return Parse<ExperimentState>(payload.at("state").get<std::string>());
  });
}

}  // namespace dsat
