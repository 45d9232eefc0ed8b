// Compares the table of keys with the config classes of the real DeepSpeed. Skipped where the
// Python of DSAT_TEST_PYTHON (/usr/bin/python3 if it is not set) cannot import deepspeed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "engine/config/keys.h"
#include "tests/cli/run_dsat.h"

namespace dsat::engine {
namespace {

using testing::Contains;

std::string SectionOf(const std::string& pointer) {
  return pointer.substr(0, pointer.rfind('/'));
}

// The values that a search draws for a script.
Json SearchedValues() {
  Json values = Json::object();
  for (const Key& key : Keys()) {
    if (*key.values != '\0' && !key.builtin_only && !key.own)
      values[key.pointer] = Json::parse(key.values);
  }
  return values;
}

class DeepSpeedKeysTest : public testing::Test {
 protected:
  // Importing deepspeed takes seconds.
  static void SetUpTestSuite() {
    const char* const given = std::getenv("DSAT_TEST_PYTHON");
    const std::string python = given != nullptr ? given : "/usr/bin/python3";
    setenv("DS_ACCELERATOR", "cpu", 1);
    const Workspace work;
    WriteJsonFile(work.Path("values.json"), SearchedValues());
    const std::string command = fmt::format(
        "{} {} {} >{} 2>{}", python, DSAT_SOURCE_DIR "/tests/engine/config/deepspeed_keys.py",
        work.Path("values.json"), work.Path("keys.json"), work.Path("error"));
    if (std::system(command.c_str()) == 0) {
      found_ = ReadJsonFile(work.Path("keys.json"));
      return;
    }
    const bool has_none =
        std::system((python + " -c 'import deepspeed' >/dev/null 2>&1").c_str()) != 0;
    if (!has_none) ADD_FAILURE() << ReadFile(work.Path("error"));
  }

  void SetUp() override {
    if (found_.is_null())
      GTEST_SKIP()
          << "this Python has no deepspeed; scripts/setup --tests installs one that has it";
    version_ = found_.at("version");
    theirs_ = found_.at("keys");
    ASSERT_GT(theirs_.size(), 50U);
    for (const auto& [pointer, value] : theirs_.items())
      sections_.insert(SectionOf(pointer));
  }

  static inline Json found_;
  std::string version_;
  Json theirs_;
  std::set<std::string> sections_;
};

TEST_F(DeepSpeedKeysTest, EveryKeyOfDeepSpeedIsInTheTable) {
  for (const auto& [pointer, value] : theirs_.items()) {
    const std::string section = SectionOf(pointer);
    ASSERT_NE(Keys().Find(section), nullptr) << pointer;
    EXPECT_THAT(Keys().Names(section), Contains(pointer.substr(section.size() + 1)))
        << pointer << " is new in DeepSpeed " << version_ << ", with the default " << value;
  }
}

TEST_F(DeepSpeedKeysTest, EveryKeyOfTheTableIsKnownToDeepSpeed) {
  for (const Key& key : Keys()) {
    const bool is_theirs = *key.since != '\0' && !key.own && key.type != KeyType::kAlias;
    if (!is_theirs || *key.until != '\0' || !sections_.contains(SectionOf(key.pointer))) continue;
    EXPECT_TRUE(theirs_.contains(key.pointer))
        << key.pointer << " is gone from DeepSpeed " << version_;
  }
}

TEST_F(DeepSpeedKeysTest, EveryValueThatASearchDrawsIsAccepted) {
  EXPECT_GT(SearchedValues().size(), 20U);
  EXPECT_EQ(found_.at("refused"), Json::object()) << "of DeepSpeed " << version_;
}

TEST_F(DeepSpeedKeysTest, DefaultsAreThoseOfDeepSpeed) {
  for (const auto& [pointer, value] : theirs_.items()) {
    const Key* key = Keys().Find(pointer);
    if (key == nullptr || value.is_null() || key->type == KeyType::kAlias) continue;
    if (key->type == KeyType::kSection || key->type == KeyType::kOpenSection) continue;
    EXPECT_EQ(Keys().Default(*key), value) << pointer << " in DeepSpeed " << version_;
  }
}

}  // namespace
}  // namespace dsat::engine
