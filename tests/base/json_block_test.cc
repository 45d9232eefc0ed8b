// Reads one object of a user's file: values, refusals and their messages.
#include "base/json_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/error.h"
#include "tests/base/error_code.h"

namespace dsat {
namespace {

void ExpectRefused(const std::function<void()>& read, const std::string& message) {
  EXPECT_EQ(RefusalOf(read), message);
}

TEST(JsonBlockTest, ReadsWhatIsThereAndFallsBackWhereAllowed) {
  const Json object = {{"n", 5}, {"big", 5e8}, {"type", "text"}};
  const JsonBlock block(object, "/data");
  EXPECT_EQ(block.Int("n", 7, 1, 10), 5);
  EXPECT_EQ(block.Int("big", 7, 1, 1'000'000'000), 500'000'000);
  EXPECT_EQ(block.Int("absent", 7, 1, 10), 7);
  EXPECT_EQ(block.Word("type", {"text", "synthetic"}), "text");
  EXPECT_TRUE(block.Has("n"));
  EXPECT_FALSE(block.Has("absent"));
  EXPECT_NO_THROW(block.CheckKeys({"big", "n", "type"}));
}

TEST(JsonBlockTest, MistakesNameKeyValueAndWhatIsExpected) {
  const Json object = {{"n", 5}, {"type", "texts"}};
  const JsonBlock block(object, "/data");
  ExpectRefused([&] { block.Int("n", 7, 6, 10); },
                "/data/n is 5; expected a whole number in [6, 10]");
  ExpectRefused([&] { block.Int("n", 7, 1, 4); },
                "/data/n is 5; expected a whole number in [1, 4]");
  ExpectRefused([&] { block.Int("type", 7, 1, 4); },
                "/data/type is \"texts\"; expected a whole number in [1, 4]");
  ExpectRefused(
      [&] {
        block.Word("type", {"text", "synthetic"});
      },
      "/data/type is \"texts\"; did you mean \"text\"?");
  ExpectRefused(
      [&] {
        block.Word("n", {"text", "synthetic"});
      },
      "/data/n is 5; expected one of text, synthetic");
  ExpectRefused([&] { block.At("path"); }, "/data/path is missing");
  ExpectRefused(
      [&] {
        block.CheckKeys({"n", "typ"});
      },
      "/data/type: unknown key; did you mean \"typ\"?");
  ExpectRefused([] { JsonBlock(Json(7), "/data"); }, "/data is a number; expected an object");
}

}  // namespace
}  // namespace dsat
