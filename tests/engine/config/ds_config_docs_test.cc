// docs/ds_config.md says what the key table and the rules say.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "engine/config/keys.h"
#include "engine/config/rules.h"
#include "tests/build_folder.h"

namespace dsat::engine {
namespace {

std::string BuiltinText(const Key& key) {
  if (key.type == KeyType::kAlias) return fmt::format("same as `{}`", key.fallback);
  switch (key.builtin) {
    case Builtin::kHonours:
      return "honours";
    case Builtin::kWarns:
      return "warns, runs without";
    case Builtin::kRefuses:
      return "refuses other values";
    case Builtin::kFollows:
      break;
  }
  return "";
}

std::string TypeText(const Key& key) {
  if (key.type == KeyType::kAlias) return "";
  std::string type = Expected(key);
  return *key.variants == '\0' ? type : fmt::format("{} ({})", type, key.variants);
}

// One row of the table: key, type and range, default, what the built-in engine does.
std::string Row(const Key& key) {
  bool has_default = key.type != KeyType::kAlias && key.type != KeyType::kSection &&
                     key.type != KeyType::kOpenSection && std::string(key.fallback) != "null";
  std::string behaviour = BuiltinText(key);
  std::string note = key.note;
  return fmt::format("| `{}` | {} | {} | {}{}{} |\n", key.pointer, TypeText(key),
                     has_default ? fmt::format("`{}`", key.fallback) : "", behaviour,
                     behaviour.empty() || note.empty() ? "" : "; ", note);
}

std::string KeyTable() {
  std::string text;
  for (const Key& key : Keys())
    text += Row(key);
  return text;
}

std::string RuleTable() {
  std::string text;
  for (const Rule& rule : Rules()) {
    text += fmt::format("| `{}` | {} | {} |\n", rule.pointer, rule.refuses ? "refused" : "warning",
                        rule.text);
  }
  return text;
}

// The rows of the table under `heading`, without its two header lines.
std::string RowsUnder(const std::string& docs, const std::string& heading) {
  size_t start = docs.find("\n## " + heading + "\n");
  if (start == docs.npos) return "";
  start = docs.find("\n|--", start);
  start = docs.find('\n', start + 1) + 1;
  size_t end = docs.find("\n\n", start);
  return docs.substr(start, end == docs.npos ? docs.npos : end + 1 - start);
}

// What docs/ds_config.md should hold lies in the build folder after a failure.
void ExpectRows(const std::string& heading, const std::string& rows, const std::string& file) {
  std::string docs = ReadFile(DSAT_SOURCE_DIR "/docs/ds_config.md");
  std::string path = BuildFolder() + "/" + file;
  bool same = RowsUnder(docs, heading) == rows;
  if (!same) WriteFileAtomic(path, rows);
  EXPECT_TRUE(same) << "docs/ds_config.md, \"" << heading << "\": copy the rows from " << path;
}

TEST(DsConfigDocsTest, ListExactlyTheKeysOfTheTable) {
  ExpectRows("Keys", KeyTable(), "ds_config_keys.md");
}

TEST(DsConfigDocsTest, ListExactlyTheRules) {
  ExpectRows("Combinations", RuleTable(), "ds_config_rules.md");
}

TEST(KeyTableTest, KeysAreUniqueAndSectionsComeFirst) {
  std::vector<std::string> seen;
  for (const Key& key : Keys()) {
    std::string pointer = key.pointer;
    EXPECT_EQ(FindKey(pointer), &key) << pointer << " is listed twice";
    seen.push_back(pointer);
    std::string section = pointer.substr(0, pointer.rfind('/'));
    if (section.empty()) continue;
    EXPECT_THAT(seen, testing::Contains(section));
  }
}

TEST(KeyTableTest, DefaultsFitTheirOwnType) {
  for (const Key& key : Keys()) {
    if (key.type == KeyType::kAlias) {
      EXPECT_NE(FindKey(key.fallback), nullptr) << key.pointer;
      continue;
    }
    const Json& fallback = DefaultValue(key);
    if (fallback.is_null()) continue;
    EXPECT_EQ(Misfit(key, fallback), "") << key.pointer;
  }
}

}  // namespace
}  // namespace dsat::engine
