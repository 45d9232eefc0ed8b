// Tests reading, merging and writing JSON.
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "tests/base/error_code.h"

namespace dsat {
namespace {

using ::testing::HasSubstr;

Json Parse(std::string_view text) {
  return ParseTolerantJson(text, "f.json");
}

TEST(TolerantJsonTest, ReadsWhatPeopleWrite) {
  struct Case {
    const char* text;
    const char* strict;
  };
  const Case cases[] = {
      {"{}", "{}"},
      {"{\"a\": 1} // end", "{\"a\": 1}"},
      {"// first\n{\"a\": 1}", "{\"a\": 1}"},
      {"# first\r\n{\"a\": 1,\r\n}\r\n", "{\"a\": 1}"},
      {"/* a\n b */ {\"a\": /* x */ 1}", "{\"a\": 1}"},
      {"{\"a\": [1, 2, /* c */ ], // d\n}", "{\"a\": [1, 2]}"},
      {"[[1,],[{\"a\":[],},],]", "[[1],[{\"a\":[]}]]"},
      {"{\"a\": \"// no # comment /* here */\"}", "{\"a\": \"// no # comment /* here */\"}"},
      {"{\"a\": \"\\\" // x\", \"b\": \"\\\\\"} // y", "{\"a\": \"\\\" // x\", \"b\": \"\\\\\"}"},
      {"{\"a\": \"b,\", \"c\": \",]\",}", "{\"a\": \"b,\", \"c\": \",]\"}"},
      {"\xEF\xBB\xBF{\"a\": 1}", "{\"a\": 1}"},
      {"{\"a\": 5e8, \"b\": -0.5}", "{\"a\": 5e8, \"b\": -0.5}"},
      {"{\"n\": null, \"t\": true} /**/", "{\"n\": null, \"t\": true}"},
      {"{\"a\": 1 /* ** / * */ , /**/}", "{\"a\": 1}"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ParseTolerantJson(c.text, "f"), Json::parse(c.strict)) << c.text;
  }
}

TEST(TolerantJsonTest, WholeFloatStaysANumber) {
  Json json = ParseTolerantJson("{\"b\": 5e8}", "f");
  EXPECT_TRUE(json["b"].is_number_float());
  EXPECT_EQ(json["b"], 500000000);
}

TEST(TolerantJsonTest, NamesThePlaceOfEveryMistake) {
  struct Case {
    const char* text;
    const char* message;
  };
  const Case cases[] = {
      {"", "f.json:1:1: empty"},
      {" \n // only a comment\n", "f.json:1:1: empty"},
      {"{\"a\": 1,\n \"b\": 2,\n  \"a\": 3}", "f.json:3:3: duplicate key \"a\""},
      {"{\"x\": {\"a\": 1, \"\\u0061\": 2}}", "f.json:1:16: duplicate key \"a\""},
      {"{\"\xC3\xA4\": 1, \"a\": 1, \"a\": 2}", "f.json:1:18: duplicate key \"a\""},
      {"{\"a\": NaN}", "f.json:1:7:"},
      {"{\"a\": Infinity}", "f.json:1:7:"},
      {"{\n  \"a\" 1}", "f.json:2:7:"},
      {"{\"a\": 1}}", "f.json:1:9:"},
      {"{\"a\": 1", "f.json:1:8:"},
      {"[,]", "f.json:1:2:"},
      {"{,}", "f.json:1:2:"},
      {"[1,,]", "f.json:1:4:"},
      {"{\"a\":,}", "f.json:1:6:"},
      {"[1] /* open", "f.json:1:5: a comment is not closed"},
      {"[1e999]", "f.json:1:6: not JSON: number overflow"},
      {"{\"a\": \"x\ny\"}", "f.json:1:"},
      {"{a: 1}", "f.json:1:2:"},
      {"{'a': 1}", "f.json:1:2:"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(RefusalOf([&] { Parse(c.text); }), HasSubstr(c.message)) << c.text;
}

TEST(TolerantJsonTest, SameKeyInTwoObjectsIsNoDuplicate) {
  EXPECT_NO_THROW(Parse("{\"a\": {\"x\": 1}, \"b\": {\"x\": 1}, \"c\": [{\"x\": 1}, {\"x\": 2}]}"));
}

TEST(TolerantJsonTest, RefusesDeepNestingWithoutCrashing) {
  std::string deep(100000, '[');
  EXPECT_THAT(RefusalOf([&] { Parse(deep); }), HasSubstr("nested deeper than 200 levels"));
  std::string allowed = std::string(200, '[') + std::string(200, ']');
  EXPECT_NO_THROW(Parse(allowed));
}

TEST(TolerantJsonTest, ReadsALargeFile) {
  std::string text = "{\n";
  for (int i = 0; text.size() < (1 << 20); ++i) {
    text += fmt::format("\"key{}\": [{}, \"text // {}\",], # note\n", i, i, i);
  }
  text += "}";
  Json json = ParseTolerantJson(text, "f");
  EXPECT_GT(json.size(), 20000u);
  EXPECT_EQ(json["key100"], Json::parse("[100, \"text // 100\"]"));
}

TEST(JsonFileTest, WrittenFileIsReadBack) {
  std::string path = testing::TempDir() + "json_test_file.json";
  Json value = {{"b", 1}, {"a", {1, 2.5, "x", nullptr}}};
  WriteJsonFile(path, value);
  EXPECT_EQ(ReadJsonFile(path), value);
  std::string text = ReadFile(path);
  EXPECT_EQ(text.substr(0, 8), "{\n  \"a\":");
  EXPECT_EQ(text.back(), '\n');
  std::filesystem::remove(path);
}

TEST(JsonFileTest, MissingFileIsNamed) {
  EXPECT_THAT(RefusalOf([&] { ReadJsonFile("/nonexistent/ds.json"); }, ErrorCode::kNotFound),
              HasSubstr("/nonexistent/ds.json"));
}

TEST(MergeJsonTest, ObjectsMergeAndAllElseReplaces) {
  struct Case {
    const char *base, *overlay, *result;
  };
  const Case cases[] = {
      {R"({"a": 1})", R"({"b": 2})", R"({"a": 1, "b": 2})"},
      {R"({"a": {"x": 1, "y": 2}})", R"({"a": {"y": 3, "z": 4}})",
       R"({"a": {"x": 1, "y": 3, "z": 4}})"},
      {R"({"a": [1, 2]})", R"({"a": [3]})", R"({"a": [3]})"},
      {R"({"a": {"x": 1}})", R"({"a": 5})", R"({"a": 5})"},
      {R"({"a": 5})", R"({"a": {"x": 1}})", R"({"a": {"x": 1}})"},
      {R"({"a": 1})", R"({"a": null})", R"({"a": null})"},
      {R"({"a": 1})", R"({})", R"({"a": 1})"},
      {R"({"a": {"b": {"c": 1, "d": 2}}})", R"({"a": {"b": {"c": 9}}})",
       R"({"a": {"b": {"c": 9, "d": 2}}})"},
  };
  for (const Case& c : cases) {
    Json base = Json::parse(c.base);
    MergeJson(base, Json::parse(c.overlay));
    EXPECT_EQ(base, Json::parse(c.result)) << c.base << " + " << c.overlay;
  }
}

TEST(PointerTest, SetCreatesObjectsOnTheWay) {
  Json json;
  SetAtPointer(json, "/zero_optimization/stage", 2);
  SetAtPointer(json, "/zero_optimization/a~1b", true);
  EXPECT_EQ(json, Json::parse(R"({"zero_optimization": {"stage": 2, "a/b": true}})"));
  SetAtPointer(json, "/zero_optimization", nullptr);
  SetAtPointer(json, "/zero_optimization/stage", 1);
  EXPECT_EQ(json, Json::parse(R"({"zero_optimization": {"stage": 1}})"));
}

TEST(PointerTest, SetRefusesWhatIsNoObject) {
  for (const char* pointer : {"/a/b", "/list/0", "no slash", "/bad~2escape"}) {
    Json json = {{"a", 1}, {"list", {1, 2}}};
    Json before = json;
    EXPECT_THROW(SetAtPointer(json, pointer, 3), Error) << pointer;
    EXPECT_EQ(json, before) << pointer;
  }
}

TEST(PointerTest, FindGivesTheValueOrNothing) {
  Json json = Json::parse(R"({"a": {"b": [10, 20]}, "": 3, "n": null})");
  EXPECT_EQ(*FindAtPointer(json, "/a/b/1"), 20);
  EXPECT_EQ(*FindAtPointer(json, ""), json);
  EXPECT_EQ(*FindAtPointer(json, "/"), 3);
  EXPECT_TRUE(FindAtPointer(json, "/n")->is_null());
  for (const char* pointer : {"/x", "/a/x", "/a/b/2", "/a/b/-", "/a/b/01", "/a/b/0/c", "/n/x"}) {
    EXPECT_EQ(FindAtPointer(json, pointer), nullptr) << pointer;
  }
}

TEST(WholeNumberTest, TakesFloatsThatAreWhole) {
  EXPECT_EQ(WholeNumber(Json::parse("5e8")), 500000000);
  EXPECT_EQ(WholeNumber(Json(-3)), -3);
  EXPECT_EQ(WholeNumber(Json::parse("9223372036854775807")), 9223372036854775807);
  EXPECT_EQ(WholeNumber(Json::parse("9223372036854775808")), std::nullopt);
  EXPECT_EQ(WholeNumber(Json::parse("1e19")), std::nullopt);
  EXPECT_EQ(WholeNumber(Json::parse("5.5")), std::nullopt);
  EXPECT_EQ(WholeNumber(Json("5")), std::nullopt);
  EXPECT_EQ(WholeNumber(Json(true)), std::nullopt);
  EXPECT_EQ(WholeNumber(Json()), std::nullopt);
}

TEST(JsonTypeNameTest, SpeaksToPeople) {
  EXPECT_EQ(JsonTypeName(Json()), "null");
  EXPECT_EQ(JsonTypeName(Json(true)), "a boolean");
  EXPECT_EQ(JsonTypeName(Json(1.5)), "a number");
  EXPECT_EQ(JsonTypeName(Json("x")), "a string");
  EXPECT_EQ(JsonTypeName(Json::array()), "an array");
  EXPECT_EQ(JsonTypeName(Json::object()), "an object");
}

}  // namespace
}  // namespace dsat
