// Measures the time from the start of a dsat-trial process to its first step, for a model of 10.8 M
// parameters. Every trial needs this time before it measures anything. Target: less than 300 ms.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "proto/trial_task.h"

namespace dsat {
namespace {

constexpr int kRuns = 11;

TrialTask OneStep() {
  TrialTask task;
  task.model = {{"type", "gpt2"}, {"n_layer", 6},       {"n_embd", 384},
                {"n_head", 6},    {"n_positions", 256}, {"vocab_size", 256}};
  task.data = {{"type", "synthetic"}, {"seq_len", 32}, {"vocab_size", 256}};
  task.ds_config = {{"train_micro_batch_size_per_gpu", 1},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}}};
  task.start_profile_step = 0;
  task.end_profile_step = 0;
  task.fixed_window = true;
  return task;
}

// Runs the task. Returns the milliseconds from the start of the process to its result, without the
// step itself.
double StartupMs(const std::string& program, const std::string& task_path) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) ThrowErrno("pipe", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::string path = program;
  std::string argument = task_path;
  char* argv[] = {path.data(), argument.data(), nullptr};
  const auto start = std::chrono::steady_clock::now();
  pid_t pid = -1;
  const int error = posix_spawn(&pid, path.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) ThrowErrno("cannot start " + program, error);
  std::string line(4096, '\0');
  const ssize_t num_read = read(ends[0], line.data(), line.size());
  const auto end = std::chrono::steady_clock::now();
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  line.resize(static_cast<size_t>(std::max<ssize_t>(num_read, 0)));
  if (status != 0 || line.empty()) {
    Throw(ErrorCode::kInternal, "{} ended {} in place of a measurement", program,
          WIFSIGNALED(status) ? fmt::format("by signal {}", WTERMSIG(status))
                              : fmt::format("with exit code {}", WEXITSTATUS(status)));
  }
  const double latency_ms = Json::parse(line).at("measurement").at("latency").at("value");
  return std::chrono::duration<double, std::milli>(end - start).count() - latency_ms;
}

void Main() {
  namespace fs = std::filesystem;
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "dsat-trial";
  const fs::path task = fs::temp_directory_path() / fmt::format("bench-startup-{}.json", getpid());
  WriteJsonFile(task, ToJson(OneStep()));
  std::vector<double> times;
  try {
    for (int i = 0; i < kRuns; ++i)
      times.push_back(StartupMs(program, task));
  } catch (const std::exception&) {
    fs::remove(task);
    throw;
  }
  fs::remove(task);
  std::sort(times.begin(), times.end());
  fmt::print("start to first step: median {:.0f} ms, fastest {:.0f} ms, slowest {:.0f} ms of {}\n",
             times[kRuns / 2], times.front(), times.back(), kRuns);
}

}  // namespace
}  // namespace dsat

int main(int argc, char** argv) {
  if (argc > 1) {
    const bool asks_for_help = std::string(argv[1]) == "--help";
    std::fputs(
        "usage: bench_startup\n"
        "Measures the time from the start of a dsat-trial process to its first step.\n",
        asks_for_help ? stdout : stderr);
    return asks_for_help ? 0 : 2;
  }
  try {
    dsat::Main();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_startup: %s\n", e.what());
    return 1;
  }
}
