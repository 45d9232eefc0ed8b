// A folder for temporary files.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "base/files.h"

namespace dsat {

// Made by MakeTemporaryFolder, and removed with all that is in it, unless it is to be kept.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(MakeTemporaryFolder()) {}
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!keeps_) std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  void Keep() { keeps_ = true; }

 private:
  const std::string path_;
  bool keeps_ = false;
};

}  // namespace dsat
