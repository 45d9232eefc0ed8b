// main() of tests that start real supervisors: besides running the tests, this program can be the
// supervisor, a runner, and ranks that misbehave.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "searcher/processes/supervised_process.h"
#include "searcher/processes/supervisor.h"
#include "tests/init_tests.h"

namespace dsat {
namespace {

// Forks twice and leaves a process in its own session that ignores SIGTERM.
int LeaveDaemon() {
  if (fork() != 0) return 0;
  setsid();
  if (fork() != 0) _exit(0);
  signal(SIGTERM, SIG_IGN);
  while (true)
    pause();
}

// Starts a chain of processes, each of which its child replaces, so that no pid lives for long.
int RunAway(bool new_session_each) {
  while (true) {
    if (new_session_each) setsid();
    if (fork() > 0) _exit(0);
  }
}

// A runner that starts `argv[3...]` as its only rank and waits to be killed.
int BeRunner(int argc, char** argv) {
  RankCommand rank;
  rank.argv.assign(argv + 3, argv + argc);
  rank.log_path = std::string(argv[2]) + "/rank0.log";
  SupervisedProcess process = SupervisedProcess::Start("/proc/self/exe", {rank}, argv[2]);
  while (true)
    pause();
}

}  // namespace
}  // namespace dsat

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "supervise") dsat::SuperviseMain();
  if (mode == "runner") return dsat::BeRunner(argc, argv);
  if (mode == "daemon") return dsat::LeaveDaemon();
  if (mode == "run-away") return dsat::RunAway(false);
  if (mode == "run-away-in-sessions") return dsat::RunAway(true);
  dsat::InitTests(&argc, argv);
  return RUN_ALL_TESTS();
}
