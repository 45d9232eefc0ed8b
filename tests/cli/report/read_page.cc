// Runs read_page.py.
#include "tests/cli/report/read_page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "base/files.h"
#include "tests/cli/run_dsat.h"

namespace dsat {

bool HasPython() {
  return access(Python().c_str(), X_OK) == 0;
}

Json ReadPage(const std::string& path) {
  const std::string command =
      ShellWord(Python()) + " " DSAT_SOURCE_DIR "/tests/cli/report/read_page.py " + ShellWord(path);
  FILE* const pipe = popen(command.c_str(), "re");
  std::string text;
  std::array<char, 4096> part{};
  while (const size_t count = fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), count);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace dsat
