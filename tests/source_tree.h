// The files of the source tree, for the tests of the house rules.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dsat {

// The root of the source tree.
std::filesystem::path SourceRoot();

// The folders that hold sources.
const std::vector<std::string>& SourceFolders();

struct SourceFile {
  std::string path;  // From the root.
  std::vector<std::string> lines;
};

SourceFile ReadSource(const std::filesystem::path& path);

// All C++ and CUDA files of the source folders.
const std::vector<SourceFile>& Sources();

bool AnyPrefix(const std::string& text, const std::vector<std::string>& prefixes);

// Columns, not bytes: UTF-8 continuation bytes do not count.
int64_t NumColumns(const std::string& line);

}  // namespace dsat
