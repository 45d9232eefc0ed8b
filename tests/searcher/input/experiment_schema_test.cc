// The schema of the experiment file says what is read, what docs/experiment-file.md says, and what
// the key table says.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <regex>

#include "base/error.h"
#include "base/files.h"
#include "engine/config/keys.h"
#include "searcher/input/experiment_file.h"
#include "tests/build_folder.h"
#include "tests/temp_folder.h"

namespace dsat {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Calls `visit` for each key, with its pointer.
void ForEachKey(const std::function<void(const std::string&, const Json&)>& visit,
                const std::string& section = "") {
  const Json& schema = *FindExperimentKey(section);
  if (!schema.contains("properties")) return;
  for (const auto& [name, key] : schema["properties"].items()) {
    const std::string pointer = fmt::format("{}/{}", section, name);
    visit(pointer, key);
    ForEachKey(visit, pointer);
  }
}

class ExperimentSchemaTest : public testing::Test {
 protected:
  ExperimentSchemaTest() { WriteFileAtomic(folder_ / "ds.json", R"({"train_batch_size": 8})"); }

  // The warnings of a file with a value at a pointer, or its error. JSON is YAML.
  std::vector<std::string> Read(const std::string& entrypoint, const std::string& pointer,
                                const Json& value) {
    Json file{{"entrypoint", entrypoint}, {"hyperparameters", {{"deepspeed_config", "ds.json"}}}};
    if (entrypoint == "builtin") {
      file["hyperparameters"]["model"] = {{"type", "gpt2"}};
      file["hyperparameters"]["data"] = {{"type", "synthetic"}};
    }
    SetAtPointer(file, pointer, value);
    WriteFileAtomic(folder_ / "exp.yaml", file.dump());
    std::vector<std::string> warnings;
    try {
      ReadExperimentFile(folder_ / "exp.yaml", "", &warnings);
    } catch (const Error& error) {
      return {error.what()};
    }
    return warnings;
  }

  const TempFolder folder_;
};

TEST_F(ExperimentSchemaTest, AValueOfAnotherTypeIsRefusedInTheWordsOfTheSchema) {
  int checked = 0;
  ForEachKey([&](const std::string& pointer, const Json& key) {
    EXPECT_EQ(Fits(key, true), !key.contains("errorMessage")) << pointer;
    if (!key.contains("errorMessage")) return;
    const std::string expected =
        fmt::format("{} is true; {}", pointer, key["errorMessage"].get<std::string>());
    EXPECT_THAT(Read("python3 train.py", pointer, true), Contains(HasSubstr(expected)));
    ++checked;
  });
  EXPECT_GT(checked, 15);
}

TEST_F(ExperimentSchemaTest, LimitsAreThoseOfTheSchema) {
  EXPECT_THAT(Read("builtin", "/resources/slots_per_trial", 65537),
              Contains(HasSubstr("is 65537; expected an integer >= 1 and <= 65536")));
  EXPECT_THAT(Read("builtin", "/max_restarts", 0), IsEmpty());
  EXPECT_THAT(Read("python3 train.py", "/name", ""), Contains(HasSubstr("/name is \"\"")));
  EXPECT_THAT(Read("python3 train.py", "/max_restarts", 2.0), IsEmpty());
}

TEST_F(ExperimentSchemaTest, KeysWithoutEffectAreThoseThatAWarningNames) {
  ForEachKey([&](const std::string& pointer, const Json& key) {
    const auto warning =
        Contains(testing::ContainsRegex("keys without effect are ignored: " + pointer + "$"));
    if (key.contains("deprecated")) {
      EXPECT_THAT(Read("python3 train.py", pointer, 1), warning);
    } else if (key.contains("reader")) {
      EXPECT_THAT(Read("python3 train.py", pointer, 1), Not(warning)) << pointer;
      EXPECT_THAT(Read("builtin", pointer, 1), warning);
    }
  });
}

// The names of the items of the docs, with what is said of each.
std::vector<std::pair<std::string, std::string>> DocumentedKeys(const std::string& docs) {
  std::vector<std::pair<std::string, std::string>> keys;
  const std::regex item(R"(\n- `([a-z_.*]+)`(?: and `([a-z_.*]+)`)? \(([^)]*)\))");
  for (std::sregex_iterator it(docs.begin(), docs.end(), item), end; it != end; ++it) {
    keys.emplace_back((*it)[1], (*it)[3]);
    if ((*it)[2].matched) keys.emplace_back((*it)[2], (*it)[3]);
  }
  return keys;
}

TEST(ExperimentSchemaDocsTest, DocsAndSchemaNameTheSameKeysAndDefaults) {
  const std::string all = ReadFile(DSAT_SOURCE_DIR "/docs/experiment-file.md");
  const std::string docs = all.substr(all.find("\n## Every key\n"));
  const auto documented = DocumentedKeys(docs);
  ForEachKey([&](const std::string& pointer, const Json& key) {
    EXPECT_NE(key.value("description", ""), "") << pointer;
    std::string name = pointer.substr(1);
    std::ranges::replace(name, '/', '.');
    if (key.contains("properties")) return;  // A section.
    if (key.contains("deprecated") || key.contains("reader")) {
      const std::string last = name.substr(name.rfind('.') + 1);
      EXPECT_THAT(docs, AnyOf(HasSubstr("`" + last + "`"), HasSubstr("`" + name + "`")));
      return;
    }
    const auto found =
        std::ranges::find(documented, name, [](const auto& each) { return each.first; });
    ASSERT_NE(found, documented.end()) << "docs/experiment-file.md lacks " << name;
    if (!key.contains("default")) return;
    const std::string value = key["default"].is_string()
                                  ? "`" + key["default"].get<std::string>() + "`"
                                  : key["default"].dump();
    EXPECT_THAT(found->second, HasSubstr("default " + value)) << name;
  });
  for (const auto& [name, type] : documented) {
    if (name == "hyperparameters.*") continue;
    std::string pointer = "/" + name;
    std::ranges::replace(pointer, '.', '/');
    EXPECT_NE(FindExperimentKey(pointer), nullptr) << name;
  }
}

// The schema of a section of the ds_config, which tells editors the keys and what they mean. Values
// have no types, because they may also be "auto" or lists of values.
Json DsConfigSchema(const std::string& section) {
  Json schema = {{"properties", Json::object()}};
  for (const engine::Key& key : engine::Keys()) {
    const std::string pointer = key.pointer;
    if (pointer.substr(0, pointer.rfind('/')) != section) continue;
    const std::string name = pointer.substr(section.size() + 1);
    if (key.type == engine::KeyType::kSection || key.type == engine::KeyType::kOpenSection) {
      schema["properties"][name] = DsConfigSchema(pointer);
      continue;
    }
    std::string text = engine::Keys().Expected(key);
    if (key.type == engine::KeyType::kAlias) {
      text = fmt::format("another name of {}", key.fallback);
    } else if (std::string_view(key.fallback) != "null") {
      text += fmt::format("; default {}", key.fallback);
    }
    if (*key.note != '\0') text += fmt::format("; {}", key.note);
    schema["properties"][name] = {{"description", text}};
  }
  return schema;
}

TEST(ExperimentSchemaDocsTest, TheDsConfigIsThatOfTheKeyTable) {
  const Json expected = DsConfigSchema("");
  const bool same = Json::parse(kExperimentSchema).at("definitions").at("ds_config") == expected;
  const std::string path = BuildFolder() + "/ds_config_definition.json";
  if (!same) WriteFileAtomic(path, expected.dump(2));
  EXPECT_TRUE(same)
      << "searcher/input/experiment.schema.json, definitions/ds_config: copy the text "
         "from "
      << path;
}

}  // namespace
}  // namespace dsat
