// Shared by the tests of launching: folders, real processes and the search for survivors.
#ifndef DSAT_TESTS_SEARCHER_LAUNCH_LAUNCH_TEST_UTIL_H_
#define DSAT_TESTS_SEARCHER_LAUNCH_LAUNCH_TEST_UTIL_H_

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "searcher/launch/launch_target.h"
#include "searcher/processes/supervised_process.h"

namespace dsat {

// This program; with "supervise" as its argument it is a supervisor (launch_test_main.cc).
std::string SelfBinary();

// A new folder, removed at the end. Its name is part of the command line of every process that a
// test starts, so that survivors can be found.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::string path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// The processes (no zombies) with `text` in their command line.
std::vector<pid_t> ProcessesNaming(const std::string& text);

// Sleeps until `done` or some seconds have passed; what `done` says then.
bool Eventually(const std::function<bool()>& done);

// Waits for the report; fails the test and gives an empty one if none comes.
ExitReport WaitForReport(SupervisedProcess& process);

// Rank `rank` runs `script` by sh; $0 is the folder.
RankCommand ShellRank(const TestFolder& folder, int rank, const std::string& script);

// Grace times that keep tests short.
inline constexpr GraceTimes kShortGrace{std::chrono::milliseconds(100),
                                        std::chrono::milliseconds(100)};

}  // namespace dsat

#endif  // DSAT_TESTS_SEARCHER_LAUNCH_LAUNCH_TEST_UTIL_H_
