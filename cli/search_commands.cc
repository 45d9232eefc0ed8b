// dsat auto|asha|binary|random|grid, demo and resume: searches, and the full run after a search.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/full_run.h"
#include "cli/interrupt.h"
#include "cli/machine_facts.h"
#include "cli/output/output.h"
#include "cli/progress.h"
#include "cli/read_spec.h"
#include "cli/report/page.h"
#include "cli/runner_options.h"
#include "cli/status_line.h"
#include "db/store.h"
#include "searcher/hosts/slots.h"
#include "searcher/input/experiment_file.h"
#include "searcher/input/objective.h"
#include "searcher/input/preflight.h"
#include "searcher/input/trial_context.h"
#include "searcher/results.h"
#include "searcher/runner.h"
#include "searcher/search/experiment.h"
#include "searcher/search/runner_lock.h"
#include "searcher/search/verdict.h"

namespace dsat::cli {

// The experiment file of cli/demo, and the ds_config of examples/quickstart.
extern const char kDemoExperiment[];
extern const char kDemoConfig[];

namespace {

namespace fs = std::filesystem;

// The trials' working folder if --include is given, else nullptr.
std::unique_ptr<TrialContext> MakeContext(const SearchFlags& search) {
  if (search.include.empty()) return nullptr;
  const std::string model_dir = search.model_dir.empty()
                                    ? fs::absolute(search.config).parent_path().string()
                                    : search.model_dir;
  // The experiment does not have a number yet.
  const std::string dir =
      search.run.out_dir.empty() ? NewContextDir("dsat-out") : search.run.out_dir + "/context";
  return std::make_unique<TrialContext>(dir, model_dir, search.include);
}

// Python looks for modules in the folder of the script itself and not of the link to it.
void AddToPythonPath(const std::string& dir, ExperimentSpec& spec) {
  const char* const ours = std::getenv("PYTHONPATH");
  const auto given = spec.environment.find("PYTHONPATH");
  const std::string before = given != spec.environment.end() ? given->second
                             : ours != nullptr               ? ours
                                                             : "";
  spec.environment["PYTHONPATH"] = before.empty() ? dir : dir + ":" + before;
}

// The first line of a search: what it will do, or where it continues.
std::string Heading(const Experiment& experiment) {
  const ExperimentSpec& spec = experiment.search().spec();
  const auto num_trials = std::ssize(experiment.search().trials());
  const std::string name = fmt::format("experiment {} ({})", experiment.id(), Printable(spec.name));
  if (experiment.state() != ExperimentState::kActive)
    return fmt::format("{}: {} after {}", name, ToString(experiment.state()),
                       Counted(num_trials, "trial"));
  if (num_trials > 0)
    return fmt::format("{}: continuing after {}", name, Counted(num_trials, "trial"));
  if (!spec.candidate.is_null())
    return fmt::format("{}: two configurations in {}", name,
                       Counted(spec.options.confirm_rounds, "round"));
  const Json& prior = spec.options.auto_method.prior;
  return fmt::format("{}: {}, up to {} trials of {}, metric {}{}", name, spec.method,
                     spec.options.max_trials, Counted(spec.slots_per_trial, "rank"),
                     spec.options.metric,
                     prior.is_null() ? ""
                                     : fmt::format(", warm start from experiment {}",
                                                   prior.at("experiment").get<ExperimentId>()));
}

// Says what differs between the machine that trials have run on and this one.
void WarnOfChanges(const ExperimentSpec& spec) {
  const Json now = MachineFacts(spec, {});
  std::string changes;
  for (const char* name : {"host", "cpu", "cores", "gpus", "cuda_driver", "packages"}) {
    const Json was = spec.machine.value(name, Json()), is = now.value(name, Json());
    if (was != is) changes += fmt::format("; {} was {} and is {}", name, was.dump(), is.dump());
  }
  if (changes.empty()) return;
  Log(LogLevel::kWarn,
      Printable("the trials so far ran on another machine or with other packages, so that further "
                "measurements may not compare with theirs" +
                changes));
}

// Measurements of other machines cannot be compared with those that an experiment has.
void CheckSameMachines(const ExperimentSpec& spec, const RunnerOptions& options) {
  if (spec.machine.contains("hosts") && options.machines.hosts.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "resume: the trials of this experiment ran on other hosts ({}); pass --hostfile or "
          "--launcher, and the options beside it, again",
          Printable(MachineOf(spec)));
  }
  if (spec.machine.contains("host") && !options.machines.hosts.empty()) {
    Throw(ErrorCode::kInvalidArgument,
          "resume: the trials of this experiment ran on the machine of its search; leave "
          "--hostfile and --launcher out");
  }
  if (spec.machine.contains("host")) WarnOfChanges(spec);
}

// Throws if the training in a folder was begun with another pick: this one cannot continue it.
void CheckSamePick(const std::string& folder, const Json& config, ExperimentId id) {
  const std::string path = folder + "/task.json";
  if (!fs::exists(path) || ReadJsonFile(path).value("ds_config", config) == config) return;
  Throw(ErrorCode::kFailedPrecondition,
        "{}: this training was begun with another configuration, before the pick changed; rename "
        "the folder, and train with dsat resume {}",
        folder, id);
}

// Runs the full run with the best configuration; nullopt if none is requested.
std::optional<FullRun> RunBest(const Flags& flags, RunnerOptions options,
                               const Experiment& experiment) {
  const dsat::Search& search = experiment.search();
  const std::optional<Json> config = BestConfig(search);
  if (!search.spec().options.run_full_experiment || !config) return std::nullopt;
  options.out_dir += "/full";
  CheckSamePick(options.out_dir, *config, experiment.id());
  return RunFull(search.spec(), *config, options, flags.json ? StepsTo::kStderr : StepsTo::kStdout,
                 fmt::format("dsat resume {} --db {}", experiment.id(), ShellWord(flags.db)));
}

// A path as it is shorter to type.
std::string ShortPath(const std::string& path) {
  const std::string relative = fs::path(path).lexically_relative(fs::current_path()).string();
  return ShellWord(relative.empty() || relative.starts_with("..") ? path : relative);
}

// The answer with the commands that use it.
std::string AnswerAndNext(const Experiment& experiment, const std::string& out_dir) {
  const Search& search = experiment.search();
  const std::string folder = ShortPath(out_dir);
  const Verdict verdict = VerdictOf(search);
  if (!verdict.pick && !PredictedConfig(search)) return "";
  if (!verdict.pick)
    return fmt::format("predicted to be the fastest, not measured: {}/ds_config.json\n", folder);
  return ShortAnswer(search, verdict, experiment.id(),
                     {"sh " + folder + "/command.txt", "dsat check " + folder + "/ds_config.json",
                      "report: " + folder + "/report.html"});
}

// A report that cannot be written costs nothing else; dsat report makes it later.
void TryToReport(const Experiment& experiment, const std::string& out_dir) {
  try {
    const Report report = ReadReport(experiment.store(), experiment.id(), &experiment);
    WriteFileAtomic(out_dir + "/report.html", ReportPage(report));
  } catch (const Error& error) {
    Log(LogLevel::kWarn, fmt::format("there is no report: {}", error.what()));
  }
}

// Searches, prints the answer, and trains with the pick if requested. `options` is the result of
// MakeRunnerOptions for `run`.
int RunSearch(const Flags& flags, const RunFlags& run, RunnerOptions options,
              Experiment& experiment) {
  const std::string out_dir = OutDir(run, experiment);
  options.out_dir = out_dir;
  const std::string warning = SharedSlotsWarning(experiment.search().spec(), options);
  if (!warning.empty()) Log(LogLevel::kWarn, warning);
  const auto answer = [&] {
    TryToReport(experiment, out_dir);
    return AnswerAndNext(experiment, out_dir);
  };
  ExperimentState state = ExperimentState::kActive;
  try {
    state = RunShown(options, experiment);
  } catch (const Error& error) {  // The measurements until then have an answer, too.
    const bool is_theirs = error.code() == ErrorCode::kFailedPrecondition;  // Another runner's.
    if (!is_theirs) Say(stderr, answer());
    throw;
  }
  if (state == ExperimentState::kActive) {
    Say(stderr,
        fmt::format("\n{}Interrupted; nothing is lost: continue with dsat resume {} --db {}{}{}\n",
                    answer(), experiment.id(), ShellWord(flags.db),
                    ResultsFolder(experiment) == out_dir ? "" : " --out " + ShellWord(out_dir),
                    flags.run_options));
    return kExitInterrupted;
  }
  const std::string text = answer();
  if (!flags.json) Say(stdout, text);
  const std::optional<FullRun> full = RunBest(flags, options, experiment);
  if (flags.json) {
    Json summary = SummaryJson(experiment, out_dir);
    if (full) summary["full_run"] = ToJson(*full);
    Say(stdout, summary.dump(2) + "\n");
  }
  const std::string failure = experiment.search().FailureReason();
  if (!failure.empty()) {
    Throw(ErrorCode::kFailedPrecondition, "experiment failed: {}; logs in {}/trials", failure,
          out_dir);
  }
  return full ? ExitCodeOf(*full) : 0;
}

// Raises the limits of an experiment whose trials another program runs, and whose times are not
// known.
int RaiseTheirLimits(const ResumeFlags& resume, Experiment& experiment) {
  const LimitsRaised& limits = resume.limits;
  if (!limits.max_trials || limits.max_time_s || limits.max_device_hours || limits.confirm_rounds) {
    Throw(ErrorCode::kFailedPrecondition,
          "experiment {}: the program that has asked for its trials runs them (dsat ask and tell, "
          "or dsat serve), and only its --max-trials can be raised; a search of your own begins "
          "with dsat {} CONFIG",
          experiment.id(), experiment.search().spec().method);
  }
  experiment.RaiseLimits(limits);
  Say(stderr, fmt::format("experiment {}: up to {} trials; asked for so far: {}\n", experiment.id(),
                          *limits.max_trials, experiment.search().trials().size()));
  return 0;
}

}  // namespace

std::string OutDir(const RunFlags& run, const Experiment& experiment) {
  return run.out_dir.empty() ? ResultsFolder(experiment) : fs::absolute(run.out_dir).string();
}

ExperimentState RunShown(const RunnerOptions& options, Experiment& experiment) {
  ProgressDisplay display;
  Runner runner(experiment, options,
                [&](const Experiment& e, const RunnerEvent& event) { display.OnEvent(e, event); });
  // The signals must be blocked before Run starts threads.
  const InterruptHandler interrupt([&runner] { runner.Cancel(); }, OnHangup::kGoOn);
  Say(stderr, Heading(experiment) + "\n");
  return runner.Run();
}

int RunCommand(const Flags& flags, const SearchFlags& given) {
  SearchFlags search = given;
  DescribeCommand(&search);
  RunnerOptions options = MakeRunnerOptions(search.run);
  const std::unique_ptr<TrialContext> context = MakeContext(search);
  ExperimentSpec spec = ReadSpec(search.config, context ? context->dir() : search.model_dir);
  if (context) AddToPythonPath(context->dir(), spec);
  spec.method = search.method;
  spec.options = search.options;
  PlanSlurm(spec, &options);
  spec.start_dir = fs::current_path().string();
  spec.out_dir = search.run.out_dir;
  Warn(CheckSpec(spec, AreElsewhere(options.machines.hosts)));
  SetTrainBatchSize(search.train_batch_size, spec);
  CheckHosts(spec, options.machines.hosts);
  spec.machine = MachineFacts(spec, options.machines.hosts);
  if (!options.machines.hosts.empty()) spec.machine["host_options"] = flags.host_options;
  Warn(CheckStages(spec));
  Experiment::Check(spec);
  CheckRunnable(spec, search.run, options);

  Store store = OpenForNew(flags.db, spec);
  Experiment experiment = Experiment::Create(store, spec);
  if (context) context->Keep();
  return RunSearch(flags, search.run, options, experiment);
}

int RunCommand(const Flags& flags, const InitFlags& init) {
  if (fs::exists(init.out)) {
    Throw(ErrorCode::kFailedPrecondition, "{}: exists already; remove it, or name another by --out",
          init.out);
  }
  const std::string text = ExperimentFileOf(Typed(init.command));
  // The first line tells editors with a language server for YAML where the schema is.
  const std::string schema = "dsat-out/experiment.schema.json";
  const fs::path folder = fs::path(init.out).parent_path();
  fs::create_directories(folder / "dsat-out");
  WriteFileAtomic((folder / schema).string(), kExperimentSchema);
  WriteFileAtomic(init.out, fmt::format("# yaml-language-server: $schema={}\n{}", schema, text));
  if (flags.json) {
    Say(stdout, Json{{"experiment_file", init.out}}.dump() + "\n");
  } else {
    Say(stdout, fmt::format("{}\nnext: dsat auto {}\n", init.out, ShellWord(init.out)));
  }
  return 0;
}

int RunCommand(const Flags& flags, const ResumeFlags& resume) {
  RunnerOptions options = MakeRunnerOptions(resume.run);
  Store store = Store::Open(flags.db, Store::Mode::kReadWrite);
  Experiment experiment = Experiment::Open(store, store.FindExperiment(resume.experiment));
  if (RunnerLock::AreTheirs(store, experiment.id())) return RaiseTheirLimits(resume, experiment);
  if (!experiment.search().spec().candidate.is_null()) {
    Throw(ErrorCode::kInvalidArgument,
          "resume: experiment {} is a check, which does not continue; run dsat check again",
          experiment.id());
  }
  PlanSlurm(experiment.search().spec(), &options);
  CheckSameMachines(experiment.search().spec(), options);
  CheckSpec(experiment.search().spec(), AreElsewhere(options.machines.hosts));
  const LimitsRaised& limits = resume.limits;
  if (limits.max_trials || limits.max_time_s || limits.max_device_hours || limits.confirm_rounds) {
    const RunnerLock no_other = RunnerLock::Acquire(store.path(), experiment.id());
    experiment.RaiseLimits(limits);
  }
  return RunSearch(flags, resume.run, options, experiment);
}

int RunCommand(const Flags& flags, const DemoFlags& demo) {
  std::filesystem::create_directories(demo.folder);
  const std::string experiment = demo.folder + "/deepspeed.yaml";
  const std::string config = demo.folder + "/ds_config.json";
  for (const auto& [path, content] :
       {std::pair(experiment, kDemoExperiment), {config, kDemoConfig}}) {
    if (!std::filesystem::exists(path)) WriteFileAtomic(path, content);
  }
  // A training that is long enough to repay its search.
  std::vector<const char*> words = {"dsat",  "auto", experiment.c_str(), "--run-steps",
                                    "20000", "--db", flags.db.c_str()};
  if (flags.json) words.push_back("--json");
  const auto parsed = ParseFlags(static_cast<int>(words.size()), words.data());
  const Flags& search = std::get<Flags>(parsed);
  return RunCommand(search, std::get<SearchFlags>(search.command));
}

}  // namespace dsat::cli
