// Converts our structs to protobuf messages and back.
#include "proto/wire.h"

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace dsat {

std::string ProfileText(const std::optional<ModelProfile>& profile) {
  return profile ? ToJson(*profile).dump() : "";
}

std::optional<ModelProfile> ProfileFromText(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) Throw(ErrorCode::kInvalidArgument, "profile_json is not JSON: {}", text);
  return ProfileFromJson(json, "profile");
}

v1::Measurement ToProto(const Measurement& measurement) {
  v1::Measurement proto;
  for (const auto& [name, metric] : measurement) {
    v1::Metric& out = (*proto.mutable_metrics())[name];
    out.set_value(metric.value);
    out.set_spread(metric.spread);
    out.set_samples(metric.samples);
  }
  return proto;
}

v1::Point ToProto(const Point& point) {
  v1::Point proto;
  proto.set_micro_batch_size(point.micro_batch_size);
  proto.set_accumulation_steps(point.accumulation_steps);
  return proto;
}

v1::PointResult ToProto(const PointResult& result) {
  v1::PointResult proto;
  *proto.mutable_point() = ToProto(result.point);
  *proto.mutable_measurement() = ToProto(result.measurement);
  proto.mutable_losses()->Assign(result.losses.begin(), result.losses.end());
  proto.mutable_rank_peak_bytes()->Assign(result.rank_peak_bytes.begin(),
                                          result.rank_peak_bytes.end());
  return proto;
}

v1::AttemptRef ToProto(const AttemptRef& attempt) {
  v1::AttemptRef proto;
  proto.set_experiment(attempt.experiment);
  proto.set_trial(attempt.trial);
  proto.set_attempt(attempt.attempt);
  return proto;
}

v1::Trial ToProto(const Trial& trial) {
  v1::Trial proto;
  proto.set_id(trial.id);
  proto.set_kind(ToString(trial.kind));
  proto.set_state(ToString(trial.state));
  proto.set_assignment_json(Json(trial.assignment).dump());
  proto.set_ds_config_json(trial.ds_config.dump());
  proto.set_reason(ValidUtf8(trial.reason));
  for (const PointResult& result : trial.points)
    *proto.add_points() = ToProto(result);
  proto.set_profile_json(ProfileText(trial.profile));
  return proto;
}

Measurement FromProto(const v1::Measurement& measurement) {
  Measurement value;
  for (const auto& [name, metric] : measurement.metrics())
    value[name] = {metric.value(), metric.spread(), metric.samples()};
  return MeasurementFromJson(ToJson(value), "measurement");
}

Point FromProto(const v1::Point& point) {
  if (point.micro_batch_size() < 1 || point.accumulation_steps() < 1) {
    Throw(ErrorCode::kInvalidArgument,
          "point: micro_batch_size is {}, accumulation_steps is {}; expected both to be at least 1",
          point.micro_batch_size(), point.accumulation_steps());
  }
  return {point.micro_batch_size(), point.accumulation_steps()};
}

PointResult FromProto(const v1::PointResult& result) {
  return {FromProto(result.point()),
          FromProto(result.measurement()),
          {result.losses().begin(), result.losses().end()},
          {result.rank_peak_bytes().begin(), result.rank_peak_bytes().end()}};
}

AttemptRef FromProto(const v1::AttemptRef& attempt) {
  return {attempt.experiment(), attempt.trial(), attempt.attempt()};
}

}  // namespace dsat
