// Reads the source tree once.
#include "tests/source_tree.h"

#include <algorithm>
#include <fstream>

namespace dsat {

namespace fs = std::filesystem;

fs::path SourceRoot() {
  return DSAT_SOURCE_DIR;
}

const std::vector<std::string>& SourceFolders() {
  static const std::vector<std::string> folders = {
      "base", "proto", "db", "methods", "profiler", "engine", "cli", "bench", "tests", "searcher"};
  return folders;
}

SourceFile ReadSource(const fs::path& path) {
  SourceFile source{fs::relative(path, SourceRoot()).string(), {}};
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    source.lines.push_back(line);
  return source;
}

const std::vector<SourceFile>& Sources() {
  static const std::vector<SourceFile> sources = [] {
    std::vector<SourceFile> out;
    for (const std::string& folder : SourceFolders()) {
      for (const auto& entry : fs::recursive_directory_iterator(SourceRoot() / folder)) {
        const std::string extension = entry.path().extension();
        if (extension == ".h" || extension == ".cc" || extension == ".cu") {
          out.push_back(ReadSource(entry.path()));
        }
      }
    }
    return out;
  }();
  return sources;
}

bool AnyPrefix(const std::string& text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return text.starts_with(prefix); });
}

int64_t NumColumns(const std::string& line) {
  return std::count_if(line.begin(), line.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

}  // namespace dsat
