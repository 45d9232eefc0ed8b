// A folder of data files for a test.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/error.h"
#include "engine/data/dataset.h"
#include "tests/base/error_code.h"
#include "tests/temp_folder.h"

namespace dsat::engine {

// A folder of its own for each test.
class DataFolderTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / path).parent_path());
    std::ofstream(folder_ / path, std::ios::binary) << content;
  }
  std::unique_ptr<Dataset> Open(const Json& json, int64_t seed = 1) const {
    return OpenDataset(json, folder_.path(), seed, "/data");
  }
  std::unique_ptr<Dataset> OpenValidation(const Json& json) const {
    return OpenValidationDataset(json, folder_.path(), 1, "/data");
  }

  template <typename Fn>
  static void ExpectRefused(const Fn& fn, const std::string& message) {
    EXPECT_THAT(ErrorOf(fn).what(), testing::HasSubstr(message));
  }
  void ExpectRefused(const Json& json, const std::string& message) const {
    ExpectRefused(
        [&] {
          (void)Open(json);
          (void)OpenValidation(json);
        },
        message);
  }

  const TempFolder folder_;
};

}  // namespace dsat::engine
