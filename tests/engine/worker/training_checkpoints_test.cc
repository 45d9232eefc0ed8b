// Trainings whose newest checkpoint is damaged continue from an older one.
#include "engine/worker/training_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "base/rng.h"
#include "engine/files/checkpoint_manifest.h"
#include "tests/engine/runtime/training.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kRanks = 2;
constexpr int kNumDamages = 30;

// The results that one rank saw of a run.
struct Continued {
  std::vector<std::string> warnings;
  int64_t step = 0;            // The step with which it began.
  std::vector<double> losses;  // The losses of the steps after it.
  ErrorCode error = ErrorCode::kUnknown;
  std::string message;
};

class TrainingCheckpointsTest : public testing::Test {
 protected:
  // Continues in `dir` and trains to `last_step`, with a checkpoint every `interval` steps.
  std::vector<Continued> Train(const std::string& dir, int64_t last_step, int64_t interval) const {
    std::vector<Continued> ranks(kRanks);
    OnEngines(model_, config_, kRanks, [&](Engine& engine, ProcessGroup& group) {
      Continued& mine = ranks[static_cast<size_t>(group.rank())];
      TrainingCheckpoints checkpoints(dir, /*keep=*/2, group.rank());
      try {
        mine.warnings = checkpoints.Continue(engine, group, record_);
      } catch (const Error& error) {
        mine.error = error.code();
        mine.message = error.what();
        return;
      }
      mine.step = engine.num_steps();
      while (engine.num_steps() < last_step) {
        mine.losses.push_back(engine.TrainBatch().loss);
        if (engine.num_steps() % interval == 0) checkpoints.Save(engine, /*wait=*/true);
      }
    });
    return ranks;
  }

  // A folder with the checkpoints of steps 2 and 4.
  std::string Trained(const std::string& name) const {
    const std::string dir = folder_ / name;
    if (!fs::exists(folder_ / "first")) Train(folder_ / "first", 4, 2);
    if (name != "first") fs::copy(folder_ / "first", dir, fs::copy_options::recursive);
    return dir;
  }

  const TempFolder folder_;
  const Model model_ = TinyMlp();
  const DsConfig config_ = TinyConfig(1, kRanks, 1);
  Json record_ = {{"train_batch_size", 12}};
};

// Flips a bit of the file, cuts it short, empties it or removes it.
void DamageFile(const std::string& path, Rng& rng) {
  const uint64_t bytes = fs::file_size(path);
  const uint64_t kind = rng.Below(4);
  if (kind == 0) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    const auto at = static_cast<std::streamoff>(rng.Below(bytes));
    file.seekg(at);
    const int old = file.peek();
    file.seekp(at);
    file.put(static_cast<char>(old ^ (1 << rng.Below(8))));
  } else if (kind == 3) {
    fs::remove(path);
  } else {
    fs::resize_file(path, kind == 1 ? rng.Below(bytes) : 0);
  }
}

// Damages the checkpoint of step 4, and sometimes the file that names it.
void Damage(const std::string& dir, Rng& rng) {
  const std::string folder = dir + "/global_step4";
  if (rng.Below(8) == 0) {
    fs::remove_all(folder);
  } else {
    const std::string names[] = {RankFileName(0, 0), RankFileName(1, 0), "manifest.json"};
    DamageFile(folder + "/" + names[rng.Below(3)], rng);
  }
  const std::string latest = dir + "/latest";
  switch (rng.Below(8)) {
    case 0:
      return WriteFileAtomic(latest, "global_step6");
    case 1:
      return WriteFileAtomic(latest, "");
    case 2:
      return WriteFileAtomic(latest, "global_st\x01p4");
    case 3:
      fs::remove(latest);
  }
}

TEST_F(TrainingCheckpointsTest, AnyDamageToTheNewestIsFoundAndTheOlderOneContinues) {
  const std::vector<double> losses = Train(folder_ / "whole", 5, 5)[0].losses;
  for (int i = 0; i < kNumDamages; ++i) {
    const std::string dir = Trained(std::to_string(i));
    Rng rng(11, static_cast<uint64_t>(i), "damage");
    Damage(dir, rng);
    const bool is_named = TagIn(dir, "latest") == "global_step4" ||
                          fs::exists(dir + "/global_step4/manifest.json") ||
                          fs::exists(dir + "/latest");
    const std::vector<Continued> ranks = Train(dir, 5, 2);
    for (const Continued& rank : ranks) {
      EXPECT_EQ(rank.message, "") << i;
      EXPECT_EQ(rank.step, 2) << i;
      EXPECT_EQ(rank.losses, std::vector<double>(losses.begin() + 2, losses.end())) << i;
    }
    ASSERT_EQ(ranks[0].warnings.size(), is_named ? 1U : 0U) << i;
    for (const std::string& warning : ranks[0].warnings) {
      EXPECT_THAT(warning, StartsWith("left out as not good: ")) << i;
      EXPECT_THAT(warning, testing::ContainsRegex("/global_step[46]/|/latest: ")) << i;
      EXPECT_THAT(warning, EndsWith(": continuing from " + dir + "/global_step2")) << i;
    }
    // The step that was damaged is saved again.
    EXPECT_EQ(Train(dir, 4, 2)[0].step, 4) << i;
    fs::remove_all(dir);
  }
}

TEST_F(TrainingCheckpointsTest, AFileLatestThatNamesNothingLeavesTheNewest) {
  for (const std::string text : {"global_step9", "", "a/b", "global_step"}) {
    const std::string dir = Trained("latest");
    WriteFileAtomic(dir + "/latest", text);
    const Continued rank = Train(dir, 4, 2)[0];
    EXPECT_EQ(rank.step, 4) << text;
    ASSERT_EQ(rank.warnings.size(), 1U) << text;
    fs::remove_all(dir);
  }
}

TEST_F(TrainingCheckpointsTest, LaterStepsThanTheOneNamedAreOfATrainingThatWasGivenUp) {
  const std::string dir = Trained("back");
  WriteFileAtomic(dir + "/latest", "global_step2");
  fs::remove(dir + "/global_step2/manifest.json");
  const std::vector<Continued> ranks = Train(dir, 5, 2);
  for (const Continued& rank : ranks) {
    EXPECT_EQ(rank.error, ErrorCode::kDataLoss);
    EXPECT_THAT(rank.message, HasSubstr("no checkpoint of " + dir + " is good: "));
    EXPECT_THAT(rank.message, HasSubstr("/global_step2/manifest.json: no such file: "));
    EXPECT_THAT(rank.message, EndsWith(": move this folder away to train from the beginning"));
  }
}

TEST_F(TrainingCheckpointsTest, ADamagedOneIsNotCountedAmongThoseThatStay) {
  const std::string dir = Trained("kept");
  fs::resize_file(dir + "/global_step4/" + RankFileName(1, 0), 10);
  Train(dir, 6, 3);  // Saves steps 3 and 6.
  EXPECT_TRUE(fs::exists(dir + "/global_step3"));
  EXPECT_FALSE(fs::exists(dir + "/global_step4"));
  EXPECT_TRUE(fs::exists(dir + "/global_step6"));
}

TEST_F(TrainingCheckpointsTest, AFolderWithoutCheckpointsBeginsATraining) {
  const Continued rank = Train(folder_ / "none", 1, 5)[0];
  EXPECT_EQ(rank.step, 0);
  EXPECT_THAT(rank.warnings, testing::IsEmpty());
}

}  // namespace
}  // namespace dsat::engine
