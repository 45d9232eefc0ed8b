// Runs the real dsat binary in a folder of its own.
#include "tests/cli/run_dsat.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "tests/build_folder.h"

namespace dsat {
namespace {

// The child's side of the fork: files as standard streams, then dsat. Does not return.
[[noreturn]] void ExecDsat(const std::string& dir, const std::vector<std::string>& args,
                           const std::string& in, const std::string& out, const std::string& err) {
  if (chdir(dir.c_str()) != 0) _exit(126);
  dup2(open(in.c_str(), O_RDONLY), STDIN_FILENO);
  dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
  dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
  const std::string binary = BuildFolder() + "/dsat";
  std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
  for (const std::string& arg : args)
    argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(binary.c_str(), argv.data());
  _exit(127);
}

}  // namespace

Workspace::Workspace() {
  unsetenv("DSAT_DB");  // Whoever runs the tests may have set it.
}

Workspace::~Workspace() {
  for (const pid_t pid : started_) {
    if (waitpid(pid, nullptr, WNOHANG) != 0) continue;  // It has ended, or was waited for.
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

void Workspace::Write(const std::string& name, const std::string& content) const {
  std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
  std::ofstream(Path(name), std::ios::binary) << content;
}

pid_t Workspace::StartDsat(const std::vector<std::string>& args, const std::string& name) const {
  const pid_t pid = fork();
  if (pid == 0)
    ExecDsat(folder_.path(), args, "/dev/null", Path(name + ".out"), Path(name + ".err"));
  started_.push_back(pid);
  return pid;
}

Finished Workspace::Dsat(const std::vector<std::string>& args, const std::string& input) const {
  Write("in.txt", input);
  const pid_t pid = fork();
  if (pid == 0) ExecDsat(folder_.path(), args, Path("in.txt"), Path("out.txt"), Path("err.txt"));
  const int exit_code = WaitFor(pid);
  return {exit_code, ReadFile(Path("out.txt")), ReadFile(Path("err.txt"))};
}

Finished Workspace::Succeed(const std::vector<std::string>& args, const std::string& input) const {
  Finished run = Dsat(args, input);
  EXPECT_EQ(run.exit_code, 0) << fmt::format("dsat {}\n{}", fmt::join(args, " "), run.err);
  return run;
}

Json Workspace::DsatJson(const std::vector<std::string>& args) const {
  return Json::parse(Succeed(args).out);
}

Finished Workspace::Fail(const std::vector<std::string>& args, const std::string& what,
                         int exit_code) const {
  SCOPED_TRACE(fmt::format("dsat {}", fmt::join(args, " ")));
  Finished run = Dsat(args);
  EXPECT_EQ(run.exit_code, exit_code) << run.err;
  EXPECT_THAT(run.err, testing::HasSubstr(what));
  return run;
}

void Workspace::ExpectRefused(const std::vector<std::string>& args, const std::string& what,
                              int exit_code) const {
  const Finished run = Fail(args, what, exit_code);
  EXPECT_EQ(CountLines(run.err), 1) << run.err;
  EXPECT_EQ(run.out, "");
}

std::string Workspace::DsatOnTerminal(const std::vector<std::string>& args, int columns,
                                      const std::string& term) const {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  int ours = -1, theirs = -1;
  DSAT_CHECK(openpty(&ours, &theirs, nullptr, nullptr, &size) == 0);
  std::string name(64, '\0');
  DSAT_CHECK(ttyname_r(theirs, name.data(), name.size()) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ours);
    setenv("TERM", term.c_str(), /*overwrite=*/1);
    ExecDsat(folder_.path(), args, "/dev/null", Path("out.txt"), name.c_str());
  }
  close(theirs);
  std::string shown;
  std::array<char, 4096> buffer{};
  // Fails with EIO after the last process has closed the other end.
  for (ssize_t count = 0; (count = read(ours, buffer.data(), buffer.size())) > 0;)
    shown.append(buffer.data(), static_cast<size_t>(count));
  close(ours);
  WaitFor(pid);
  return shown;
}

bool Workspace::WaitUntilSaid(const std::string& name, const std::string& text) const {
  const std::string path = Path(name);
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!std::filesystem::exists(path) || ReadFile(path).find(text) == std::string::npos) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

int WaitFor(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<std::string> Joined(std::vector<std::string> args,
                                const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<pid_t> ProcessesWith(const std::string& one, const std::string& other) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ostringstream text;
    text << std::ifstream(entry.path() / "cmdline").rdbuf();
    if (text.str().find(one) == std::string::npos || text.str().find(other) == std::string::npos)
      continue;
    found.push_back(std::stoi(entry.path().filename()));
  }
  return found;
}

std::string Python() {
  const char* const python = std::getenv("DSAT_TEST_PYTHON");
  return python != nullptr ? python : "/usr/bin/python3";
}

bool HasPackage(const std::string& name) {
  const std::string command =
      Python() + " -c 'import importlib.util as u; exit(u.find_spec(\"" + name + "\") is None)'";
  return std::system(command.c_str()) == 0;
}

int CountLines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace dsat
