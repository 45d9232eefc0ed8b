// dsat train, and the hidden dsat supervise.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/full_run.h"
#include "cli/interrupt.h"
#include "searcher/input/preflight.h"
#include "searcher/launch/launcher.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

// The folder of this program; dsat-trial lies beside it, in the build as in an installation.
fs::path ProgramDir() {
  return fs::read_symlink("/proc/self/exe").parent_path();
}

std::string FirstLine(const std::string& text) {
  return Printable(text.substr(0, text.find('\n')));
}

int64_t StepsPerPrint(const Json& ds_config, int64_t steps) {
  const Json* given = FindAtPointer(ds_config, "/steps_per_print");
  if (given != nullptr && given->is_number_integer() && *given > 0) return given->get<int64_t>();
  return std::max<int64_t>(1, steps / 20);
}

}  // namespace

RunnerOptions MakeRunnerOptions(const RunFlags& run, const std::string& out_dir) {
  return {.dsat_binary = fs::read_symlink("/proc/self/exe").string(),
          .trial_binary = (ProgramDir() / "dsat-trial").string(),
          .out_dir = out_dir,
          .num_slots = run.num_slots,
          .hang_timeout = std::chrono::seconds(run.hang_timeout_s),
          .start_timeout = std::chrono::seconds(run.start_timeout_s),
          .trial_timeout = std::chrono::seconds(run.trial_timeout_s)};
}

int RunFull(const ExperimentSpec& spec, const Json& ds_config, const RunnerOptions& options,
            bool json) {
  MakeWritableFolder(options.out_dir);
  const int64_t steps_per_print = StepsPerPrint(ds_config, spec.max_length_steps);
  std::atomic<bool> cancelled{false};
  const InterruptHandler interrupt([&cancelled] { cancelled = true; });
  fmt::print(stderr, "training {} for {} steps on {} rank{}\n", Printable(spec.name),
             spec.max_length_steps, spec.slots_per_trial, spec.slots_per_trial == 1 ? "" : "s");
  const std::string checkpoint = options.out_dir + "/checkpoint";
  const bool builtin = spec.entrypoint == std::vector<std::string>{"builtin"};
  if (builtin && fs::exists(checkpoint + "/latest"))
    fmt::print(stderr, "going on from {}/{}; another --out starts anew\n", checkpoint,
               FirstLine(ReadFile(checkpoint + "/latest")));
  int64_t printed = 0;
  const Outcome outcome = RunFullTraining(
      spec, ds_config, options,
      [&](int64_t step, double loss, double latency_ms) {
        // Fast steps are reported now and then only: the first one in each interval is printed.
        const bool due = printed == 0 || step / steps_per_print > printed / steps_per_print;
        if (step <= 0 || (!due && step != spec.max_length_steps)) return;
        printed = step;
        if (json) {
          fmt::print("{}\n",
                     Json{{"step", step}, {"loss", loss}, {"latency_ms", latency_ms}}.dump());
        } else {
          fmt::print("step {:>6}/{}  loss {:.4f}  {:.1f} ms\n", step, spec.max_length_steps, loss,
                     latency_ms);
        }
        std::fflush(stdout);
      },
      [&cancelled] { return cancelled.load(); });
  if (cancelled) {
    fmt::print(stderr, "interrupted{}; logs in {}\n",
               builtin ? ", no checkpoint of these steps was written" : "", options.out_dir);
    return kExitInterrupted;
  }
  if (outcome.state != TrialState::kSucceeded)
    Throw(ErrorCode::kAborted, "training {}: {}; logs in {}", ToString(outcome.state),
          outcome.reason, options.out_dir);
  if (builtin && printed == 0)
    fmt::print(stderr, "nothing left to train: the checkpoint has all {} steps\n",
               spec.max_length_steps);
  fmt::print(stderr, "done; {} is in {}\n", builtin ? "the checkpoint" : "everything of this run",
             builtin ? checkpoint : options.out_dir);
  return 0;
}

int RunCommand(const Flags& flags, const TrainFlags& train) {
  std::vector<std::string> read;
  ExperimentSpec spec = ReadSpec(train.config, train.model_dir, &read);
  if (!train.ds_config.empty()) {
    spec.ds_config = ReadJsonFile(train.ds_config);
    spec.ds_config_path = train.ds_config;
  }
  if (train.steps) spec.max_length_steps = *train.steps;
  LogNew(CheckSpec(spec), read);
  const std::string out = train.run.out_dir.empty() ? "dsat-out/train" : train.run.out_dir;
  return RunFull(spec, spec.ds_config, MakeRunnerOptions(train.run, fs::absolute(out).string()),
                 flags.json);
}

int RunCommand(const Flags&, const SuperviseFlags& supervise) {
  return SuperviseMain(supervise.control_fd);
}

}  // namespace dsat::cli
