// Tests which settings may change when a training continues a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/worker/training_checkpoints.h"

namespace dsat::engine {
namespace {

using testing::HasSubstr;

class RunRecordTest : public testing::Test {
 protected:
  RunRecordTest() {
    task_.model = {{"type", "gpt2"}, {"n_head", 2}, {"frozen", {"wte.*"}}};
    task_.data = {{"type", "tokens"}, {"path", {"a/1.bin", "a/2.bin"}}};
    task_.ds_config = {{"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.1}}}}}};
    config_.batch.train_batch_size = 8;
    manifest_.client_state["training"] = Record();
    manifest_.engine["train_batch_size"] = 8;
  }
  Json Record() const {
    Json record = RecordOf(task_, config_, *data_, 3);
    record["data"]["size"] = size_;
    return record;
  }
  std::string Changes() const { return ChangesSince(manifest_, Record(), "dir/tag"); }
  std::string Refusal() const {
    try {
      return "not refused: " + Changes();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
  }

  TrialTask task_;
  DsConfig config_;
  int64_t size_ = 100;
  CheckpointManifest manifest_;
  const std::unique_ptr<Dataset> data_ =
      OpenDataset({{"type", "synthetic"}, {"seq_len", 4}, {"vocab_size", 8}}, "", 1, "/data");
};

TEST_F(RunRecordTest, TheSameTrainingHasNoChanges) {
  EXPECT_EQ(Changes(), "");
}

TEST_F(RunRecordTest, SettingsMayChangeAndAreNamed) {
  task_.ds_config["optimizer"]["params"]["lr"] = 0.2;
  task_.ds_config["scheduler"] = {{"type", "WarmupLR"}};
  task_.ds_config["gradient_clipping"] = 1;
  config_.batch.train_batch_size = 16;
  config_.optimizer.type = "adam";  // It has the moments of AdamW.
  task_.model["frozen"].push_back("wpe.*");
  task_.model["weights"] = "model.safetensors";
  EXPECT_EQ(Changes(),
            "/gradient_clipping was not given and is 1; /model/frozen/1 was not given and is "
            "\"wpe.*\"; /model/weights was not given and is \"model.safetensors\"; "
            "/optimizer/params/lr was 0.1 and is 0.2; /optimizer/type was \"adamw\" and is "
            "\"adam\"; /scheduler/type was not given and is \"WarmupLR\"; /train_batch_size was 8 "
            "and is 16 (a learning rate belongs to a batch size)");
}

TEST_F(RunRecordTest, AnotherModelOrOptimizerIsRefusedByName) {
  config_.optimizer.type = "sgd";
  EXPECT_EQ(
      Refusal(),
      "dir/tag is of another training: /optimizer/type was \"adamw\" and is \"sgd\": set this "
      "back, or train into another folder");
  task_.model["n_head"] = 4;
  task_.model["type"] = "llama";
  EXPECT_THAT(Refusal(),
              HasSubstr(": /model/n_head was 2 and is 4; /model/type was \"gpt2\" and is "
                        "\"llama\"; /optimizer/type was "));
}

TEST_F(RunRecordTest, FilesMayMoveOrGrow) {
  task_.data["path"] = "b/*.bin";
  EXPECT_EQ(Changes(), "");
  size_ = 101;
  EXPECT_THAT(Refusal(), HasSubstr("/data/path was not given and is \"b/*.bin\"; /data/path/0 was "
                                   "\"a/1.bin\" and is not given; "));
  task_.data["path"] = {"a/1.bin", "a/2.bin"};
  EXPECT_EQ(Changes(), "/data/size was 100 and is 101");
}

TEST_F(RunRecordTest, OldCheckpointsKnowOnlyTheirBatchSize) {
  manifest_.client_state = Json::object();
  task_.model["n_head"] = 4;
  config_.batch.train_batch_size = 16;
  EXPECT_THAT(Changes(), testing::StartsWith("/train_batch_size was 8 and is 16 ("));
  manifest_.engine = Json::object();
  EXPECT_EQ(Changes(), "");
}

}  // namespace
}  // namespace dsat::engine
