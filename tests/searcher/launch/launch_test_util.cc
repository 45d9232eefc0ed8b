// Helpers for the tests of launching: real processes and the search for survivors.
#include "tests/searcher/launch/launch_test_util.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace dsat {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::seconds kLongEnough{60};

// Reads what is available: the process may end while its file is read.
std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

std::string SelfBinary() {
  return fs::read_symlink("/proc/self/exe");
}

std::vector<pid_t> ProcessesNaming(const std::string& text) {
  std::vector<pid_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // The command line of a zombie is empty.
    if (ReadAll(entry.path() / "cmdline").find(text) != std::string::npos) {
      found.push_back(std::stoi(name));
    }
  }
  return found;
}

bool Eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kLongEnough;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

ExitReport WaitForReport(SupervisedProcess& process) {
  const auto deadline = std::chrono::steady_clock::now() + kLongEnough;
  while (std::chrono::steady_clock::now() < deadline) {
    if (const auto report = process.Poll()) return *report;
    pollfd fd = {process.fd(), POLLIN, 0};
    poll(&fd, 1, 1000);
  }
  ADD_FAILURE() << "no report";
  return {};
}

RankCommand ShellRank(const TempFolder& folder, int rank, const std::string& script) {
  RankCommand command;
  command.argv = {"sh", "-c", script, folder.path()};
  command.log_path = folder / fmt::format("rank{}.log", rank);
  return command;
}

bool AreReady(const TempFolder& folder, const std::vector<int>& ranks) {
  return Eventually([&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](int rank) { return fs::exists(folder / fmt::format("ready{}", rank)); });
  });
}

void ExpectNothingLeft(const TempFolder& folder) {
  EXPECT_THAT(ProcessesNaming(folder.path()), testing::IsEmpty());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

}  // namespace dsat
