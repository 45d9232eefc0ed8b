// Compares the table of keys with the config classes of the real DeepSpeed. Skipped where the
// Python of DSAT_TEST_PYTHON (/usr/bin/python3 if it is not set) cannot import deepspeed.
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

class DeepSpeedKeysTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const given = std::getenv("DSAT_TEST_PYTHON");
    const std::string python = given != nullptr ? given : "/usr/bin/python3";
    setenv("DS_ACCELERATOR", "cpu", 1);
    if (std::system((python + " -c 'import deepspeed' >/dev/null 2>&1").c_str()) != 0)
      GTEST_SKIP()
          << "this Python has no deepspeed; scripts/setup --tests installs one that has it";
    const Workspace work;
    const std::string script = DSAT_SOURCE_DIR "/tests/engine/config/deepspeed_keys.py";
    ASSERT_EQ(
        std::system((python + " " + script + " 2>/dev/null >" + work.Path("keys.json")).c_str()),
        0);
    const Json found = ReadJsonFile(work.Path("keys.json"));
    version_ = found.at("version");
    theirs_ = found.at("keys");
    ASSERT_GT(theirs_.size(), 50U);
    for (const auto& [pointer, value] : theirs_.items())
      sections_.insert(SectionOf(pointer));
  }

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
