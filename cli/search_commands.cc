// dsat asha|binary|random|grid, dsat resume: searches, and the full run after them.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/full_run.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "db/store.h"
#include "methods/options.h"
#include "searcher/experiment.h"
#include "searcher/input/experiment_file.h"
#include "searcher/input/preflight.h"
#include "searcher/results.h"
#include "searcher/runner.h"

namespace dsat::cli {
namespace {

namespace fs = std::filesystem;

std::string OutDir(const RunFlags& run, ExperimentId id) {
  const std::string dir = run.out_dir.empty() ? fmt::format("dsat-out/{}", id) : run.out_dir;
  return fs::absolute(dir).string();
}

// A path as a shell reads it back.
std::string ShellWord(const std::string& path) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("/._-+=:@%,").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!path.empty() && std::all_of(path.begin(), path.end(), plain)) return path;
  std::string quoted = "'";
  for (const char c : path)
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// What a search prints when it ends: the ranking, the best against the submitted, where it is.
void PrintSummary(const Experiment& experiment, const std::string& out_dir) {
  fmt::print("{}\n", SummaryText(experiment));
  if (experiment.search().Best()) fmt::print("{}/ds_config.json\n", out_dir);
}

int RunSearch(const Flags& flags, const RunFlags& run, Experiment& experiment) {
  const SearchOptions& options = experiment.search().spec().options;
  const std::string out_dir = OutDir(run, experiment.id());
  ProgressDisplay display(isatty(STDERR_FILENO) != 0);
  ExperimentState state = ExperimentState::kActive;
  {
    // The signals are blocked before the runner starts a thread; Run starts them.
    Runner runner(
        experiment, MakeRunnerOptions(run, out_dir),
        [&](const Experiment& e, const RunnerEvent& event) { display.OnEvent(e, event); });
    const InterruptHandler interrupt([&runner] { runner.Cancel(); });
    state = runner.Run();
  }
  if (state == ExperimentState::kActive) {
    fmt::print(stderr, "\nInterrupted; nothing is lost: dsat resume {} --db {}{} goes on\n",
               experiment.id(), ShellWord(flags.db),
               run.out_dir.empty() ? "" : " --out " + ShellWord(run.out_dir));
    return kExitInterrupted;
  }
  if (flags.json) {
    fmt::print("{}\n", SummaryJson(experiment, out_dir).dump(2));
  } else {
    PrintSummary(experiment, out_dir);
  }
  const std::string failure = experiment.search().FailureReason();
  if (!failure.empty()) Throw(ErrorCode::kFailedPrecondition, "experiment failed: {}", failure);
  if (!options.run_full_experiment || !experiment.search().Best()) return 0;
  const Trial& best = experiment.search().trials().at(*experiment.search().Best());
  return RunFull(experiment.search().spec(), best.ds_config,
                 MakeRunnerOptions(run, out_dir + "/full"), flags.json);
}

}  // namespace

ExperimentSpec ReadSpec(const std::string& config, const std::string& model_dir,
                        std::vector<std::string>* warnings) {
  ExperimentSpec spec = ReadExperimentFile(config, model_dir, warnings);
  for (const std::string& warning : *warnings)
    Log(LogLevel::kWarn, warning);
  return spec;
}

void LogNew(const std::vector<std::string>& warnings, const std::vector<std::string>& logged) {
  for (const std::string& warning : warnings) {
    if (std::find(logged.begin(), logged.end(), warning) == logged.end())
      Log(LogLevel::kWarn, warning);
  }
}

int RunCommand(const Flags& flags, const SearchFlags& search) {
  std::vector<std::string> read;
  ExperimentSpec spec = ReadSpec(search.config, search.model_dir, &read);
  spec.method = search.method;
  spec.options = search.options;
  ValidateOptions(spec.options);
  LogNew(CheckSpec(spec), read);
  for (const std::string& warning : CheckStages(spec))
    Log(LogLevel::kWarn, warning);
  // Nothing is recorded for a search that could not leave its results anywhere.
  MakeWritableFolder(search.run.out_dir.empty() ? "dsat-out" : search.run.out_dir);

  Store store = Store::Open(flags.db, Store::Mode::kCreate);
  Experiment experiment = Experiment::Create(store, spec);
  fmt::print(stderr, "experiment {} ({}): {}, up to {} trials of {} rank{}, metric {}\n",
             experiment.id(), Printable(spec.name), spec.method, spec.options.max_trials,
             spec.slots_per_trial, spec.slots_per_trial == 1 ? "" : "s", spec.options.metric);
  return RunSearch(flags, search.run, experiment);
}

int RunCommand(const Flags& flags, const ResumeFlags& resume) {
  Store store = Store::Open(flags.db, Store::Mode::kReadWrite);
  Experiment experiment = Experiment::Open(store, store.FindExperiment(resume.experiment));
  const bool ended = experiment.state() != ExperimentState::kActive;
  fmt::print(stderr, "experiment {} ({}): {} after {} trial(s)\n", experiment.id(),
             Printable(experiment.search().spec().name),
             ended ? "has " + std::string(experiment.state() == ExperimentState::kCompleted
                                              ? "ended"
                                              : ToString(experiment.state()))
                   : "going on",
             experiment.search().trials().size());
  return RunSearch(flags, resume.run, experiment);
}

}  // namespace dsat::cli
