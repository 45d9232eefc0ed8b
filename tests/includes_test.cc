// The rules of includes in ARCHITECTURE.md, held by a test: who may include whom, and no cycles.
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

// The paths that the files of a folder may include, besides its other files.
struct FolderRule {
  std::string folder;
  std::vector<std::string> may_include;  // Prefixes of the paths.
  // The headers that may_include brings along: files reach them without including them.
  std::vector<std::string> may_reach = {};
};

// One row for each folder. What is not listed is forbidden.
const std::vector<FolderRule> kFolderRules = {
    {"base/", {}},
    {"proto/", {"base/"}},
    {"db/", {"base/", "proto/"}},
    {"methods/", {"base/", "proto/"}},
    {"profiler/",
     {"base/", "proto/", "engine/backend/", "engine/config/", "engine/core/", "engine/data/",
      "engine/model/", "engine/plan/", "engine/runtime/"},
     {"engine/comm/", "engine/files/", "engine/io/"}},
    // The floors of the searcher, lower ones first. Of the engine they know the half that needs no
    // kernels, threads or communication.
    {"searcher/processes/", {"base/", "engine/runtime/rank_variables.h"}},
    {"searcher/command/", {"base/", "proto/", "engine/config/"}},
    {"searcher/hosts/",
     {"base/", "proto/", "searcher/processes/", "searcher/command/",
      "engine/runtime/rank_variables.h"}},
    {"searcher/launch/",
     {"base/", "proto/", "searcher/processes/", "searcher/hosts/",
      "engine/runtime/rank_variables.h"}},
    {"searcher/scripts/",
     {"base/", "proto/", "searcher/processes/", "searcher/command/", "searcher/hosts/",
      "searcher/launch/", "engine/config/"}},
    {"searcher/input/",
     {"base/", "proto/", "profiler/places.h", "searcher/processes/", "searcher/command/",
      "searcher/scripts/", "engine/backend/cuda/cuda_status.h", "engine/config/", "engine/data/",
      "engine/model/"},
     {"profiler/predictor.h", "searcher/launch/", "engine/backend/device_speed.h", "engine/core/",
      "engine/io/async_file.h", "engine/plan/"}},
    {"searcher/search/", {"base/", "proto/", "db/", "methods/", "profiler/", "engine/config/"}},
    {"searcher/service/",
     {"base/", "proto/", "db/", "searcher/search/"},
     {"methods/", "profiler/"}},
    {"searcher/",
     {"base/", "proto/", "db/", "searcher/processes/", "searcher/command/", "searcher/hosts/",
      "searcher/launch/", "searcher/scripts/", "searcher/search/", "searcher/service/",
      "engine/config/", "engine/files/checkpoint_manifest.h"},
     {"methods/", "profiler/", "engine/core/", "engine/files/", "engine/io/async_file.h",
      "engine/plan/"}},
    {"cli/output/",
     {"base/", "proto/", "db/", "methods/", "searcher/search/", "engine/config/"},
     {"profiler/"}},
    {"cli/report/",
     {"base/", "proto/", "db/", "profiler/", "searcher/results.h", "searcher/search/",
      "cli/output/"},
     {"methods/", "engine/config/"}},
    {"cli/",
     {"base/", "proto/", "db/", "methods/", "profiler/", "searcher/", "cli/output/", "cli/report/",
      "engine/config/", "engine/files/checkpoint_manifest.h", "engine/files/collate.h",
      "engine/io/", "engine/backend/machine.h", "engine/runtime/rank_variables.h",
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
      "engine/backend/optimizer_kernels.h", "engine/backend/stream.h",
      "engine/backend/update_rules.h", "engine/comm/"},
     {"engine/backend/step_scale.h", "engine/backend/stochastic_rounding.h"}},
    {"engine/backend/cuda/",
     {"base/", "engine/core/", "engine/comm/", "engine/backend/any_kernels.h",
      "engine/backend/cost.h", "engine/backend/device.h", "engine/backend/device_speed.h",
      "engine/backend/kernels.h", "engine/backend/layer_ops.h", "engine/backend/open_library.h",
      "engine/backend/optimizer_kernels.h", "engine/backend/staged_group.h",
      "engine/backend/step_scale.h", "engine/backend/stochastic_rounding.h",
      "engine/backend/stream.h", "engine/backend/update_rules.h"}},
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
      "engine/backend/", "engine/config/", "engine/model/", "engine/data/", "engine/runtime/"}},
    {"engine/worker/",
     {"base/", "proto/", "engine/core/", "engine/plan/", "engine/comm/", "engine/io/",
      "engine/files/", "engine/backend/", "engine/config/", "engine/model/", "engine/data/",
      "engine/runtime/"}},
};

// The folder of a file, with the slash at its end.
std::string FolderOf(const std::string& path) {
  return path.substr(0, path.rfind('/') + 1);
}

// The row for a file; nullptr if there is none.
const FolderRule* RuleOf(const std::string& path) {
  const auto found = std::ranges::find(kFolderRules, FolderOf(path), &FolderRule::folder);
  return found == kFolderRules.end() ? nullptr : &*found;
}

std::vector<std::string> IncludesOf(const std::vector<std::string>& lines) {
  const std::regex include(R"re(^#include "([^"]+)")re");
  std::vector<std::string> targets;
  for (const std::string& line : lines) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    // ThirdPartyHeadersStayInFewFiles checks generated headers.
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
      EXPECT_TRUE(FolderOf(target) == rule->folder || AnyPrefix(target, rule->may_include))
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
      const bool allowed = FolderOf(target) == rule->folder ||
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

// The files of a program and what each of them includes.
using IncludeGraph = std::map<std::string, std::vector<std::string>>;

// A file's header and implementation are one: "searcher/search/search".
std::string StemOf(const std::string& path) {
  return path.substr(0, path.rfind('.'));
}

// The groups of folders or stems, as `node_of` names them, of which each includes all others of its
// group, directly or through others.
std::set<std::set<std::string>> CyclesOf(const IncludeGraph& includes,
                                         std::string (*node_of)(const std::string&)) {
  std::map<std::string, std::set<std::string>> reached;  // By each node, at first directly.
  for (const auto& [path, targets] : includes) {
    for (const std::string& target : targets) {
      if (includes.contains(target) && node_of(target) != node_of(path))
        reached[node_of(path)].insert(node_of(target));
    }
  }
  const auto direct = reached;
  for (auto& [node, all] : reached) {
    for (std::vector<std::string> open(all.begin(), all.end()); !open.empty();) {
      const auto next = direct.find(open.back());
      open.pop_back();
      if (next == direct.end()) continue;
      for (const std::string& target : next->second)
        if (all.insert(target).second) open.push_back(target);
    }
  }
  std::set<std::set<std::string>> cycles;
  for (const auto& [node, all] : reached) {
    std::set<std::string> cycle;
    for (const std::string& other : all)
      if (reached.contains(other) && reached.at(other).contains(node)) cycle.insert(other);
    if (!cycle.empty()) cycles.insert(std::move(cycle));
  }
  return cycles;
}

// The files that make up programs: tests may include everything.
IncludeGraph ProgramIncludes() {
  IncludeGraph includes = Includes();
  std::erase_if(includes, [](const auto& entry) {
    return AnyPrefix(entry.first, {"bench/", "tests/"});
  });
  return includes;
}

TEST(TidyTest, FoldersAndStemsThatIncludeEachOtherAreFound) {
  const IncludeGraph includes = {
      {"cli/report_command.cc", {"cli/report/page.h", "cli/report_command.h"}},
      {"cli/report_command.h", {"base/json.h"}},
      {"cli/report/page.cc", {"cli/report/page.h", "cli/describe.h"}},
      {"cli/report/page.h", {"cli/report/plots.h", "base/json.h"}},
      {"cli/report/plots.h", {"cli/report/scale.h", "generated.h"}},
      {"cli/report/scale.h", {}},
      {"cli/report/scale.cc", {"cli/report/scale.h", "cli/report/page.h"}},
      {"cli/describe.h", {"base/json.h"}},
      {"base/json.h", {}},
  };
  using Cycles = std::set<std::set<std::string>>;
  EXPECT_EQ(CyclesOf(includes, FolderOf), (Cycles{{"cli/", "cli/report/"}}));
  EXPECT_EQ(CyclesOf(includes, StemOf),
            (Cycles{{"cli/report/page", "cli/report/plots", "cli/report/scale"}}));
}

TEST(TidyTest, NoFoldersIncludeEachOther) {
  for (const std::set<std::string>& cycle : CyclesOf(ProgramIncludes(), FolderOf))
    ADD_FAILURE() << testing::PrintToString(cycle) << " include each other";
}

TEST(TidyTest, AtMostTwoFilesIncludeEachOther) {
  for (const std::set<std::string>& cycle : CyclesOf(ProgramIncludes(), StemOf))
    EXPECT_LE(cycle.size(), 2u) << testing::PrintToString(cycle) << " include each other";
}

// A .cc has a header of its own name, or it is a part of what one of these headers declares.
TEST(TidyTest, EveryImplementationHasAHeader) {
  const std::vector<std::string> folders = {"base/", "proto/",    "db/",     "methods/",
                                            "cli/",  "searcher/", "engine/", "profiler/"};
  const std::vector<std::pair<std::string, std::string>> parts = {
      {"methods/auto_scales.cc", "methods/auto_regression.h"},
      {"methods/auto_transfer.cc", "methods/auto_belief.h"},
      {"methods/options.cc", "methods/methods.h"},
      {"searcher/launch/builtin_target.cc", "searcher/launch/launch_target.h"},
      {"searcher/input/experiment_spec.cc", "searcher/input/document.h"},
      {"cli/flags_", "cli/flags_parser.h"},
      {"cli/output/", "cli/output/output.h"},
      {"cli/report/", "cli/report/page.h"},
      {"cli/", "cli/commands.h"},
      {"db/", "db/store.h"},
      {"engine/backend/cpu/cpu_device.cc", "engine/backend/device.h"},
      // The kernels of one class, by what they compute.
      {"engine/backend/cpu/", "engine/backend/cpu/cpu_kernels.h"},
      // One interface, of which each file is an implementation.
      {"engine/backend/counting/counting_kernels.cc", "engine/backend/kernels.h"},
      {"engine/backend/cuda/", "engine/backend/cuda/plugin.h"},
      {"engine/comm/", "engine/comm/process_group.h"},
      {"engine/io/", "engine/io/block_queue.h"},
      {"engine/model/", "engine/model/from_json.h"},
      // The settings of a ds_config: their table, parsing and validation.
      {"engine/config/zero_keys.cc", "engine/config/key_rows.h"},
      {"engine/config/rules.cc", "engine/config/validate.h"},
      {"engine/config/", "engine/config/ds_config.h"},
  };
  for (const auto& [path, targets] : Includes()) {
    const fs::path name = path;
    if (!AnyPrefix(path, folders) || name.extension() != ".cc") continue;
    if (path.ends_with("_main.cc") || path.ends_with("/main.cc")) continue;
    if (Includes().contains(fs::path(name).replace_extension(".h").string())) continue;
    const auto part = std::ranges::find_if(
        parts, [&](const auto& entry) { return path.starts_with(entry.first); });
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
  EXPECT_LT(installed.size(), 20U);
  for (const std::string& path : installed) {
    ASSERT_EQ(Includes().count(path), 1U) << path;
    for (const std::string& target : Includes().at(path)) {
      EXPECT_EQ(std::ranges::count(installed, target), 1)
          << path << " includes " << target << ", which is not installed";
    }
  }
  // Nor do they name other types, except those of what only dsat itself calls.
  const std::set<std::string> of_dsat = {"AllKernels", "BufferPlan",   "CheckpointSave", "DsConfig",
                                         "F16",        "MemorySource", "Resources",      "Stream"};
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

}  // namespace
}  // namespace dsat
