// Helpers for the tests of the store and of experiments: a spec, a trial, a child process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>

#include "base/files.h"
#include "db/sqlite.h"
#include "db/store.h"
#include "tests/base/error_code.h"

namespace dsat {

inline ExperimentSpec SampleSpec(const std::string& metric = "throughput") {
  ExperimentSpec spec;
  spec.name = "sample";
  spec.method = "random";
  spec.entrypoint = {"builtin"};
  spec.config_path = "/home/user/deepspeed.yaml";
  spec.model_dir = "/home/user";
  spec.slots_per_trial = 2;
  spec.ds_config = {{"train_micro_batch_size_per_gpu", 1},
                    {"gradient_accumulation_steps", 1},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.001}}}}},
                    {"zero_optimization", {{"stage", 0}}}};
  spec.options.metric = metric;
  return spec;
}

inline Trial SampleTrial(TrialId id, TrialKind kind = TrialKind::kSearch) {
  Trial trial;
  trial.id = id;
  trial.kind = kind;
  trial.assignment = {{"/zero_optimization/stage", 2}, {"/train_micro_batch_size_per_gpu", 4}};
  trial.ds_config = {{"train_batch_size", 8},
                     {"train_micro_batch_size_per_gpu", 4},
                     {"gradient_accumulation_steps", 1},
                     {"zero_optimization", {{"stage", 2}}}};
  return trial;
}

// A trial that runs the configuration of trial `confirms` again.
inline Trial SampleConfirm(TrialId id, TrialId confirms, TrialKind kind = TrialKind::kConfirm) {
  Trial trial = SampleTrial(id, kind);
  trial.confirms = confirms;
  return trial;
}

inline PointResult SamplePoint(double throughput, int64_t micro_batch_size = 4) {
  return {{micro_batch_size, 1},
          {{"throughput", {throughput, 0.5, 3}},
           {"latency", {8000 / throughput, 0.25, 3}},
           {"FLOPS_per_gpu", {throughput * 1e9, 1e8, 3}},
           {"peak_bytes", {512.0 * 1048576, 0, 3}}}};
}

inline ModelProfile SampleProfile() {
  return {1'000'000, 1'000'000, 1 << 20, int64_t{1} << 30, 6'000'000, 200'000};
}

// Runs `work` in a child process, which exits with what it returns (99 if it throws).
inline pid_t Fork(const std::function<int()>& work) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  int code = 99;
  try {
    code = work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  _exit(code);
}

// The child's exit code, or 128 + signal.
inline int WaitFor(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs `work` in a child process without root's permissions.
inline int AsNobody(const std::function<int()>& work) {
  return WaitFor(Fork([&] {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) return 98;
    return work();
  }));
}

}  // namespace dsat
