// Converts our structs to protobuf messages and back.
//
// FromProto checks what a peer has sent and throws kInvalidArgument naming the field. ToProto
// replaces invalid UTF-8 (a reason may quote a log), which protobuf's strings do not allow.
#pragma once

#include <string>

#include "dsat.pb.h"
#include "proto/client.h"
#include "proto/trial.h"

namespace dsat {

// The fields profile_json: "" without a profile. ProfileFromText throws as ProfileFromJson.
std::string ProfileText(const std::optional<ModelProfile>& profile);
std::optional<ModelProfile> ProfileFromText(const std::string& text);

v1::Measurement ToProto(const Measurement& measurement);
v1::Point ToProto(const Point& point);
v1::PointResult ToProto(const PointResult& result);
v1::AttemptRef ToProto(const AttemptRef& attempt);
v1::Trial ToProto(const Trial& trial);

// Every metric must be known, finite and not negative.
Measurement FromProto(const v1::Measurement& measurement);
// Both numbers must be at least 1.
Point FromProto(const v1::Point& point);
PointResult FromProto(const v1::PointResult& result);
AttemptRef FromProto(const v1::AttemptRef& attempt);

}  // namespace dsat
