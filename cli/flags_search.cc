// The options of searches, and of experiments whose trials are run by other programs.
#include "cli/flags_search.h"

#include <concepts>

#include "cli/flags_checks.h"
#include "cli/flags_hosts.h"
#include "methods/methods.h"
#include "methods/options.h"

namespace dsat::cli {
namespace {

void AddRunFlags(CLI::App& app, RunFlags& run) {
  app.add_option("--out", run.out_dir,
                 "Folder for ds_config.json, metrics.json and the trials' logs "
                 "(default: dsat-out/EXPERIMENT)")
      ->type_name("DIR");
  app.add_option(
         "--slots", run.num_slots,
         "Slots of this machine that trials may use at once (default: its GPUs if trials use GPUs, "
         "else its cores)")
      ->check(WholeNumberFrom1())
      ->excludes(AddHosts(app, run.hosts, FilterNames::kLong))
      ->excludes(app.get_option("--launcher"));
  AddTimeouts(app, run);
  app.add_option("--trial-timeout", run.trial_timeout_s,
                 "Kill a trial that runs longer than this many seconds")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
}

constexpr int64_t kConfirmRounds = 3;
// The rounds of a confirmation that decides nothing, in terms of --confirm.
constexpr int64_t kConfirmLooks = 3;
constexpr int64_t kSoakSteps = 50;

// The options of a search before any is given.
SearchOptions DefaultOptions(const std::string& method, int64_t confirm_rounds) {
  SearchOptions options;
  // The method auto predicts the stages before it measures them, so that one more costs little.
  if (method == "auto") {
    options.zero_stages = {0, 1, 2, 3};
    options.auto_method.warm_start = "auto";
    if (confirm_rounds > 0) options.soak_steps = kSoakSteps;
    options.soak_in_budget = true;
  }
  // The methods that were published keep their space.
  if (method == "auto" || method == "grid") options.space = "wide";
  options.confirm_rounds = confirm_rounds;
  options.confirm_looks = kConfirmLooks;
  // Other programs report no losses, and cannot be asked for a longer run.
  options.check_losses = confirm_rounds > 0;
  options.lineages.cover_stages = true;
  return options;
}

// The limits that `dsat resume` can change, too.
template <typename Limits>
void AddLimits(CLI::App& app, Limits& limits) {
  CLI::Option* const max_trials =
      app.add_option(
             "--max-trials", limits.max_trials,
             "Total trials of the search, at least 2, with the profiling trial and the submitted "
             "configuration")
          ->check(WholeNumberFrom1());
  if constexpr (std::same_as<Limits, SearchOptions>) max_trials->capture_default_str();
  app.add_option("--max-time", limits.max_time_s,
                 "End the search when it and the first rounds of its confirmation take this time "
                 "(90s, 10m, 2h)")
      ->transform(Duration());
  app.add_option(
         "--max-device-hours", limits.max_device_hours,
         "End the search when its trials and the first rounds of its confirmation use this many "
         "slot hours")
      ->check(NumberAbove0());
}

// Adds the options of the objective that all trials have in common.
void AddObjectiveOptions(CLI::App& app, SearchOptions& options, std::string& train_batch_size) {
  app.add_option("--train-batch-size", train_batch_size,
                 "The global batch of every trial: a number, \"keep\" for the submitted one, or "
                 "\"any\": it follows the micro-batch size (default: keep if the ds_config gives "
                 "train_batch_size, else any)")
      ->type_name("N|keep|any");
  app.add_option("--divisible-by", options.divisible_by,
                 "Try only micro-batch sizes that are multiples of this")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
}

// dsat space takes the default from the method that it is told.
CLI::Option* AddSpaceOption(CLI::App& app, SearchOptions& options) {
  return app
      .add_option(
          "--space", options.space,
          "What is searched besides stages and micro-batch sizes: \"published\", the knobs of "
          "the published methods, or \"wide\", also activation checkpointing, offload and "
          "the keys of stage 3 (docs/methods.md)")
      ->check(CLI::IsMember({"published", "wide"}));
}

// Learning rate, clipping, loss scale and optimizer are not among these keys.
void AddAllowOption(CLI::App& app, SearchOptions& options) {
  app.add_option_function<std::string>(
         "--allow", [&options](const std::string&) { options.allow_semantic = true; },
         "\"semantic\": also search keys that change what is learned, such as "
         "communication_data_type; the pick is then compared by what it learns (docs/proof.md)")
      ->check(CLI::IsMember({"semantic"}));
}

// Options of all methods.
void AddSearchOptions(CLI::App& app, const std::string& method, SearchOptions& options) {
  AddLimits(app, options);
  app.add_option("--max-concurrent-trials", options.max_concurrent_trials,
                 "Trials that may run at the same time")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
  app.add_option("--max-slots", options.max_slots, "Slots of all running trials together")
      ->check(WholeNumberFrom1());
  app.add_option("--metric", options.metric, "The metric to optimize")
      ->check(CLI::IsMember(SearchMetrics()))
      ->capture_default_str();
  app.add_option("--zero-stages", options.zero_stages, "ZeRO stages to search")
      ->check(CLI::Range(0, 3))
      ->expected(1, 4)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--random-seed", options.random_seed, "The same seed gives the same search")
      ->check(WholeNumberFrom0())
      ->capture_default_str();
  app.add_option("--start-profile-step", options.start_profile_step,
                 "Earliest optimizer step measured, counted from 0")
      ->check(WholeNumberFrom0())
      ->capture_default_str();
  app.add_option("--end-profile-step", options.end_profile_step,
                 "Measure at least up to this optimizer step")
      ->check(WholeNumberFrom0())
      ->capture_default_str();
  app.add_flag(
      "--run-full-experiment", options.run_full_experiment,
      "After the search, train to the end (searcher.max_length) with the best configuration");
  if (method != "auto") {  // It was not published.
    app.add_option_function<std::string>(
           "--compat",
           [&options](const std::string& value) {
             options.compat_determined = value == "determined";
             options.space = "published";
             options.confirm_rounds = 0;
             options.check_losses = false;
             options.lineages.cover_stages = false;
           },
           "\"determined\": behave exactly as Determined AI published them (docs/methods.md)")
        ->check(CLI::IsMember({"determined"}));
  }
  // Below --compat, which CLI11 reads first and which changes the defaults.
  AddSpaceOption(app, options)->capture_default_str();
  AddAllowOption(app, options);
  app.add_option(
         "--confirm", options.confirm_rounds,
         "Rounds in which the best configurations and the submitted one are measured again "
         "after the search; up to 3 times as many rounds (6 times where launches are short) "
         "while the result is inconclusive")
      ->check(WholeNumberFrom0())
      ->capture_default_str();
}

// Options of the last runs, which prove the pick.
void AddProofOptions(CLI::App& app, const std::string& method, SearchOptions& options) {
  app.add_option_function<int64_t>(
         "--soak",
         [&options](int64_t steps) {
           options.soak_steps = steps;
           options.soak_in_budget = false;
         },
         fmt::format(
             "Optimizer steps of a last, longer run of the pick, which shows whether it "
             "keeps fitting; 0 = only those in which losses are compared (default: {})",
             method == "auto"
                 ? fmt::format("{}, but no longer than half of the confirmation", kSoakSteps)
                 : "0"))
      ->check(WholeNumberFrom0());
  app.add_option(
         "--loss-pattern", options.loss_pattern,
         "A regular expression (of RE2) whose first group matches the loss of a step in the "
         "output of rank 0 (default: the losses that the Python helper reports)")
      ->type_name("REGEX");
}

// Options of one method only.
void AddMethodOptions(CLI::App& app, const std::string& method, SearchOptions& options) {
  if (method == "random") {
    app.add_option("--trials-per-random-config", options.random.trials_per_random_config,
                   "Micro-batch sizes tried for one drawn configuration")
        ->check(WholeNumberFrom1())
        ->capture_default_str();
    app.add_option("--early-stopping", options.random.early_stopping,
                   "Stop after this many trials without a new best")
        ->check(WholeNumberFrom1());
  }
  if (method == "binary" || method == "asha") {
    app.add_option("--search-range-factor", options.lineages.search_range_factor,
                   "Factor on the upper end of the micro-batch range of the bisection")
        ->check(NumberAbove0())
        ->capture_default_str();
  }
  if (method == "auto") {
    app.add_option("--run-steps", options.auto_method.run_steps,
                   "Optimizer steps of the training to come, of the submitted batch size: the "
                   "search ends when further trials would take longer than they could save "
                   "(default: a training that takes 300 times as long as its search)")
        ->check(WholeNumberFrom1());
    app.add_option("--warm-start", options.auto_method.warm_start,
                   "Start from what an earlier experiment of the database has measured: its number "
                   "or name, \"auto\" for the newest one that fits this machine and model, or "
                   "\"off\"")
        ->type_name("auto|EXPERIMENT|off")
        ->capture_default_str();
  }
  if (method == "asha") {
    app.add_option("--max-rungs", options.asha.max_rungs, "Number of rungs")
        ->check(WholeNumberFrom1())
        ->capture_default_str();
    app.add_option("--min-binary-search-trials", options.asha.min_binary_search_trials,
                   "Binary-search trials of a configuration in the lowest rung")
        ->check(WholeNumberFrom1())
        ->capture_default_str();
    app.add_option("--asha-early-stopping", options.asha.asha_early_stopping,
                   "Multiplies the trials of each rung by divisor to this power")
        ->check(WholeNumberFrom0())
        ->capture_default_str();
    app.add_option("--divisor", options.asha.divisor,
                   "One of this many configurations is promoted to the next rung")
        ->check(CLI::Range(2, 1'000'000))
        ->capture_default_str();
  }
}

// "3%" or "0.03" as 0.03.
CLI::Validator Percentage() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const bool percent = text.ends_with('%');
        const std::string number = percent ? text.substr(0, text.size() - 1) : text;
        double value = 0;
        if (!CLI::detail::lexical_cast(number, value) ||
            !(value >= 0 && value < (percent ? 100 : 1)))
          return "expected a percentage below 100% such as 3%, or 0.03, got " + text;
        text = std::to_string(percent ? value / 100 : value);
        return "";
      },
      "PERCENT");
}

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const MethodInfo& info : Methods())
    names.push_back(info.name);
  return names;
}

void AddSpaceCommand(Parser& parser) {
  SpaceFlags& space = parser.space;
  SearchFlags& search = space.search;
  search.method = "auto";
  search.options = DefaultOptions(search.method, /*confirm_rounds=*/0);
  CLI::App& sub =
      parser.Add("space", "Show what a search would choose from, without searching", space,
                 /*uses_db=*/false);
  AddConfig(sub, search.config, search.model_dir);
  sub.add_option("--method", search.method, "The method whose space is shown")
      ->check(CLI::IsMember(MethodNames()))
      ->capture_default_str();
  sub.add_option("--profile", space.profile,
                 "Model profile as JSON, as for dsat create; without it the profiling trial runs")
      ->type_name("FILE");
  sub.add_option("--zero-stages", space.zero_stages,
                 "ZeRO stages to search (default: those of the method)")
      ->check(CLI::Range(0, 3))
      ->expected(1, 4)
      ->delimiter(',');
  CLI::Option* const wide = AddSpaceOption(sub, search.options)->default_str("that of the method");
  AddAllowOption(sub, search.options);
  AddObjectiveOptions(sub, search.options, search.train_batch_size);
  AddRunFlags(sub, search.run);
  sub.get_option("--out")->description(
      "Folder for the logs of the profiling trial (default: dsat-out/space on several hosts, else "
      "one that stays only after a failure)");
  sub.final_callback([&parser, &space, &search, wide] {
    if (wide->count() == 0) search.options.space = DefaultOptions(search.method, 0).space;
    search.options.zero_stages = space.zero_stages.empty()
                                     ? DefaultOptions(search.method, 0).zero_stages
                                     : space.zero_stages;
    parser.flags.command = space;
  });
}

void AddCheckCommand(Parser& parser) {
  CheckFlags& check = parser.check;
  CLI::App& sub = parser.Add(
      "check", "Measure a configuration against the submitted one and what was recorded", check);
  sub.add_option("ds_config", check.ds_config,
                 "The configuration, such as the OUT/ds_config.json of a search")
      ->required()
      ->type_name("FILE");
  sub.add_option("--config", check.config,
                 "The experiment file (default: the one that metrics.json beside the "
                 "configuration names)")
      ->type_name("FILE");
  sub.add_option("--model-dir", check.model_dir,
                 "Base folder of relative paths (default: that of the experiment file)")
      ->type_name("DIR");
  sub.add_option("--against", check.against,
                 "Compare with this ds_config (default: that of the experiment file)")
      ->type_name("FILE");
  sub.add_option("--metric", check.metric,
                 "The metric to compare (default: that of metrics.json, or FLOPS_per_gpu)")
      ->check(CLI::IsMember(SearchMetrics()));
  sub.add_option("--tolerance", check.tolerance,
                 "Exit with 1 if the configuration is slower than recorded by more than this, and "
                 "the 95 % interval of its speed does not contain the recorded one; with 2 if it "
                 "could not be measured")
      ->transform(Percentage())
      ->default_str("3%");
  sub.add_option("--confirm", check.rounds, "Rounds in which both configurations are measured")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
  AddRunFlags(sub, check.run);
}

}  // namespace

void AddSearchCommands(Parser& parser) {
  for (const MethodInfo& info : Methods()) {
    SearchFlags& search = *parser.searches.emplace_back(std::make_unique<SearchFlags>());
    search.method = info.name;
    search.options = DefaultOptions(info.name, kConfirmRounds);
    CLI::App& sub = parser.Add(info.name, "Search: " + info.summary, search);
    AddConfig(sub, search.config, search.model_dir);
    sub.add_option("-i,--include", search.include,
                   "A file or folder to add to the trials' working folder; may be given several "
                   "times (docs/external.md)")
        ->type_name("PATH")
        ->allow_extra_args(false);
    AddSearchOptions(sub, info.name, search.options);
    AddProofOptions(sub, info.name, search.options);
    AddObjectiveOptions(sub, search.options, search.train_batch_size);
    AddMethodOptions(sub, info.name, search.options);
    AddRunFlags(sub, search.run);
  }
  AddSpaceCommand(parser);
  CLI::App& resume =
      parser.Add("resume", "Continue an experiment after a crash or Ctrl-C, or with higher limits",
                 parser.resume);
  AddExperiment(resume, parser.resume.experiment);
  AddLimits(resume, parser.resume.limits);
  AddRunFlags(resume, parser.resume.run);
  AddCheckCommand(parser);
}

void AddAskTellCommands(Parser& parser) {
  CLI::App& create = *parser.app.add_subcommand(
      "create", "Create an experiment whose trials are run by other programs (ask and tell)");
  create.require_subcommand(1);
  for (const MethodInfo& info : Methods()) {
    CreateFlags& flags = *parser.creates.emplace_back(std::make_unique<CreateFlags>());
    flags.method = info.name;
    flags.options = DefaultOptions(info.name, 0);
    CLI::App& sub = *create.add_subcommand(info.name, info.summary);
    sub.final_callback([&parser, &flags] { parser.flags.command = flags; });
    AddDb(sub, parser.flags);
    AddJson(sub, parser.flags);
    AddConfig(sub, flags.config, flags.model_dir);
    sub.add_option("--profile", flags.profile,
                   "Model profile as JSON: num_params, trainable_num_params, "
                   "activation_bytes_per_sample, device_memory_bytes; without it the first trial "
                   "asked is the profiling trial")
        ->type_name("FILE");
    AddSearchOptions(sub, info.name, flags.options);
    // The times of trials that other programs run are not known, and dsat trains nothing.
    for (const char* option : {"--max-time", "--max-device-hours", "--run-full-experiment"})
      sub.remove_option(sub.get_option(option));
    AddObjectiveOptions(sub, flags.options, flags.train_batch_size);
    AddMethodOptions(sub, info.name, flags.options);
  }
  CLI::App& ask = parser.Add("ask", "Get the next trial to run", parser.ask);
  AddExperiment(ask, parser.ask.experiment);
  CLI::App& tell = parser.Add("tell", "Record how a trial ended", parser.tell);
  AddExperiment(tell, parser.tell.experiment);
  tell.add_option("--trial", parser.tell.trial, "Number of the trial")
      ->required()
      ->check(WholeNumberFrom0());
  CLI::Option* metrics = tell.add_option("--metrics", parser.tell.metrics,
                                         "Succeeded: metrics as JSON, {\"throughput\": 12.5, ...}; "
                                         "- reads standard input")
                             ->type_name("FILE");
  CLI::Option* infeasible =
      tell.add_option("--infeasible", parser.tell.infeasible,
                      "This configuration cannot run here, for example out of memory")
          ->type_name("REASON");
  CLI::Option* failed =
      tell.add_option("--failed", parser.tell.failed,
                      "Crashed or lost, which is no evidence about the configuration")
          ->type_name("REASON");
  metrics->excludes(infeasible)->excludes(failed);
  infeasible->excludes(failed);
  tell.add_option("--profile", parser.tell.profile,
                  "The model profile as JSON, for the profiling trial; - reads standard input")
      ->type_name("FILE");
  CLI::App& serve =
      parser.Add("serve", "Serve Ask and Tell over gRPC (docs/ask-tell.md)", parser.serve);
  serve
      .add_option(
          "--listen", parser.serve.listen,
          "unix:/PATH, unix-abstract:NAME, 127.0.0.1:PORT, [::1]:PORT or localhost:PORT (0 = a "
          "free one)")
      ->capture_default_str();
}

}  // namespace dsat::cli
