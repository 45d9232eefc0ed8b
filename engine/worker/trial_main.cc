// dsat-trial TASK.json: one process per rank of a built-in trial. The launcher starts it; without a
// runner to report to, it measures on its own and prints the result.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/runtime/rank_variables.h"
#include "engine/worker/reporter.h"
#include "engine/worker/trial.h"
#include "proto/trial_task.h"

namespace dsat::engine {
namespace {

// In evaluation and generation the output of this process is that of the command.
bool IsCommand(const TrialTask& task) {
  return task.mode == TrialTask::Mode::kEvaluate || task.mode == TrialTask::Mode::kGenerate;
}

int Main(const char* task_path) {
  const TrialTask task = TrialTaskFromJson(ReadJsonFile(task_path));
  const RankEnvironment environment = ReadRankEnvironment();
  const char* key = std::getenv(kEnvReportKey);
  Reporter reporter(task, key != nullptr ? key : "", environment.rank);
  try {
    const int code = RunTrial(task, environment, reporter);
    return IsCommand(task) && code != kExitOk ? kExitError : code;
  } catch (const std::exception& e) {
    if (!IsCommand(task)) throw;
    std::fprintf(stderr, "dsat: %s\n", MessageOf(e).c_str());
    return kExitError;
  }
}

}  // namespace
}  // namespace dsat::engine

int main(int argc, char** argv) {
  signal(SIGXFSZ, SIG_IGN);  // A limit of file sizes is an error like a full disk.
  const bool asks_for_help = argc == 2 && std::string_view(argv[1]) == "--help";
  if (argc != 2 || asks_for_help) {
    std::fputs(
        "usage: dsat-trial TASK.json\n"
        "One rank of a trial, which dsat starts; by itself, it prints what it measures.\n",
        asks_for_help ? stdout : stderr);
    return asks_for_help ? dsat::kExitOk : dsat::kExitError;
  }
  try {
    return dsat::engine::Main(argv[1]);
  } catch (const std::exception& e) {
    dsat::Log(dsat::LogLevel::kError, dsat::MessageOf(e));
    return dsat::kExitError;
  }
}
