// The house rules of ARCHITECTURE.md and CONTRIBUTING.md, held by a test: who may include whom,
// where third-party headers may appear, sizes, banned words, dead files.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/source_tree.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.starts_with(prefix);
}

// What the files of a folder may include, besides the folder's own.
struct FolderRule {
  std::string folder;
  std::vector<std::string> may_include;  // Prefixes of the paths.
  // What may_include brings along: headers that the files reach without including them.
  std::vector<std::string> may_reach = {};
};

// The row of the longest matching folder holds for a file. What is not listed is forbidden.
const std::vector<FolderRule> kFolderRules = {
    {"base/", {}},
    {"proto/", {"base/"}},
    {"db/", {"base/", "proto/"}},
    {"methods/", {"base/", "proto/"}},
    {"profiler/",
     {"base/", "proto/", "engine/backend/", "engine/config/", "engine/core/", "engine/data/",
      "engine/model/", "engine/plan/", "engine/runtime/"},
     {"engine/comm/", "engine/files/", "engine/io/"}},
    // The host-only half of the engine: no kernels, no threads, no communication.
    {"searcher/",
     {"base/", "proto/", "db/", "methods/", "profiler/", "engine/config/", "engine/plan/",
      "engine/model/", "engine/data/", "engine/files/checkpoint_manifest.h",
      "engine/runtime/rank_variables.h", "engine/backend/cuda/cuda_status.h"},
     {"engine/backend/device_speed.h", "engine/core/", "engine/files/", "engine/io/async_file.h"}},
    {"cli/",
     {"base/", "proto/", "db/", "methods/", "profiler/", "searcher/", "engine/config/",
      "engine/files/checkpoint_manifest.h", "engine/files/collate.h", "engine/io/",
      "engine/backend/machine.h", "engine/runtime/rank_variables.h",
      "engine/backend/cuda/cuda_status.h"},
     {"engine/backend/", "engine/comm/", "engine/core/", "engine/data/", "engine/files/",
      "engine/model/", "engine/plan/", "engine/runtime/"}},
    // The floors of the engine, lower ones first. Only the worker knows the tuner's words (proto/).
    {"engine/core/", {"base/"}},
    {"engine/plan/", {"base/"}},
    {"engine/comm/", {"base/", "engine/core/"}},
    {"engine/io/", {"base/"}},
    {"engine/files/", {"base/", "engine/core/"}},
    {"engine/backend/", {"base/", "engine/core/", "engine/comm/"}},
    {"engine/backend/counting/",
     {"engine/backend/any_kernels.h", "engine/backend/cost.h", "engine/backend/stream.h",
      "engine/core/device_kind.h"},
     {"base/", "engine/core/", "engine/backend/kernels.h", "engine/backend/layer_ops.h",
      "engine/backend/optimizer_kernels.h", "engine/backend/step_scale.h",
      "engine/backend/stochastic_rounding.h"}},
    {"engine/backend/cpu/",
     {"base/", "engine/core/", "engine/backend/cost.h", "engine/backend/device.h",
      "engine/backend/kernels.h", "engine/backend/layer_ops.h",
      "engine/backend/optimizer_kernels.h", "engine/backend/stream.h", "engine/comm/"},
     {"engine/backend/step_scale.h", "engine/backend/stochastic_rounding.h"}},
    {"engine/backend/cuda/",
     {"base/", "engine/core/", "engine/comm/", "engine/backend/any_kernels.h",
      "engine/backend/cost.h", "engine/backend/device.h", "engine/backend/device_speed.h",
      "engine/backend/kernels.h", "engine/backend/layer_ops.h", "engine/backend/open_library.h",
      "engine/backend/optimizer_kernels.h", "engine/backend/staged_group.h",
      "engine/backend/step_scale.h", "engine/backend/stochastic_rounding.h",
      "engine/backend/stream.h"}},
    {"engine/config/", {"base/", "engine/core/", "engine/io/", "engine/plan/"}},
    {"engine/model/",
     {"base/", "engine/core/", "engine/files/", "engine/backend/kernels.h"},
     {"engine/backend/layer_ops.h"}},
    {"engine/data/", {"base/", "engine/core/", "engine/files/crc32.h", "engine/model/"}},
    {"engine/runtime/state/",
     {"base/", "engine/core/", "engine/plan/", "engine/comm/", "engine/io/", "engine/backend/",
      "engine/model/"}},
    {"engine/runtime/optimizer/",
     {"base/", "engine/core/", "engine/plan/", "engine/comm/", "engine/backend/", "engine/config/",
      "engine/model/", "engine/runtime/state/"},
     {"engine/io/"}},
    {"engine/runtime/executor/",
     {"base/", "engine/core/", "engine/plan/", "engine/comm/", "engine/backend/", "engine/config/",
      "engine/model/", "engine/data/", "engine/runtime/state/", "engine/runtime/optimizer/"},
     {"engine/io/"}},
    {"engine/runtime/checkpoint/",
     {"base/", "engine/core/", "engine/comm/", "engine/files/", "engine/model/",
      "engine/runtime/state/"},
     {"engine/plan/", "engine/io/", "engine/backend/"}},
    {"engine/runtime/",
     {"base/", "engine/core/", "engine/plan/", "engine/comm/", "engine/io/", "engine/files/",
      "engine/backend/", "engine/config/", "engine/model/", "engine/data/"}},
    {"engine/worker/",
     {"base/", "proto/", "engine/core/", "engine/plan/", "engine/comm/", "engine/io/",
      "engine/files/", "engine/backend/", "engine/config/", "engine/model/", "engine/data/",
      "engine/runtime/"}},
};

// The row for a file; nullptr if there is none.
const FolderRule* RuleOf(const std::string& path) {
  const FolderRule* longest = nullptr;
  for (const FolderRule& rule : kFolderRules) {
    const bool matches = StartsWith(path, rule.folder);
    if (matches && (longest == nullptr || rule.folder.size() > longest->folder.size())) {
      longest = &rule;
    }
  }
  return longest;
}

std::vector<std::string> IncludesOf(const std::vector<std::string>& lines) {
  const std::regex include(R"re(^#include "([^"]+)")re");
  std::vector<std::string> targets;
  for (const std::string& line : lines) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    // What is generated belongs to ThirdPartyHeadersStayInFewFiles.
    if (!match[1].str().ends_with(".pb.h")) targets.push_back(match[1]);
  }
  return targets;
}

// The direct includes of every file of ours.
const std::map<std::string, std::vector<std::string>>& Includes() {
  static const std::map<std::string, std::vector<std::string>> includes = [] {
    std::map<std::string, std::vector<std::string>> out;
    for (const SourceFile& source : Sources())
      out[source.path] = IncludesOf(source.lines);
    return out;
  }();
  return includes;
}

// Adds to `reached` all that the file includes, directly or not. The value of a header is the file
// through which it was reached first.
void Reach(const std::string& path, std::map<std::string, std::string>& reached) {
  const auto entry = Includes().find(path);
  if (entry == Includes().end()) return;
  for (const std::string& target : entry->second) {
    if (reached.emplace(target, path).second) Reach(target, reached);
  }
}

TEST(TidyTest, IncludesFollowTheDependencyPicture) {
  for (const auto& [path, targets] : Includes()) {
    const FolderRule* rule = RuleOf(path);
    if (rule == nullptr) continue;
    for (const std::string& target : targets) {
      EXPECT_TRUE(StartsWith(target, rule->folder) || AnyPrefix(target, rule->may_include))
          << path << " may not include " << target;
    }
  }
}

TEST(TidyTest, WhatIncludesBringAlongFollowsTheDependencyPicture) {
  std::set<std::pair<std::string, std::string>>
      told;  // A folder and a header that it may not reach.
  for (const auto& [path, targets] : Includes()) {
    const FolderRule* rule = RuleOf(path);
    if (rule == nullptr) continue;
    std::map<std::string, std::string> reached;
    Reach(path, reached);
    for (const auto& [target, through] : reached) {
      const bool allowed = StartsWith(target, rule->folder) ||
                           AnyPrefix(target, rule->may_include) ||
                           AnyPrefix(target, rule->may_reach);
      if (allowed || !told.emplace(rule->folder, target).second) continue;
      ADD_FAILURE() << path << " may not reach " << target << ", which " << through << " includes";
    }
  }
}

TEST(TidyTest, EveryFolderHasARule) {
  for (const SourceFile& source : Sources()) {
    if (AnyPrefix(source.path, {"bench/", "tests/"})) continue;  // They may include everything.
    EXPECT_NE(RuleOf(source.path), nullptr) << source.path;
  }
}

// A .cc has a header of its own name, or it is a part of what one of these headers declares.
TEST(TidyTest, EveryImplementationHasAHeader) {
  const std::vector<std::string> folders = {"base/", "proto/",    "db/",     "methods/",
                                            "cli/",  "searcher/", "engine/", "profiler/"};
  const std::vector<std::pair<std::string, std::string>> parts = {
      {"methods/auto_scales.cc", "methods/auto_regression.h"},
      {"methods/auto_transfer.cc", "methods/auto_belief.h"},
      {"searcher/search_confirm.cc", "searcher/search.h"},
      {"cli/", "cli/commands.h"},
      {"engine/backend/cpu/cpu_device.cc", "engine/backend/device.h"},
      {"engine/backend/open_device.cc", "engine/backend/device.h"},
      // The kernels of one class, by what they compute.
      {"engine/backend/cpu/", "engine/backend/cpu/cpu_kernels.h"},
      {"engine/backend/cuda/cuda_optimizers.cc", "engine/backend/cuda/cuda_kernels.h"},
      // One interface, of which each file is an implementation.
      {"engine/backend/counting/counting_kernels.cc", "engine/backend/kernels.h"},
      {"engine/backend/cuda/", "engine/backend/cuda/plugin.h"},
      {"engine/comm/", "engine/comm/process_group.h"},
      {"engine/io/", "engine/io/block_queue.h"},
      // The settings of a ds_config: their table, parsing and validation.
      {"engine/config/key_table.cc", "engine/config/keys.h"},
      {"engine/config/zero_keys.cc", "engine/config/keys.h"},
      {"engine/config/", "engine/config/ds_config.h"},
  };
  for (const auto& [path, targets] : Includes()) {
    const fs::path name = path;
    if (!AnyPrefix(path, folders) || name.extension() != ".cc") continue;
    if (path.ends_with("_main.cc") || path.ends_with("/main.cc")) continue;
    if (Includes().contains(fs::path(name).replace_extension(".h").string())) continue;
    const auto part = std::ranges::find_if(
        parts, [&](const auto& entry) { return StartsWith(path, entry.first); });
    ASSERT_NE(part, parts.end()) << path << " has no header";
    std::map<std::string, std::string> reached;
    Reach(path, reached);
    EXPECT_TRUE(reached.contains(part->second)) << path << " does not include " << part->second;
  }
}

TEST(TidyTest, InstalledHeadersIncludeOnlyInstalledOnes) {
  std::ifstream file(SourceRoot() / "engine/package/CMakeLists.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex header(R"(\b(?:base|engine)/[a-z0-9_/]+\.h\b)");
  std::vector<std::string> installed;
  for (std::sregex_iterator it(text.begin(), text.end(), header), end; it != end; ++it)
    installed.push_back(it->str());
  EXPECT_GT(installed.size(), 10U);
  EXPECT_LT(installed.size(), 19U);
  for (const std::string& path : installed) {
    ASSERT_EQ(Includes().count(path), 1U) << path;
    for (const std::string& target : Includes().at(path)) {
      EXPECT_EQ(std::ranges::count(installed, target), 1)
          << path << " includes " << target << ", which is not installed";
    }
  }
  // Nor do they name other types, except those of what only dsat itself calls.
  const std::set<std::string> of_dsat = {"BufferPlan",   "CheckpointSave",   "DsConfig",  "F16",
                                         "MemorySource", "OptimizerKernels", "Resources", "Stream"};
  std::set<std::string> declared, defined;
  const std::regex type(R"(^(?:class|struct) (\w+)(;?))");
  for (const SourceFile& source : Sources()) {
    if (std::ranges::count(installed, source.path) == 0) continue;
    for (const std::string& line : source.lines) {
      std::smatch match;
      if (std::regex_search(line, match, type))
        (match[2].length() > 0 ? declared : defined).insert(match[1]);
    }
  }
  for (const std::string& name : declared)
    EXPECT_TRUE(defined.contains(name) || of_dsat.contains(name))
        << "installed headers name " << name << ", whose header is not installed";
}

TEST(TidyTest, OnlyTheTrialWorkerOfTheEngineKnowsTheTuner) {
  for (const SourceFile& source : Sources()) {
    if (!StartsWith(source.path, "engine/") || StartsWith(source.path, "engine/worker/")) continue;
    for (const std::string& line : source.lines)
      EXPECT_FALSE(StartsWith(line, "#include \"proto/")) << source.path << ": " << line;
  }
}

TEST(TidyTest, OnlyPlacementsAndRulesCompareStageNumbers) {
  const std::regex comparison(R"(\bstage(\(\))? *([<>]=?|[!=]=) *[0-3]\b)");
  for (const SourceFile& source : Sources()) {
    if (!StartsWith(source.path, "engine/") || StartsWith(source.path, "engine/config/") ||
        source.path == "engine/plan/placement.h")
      continue;
    for (const std::string& line : source.lines) {
      if (line.find("stage") == line.npos) continue;
      EXPECT_FALSE(std::regex_search(line, comparison)) << source.path << ": " << line;
    }
  }
}

TEST(TidyTest, OnlyThePolicyAsksForCompatDetermined) {
  // The others read the option from the command line, store it and refuse contradictions.
  const std::vector<std::string> files = {"proto/search_policy.h", "proto/experiment.",
                                          "cli/flags_search.cc", "methods/options.cc", "tests/"};
  for (const SourceFile& source : Sources()) {
    if (AnyPrefix(source.path, files)) continue;
    for (const std::string& line : source.lines)
      EXPECT_EQ(line.find("compat_determined"), line.npos) << source.path << ": " << line;
  }
}

TEST(TidyTest, ThirdPartyHeadersStayInFewFiles) {
  struct Rule {
    std::regex header;
    std::vector<std::string> files;  // Prefixes of the paths that may.
  };
  const std::vector<Rule> rules = {
      {std::regex(R"(<sqlite3\.h>)"), {"db/sqlite.", "tests/db/"}},
      {std::regex(R"(<grpc|\.pb\.h"|<google/protobuf)"),
       {"proto/wire.", "proto/client.", "proto/tensorboard.", "searcher/service.",
        "searcher/service_listener.", "tests/"}},
      {std::regex(R"(<yaml-cpp)"), {"searcher/input/experiment_"}},
      {std::regex(R"(<CLI/)"), {"cli/flags_parser.h"}},
      {std::regex(R"(<zlib\.h>)"), {"engine/files/crc32."}},
      {std::regex(R"(<liburing)"), {"engine/io/uring_queue."}},
      {std::regex(R"(<re2)"), {"base/regex.h"}},
      {std::regex(R"(<pcre2)"), {"engine/data/text_splitter."}},
      {std::regex(R"(<utf8proc)"), {"engine/data/text_normalizer."}},
      {std::regex(R"(<(unsupported/)?Eigen/)"), {"methods/auto_", "tests/engine/backend/emulated_cuda/cublaslt."}},
      {std::regex(R"(<cuda|<cublas|<nccl|<library_types)"),
       {"engine/backend/cuda/", "tests/engine/backend/emulated_cuda/"}},
      {std::regex(R"(<dnnl|<oneapi/dnnl)"),
       {"engine/backend/cpu/matmul.", "engine/backend/cpu/onednn."}},
  };
  for (const SourceFile& source : Sources()) {
    for (const std::string& line : source.lines) {
      if (!StartsWith(line, "#include")) continue;
      for (const Rule& rule : rules) {
        if (!std::regex_search(line, rule.header)) continue;
        EXPECT_TRUE(AnyPrefix(source.path, rule.files)) << source.path << ": " << line;
      }
    }
  }
}

TEST(TidyTest, FilesAreAtMost500LinesOf100Columns) {
  for (const SourceFile& source : Sources()) {
    EXPECT_LE(source.lines.size(), 500U) << source.path;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      EXPECT_LE(NumColumns(source.lines[i]), 100) << source.path << ":" << i + 1;
    }
  }
}

TEST(TidyTest, FunctionsAreAtMost70Lines) {
  const std::regex not_a_function(
      R"(^(namespace|class|struct|enum|union|extern)\b|=\s*\{$|^const .*\{$)");
  for (const SourceFile& source : Sources()) {
    size_t start = 0;
    bool open = false;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const std::string& line = source.lines[i];
      if (!open && !line.empty() && line[0] != ' ' && line[0] != '#' && line.back() == '{' &&
          !std::regex_search(line, not_a_function)) {
        start = i;
        open = true;
      }
      if (open && StartsWith(line, "}")) {
        EXPECT_LE(i - start + 1, 70U) << source.path << ":" << start + 1;
        open = false;
      }
    }
  }
}

TEST(TidyTest, EveryFileOpensWithItsJob) {
  for (const SourceFile& source : Sources()) {
    ASSERT_FALSE(source.lines.empty()) << source.path;
    EXPECT_TRUE(StartsWith(source.lines[0], "// ")) << source.path << ": " << source.lines[0];
  }
}

TEST(TidyTest, NoBannedWords) {
  const std::regex banned(R"(\b(TODO|FIXME|XXX|HACK)\b|#if 0|using namespace std)");
  for (const SourceFile& source : Sources()) {
    if (source.path == "tests/tidy_test.cc") continue;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(source.lines[i], banned))
          << source.path << ":" << i + 1 << ": " << source.lines[i];
    }
  }
}

TEST(TidyTest, EverySourceFileIsBuilt) {
  std::string build_files;
  for (const std::string& folder : SourceFolders()) {
    for (const auto& entry : fs::recursive_directory_iterator(SourceRoot() / folder)) {
      if (entry.path().filename() != "CMakeLists.txt") continue;
      std::ifstream file(entry.path());
      build_files.append(std::istreambuf_iterator<char>(file), {});
      build_files += '\n';
    }
  }
  for (const SourceFile& source : Sources()) {
    if (fs::path(source.path).extension() == ".h") continue;
    const std::string name = fs::path(source.path).filename();
    EXPECT_NE(build_files.find(name), std::string::npos)
        << source.path << " is in no CMakeLists.txt";
  }
}

TEST(TidyTest, EveryHeaderIsIncluded) {
  std::string all;
  for (const SourceFile& source : Sources()) {
    for (const std::string& line : source.lines) {
      if (StartsWith(line, "#include")) all += line + "\n";
    }
  }
  for (const SourceFile& source : Sources()) {
    if (fs::path(source.path).extension() != ".h") continue;
    // Those that stand for a system's headers go by their names.
    const std::string name = "<" + fs::path(source.path).filename().string() + ">";
    const bool stands_in = StartsWith(source.path, "tests/engine/backend/emulated_cuda/include/");
    EXPECT_NE(all.find(stands_in ? name : "\"" + source.path + "\""), std::string::npos)
        << source.path;
  }
}

TEST(TidyTest, HeaderGuardsNameTheFile) {
  for (const SourceFile& source : Sources()) {
    if (fs::path(source.path).extension() != ".h") continue;
    std::string guard = "DSAT_" + source.path + "_";
    std::transform(guard.begin(), guard.end(), guard.begin(), [](unsigned char c) {
      return std::isalnum(c) != 0 ? static_cast<char>(std::toupper(c)) : '_';
    });
    const auto has = [&](const std::string& line) {
      return std::find(source.lines.begin(), source.lines.end(), line) != source.lines.end();
    };
    EXPECT_TRUE(has("#ifndef " + guard) && has("#define " + guard)) << source.path << ": " << guard;
  }
}

}  // namespace
}  // namespace dsat
