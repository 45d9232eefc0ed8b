// Shared by the tests of launching: real processes and the search for survivors.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "searcher/launch/launch_target.h"
#include "searcher/processes/supervised_process.h"
#include "tests/temp_folder.h"

namespace dsat {

// This program; with "supervise" as its argument it is a supervisor (launch_test_main.cc).
std::string SelfBinary();

// The processes (no zombies) with `text` in their command line, as all that a test starts have the
// path of its folder.
std::vector<pid_t> ProcessesNaming(const std::string& text);

// Sleeps until `done` or some seconds have passed; what `done` says then.
bool Eventually(const std::function<bool()>& done);

// Waits for the report; fails the test and gives an empty one if none comes.
ExitReport WaitForReport(SupervisedProcess& process);

// Rank `rank` runs `script` by sh; $0 is the folder.
RankCommand ShellRank(const TempFolder& folder, int rank, const std::string& script);

// Waits until the ranks have created `folder`/ready<rank>; false if one has not.
bool AreReady(const TempFolder& folder, const std::vector<int>& ranks);

// The test fails if a process of the folder or a child of this one is left.
void ExpectNothingLeft(const TempFolder& folder);

// Grace times that keep tests short.
inline constexpr GraceTimes kShortGrace{std::chrono::milliseconds(100),
                                        std::chrono::milliseconds(100)};

}  // namespace dsat
