// Runs dsat estimate from the command line.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/json.h"
#include "tests/cli/run_dsat.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class EstimateTest : public testing::Test {
 protected:
  Finished Estimate(std::vector<std::string> args) const {
    args.insert(args.begin(), "estimate");
    return work.Succeed(args);
  }
  Json EstimateJson(std::vector<std::string> args) const {
    args.emplace_back("--json");
    return Json::parse(Estimate(std::move(args)).out);
  }
  void ExpectRefused(std::vector<std::string> args, const std::string& what) const {
    args.insert(args.begin(), "estimate");
    EXPECT_EQ(work.Fail(args, what).out, "");
  }
  void WriteExperiment(const std::string& ds_config) const {
    work.Write("deepspeed.yaml",
               "entrypoint: builtin\n"
               "resources: {slots_per_trial: 2, device_memory: 1MiB, host_memory: 3MiB}\n"
               "hyperparameters:\n"
               "  deepspeed_config: " +
                   ds_config +
                   "\n"
                   "  model: {type: mlp, hidden: [64]}\n"
                   "  data: {type: synthetic, seq_len: 8}\n");
  }

  Workspace work;
};

TEST_F(EstimateTest, TheExampleForAGpuFitsOne) {
  const Json said =
      EstimateJson({DSAT_SOURCE_DIR "/examples/gpt2-124m/deepspeed.yaml", "--device", "h200"});
  EXPECT_EQ(said.at("parameters"), 124'439'808);
  EXPECT_TRUE(said.at("estimate").at("fits"));
}

TEST_F(EstimateTest, SaysWhatIsNeededWhereTimeGoesAndThatItFits) {
  const Finished run = Estimate({"--model", "124M", "--device", "v100", "--ranks", "8"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("gpt2 12 layers"), HasSubstr("8 ranks of v100 on 1 node"),
                             HasSubstr("device, per rank"), HasSubstr("host, per node"),
                             HasSubstr("collectives: "), HasSubstr("forward and backward"),
                             HasSubstr("It fits and leaves "), Not(HasSubstr("It would fit"))));
}

TEST_F(EstimateTest, SaysWhatDoesNotFitAndWhatWould) {
  const Finished run =
      Estimate({"--model", "1558M", "--device", "v100", "--ranks", "8", "--micro-batch", "64"});
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("It does not fit: a device needs "), HasSubstr(" of 32.0 GiB"),
                    HasSubstr("It would fit with any one of\n  /train_micro_batch_size_per_gpu ")));
}

TEST_F(EstimateTest, WhatItSuggestsCanBeFollowed) {
  work.Write("batch.json", R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 32,
      "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
      "zero_optimization": {"stage": 1}})");
  const std::vector<std::string> args = {"--model", "124M", "--ds-config",    "batch.json",
                                         "--ranks", "2",    "--device-memory"};
  const auto with = [&](const std::vector<std::string>& more) {
    return EstimateJson(Joined(args, more));
  };
  const Json tight = with({"4GiB"});
  ASSERT_FALSE(tight["estimate"]["fits"].get<bool>());
  std::istringstream words(tight["changes_that_fit"][0]["what"].get<std::string>());
  std::string micro, size, and_, accumulation, steps;
  words >> micro >> size >> and_ >> accumulation >> steps;
  const Json followed =
      with({"4GiB", "--set", micro + "=" + size, "--set", accumulation + "=" + steps});
  EXPECT_TRUE(followed["estimate"]["fits"].get<bool>());
  EXPECT_EQ(followed["estimate"]["train_batch_size"], 64);
  // Another micro-batch size keeps a batch that it can have.
  EXPECT_EQ(with({"1TiB", "--micro-batch", "16"})["estimate"]["accumulation_steps"], 2);
  EXPECT_EQ(EstimateJson({"--model", "124M", "--ds-config",
                          "stage_3_offload_optimizer"})["estimate"]["fits"],
            true);
}

TEST_F(EstimateTest, OtherRanksKeepTheMicroBatchSize) {
  WriteExperiment("batch.json");
  const auto train_batch_size = [&](const std::string& ds_config, const char* ranks) {
    work.Write("batch.json", ds_config);
    const Json json = EstimateJson({"deepspeed.yaml", "--ranks", ranks});
    return json["estimate"]["train_batch_size"].get<int64_t>();
  };
  // On two ranks the sizes are 4 and 8.
  const std::string stated = R"({"train_batch_size": 16, "gradient_accumulation_steps": 2,
                                 "optimizer": {"type": "AdamW"}})";
  const std::string derived = R"({"train_batch_size": 16, "optimizer": {"type": "AdamW"}})";
  EXPECT_EQ(train_batch_size(stated, "4"), 32);
  EXPECT_EQ(train_batch_size(stated, "3"), 24);
  EXPECT_EQ(train_batch_size(derived, "1"), 16);
  EXPECT_EQ(train_batch_size(derived, "3"), 24);
}

TEST_F(EstimateTest, StagesAreRowsWithDeepSpeedsEstimateBesideThem) {
  const Finished run = Estimate({"--model", "1B", "--ranks", "4", "--stages", "all"});
  for (const char* name : {"stage_0 ", "stage_1 ", "stage_2 ", "stage_2_offload ", "stage_3 ",
                           "stage_3_offload_optimizer ", "stage_3_offload ", "stage_3_nvme "})
    EXPECT_THAT(run.out, HasSubstr(std::string("\n") + name));
}

TEST_F(EstimateTest, AnExperimentFileGivesModelDataRanksAndBudget) {
  WriteExperiment("stage_2_offload");
  const Json json = EstimateJson({"deepspeed.yaml"});
  EXPECT_EQ(json["seq_len"], 8);
  EXPECT_EQ(json["ranks_in_all"], 2);
  EXPECT_EQ(json["estimate"]["device"]["limit_bytes"], 1 << 20);
  EXPECT_EQ(json["estimate"]["host"]["limit_bytes"], 6 << 20);  // The limit of a node.
  EXPECT_GT(json["estimate"]["ranks"][0]["to_host_bytes"], 0);
  // Options override it.
  const Json more = EstimateJson({"deepspeed.yaml", "--ds-config", "stage_1", "--ranks", "4",
                                  "--micro-batch", "3", "--device-memory", "2MiB"});
  EXPECT_EQ(more["estimate"]["train_batch_size"], 12);
  EXPECT_EQ(more["estimate"]["device"]["limit_bytes"], 2 << 20);
  EXPECT_EQ(more["estimate"]["ranks"][0]["to_host_bytes"], 0);
}

TEST_F(EstimateTest, SpeedsChangeTheTimeAndNothingElse) {
  const auto at = [&](const std::string& efficiency) {
    work.Write("card.json",
               R"({"link": "1GB/s", "flops": 1e12, "efficiency": )" + efficiency + "}");
    return EstimateJson({"--model", "124M", "--ranks", "2", "--device", "card.json", "--set",
                         "/zero_optimization/stage=1"})["estimate"];
  };
  const auto compute_ms = [](const Json& estimate) {
    return estimate["time"]["compute_ms"].get<double>();
  };
  const Json slow = at("0.5"), fast = at("1");
  // Reading and writing beside the multiplications takes the same time.
  EXPECT_NEAR(compute_ms(at("0.25")) - compute_ms(slow), 2 * (compute_ms(slow) - compute_ms(fast)),
              1e-6);
  EXPECT_EQ(slow["ranks"], fast["ranks"]);
  EXPECT_EQ(slow["device"], fast["device"]);
}

TEST_F(EstimateTest, WhatItCannotUnderstandIsRefusedByName) {
  ExpectRefused({}, "or --model");
  ExpectRefused({"--model", "5X"}, "--model/preset");
  const auto expect_refused = [&](const char* card, const char* message) {
    work.Write("card.json", card);
    ExpectRefused({"--model", "124M", "--device", "card.json"}, message);
  };
  expect_refused(R"({"link": "0"})", "card.json/link: 0; expected more");
  expect_refused(R"({"flops": 1e-300})", "flops");
  expect_refused(R"({"efficiency": 2})", "efficiency");
  ExpectRefused({"--model", "124M", "--device-memory", "0"}, "--device-memory: 0; expected more");
  ExpectRefused({"--model", "1K"}, "1K\"; expected a number of parameters from 1M");
  ExpectRefused({"--model", "124M", "--device", "z80"}, "expected one of v100, a100, h100, h200");
  ExpectRefused({"--model", "124M", "--set", "stage=3"}, "--set: \"stage=3\"; expected /KEY=JSON");
  ExpectRefused({"--model", "124M", "--seq-len", "2048"}, "expected at most 1024");
  ExpectRefused({"--model", "124M", "--ds-config", "stage_9"}, "stage_3_nvme");
  ExpectRefused({"--model", "124M", "--device-memory", "much"}, "--device-memory");
}

TEST_F(EstimateTest, AStrategyOnAMissingDiskIsEstimatedButNotRun) {
  WriteExperiment("stage_3_nvme");
  EXPECT_GT(EstimateJson({"deepspeed.yaml"})["estimate"]["disk"]["peak_bytes"], 0);
  work.Fail({"train", "deepspeed.yaml", "--steps", "1"},
            "nvme_path is \"/local_nvme\": no such folder");
  work.Write("relative.json", R"({"train_batch_size": 4, "optimizer": {"type": "AdamW"},
      "zero_optimization": {
          "stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "."}}})");
  work.Fail({"train", "deepspeed.yaml", "--steps", "1", "--ds-config", "relative.json"},
            "nvme_path is \".\"; expected an absolute path");
}

// The buffers of offloaded parameters hold a rank's part of a layer.
TEST_F(EstimateTest, APartOfALayerOnEachRankFitsASmallerBuffer) {
  const std::vector<std::string> args = {"--model",     "1558M",        "--ranks",
                                         "8",           "--device",     "a100",
                                         "--ds-config", "stage_3_nvme", "--set"};
  const auto with_buffer = [&](const std::string& elems) {
    return Joined(args, {"/zero_optimization/offload_param/buffer_size=" + elems});
  };
  EXPECT_GT(EstimateJson(with_buffer("4000000"))["estimate"]["disk"]["peak_bytes"], 0);
  ExpectRefused(with_buffer("1000"),
                "expected at least 3842608 elements, a rank's part of the largest layer");
}

TEST_F(EstimateTest, BatchSizesThatContradictEachOtherAreRefused) {
  ExpectRefused({"--model", "124M", "--ranks", "2", "--set", "/train_batch_size=7", "--set",
                 "/train_micro_batch_size_per_gpu=2"},
                "train_batch_size");
}

TEST_F(EstimateTest, AScriptsMemoryIsAskedForWithItsCommand) {
  ExpectRefused({"--", "bash", "train.sh"}, "bash train.sh: expected python, torchrun, deepspeed");
  ExpectRefused({"--seq-len", "8", "--", "python3", "train.py"}, "--seq-len: is not for a script");
  WriteExperiment("stage_2");
  ExpectRefused({"deepspeed.yaml", "--", "python3", "train.py"}, "expected one of them");
  work.Write("script.yaml",
             "entrypoint: FILES=$(ls); python3 train.py --ds_config ds.json\n"
             "hyperparameters: {deepspeed_config: ds.json}\n");
  work.Write("ds.json", R"({"train_batch_size": 2})");
  ExpectRefused({"script.yaml"}, "give the command that trains: dsat estimate -- python train.py");
}

TEST_F(EstimateTest, AScriptIsRunOnFakeTensors) {
  if (!HasPackage("torch")) GTEST_SKIP() << "DSAT_TEST_PYTHON has no torch";
  const std::string script = DSAT_SOURCE_DIR "/tests/python/scripts/plain_loop.py";
  const Finished run = Estimate({"--device-memory", "64KiB", "--", Python(), script});
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("4096 parameters, 4096 of them trained"),
                    HasSubstr("1 rank of a GPU, micro-batch 4, accumulation 1, without DeepSpeed"),
                    HasSubstr("It does not fit 64.0 KiB of device memory.")));
}

TEST_F(EstimateTest, AConfigOfHuggingFaceIsAModel) {
  work.Write("gpt2.json", R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2})");
  WriteExperiment("stage_2");
  ExpectRefused({"deepspeed.yaml", "--model", "gpt2.json"}, "--model gpt2.json: expected one of");
  ExpectRefused({"--model", "gone.json"}, "gone.json");
  const char* const kBlock = R"({"type": "gpt2", "config": "gpt2.json"})";
  EXPECT_EQ(EstimateJson({"--model", kBlock})["parameters"], 3'382'080);
  if (!HasPackage("deepspeed") || !HasPackage("transformers"))
    GTEST_SKIP() << "DSAT_TEST_PYTHON has no deepspeed and transformers";
  const std::string path = std::getenv("PATH");
  setenv("PATH", fmt::format("{}:{}", fs::path(Python()).parent_path().string(), path).c_str(), 1);
  work.Write("qwen2.json", R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
      "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16})");
  const Json json = EstimateJson({"--model", "qwen2.json", "--ranks", "2", "--micro-batch", "3"});
  // The embedding, the head, and two layers of attention (with biases), MLP and norms.
  constexpr int64_t kLayer = 64 * 64 * 2 + 64 * 32 * 2 + 64 + 2 * 32 + 3 * 64 * 128 + 2 * 64;
  EXPECT_EQ(json["num_params"], 2 * 64 * 100 + 2 * kLayer + 64);
  EXPECT_EQ(json["micro_batch_size"], 3);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_TRUE(json["rows"][0]["fits"]);
  setenv("PATH", path.c_str(), 1);
}

TEST_F(EstimateTest, ASpaceOfAScriptIsForADeviceThatIsNotHere) {
  if (!HasPackage("deepspeed")) GTEST_SKIP() << "DSAT_TEST_PYTHON has no deepspeed";
  work.Write("ds.json", R"({"train_micro_batch_size_per_gpu": 4,
                            "zero_optimization": {"stage": 1}})");
  const Json space = work.DsatJson({"space", "--device", "h100", "--json", "--", Python(), "-m",
                                    "torch.distributed.run", "--nproc_per_node", "8",
                                    DSAT_SOURCE_DIR "/tests/python/scripts/own_optimizer.py",
                                    "--deepspeed_config", "ds.json"});
  EXPECT_EQ(space["profile"]["device_memory_bytes"], int64_t{80} << 30);
  EXPECT_EQ(space["profile"]["device"], "cuda");
  EXPECT_GT(space["best"][0]["step_ms"], 0);
  EXPECT_GT(work.DsatJson({"space", "--device", "cpu", "--json", "--", Python(), "-m",
                           "torch.distributed.run", "--nproc_per_node", "2",
                           DSAT_SOURCE_DIR "/tests/python/scripts/own_optimizer.py",
                           "--deepspeed_config", "ds.json"})["profile"]["device_memory_bytes"],
            0);
}

}  // namespace
}  // namespace dsat
