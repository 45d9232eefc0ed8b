// The house rules of ARCHITECTURE.md and CONTRIBUTING.md, held by a test: who may include whom,
// where third-party headers may appear, sizes, banned words, dead files.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = DSAT_SOURCE_DIR;
const std::vector<std::string> kFolders = {"base",   "proto", "db",    "methods", "profiler",
                                           "engine", "cli",   "bench", "tests",   "searcher"};

struct Source {
  std::string path;  // From the root.
  std::vector<std::string> lines;
};

const std::vector<Source>& Sources() {
  static const std::vector<Source> sources = [] {
    std::vector<Source> out;
    for (const std::string& folder : kFolders) {
      for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
        const std::string extension = entry.path().extension();
        if (extension != ".h" && extension != ".cc" && extension != ".cu") continue;
        Source source{fs::relative(entry.path(), kRoot).string(), {}};
        std::ifstream file(entry.path());
        for (std::string line; std::getline(file, line);)
          source.lines.push_back(line);
        out.push_back(std::move(source));
      }
    }
    return out;
  }();
  return sources;
}

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

bool AnyPrefix(const std::string& text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return StartsWith(text, prefix); });
}

// Folder -> what its files may include, beside itself. What is not listed is forbidden.
const std::map<std::string, std::vector<std::string>> kMayInclude = {
    {"base/", {}},
    {"proto/", {"base/"}},
    {"db/", {"base/", "proto/"}},
    {"methods/", {"base/", "proto/"}},
    // The host-only half of the engine: no kernels, no threads, no communication.
    {"profiler/",
     {"base/", "proto/", "engine/backend/", "engine/config/", "engine/core/", "engine/data/",
      "engine/model/", "engine/plan/", "engine/runtime/"}},
    {"searcher/",
     {"base/", "proto/", "db/", "methods/", "profiler/", "engine/config/", "engine/plan/",
      "engine/model/", "engine/data/", "engine/runtime/rank_variables.h",
      "engine/backend/cuda/cuda_status.h"}},
    {"cli/",
     {"base/", "proto/", "db/", "methods/", "profiler/", "searcher/", "engine/config/",
      "engine/files/collate.h", "engine/io/", "engine/backend/machine.h",
      "engine/runtime/rank_variables.h", "engine/backend/cuda/cuda_status.h"}},
    {"engine/", {"base/", "proto/"}},
};

TEST(TidyTest, IncludesFollowTheDependencyPicture) {
  const std::regex include(R"re(^#include "([^"]+)")re");
  for (const Source& source : Sources()) {
    for (const auto& [folder, allowed] : kMayInclude) {
      if (!StartsWith(source.path, folder)) continue;
      for (const std::string& line : source.lines) {
        std::smatch match;
        if (!std::regex_search(line, match, include)) continue;
        const std::string target = match[1];
        if (StartsWith(target, "dsat.")) continue;  // Generated; ThirdPartyHeadersStayInFewFiles.
        EXPECT_TRUE(StartsWith(target, folder) || AnyPrefix(target, allowed))
            << source.path << " may not include " << target;
      }
    }
  }
}

TEST(TidyTest, OnlyTheTrialWorkerOfTheEngineKnowsTheTuner) {
  for (const Source& source : Sources()) {
    if (!StartsWith(source.path, "engine/") || StartsWith(source.path, "engine/worker/")) continue;
    for (const std::string& line : source.lines)
      EXPECT_FALSE(StartsWith(line, "#include \"proto/")) << source.path << ": " << line;
  }
}

TEST(TidyTest, ThirdPartyHeadersStayInFewFiles) {
  struct Rule {
    std::regex header;
    std::vector<std::string> files;  // Prefixes of the paths that may.
  };
  const std::vector<Rule> rules = {
      {std::regex(R"(<sqlite3\.h>)"), {"db/sqlite.", "tests/db/"}},
      {std::regex(R"(<grpc|"dsat\.(grpc\.)?pb\.h"|<google/protobuf)"),
       {"proto/wire.", "proto/client.", "searcher/service.", "searcher/service_listener.",
        "tests/"}},
      {std::regex(R"(<yaml-cpp)"), {"searcher/input/experiment_"}},
      {std::regex(R"(<CLI/)"), {"cli/flags_parser.h"}},
      {std::regex(R"(<zlib\.h>)"), {"engine/files/crc32."}},
      {std::regex(R"(<liburing)"), {"engine/io/uring_queue."}},
      {std::regex(R"(<Eigen/)"), {"tests/engine/backend/emulated_cuda/cublaslt."}},
      {std::regex(R"(<cuda|<cublas|<nccl|<library_types)"),
       {"engine/backend/cuda/", "tests/engine/backend/emulated_cuda/"}},
      {std::regex(R"(<dnnl|<oneapi/dnnl)"),
       {"engine/backend/cpu/matmul.", "engine/backend/cpu/onednn."}},
  };
  for (const Source& source : Sources()) {
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
  for (const Source& source : Sources()) {
    EXPECT_LE(source.lines.size(), 500U) << source.path;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      // Columns, not bytes: UTF-8 continuation bytes do not count.
      const auto columns =
          std::count_if(source.lines[i].begin(), source.lines[i].end(),
                        [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
      EXPECT_LE(columns, 100) << source.path << ":" << i + 1;
    }
  }
}

TEST(TidyTest, FunctionsAreAtMost70Lines) {
  const std::regex not_a_function(
      R"(^(namespace|class|struct|enum|union|extern)\b|=\s*\{$|^const .*\{$)");
  for (const Source& source : Sources()) {
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
  for (const Source& source : Sources()) {
    ASSERT_FALSE(source.lines.empty()) << source.path;
    EXPECT_TRUE(StartsWith(source.lines[0], "// ")) << source.path << ": " << source.lines[0];
  }
}

TEST(TidyTest, NoBannedWords) {
  const std::regex banned(R"(\b(TODO|FIXME|XXX|HACK)\b|#if 0|using namespace std)");
  for (const Source& source : Sources()) {
    if (source.path == "tests/tidy_test.cc") continue;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(source.lines[i], banned))
          << source.path << ":" << i + 1 << ": " << source.lines[i];
    }
  }
}

TEST(TidyTest, EverySourceFileIsBuilt) {
  std::string build_files;
  for (const std::string& folder : kFolders) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (entry.path().filename() != "CMakeLists.txt") continue;
      std::ifstream file(entry.path());
      build_files.append(std::istreambuf_iterator<char>(file), {});
      build_files += '\n';
    }
  }
  for (const Source& source : Sources()) {
    if (fs::path(source.path).extension() == ".h") continue;
    const std::string name = fs::path(source.path).filename();
    EXPECT_NE(build_files.find(name), std::string::npos)
        << source.path << " is in no CMakeLists.txt";
  }
}

TEST(TidyTest, EveryHeaderIsIncluded) {
  std::string all;
  for (const Source& source : Sources()) {
    for (const std::string& line : source.lines) {
      if (StartsWith(line, "#include")) all += line + "\n";
    }
  }
  for (const Source& source : Sources()) {
    if (fs::path(source.path).extension() != ".h") continue;
    // Those that stand for a system's headers go by their names.
    const std::string name = "<" + fs::path(source.path).filename().string() + ">";
    const bool stands_in = StartsWith(source.path, "tests/engine/backend/emulated_cuda/include/");
    EXPECT_NE(all.find(stands_in ? name : "\"" + source.path + "\""), std::string::npos)
        << source.path;
  }
}

TEST(TidyTest, HeaderGuardsNameTheFile) {
  for (const Source& source : Sources()) {
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
