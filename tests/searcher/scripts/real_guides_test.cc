// Tunes and trains the code of Determined's published guides with the real DeepSpeed.
#include <filesystem>
#include <string>
#include <vector>

#include "tests/searcher/scripts/real_deepspeed.h"

namespace dsat {
namespace {

// Searches with the experiment file, then trains with the answer, and again with one more batch.
// Returns what the two trainings have printed as JSON.
std::vector<Json> RunForm(const Workspace& work, const std::string& file,
                          const std::string& metric) {
  const auto write = [&](int64_t length) {
    work.Write("form.yaml", file +
                                "resources: {slots_per_trial: 2, device_memory: 64MiB}\n"
                                "max_restarts: 0\nmin_checkpoint_period: {batches: 10}\n"
                                "environment: {image: {gpu: some/image}}\n"
                                "searcher: {name: single, metric: " +
                                metric + ", max_length: {batches: " + std::to_string(length) +
                                "}}\n");
  };
  write(10);
  work.Succeed({"random", "form.yaml", "--max-trials", "2", "--metric", "throughput",
                "--end-profile-step", "8", "--confirm", "0", "--out", "out"});
  EXPECT_THAT(ReadFile(work.Path("out/command.txt")), testing::StartsWith("dsat train "));
  std::vector<Json> results;
  for (const int64_t length : {10, 11}) {
    write(length);
    const Finished train = work.Succeed(
        {"train", "form.yaml", "--ds-config", "out/ds_config.json", "--out", "full", "--json"});
    results.push_back(Json::parse(train.out));
    EXPECT_TRUE(results.back()["searcher_metric"].is_number()) << train.out;
    EXPECT_TRUE(std::filesystem::exists(results.back()["checkpoint"])) << train.out;
  }
  return results;
}

constexpr char kOwnConfig[] =
    R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": true}},
        "zero_optimization": {"stage": 1}})";

std::string ScriptOfGuides(const std::string& name) {
  return ReadFile(DSAT_SOURCE_DIR "/tests/python/scripts/" + name);
}

TEST_F(RealDeepSpeedTest, ATrialClassIsTunedAndTrains) {
  work_.Write("linear_trial.py", ScriptOfGuides("linear_trial.py"));
  work_.Write("ds.json", kOwnConfig);
  const std::vector<Json> trained =
      RunForm(work_,
              "entrypoint: [" + Python() +
                  ", -m, determined.launch.deepspeed, --trial, \"linear_trial:LinearTrial\"]\n"
                  "hyperparameters: {deepspeed_config: ds.json, test: two_engines}\n",
              "val_loss");
  EXPECT_EQ(trained[0]["last_step"], 10);
  EXPECT_EQ(trained[1]["last_step"], 11);
  EXPECT_THAT(ReadFile(work_.Path("full/rank0.log")),
              testing::HasSubstr("batch-00000010, after 10 batches"));
}

TEST_F(RealDeepSpeedTest, ALoopOfTheCoreApiIsTunedAndTrains) {
  work_.Write("core_loop.py", ScriptOfGuides("core_loop.py"));
  work_.Write("ds.json", kOwnConfig);
  const std::string launcher = Python() + " -m determined.launch.deepspeed ";
  RunForm(work_,
          "entrypoint: " + launcher + Python() + " core_loop.py --rate {checkpoint_rate}\n" +
              "hyperparameters: {deepspeed_config: ds.json, checkpoint_rate: 10}\n",
          "loss");
  EXPECT_THAT(ReadFile(work_.Path("full/rank0.log")), testing::HasSubstr("continues after 10"));
}

TEST_F(RealDeepSpeedTest, HuggingFacesTrainerWithTheCallbackIsTunedAndTrains) {
  if (!HasPackage("transformers")) GTEST_SKIP() << kNoDeepSpeed;
  for (const char* name : {"det_trainer.py", "small_model.py"})
    work_.Write(name, ScriptOfGuides(name));
  work_.Write("ds.json",
              R"({"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
                  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": true}},
                  "zero_optimization": {"stage": 1}})");
  const std::string command = Python() + " -m determined.launch.deepspeed " + Python();
  RunForm(work_,
          "entrypoint: >-\n  " + command +
              " det_trainer.py --deepspeed ds.json --per_device_train_batch_size 4"
              " --use_cpu true --bf16 false --output_dir model --report_to none"
              " --save_strategy steps --save_steps 10 --eval_strategy steps --eval_steps 5\n"
              "hyperparameters:\n  deepspeed_config: ds.json\n"
              "  training_arguments: {max_steps: 30, learning_rate: 1.0e-3}\n",
          "eval_loss");
  EXPECT_THAT(ReadFile(work_.Path("full/rank0.log")), testing::HasSubstr("trained 11"));
}

}  // namespace
}  // namespace dsat
