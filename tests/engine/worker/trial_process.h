// The dsat-trial binary, as a supervisor starts it: one process per rank over a memory file.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "engine/runtime/rank_variables.h"
#include "proto/trial_task.h"
#include "tests/build_folder.h"
#include "tests/engine/runtime/run_ranks.h"
#include "tests/temp_folder.h"

namespace dsat::engine {

struct RankExit {
  int code = -1;
  std::string out;
  std::string log;
};

// A folder, a task and processes that run it.
class TrialProcessTest : public testing::Test {
 protected:
  TrialProcessTest() {
    task_.model = {{"type", "gpt2"}, {"n_layer", 2},      {"n_embd", 32},
                   {"n_head", 2},    {"n_positions", 32}, {"vocab_size", 64}};
    task_.data = {{"type", "synthetic"}, {"seq_len", 16}, {"vocab_size", 64}};
    task_.ds_config = {{"train_micro_batch_size_per_gpu", 2},
                       {"gradient_accumulation_steps", 2},
                       {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
                       {"zero_optimization", {{"stage", 2}}}};
  }

  pid_t Spawn(int rank, int size, int group_fd) {
    constexpr int kGroupFd = 3;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, Out(rank).c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, Err(rank).c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, group_fd, kGroupFd);
    std::vector<std::string> environment = {
        fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", size),
        fmt::format("{}={}", kEnvGroupFd, kGroupFd), fmt::format("{}=1", kEnvNumThreads)};
    std::vector<char*> env;
    for (std::string& variable : environment)
      env.push_back(variable.data());
    env.push_back(nullptr);
    std::string task = folder_ / "task.json";
    char* argv[] = {program_.data(), task.data(), nullptr};
    pid_t pid = -1;
    const int error = posix_spawn(&pid, program_.c_str(), &actions, nullptr, argv, env.data());
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) ThrowErrno("posix_spawn " + program_, error);
    return pid;
  }

  // Makes the task a training with checkpoints and a history, instead of a trial that measures.
  void ToTrain(int64_t num_steps) {
    task_.mode = TrialTask::Mode::kTrain;
    task_.train_steps = num_steps;
    task_.checkpoint_dir = folder_ / "checkpoint";
    task_.history_path = folder_ / "metrics.jsonl";
  }

  // The lines of a file in the folder; none if there is no such file.
  std::vector<std::string> Lines(const std::string& name) const {
    std::vector<std::string> lines;
    std::ifstream file(folder_ / name);
    for (std::string line; std::getline(file, line);)
      lines.push_back(line);
    return lines;
  }
  std::vector<Json> History() const {
    std::vector<Json> history;
    for (const std::string& line : Lines("metrics.jsonl"))
      history.push_back(Json::parse(line));
    return history;
  }

  std::vector<RankExit> Run(int size) {
    WriteJsonFile(folder_ / "task.json", ToJson(task_));
    const UniqueFd file = MakeMemoryFile();
    pids_.clear();
    for (int rank = 0; rank < size; ++rank)
      pids_.push_back(Spawn(rank, size, file.get()));
    std::vector<RankExit> exits;
    for (int rank = 0; rank < size; ++rank) {
      int status = 0;
      waitpid(pids_[static_cast<size_t>(rank)], &status, 0);
      exits.push_back(
          {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(Out(rank)), ReadFile(Err(rank))});
    }
    return exits;
  }

  // The same, where all ranks must end well.
  std::vector<RankExit> RunWell(int size) {
    std::vector<RankExit> exits = Run(size);
    for (const RankExit& exit : exits)
      EXPECT_EQ(exit.code, kExitOk) << exit.log;
    return exits;
  }

  // Expects that one rank ends with the code and says so in its log.
  void ExpectEnd(int code, const std::string& said) {
    const RankExit exit = Run(1)[0];
    EXPECT_EQ(exit.code, code);
    EXPECT_THAT(exit.log, testing::HasSubstr(said));
  }

  std::string Out(int rank) const { return folder_ / fmt::format("out.{}", rank); }
  std::string Err(int rank) const { return folder_ / fmt::format("err.{}", rank); }

  const TempFolder folder_;
  std::string program_ = BuildFolder() + "/dsat-trial";
  TrialTask task_;
  std::vector<pid_t> pids_;  // The processes of the last Run.
};

}  // namespace dsat::engine
