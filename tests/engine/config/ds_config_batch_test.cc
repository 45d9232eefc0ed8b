// ds_config: batch arithmetic and the config of a trial.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "engine/config/ds_config.h"
#include "tests/base/error_code.h"
#include "tests/engine/config/ds_config_testing.h"

namespace dsat::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Batch sizes.

struct BatchCase {
  const char* config;
  int64_t ranks;
  std::optional<std::vector<int64_t>> sizes;  // T, M, A; nullopt: refused.
};

// T, M, A name train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps.
Json BatchConfig(const Json& shorthand) {
  Json config = Json::object();
  if (shorthand.contains("T")) config["train_batch_size"] = shorthand["T"];
  if (shorthand.contains("M")) config["train_micro_batch_size_per_gpu"] = shorthand["M"];
  if (shorthand.contains("A")) config["gradient_accumulation_steps"] = shorthand["A"];
  return config;
}

TEST(BatchSizesTest, EveryCombinationOfGivenNumbers) {
  const BatchCase cases[] = {
      {"{'T': 16, 'M': 2, 'A': 4}", 2, {{16, 2, 4}}},
      {"{'T': 16, 'M': 2}", 2, {{16, 2, 4}}},
      {"{'T': 16, 'A': 4}", 2, {{16, 2, 4}}},
      {"{'M': 2, 'A': 4}", 2, {{16, 2, 4}}},
      {"{'T': 16}", 2, {{16, 8, 1}}},
      {"{'M': 2}", 2, {{4, 2, 1}}},
      {"{'M': 2}", 1, {{2, 2, 1}}},
      {"{'T': 16.0, 'M': 2e0}", 2, {{16, 2, 4}}},
      {"{'T': 16, 'M': null, 'A': null}", 2, {{16, 8, 1}}},
      {"{'T': 'auto', 'M': 2, 'A': 'auto'}", 2, {{4, 2, 1}}},
      {"{'T': 16, 'M': 'auto', 'A': 'auto'}", 2, {{16, 8, 1}}},
      {"{'T': 'auto', 'M': 'auto', 'A': 'auto'}", 2, {{2, 1, 1}}},
      {"{'M': 'auto', 'A': 3}", 2, {{6, 1, 3}}},
      {"{}", 2, std::nullopt},
      {"{'A': 4}", 2, std::nullopt},
      {"{'T': 'auto'}", 2, std::nullopt},
      {"{'T': 9, 'M': 4, 'A': 2}", 1, std::nullopt},
      {"{'T': 9, 'M': 2}", 2, std::nullopt},  // 9 / 2 / 2 rounds down.
      {"{'T': 7}", 2, std::nullopt},
      {"{'T': 2, 'M': 2}", 2, std::nullopt},  // Accumulation would be 0.
      {"{'T': 1}", 2, std::nullopt},
      {"{'T': 4, 'A': 4}", 2, std::nullopt},  // Micro-batch size would be 0.
      {"{'T': 0}", 1, std::nullopt},
      {"{'M': -1}", 1, std::nullopt},
      {"{'M': 1, 'A': 0}", 1, std::nullopt},
      {"{'T': 4.5}", 1, std::nullopt},
      {"{'T': '16'}", 1, std::nullopt},
      {"{'M': [1]}", 1, std::nullopt},
      {"{'M': true}", 1, std::nullopt},
      {"{'M': 9223372036854775807}", 2, std::nullopt},
      {"{'M': 4294967296, 'A': 4294967296}", 2, std::nullopt},
  };
  for (const BatchCase& c : cases) {
    Json config = BatchConfig(J(c.config));
    if (!c.sizes) {
      EXPECT_THAT(RefusalOf([&] { ResolveBatchSizes(config, "ds.json", c.ranks); }),
                  HasSubstr("ds.json: /"))
          << c.config;
      continue;
    }
    BatchSizes sizes = ResolveBatchSizes(config, "ds.json", c.ranks);
    EXPECT_EQ(
        (std::vector{sizes.train_batch_size, sizes.micro_batch_size, sizes.accumulation_steps}),
        *c.sizes)
        << c.config;
  }
}

struct SplitCase {
  const char* config;
  int64_t data_parallel;  // Number of eight ranks; 0 if it is refused.
  const char* refusal = "";
};

TEST(BatchSizesTest, RanksThatShareSamplesAreNoDataParallelOnes) {
  const SplitCase cases[] = {
      {"{'pipeline': {'stages': 2}}", 4},
      {"{'tensor_parallel': {'autotp_size': 0}}", 8},
      {"{'tensor_parallel': {'autotp_size': 2}, 'sequence_parallel_size': 2.0}", 2},
      {"{'pipeline': {'stages': 2}, 'tensor_parallel': {'autotp_size': 4}}", 1},
      {"{'expert_parallel': {'enabled': true, 'autoep_size': 8}}", 8},
      {"{'expert_parallel': {'enabled': false, 'autoep_size': 3}}", 8},
      {"{'pipeline': {'stages': 3}}", 0,
       "/pipeline/stages is 3; expected a divisor of the number of ranks, 8"},
      {"{'pipeline': {'stages': 2}, 'tensor_parallel': {'autotp_size': 8}}", 0,
       "/tensor_parallel/autotp_size is 8; expected a divisor of the ranks of a pipeline stage, 4"},
      {"{'tensor_parallel': {'autotp_size': 4}, 'sequence_parallel_size': 4}", 0,
       "/sequence_parallel_size is 4; expected a divisor of the ranks that do not share tensors, "
       "2"},
      {"{'expert_parallel': {'enabled': true, 'autoep_size': 3}}", 0,
       "/expert_parallel/autoep_size is 3; expected a divisor of the ranks of a pipeline stage, 8"},
      {"{'expert_parallel': {'enabled': true, 'autoep_size': 4},"
       " 'dsat': {'trainer': {'num_experts': 6}}}",
       0, "/expert_parallel/autoep_size is 4; expected a divisor of the experts of the model, 6"},
  };
  for (const SplitCase& c : cases) {
    const auto size = [&] { return DataParallelSize(J(c.config), "ds.json", 8); };
    if (c.data_parallel > 0) {
      EXPECT_EQ(size(), c.data_parallel) << c.config;
    } else {
      EXPECT_THAT(RefusalOf(size), HasSubstr(c.refusal)) << c.config;
    }
  }
  Json config = J("{'tensor_parallel': {'autotp_size': 2}, 'sequence_parallel_size': 2}");
  config["train_batch_size"] = 24;
  EXPECT_EQ(ResolveBatchSizes(config, "ds.json", 8), (BatchSizes{24, 12, 1}));
}

TEST(ConfigForTrialTest, ASizeAboveOneEnablesExpertParallelism) {
  const Json base = J("{'train_micro_batch_size_per_gpu': 2}");
  const char* const size = "/expert_parallel/autoep_size";
  EXPECT_EQ(ConfigForTrial(base, {{size, 2}}, 2)["expert_parallel"],
            J("{'enabled': true, 'autoep_size': 2}"));
  EXPECT_EQ(ConfigForTrial(base, {{size, 1}}, 2)["expert_parallel"], J("{'autoep_size': 1}"));
}

TEST(BatchSizesTest, ContradictionNamesAllNumbers) {
  Json config = BatchConfig(J("{'T': 9, 'M': 4, 'A': 2}"));
  std::string message = RefusalOf([&] { ResolveBatchSizes(config, "ds.json", 3); });
  for (const char* part :
       {"ds.json:", "/train_batch_size is 9", "/train_micro_batch_size_per_gpu is 4",
        "/gradient_accumulation_steps is 2", "data-parallel size is 3"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
}

// Trials.

TEST(BatchSizesTest, SizesThatNoMachineHasAreRefused) {
  for (const char* config : {R"({"train_micro_batch_size_per_gpu": 1000000000000000000})",
                             R"({"train_micro_batch_size_per_gpu": 1,
                                 "gradient_accumulation_steps": 1000000})"}) {
    EXPECT_THROW(ResolveBatchSizes(J(config), "ds.json", 1), Error) << config;
  }
}

TEST(ConfigForTrialTest, AssignmentsKeepTheBatchConsistent) {
  struct Case {
    const char* base;
    const char* assignment;
    std::vector<int64_t> sizes;  // T, M, A
  };
  const Case cases[] = {
      {"{'T': 16, 'M': 2}", "{}", {16, 2, 4}},
      {"{'T': 16, 'M': 2}", "{'/train_micro_batch_size_per_gpu': 8}", {64, 8, 4}},
      {"{'T': 16}", "{'/train_micro_batch_size_per_gpu': 3}", {6, 3, 1}},
      {"{'M': 2, 'A': 4}", "{'/gradient_accumulation_steps': 3}", {12, 2, 3}},
      {"{'M': 2, 'A': 4}",
       "{'/gradient_accumulation_steps': 3, '/train_micro_batch_size_per_gpu': 5}",
       {30, 5, 3}},
      {"{'M': 2, 'A': 4}", "{'/train_batch_size': 32}", {32, 4, 4}},
      {"{'M': 2, 'A': 4}",
       "{'/train_batch_size': 32, '/train_micro_batch_size_per_gpu': 1}",
       {32, 1, 16}},
      {"{'T': 'auto', 'M': 'auto', 'A': 'auto'}", "{}", {2, 1, 1}},
      {"{'M': 'auto', 'A': 'auto'}", "{'/train_micro_batch_size_per_gpu': 6}", {12, 6, 1}},
  };
  for (const Case& c : cases) {
    Json config = ConfigForTrial(BatchConfig(J(c.base)), J(c.assignment), 2);
    EXPECT_EQ(config["train_batch_size"], c.sizes[0]) << c.base << c.assignment;
    EXPECT_EQ(config["train_micro_batch_size_per_gpu"], c.sizes[1]) << c.base << c.assignment;
    EXPECT_EQ(config["gradient_accumulation_steps"], c.sizes[2]) << c.base << c.assignment;
  }
  const std::map<std::string, Json> odd = {{"/train_batch_size", 7},
                                           {"/train_micro_batch_size_per_gpu", 2}};
  EXPECT_THROW(ConfigForTrial(BatchConfig(J("{'M': 1}")), odd, 2), Error);
}

TEST(ConfigForTrialTest, TheResultHasOneSpellingAndOnlyAutosOfOthers) {
  Json base = J(R"({'train_batch_size': 'auto', 'train_micro_batch_size_per_gpu': 4e0,
      'autotuning': {'enabled': true}, 'scheduler': null, 'gradient_clipping': 'auto',
      'bfloat16': {'enabled': 'auto'}, 'my_notes': 'auto', 'zero_optimization': {'stage': '2',
      'reduce_bucket_size': 5e8, 'max_live_parameters': 1e9, 'overlap_comm': 'auto',
      'cpu_offload': true, 'cpu_offload_use_pin_memory': true},
      'optimizer': {'type': 'AdamW', 'params': {'lr': 'auto', 'betas': [0.9, 0.95]}}})");
  Json expected = J(R"({'train_batch_size': 8, 'train_micro_batch_size_per_gpu': 4,
      'gradient_accumulation_steps': 1, 'bf16': {'enabled': 'auto'}, 'my_notes': 'auto',
      'gradient_clipping': 'auto',
      'zero_optimization': {'stage': 3, 'reduce_bucket_size': 500000000,
      'stage3_max_live_parameters': 1000000000, 'overlap_comm': 'auto',
      'offload_optimizer': {'device': 'cpu', 'pin_memory': true}},
      'optimizer': {'type': 'AdamW', 'params': {'lr': 'auto', 'betas': [0.9, 0.95]}}})");
  Json config = ConfigForTrial(base, {{"/zero_optimization/stage", 3}}, 2);
  EXPECT_EQ(config, expected);
  EXPECT_TRUE(config["zero_optimization"]["reduce_bucket_size"].is_number_integer());
  EXPECT_EQ(ConfigForTrial(config, {}, 2), config);
}

TEST(ConfigForTrialTest, AssignmentsReachIntoABooleanSection) {
  Json config = ConfigForTrial(With("{'zero_optimization': true}"),
                               {{"/zero_optimization/reduce_bucket_size", 1e6}}, 2);
  EXPECT_EQ(config["zero_optimization"], J("{'stage': 1, 'reduce_bucket_size': 1000000}"));
}

TEST(ConfigForTrialTest, TheResultParsesForTheBuiltinEngine) {
  Json config = ConfigForTrial(With("{'optimizer': {'type': 'Adam', 'params': {'lr': 'auto'}}}"),
                               {{"/zero_optimization/stage", 2}}, 2);
  std::vector<std::string> warnings;
  DsConfig parsed = ParseDsConfig(config, "trial", 2, &warnings);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("/optimizer/params/lr is \"auto\"")));
  EXPECT_EQ(parsed.zero.stage, 2);
  EXPECT_EQ(parsed.optimizer.lr, 1e-3);
}

}  // namespace
}  // namespace dsat::engine
