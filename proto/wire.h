// Our structs as protobuf messages and back: the one place that knows both.
//
// FromProto checks what a peer sent and throws kInvalidArgument naming the field; ToProto replaces
// bytes that are no UTF-8 (a reason may quote a log), because protobuf's strings must be.
#ifndef DSAT_PROTO_WIRE_H_
#define DSAT_PROTO_WIRE_H_

#include <string>

#include "dsat.pb.h"
#include "proto/client.h"
#include "proto/trial.h"

namespace dsat {

// The metadata key of the token that every call carries.
inline constexpr char kTokenKey[] = "dsat-token";

v1::Measurement ToProto(const Measurement& measurement);
v1::Point ToProto(const Point& point);
v1::PointResult ToProto(const PointResult& result);
v1::ModelProfile ToProto(const ModelProfile& profile);
v1::AttemptRef ToProto(const AttemptRef& attempt);
v1::Trial ToProto(const Trial& trial);

// Every metric known, finite and not negative.
Measurement FromProto(const v1::Measurement& measurement);
// Both numbers at least 1.
Point FromProto(const v1::Point& point);
PointResult FromProto(const v1::PointResult& result);
// As ProfileFromJson.
ModelProfile FromProto(const v1::ModelProfile& profile);
AttemptRef FromProto(const v1::AttemptRef& attempt);
Trial FromProto(const v1::Trial& trial);

// `text` with every byte that is not part of valid UTF-8 replaced by '?'.
std::string ValidUtf8(const std::string& text);

}  // namespace dsat

#endif  // DSAT_PROTO_WIRE_H_
