// The house rules of CONTRIBUTING.md, held by a test: where third-party headers may appear, sizes,
// banned words, dead files. Those of includes are in includes_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/source_tree.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.starts_with(prefix);
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
       {"proto/wire.", "proto/client.", "engine/worker/history.", "searcher/service/service.",
        "searcher/service/service_listener.", "tests/"}},
      {std::regex(R"(<openssl/)"), {"searcher/service/tls.", "tests/searcher/service/raw_client."}},
      {std::regex(R"(<yaml-cpp)"), {"searcher/input/experiment_"}},
      {std::regex(R"(<CLI/)"), {"cli/flags_parser.h"}},
      {std::regex(R"(<zlib\.h>)"), {"engine/files/crc32."}},
      {std::regex(R"(<re2)"), {"base/regex.h"}},
      {std::regex(R"(<pcre2)"), {"engine/data/text_splitter."}},
      {std::regex(R"(<utf8proc)"), {"engine/data/text_normalizer."}},
      {std::regex(R"(<Eigen/)"),
       {"bench/informed_search.", "methods/auto_", "tests/engine/backend/emulated_cuda/cublaslt."}},
      {std::regex(R"(<cuda|<cublas|<nccl|<library_types)"),
       {"engine/backend/cuda/", "tests/engine/backend/emulated_cuda/"}},
      {std::regex(R"(<dnnl|<oneapi/dnnl)"),
       {"engine/backend/cpu/matmul.", "engine/backend/cpu/onednn"}},
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
    // Headers that stand for a system's go by their names.
    const std::string name = "<" + fs::path(source.path).filename().string() + ">";
    const bool stands_in = StartsWith(source.path, "tests/engine/backend/emulated_cuda/include/");
    EXPECT_NE(all.find(stands_in ? name : "\"" + source.path + "\""), std::string::npos)
        << source.path;
  }
}

TEST(TidyTest, HeadersAreIncludedOnce) {
  for (const SourceFile& source : Sources()) {
    if (fs::path(source.path).extension() != ".h") continue;
    EXPECT_EQ(std::ranges::count(source.lines, "#pragma once"), 1) << source.path;
  }
}

}  // namespace
}  // namespace dsat
