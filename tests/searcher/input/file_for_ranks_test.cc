// Tests what the ranks of a command get of the experiment file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/input/experiment_file.h"
#include "tests/base/error_code.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FileForRanksTest : public testing::Test {
 protected:
  ExperimentSpec Read(const std::string& yaml) {
    WriteFileAtomic(folder_ / "ds.json", R"({"train_batch_size": 8, "steps_per_print": 5})");
    WriteFileAtomic(folder_ / "exp.yaml", yaml);
    warnings_.clear();
    return ReadExperimentFile(folder_ / "exp.yaml", "", &warnings_);
  }

  // The experiment of a command with these lines, and these hyperparameters.
  ExperimentSpec ReadCommand(const std::string& lines,
                             const std::string& hparams = "deepspeed_config: ds.json") {
    return Read("entrypoint: python3 train.py\nhyperparameters: {" + hparams + "}\n" + lines);
  }

  std::string Refusal(const std::string& lines) {
    return RefusalOf([&] { ReadCommand(lines); });
  }

  TempFolder folder_;
  std::vector<std::string> warnings_;
};

constexpr char kLengths[] =
    "searcher: {name: single, metric: loss, max_length: {epochs: 2}}\n"
    "min_validation_period: {records: 100}\nrecords_per_epoch: 500\n";

TEST_F(FileForRanksTest, RanksOfACommandGetIt) {
  const ExperimentSpec spec =
      ReadCommand(kLengths + std::string("search_space: {/steps_per_print: [5]}\n"),
                  "deepspeed_config: ds.json, lr: {type: const, val: 0.1}");
  EXPECT_EQ(spec.file["searcher"]["max_length"]["epochs"], 2);
  EXPECT_EQ(spec.file["min_validation_period"]["records"], 100);
  EXPECT_EQ(spec.file["hyperparameters"]["lr"], 0.1);
  EXPECT_FALSE(spec.file.contains("search_space"));
  ReadCommand(kLengths);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(ReadCommand("").file["searcher"]["max_length"], 100);
}

TEST_F(FileForRanksTest, TheBuiltinEngineIgnoresMoreOfIt) {
  const ExperimentSpec spec = Read(
      "entrypoint: builtin\n"
      "hyperparameters: {deepspeed_config: ds.json, model: {type: gpt2}, data: {type: "
      "synthetic}}\n" +
      std::string(kLengths));
  EXPECT_EQ(spec.file, Json::object());
  EXPECT_THAT(warnings_, Contains(HasSubstr("/searcher/max_length/epochs is ignored")));
  EXPECT_THAT(warnings_, Contains(AllOf(HasSubstr("keys without effect are ignored: "),
                                        HasSubstr("/searcher/metric"))));
}

TEST_F(FileForRanksTest, WrongLengthsAreRefused) {
  EXPECT_THAT(Refusal("min_validation_period: {steps: 1}"),
              HasSubstr("expected one of the units batches, epochs and records"));
  EXPECT_THAT(Refusal("min_checkpoint_period: -1"), HasSubstr("an integer >= 0"));
  EXPECT_THAT(Refusal("records_per_epoch: many"), HasSubstr("an integer >= 0"));
}

TEST_F(FileForRanksTest, HyperparametersHaveTheTrialsConfig) {
  const Json trial = {{"train_micro_batch_size_per_gpu", 3}};
  const auto hparams = [&](const std::string& given) {
    return Json::parse(FileForRanks(ReadCommand("", given), trial).at("DSAT_HPARAMS"));
  };
  EXPECT_EQ(
      hparams("deepspeed_config: ds.json, width: 4, overwrite_deepspeed_args: {seed: 1}"),
      (Json{{"deepspeed_config", "ds.json"}, {"width", 4}, {"overwrite_deepspeed_args", trial}}));
  EXPECT_EQ(hparams("train_batch_size: 8, width: 4"),
            (Json{{"train_micro_batch_size_per_gpu", 3}, {"width", 4}}));
  const std::string object =
      "deepspeed_config: {train_batch_size: 8}, overwrite_deepspeed_args: {train_batch_size: 16}";
  EXPECT_EQ(ReadCommand("", object).ds_config, (Json{{"train_batch_size", 16}}));
  EXPECT_EQ(hparams(object),
            (Json{{"deepspeed_config", trial}, {"overwrite_deepspeed_args", trial}}));
}

}  // namespace
}  // namespace dsat
