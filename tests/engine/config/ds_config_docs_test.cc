// docs/ds_config.md says what the key table and the rules say, and the table is in order.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/files.h"
#include "engine/config/keys.h"
#include "tests/build_folder.h"
#include "tests/engine/config/key_docs.h"

namespace dsat::engine {
namespace {

// The text under `heading` from `start` on, up to the next heading of that level.
std::string TextUnder(const std::string& docs, const std::string& heading,
                      const std::string& start) {
  const size_t section = docs.find("\n## " + heading + "\n");
  const size_t from = section == docs.npos ? docs.npos : docs.find("\n" + start, section);
  if (from == docs.npos) return "";
  const size_t end = docs.find("\n\n## ", from);
  return docs.substr(from + 1, end == docs.npos ? docs.npos : end - from);
}

// After a failure the build folder holds what docs/ds_config.md should say.
void ExpectText(const std::string& heading, const std::string& start, const std::string& text,
                const std::string& file) {
  const std::string docs = ReadFile(DSAT_SOURCE_DIR "/docs/ds_config.md");
  const std::string path = BuildFolder() + "/" + file;
  const bool same = TextUnder(docs, heading, start) == text;
  if (!same) WriteFileAtomic(path, text);
  EXPECT_TRUE(same) << "docs/ds_config.md, \"" << heading << "\": copy the text from " << path;
}

TEST(DsConfigDocsTest, ListExactlyTheKeysOfTheTable) {
  ExpectText("Keys", "### Top level", KeyDocs(Keys()), "ds_config_keys.md");
}

TEST(DsConfigDocsTest, ListExactlyTheRules) {
  ExpectText("Combinations", "- ", RuleDocs(), "ds_config_rules.md");
}

TEST(KeyTableTest, KeysAreUniqueAndSectionsComeFirst) {
  std::vector<std::string> seen;
  for (const Key& key : Keys()) {
    std::string pointer = key.pointer;
    EXPECT_EQ(Keys().Find(pointer), &key) << pointer << " is listed twice";
    seen.push_back(pointer);
    std::string section = pointer.substr(0, pointer.rfind('/'));
    if (section.empty()) continue;
    EXPECT_THAT(seen, testing::Contains(section));
  }
}

TEST(KeyTableTest, DefaultsAndSearchedValuesFitTheirOwnType) {
  for (const Key& key : Keys()) {
    EXPECT_NE(Keys().Find(Keys().Target(key).pointer), nullptr) << key.pointer;
    for (const int stage : {0, kNumZeroStages - 1}) {
      for (const std::string_view type : {"", key.fallback_type}) {
        const Json& fallback = Keys().Default(key, stage, type);
        EXPECT_TRUE(fallback.is_null() || Keys().Misfit(key, fallback).empty()) << key.pointer;
      }
    }
    const int from = std::min({key.searched_from, key.wide_from, key.published_from});
    EXPECT_EQ(*key.values != '\0', from < kNumZeroStages) << key.pointer;
    if (*key.values == '\0') continue;
    EXPECT_GE(key.wide_from, key.from_stage) << key.pointer << " has no effect below";
    std::istringstream others(key.only_with);
    for (std::string other; others >> other;)
      EXPECT_NE(Keys().Find(other), nullptr) << key.pointer;
    EXPECT_TRUE(*key.only_value == '\0' || Json::accept(key.only_value)) << key.pointer;
    if (key.key_class == KeyClass::kSemantic) {
      const int unless_allowed = std::min(key.searched_from, key.published_from);
      EXPECT_EQ(unless_allowed, kNumZeroStages) << key.pointer << " changes what is learned";
    }
    for (const Json& value : Json::parse(key.values))
      EXPECT_EQ(Keys().Misfit(key, value), "") << key.pointer;
  }
}

TEST(KeyTableTest, TheRecipeOfTheTrainingIsNeverSearched) {
  for (const Key& key : Keys()) {
    if (key.key_class != KeyClass::kSemantic || *key.values == '\0') continue;
    EXPECT_THAT(
        std::string(key.pointer),
        testing::AnyOf("/communication_data_type", "/zero_optimization/zero_quantized_weights",
                       "/zero_optimization/zero_quantized_gradients"));
  }
}

TEST(KeyTableTest, OnlyKeysOfDsatAndOfTorchOptimHaveNoRelease) {
  std::vector<std::string> without;
  for (const Key& key : Keys()) {
    if (*key.since == '\0') without.emplace_back(key.pointer);
  }
  EXPECT_THAT(
      without,
      testing::ElementsAre(
          "/optimizer/params/decay_norms_and_biases", "/optimizer/params/stochastic_rounding",
          "/optimizer/params/dampening", "/optimizer/params/nesterov", "/optimizer/params/maximize",
          "/optimizer/params/lr_decay", "/optimizer/params/initial_accumulator_value",
          "/activation_checkpointing/keep_norms_and_activations", "/seed", "/dsat",
          "/dsat/arguments", "/dsat/environment", "/dsat/trainer",
          "/dsat/trainer/gradient_checkpointing", "/dsat/trainer/attn_implementation",
          "/dsat/trainer/optim", "/dsat/trainer/dataloader_num_workers",
          "/dsat/trainer/dataloader_pin_memory", "/dsat/trainer/num_experts"));
}

}  // namespace
}  // namespace dsat::engine
