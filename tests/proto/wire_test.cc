// Converts structs to protobuf and back, and tests the addresses that clients and servers accept.
#include "proto/wire.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/error.h"
#include "proto/client.h"
#include "tests/base/error_code.h"
#include "tests/proto/trial_from_proto.h"

namespace dsat {
namespace {

Trial FullTrial() {
  Trial trial;
  trial.id = 7;
  trial.kind = TrialKind::kProfile;
  trial.assignment = {{"/zero_optimization/stage", 2}, {"/zero_optimization/overlap_comm", true}};
  trial.ds_config = Json::parse(R"({"train_micro_batch_size_per_gpu": 4, "x": {"y": [1, 2.5]}})");
  trial.state = TrialState::kSucceeded;
  trial.reason = "größer";
  trial.points = {{{4, 2}, {{"throughput", {12.5, 0.25, 3}}, {"latency", {640, 1, 3}}}},
                  {{8, 1}, {{"throughput", {13.5, 0.5, 2}}}}};
  trial.points[1].losses = {4.5, std::numeric_limits<double>::infinity()};
  trial.points[1].rank_peak_bytes = {100, 200};
  trial.profile = ModelProfile{124, 123, 4096, 1 << 30, 99, 77, 55, 44, 33, 22, 66, 11, 12};
  return trial;
}

// Converts through the serialized bytes, not only through the objects.
template <typename Proto>
Proto OverTheWire(const Proto& proto) {
  Proto read;
  EXPECT_TRUE(read.ParseFromString(proto.SerializeAsString()));
  return read;
}

TEST(WireTest, ATrialComesBackWhole) {
  const Trial trial = FullTrial();
  const Trial back = TrialFromProto(OverTheWire(ToProto(trial)));
  EXPECT_EQ(back.id, 7);
  EXPECT_EQ(back.kind, TrialKind::kProfile);
  EXPECT_EQ(back.state, TrialState::kSucceeded);
  EXPECT_EQ(back.reason, "größer");
  EXPECT_EQ(back.assignment, trial.assignment);
  EXPECT_EQ(back.ds_config, trial.ds_config);
  ASSERT_EQ(back.points.size(), 2u);
  EXPECT_EQ(back.points[0].point.micro_batch_size, 4);
  EXPECT_EQ(back.points[0].point.accumulation_steps, 2);
  EXPECT_EQ(back.points[0].measurement.at("throughput").value, 12.5);
  EXPECT_EQ(back.points[0].measurement.at("throughput").spread, 0.25);
  EXPECT_EQ(back.points[0].measurement.at("throughput").samples, 3);
  EXPECT_EQ(back.points[0].measurement.at("latency").value, 640);
  EXPECT_EQ(back.points[1].point.micro_batch_size, 8);
  EXPECT_TRUE(back.points[0].losses.empty());
  EXPECT_EQ(back.points[1].losses, trial.points[1].losses);
  EXPECT_EQ(back.points[1].rank_peak_bytes, trial.points[1].rank_peak_bytes);
  ASSERT_TRUE(back.profile.has_value());
  EXPECT_EQ(back.profile->num_params, 124);
  EXPECT_EQ(back.profile->trainable_num_params, 123);
  EXPECT_EQ(back.profile->activation_bytes_per_sample, 4096);
  EXPECT_EQ(back.profile->device_memory_bytes, 1 << 30);
  EXPECT_EQ(back.profile->forward_flops_per_sample, 99);
  EXPECT_EQ(back.profile->two_units_num_params, 77);
  EXPECT_EQ(back.profile->matmul_flops_per_s, 55);
  EXPECT_EQ(back.profile->copy_bytes_per_s, 44);
  EXPECT_EQ(back.profile->to_device_bytes_per_s, 33);
  EXPECT_EQ(back.profile->to_host_bytes_per_s, 22);
  EXPECT_EQ(back.profile->link_bytes_per_s, 66);
  EXPECT_EQ(back.profile->micro_batch_1_peak_bytes, 11);
  EXPECT_EQ(back.profile->micro_batch_2_peak_bytes, 12);
}

TEST(WireTest, WhatATrialLacksIsLackingOnTheOtherSide) {
  Trial trial;
  trial.ds_config = Json::object();
  const Trial back = TrialFromProto(OverTheWire(ToProto(trial)));
  EXPECT_TRUE(back.points.empty());
  EXPECT_FALSE(back.profile.has_value());
  EXPECT_TRUE(back.assignment.empty());
  EXPECT_EQ(back.state, TrialState::kRunning);
}

TEST(WireTest, AReasonThatIsNotUtf8StillArrives) {
  Trial trial = FullTrial();
  trial.reason = "log said \xff\xfe, then \xc3\xa9 and \xe2\x82";
  EXPECT_EQ(TrialFromProto(OverTheWire(ToProto(trial))).reason,
            "log said \uFFFD\uFFFD, then \xc3\xa9 and \uFFFD");
}

TEST(WireTest, MetricsThatCannotBeAreRefused) {
  const auto with = [](const std::string& name, double value) {
    v1::Measurement proto;
    (*proto.mutable_metrics())[name].set_value(value);
    (*proto.mutable_metrics())[name].set_samples(1);
    return proto;
  };
  EXPECT_EQ(CodeOf([&] { FromProto(with("throughput", 1)); }), std::nullopt);
  EXPECT_EQ(CodeOf([&] { FromProto(with("speed", 1)); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf([&] { FromProto(with("throughput", -1)); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      CodeOf([&] { FromProto(with("throughput", std::numeric_limits<double>::quiet_NaN())); }),
      ErrorCode::kInvalidArgument);
}

TEST(WireTest, APointBelowOneIsRefused) {
  v1::Point point;
  point.set_micro_batch_size(1);
  EXPECT_EQ(CodeOf([&] { FromProto(point); }), ErrorCode::kInvalidArgument);
  point.set_accumulation_steps(1);
  EXPECT_EQ(FromProto(point).accumulation_steps, 1);
}

TEST(WireTest, AProfileWithoutParametersIsRefused) {
  ModelProfile profile{10, 10, 10, 10, 0, 0};
  EXPECT_EQ(ProfileFromText(ProfileText(profile))->num_params, 10);
  profile.num_params = 0;
  EXPECT_EQ(CodeOf([&] { ProfileFromText(ProfileText(profile)); }), ErrorCode::kInvalidArgument);
}

TEST(WireTest, AStateNobodyKnowsIsRefused) {
  v1::Trial trial = ToProto(FullTrial());
  trial.set_state("happy");
  EXPECT_EQ(CodeOf([&] { TrialFromProto(trial); }), ErrorCode::kInvalidArgument);
}

TEST(ClientTest, NobodyListeningIsUnavailable) {
  TrialClient client = TrialClient::Connect("unix:/nonexistent/socket", "", {1, 2, 3});
  EXPECT_EQ(CodeOf([&] { client.Progress(0, 1); }), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace dsat
