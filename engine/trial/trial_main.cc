// dsat-trial TASK.json: one process per rank of a built-in trial. The launcher starts it; without a
// runner to report to, it measures on its own and prints the result.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/trial/reporter.h"
#include "engine/trial/trial.h"
#include "proto/trial_task.h"

namespace dsat::engine {
namespace {

int EnvInt(const char* name, int default_value, int min) {
  const char* text = std::getenv(name);
  if (text == nullptr) return default_value;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  if (error != std::errc() || rest != end || value < min) {
    Throw(ErrorCode::kInvalidArgument, "{} is \"{}\"; expected a whole number from {}", name, text,
          min);
  }
  return value;
}

RankEnvironment ReadEnvironment() {
  RankEnvironment environment;
  environment.world_size = EnvInt("WORLD_SIZE", 1, 1);
  environment.rank = EnvInt("RANK", 0, 0);
  environment.local_world_size = EnvInt("LOCAL_WORLD_SIZE", environment.world_size, 1);
  environment.num_threads = EnvInt(kEnvNumThreads, 1, 1);
  environment.group_fd = EnvInt(kEnvGroupFd, -1, 0);
  if (const char* token = std::getenv(kEnvToken)) environment.token = token;
  if (environment.rank >= environment.world_size) {
    Throw(ErrorCode::kInvalidArgument, "RANK is {}; expected less than WORLD_SIZE, {}",
          environment.rank, environment.world_size);
  }
  return environment;
}

int Main(const char* task_path) {
  const TrialTask task = TrialTaskFromJson(ReadJsonFile(task_path));
  const RankEnvironment environment = ReadEnvironment();
  Reporter reporter(task, environment.token, environment.rank);
  return RunTrial(task, environment, reporter);
}

}  // namespace
}  // namespace dsat::engine

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: dsat-trial TASK.json\n", stderr);
    return dsat::kExitError;
  }
  try {
    return dsat::engine::Main(argv[1]);
  } catch (const std::exception& e) {
    dsat::Log(dsat::LogLevel::kError, e.what());
    return dsat::kExitError;
  }
}
