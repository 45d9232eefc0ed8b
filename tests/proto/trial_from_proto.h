// Reads the trials that ExperimentService answers with.
#pragma once

#include "base/json.h"
#include "proto/wire.h"

namespace dsat {

// Throws as FromProto for points and profiles, and if a state or a kind is none.
inline Trial TrialFromProto(const v1::Trial& trial) {
  Trial value;
  value.id = trial.id();
  value.kind = Parse<TrialKind>(trial.kind());
  value.state = Parse<TrialState>(trial.state());
  value.assignment = AssignmentFromJson(Json::parse(trial.assignment_json()));
  value.ds_config = Json::parse(trial.ds_config_json());
  value.reason = trial.reason();
  for (const v1::PointResult& result : trial.points())
    value.points.push_back(FromProto(result));
  value.profile = ProfileFromText(trial.profile_json());
  return value;
}

}  // namespace dsat
