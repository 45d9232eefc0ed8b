// The options of searches, and of experiments whose trials are run by other programs.
#include <fmt/format.h>

#include "cli/flags_parser.h"
#include "methods/methods.h"
#include "searcher/input/experiment_file.h"

namespace dsat::cli {
namespace {

void AddRunFlags(CLI::App& app, RunFlags& run) {
  Add(app, "--out DIR", run.out_dir,
      "Folder for ds_config.json, metrics.json and the trials' logs (default: "
      "dsat-out/EXPERIMENT)");
  AddPositive(app, "--slots", run.num_slots,
              "Slots of this machine that trials may use at once (default: its GPUs if trials use "
              "GPUs, else those of one trial, because trials that share cores slow each other "
              "down)")
      ->excludes(AddHosts(app, run.hosts, FilterNames::kLong))
      ->excludes(app.get_option("--launcher"));
  AddTimeouts(app, run);
  AddPositive(app, "--trial-timeout SECONDS", run.trial_timeout_s,
              "Kill a trial that runs longer than this");
}

constexpr int64_t kConfirmRounds = 9;
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
  // Other programs report no losses, and cannot be asked for a longer run.
  options.check_losses = confirm_rounds > 0;
  options.lineages.cover_stages = true;
  options.profile = "dry-run";
  return options;
}

// The words behind "--" take the place of the experiment file.
void AddConfigOrCommand(CLI::App& app, const Parser& parser, SearchFlags& search) {
  search.command = parser.command;
  if (search.command.empty()) {
    AddConfig(app, search.config, search.model_dir);
    app.get_option("config")->required(false);
  }
  app.footer(
      "A command behind -- takes the place of CONFIG.yaml and MODEL_DIR:\n"
      "  dsat " +
      app.get_name() + " -- deepspeed --num_gpus 4 train.py --deepspeed ds_config.json");
}

void AddExperiment(CLI::App& app, std::string& experiment) {
  Add(app, "experiment NUMBER|NAME", experiment, "The experiment")->required();
}

// The limits that `dsat resume` can change, too.
template <typename Limits>
void AddLimits(CLI::App& app, Limits& limits) {
  AddPositive(app, "--max-trials", limits.max_trials,
              "Total trials of the search, at least 2, with the profiling trial and the submitted "
              "configuration");
  Add(app, "--max-time TIME", limits.max_time_s,
      "The time that the search and its proof may take (90s, 10m, 2h)")
      ->transform(Duration());
  AddPositive(app, "--max-device-hours", limits.max_device_hours,
              "The slot hours that the trials of the search and its proof may use");
}

// Adds the options of the objective that all trials have in common.
void AddObjectiveOptions(CLI::App& app, SearchOptions& options, std::string& train_batch_size) {
  Add(app, "--train-batch-size N|keep|any", train_batch_size,
      "The global batch of every trial: a number, \"keep\" for the submitted one, or \"any\": it "
      "follows the micro-batch size (default: keep for auto and if the ds_config gives "
      "train_batch_size, else any)");
  AddPositive(app, "--divisible-by", options.divisible_by,
              "Try only micro-batch sizes that are multiples of this");
}

CLI::Option* AddStages(CLI::App& app, std::vector<int>& stages, const std::string& text) {
  return Add(app, "--zero-stages N,...", stages, text)
      ->check(CLI::Range(0, 3).description(""))
      ->expected(1, 4)
      ->delimiter(',');
}

// Adds the options that choose the keys which are searched. Learning rate, clipping, loss scale and
// optimizer never are. Returns --space.
CLI::Option* AddKeyOptions(CLI::App& app, SearchOptions& options) {
  CLI::Option* const space =
      TakeOneOf(Add(app, "--space", options.space,
                    "What is searched besides stages and micro-batch sizes: \"published\", the "
                    "knobs of the published methods, or \"wide\", also activation checkpointing, "
                    "offload and the keys of stage 3 (docs/methods.md)"),
                {"published", "wide"});
  TakeOneOf(app.add_option_function<std::string>(
                "--allow", [&options](const std::string&) { options.allow_semantic = true; },
                "Also search keys that change what is learned, such as communication_data_type; "
                "the pick is then compared by what it learns (docs/proof.md)"),
            {"semantic"});
  return space;
}

// Options of all methods.
void AddSearchOptions(CLI::App& app, const std::string& method, SearchOptions& options) {
  AddLimits(app, options);
  AddPositive(app, "--max-concurrent-trials", options.max_concurrent_trials,
              "Trials that may run at the same time");
  AddPositive(app, "--max-slots", options.max_slots, "Slots of all running trials together");
  TakeOneOf(Add(app, "--metric", options.metric, "The metric to optimize"), SearchMetrics());
  AddStages(app, options.zero_stages, "ZeRO stages to search");
  AddNonNegative(app, "--random-seed", options.random_seed, "The same seed gives the same search");
  AddNonNegative(app, "--start-profile-step", options.start_profile_step,
                 "Earliest optimizer step measured, counted from 0");
  AddNonNegative(app, "--end-profile-step", options.end_profile_step,
                 "Measure at least up to this optimizer step");
  app.add_flag(
      "--run-full-experiment", options.run_full_experiment,
      "After the search, train to the end (searcher.max_length) with the best configuration");
  if (method != "auto") {  // It was not published.
    TakeOneOf(app.add_option_function<std::string>(
                  "--compat",
                  [&options](const std::string& value) {
                    options.compat_determined = value == "determined";
                    options.space = "published";
                    options.confirm_rounds = 0;
                    options.check_losses = false;
                    options.lineages.cover_stages = false;
                  },
                  "Behave exactly as Determined AI published them (docs/dev/methods.md)"),
              {"determined"});
  }
  // Below --compat, which CLI11 reads first and which changes the defaults.
  AddKeyOptions(app, options);
  AddNonNegative(app, "--confirm", options.confirm_rounds,
                 "The most rounds in which the best configurations and the submitted one are "
                 "measured again after the search; they end when they have decided "
                 "(docs/methods.md)");
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
      ->type_name("N")
      ->check(WholeNumber(/*positive=*/false));
  Add(app, "--loss-pattern REGEX", options.loss_pattern,
      "A regular expression (of RE2) whose first group matches the loss of a step in the output of "
      "rank 0 (default: the losses that the Python helper reports)");
}

// Options of one method only.
void AddMethodOptions(CLI::App& app, const std::string& method, SearchOptions& options) {
  if (method == "random") {
    AddPositive(app, "--trials-per-random-config", options.random.trials_per_random_config,
                "Micro-batch sizes tried for one drawn configuration");
    AddPositive(app, "--early-stopping", options.random.early_stopping,
                "Stop after this many trials without a new best");
  }
  if (method == "binary" || method == "asha") {
    AddPositive(app, "--search-range-factor", options.lineages.search_range_factor,
                "Factor on the upper end of the micro-batch range of the bisection");
  }
  if (method == "auto") {
    AddPositive(app, "--run-steps", options.auto_method.run_steps,
                "Optimizer steps of the training to come, of the submitted batch size: the search "
                "ends when further trials would take longer than they could save (default: a "
                "training that takes 300 times as long as its search)");
    Add(app, "--warm-start auto|EXPERIMENT|off", options.auto_method.warm_start,
        "Start from what an earlier experiment of the database has measured: its number or name, "
        "\"auto\" for the newest one that fits this machine and model, or \"off\"");
  }
  if (method == "asha") {
    AddPositive(app, "--max-rungs", options.asha.max_rungs, "Number of rungs");
    AddPositive(app, "--min-binary-search-trials", options.asha.min_binary_search_trials,
                "Binary-search trials of a configuration in the lowest rung");
    AddNonNegative(app, "--asha-early-stopping", options.asha.asha_early_stopping,
                   "Multiplies the trials of each rung by divisor to this power");
    Add(app, "--divisor N", options.asha.divisor,
        "One of this many configurations is promoted to the next rung")
        ->check(CLI::Range(2, 1'000'000).description(""));
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
      "");
}

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const MethodInfo& info : Methods())
    names.push_back(info.name);
  return names;
}

void AddSpaceCommand(Parser& parser) {
  auto [sub, space] = parser.Add<SpaceFlags>(
      "space", "Show what a search would choose from, without searching", /*uses_db=*/false);
  SearchFlags& search = space.search;
  search.method = "auto";
  search.options = DefaultOptions(search.method, /*confirm_rounds=*/0);
  AddConfigOrCommand(sub, parser, search);
  TakeOneOf(Add(sub, "--method", search.method, "The method whose space is shown"), MethodNames());
  Add(sub, "--profile FILE", space.profile,
      "Model profile as JSON, as for dsat create, or \"measure\", as for dsat auto (default: as "
      "for dsat auto)");
  Add(sub, "--device NAME|FILE", space.device,
      "Predict for this device, which need not be here: a name, as for dsat estimate, or a JSON "
      "file with figures of your own (docs/estimate.md)")
      ->excludes("--profile");
  AddStages(sub, space.zero_stages, "ZeRO stages to search (default: those of the method)");
  CLI::Option* const wide = AddKeyOptions(sub, search.options)->default_str("that of the method");
  AddObjectiveOptions(sub, search.options, search.train_batch_size);
  AddRunFlags(sub, search.run);
  sub.get_option("--out")->description(
      "Folder for the logs of the profiling trial (default: dsat-out/space on several hosts, else "
      "one that stays only after a failure)");
  sub.parse_complete_callback([&flags = space, wide] {
    SearchOptions& options = flags.search.options;
    const SearchOptions defaults = DefaultOptions(flags.search.method, 0);
    if (wide->count() == 0) options.space = defaults.space;
    options.zero_stages = flags.zero_stages.empty() ? defaults.zero_stages : flags.zero_stages;
  });
}

void AddInitCommand(Parser& parser) {
  auto [sub, init] = parser.Add<InitFlags>(
      "init", "Write the experiment file of the command behind --", /*uses_db=*/false);
  init.command = parser.command;
  init.out = "deepspeed.yaml";
  Add(sub, "--out FILE.yaml", init.out, "The file to write");
  sub.add_flag_callback(
      "--schema",
      [] {
        fmt::print("{}", kExperimentSchema);
        throw CLI::Success();
      },
      "Print the JSON Schema of experiment files, by which editors complete them");
}

void AddDemoCommand(Parser& parser) {
  auto [sub, demo] = parser.Add<DemoFlags>(
      "demo", "Tune a small example in about a minute, to see how dsat works");
  demo.folder = "dsat-demo";
  Add(sub, "folder DIR", demo.folder, "The folder for the example's files");
}

void AddCheckCommand(Parser& parser) {
  auto [sub, check] = parser.Add<CheckFlags>(
      "check", "Measure a configuration against the submitted one and what was recorded");
  Add(sub, "ds_config FILE", check.ds_config,
      "The configuration (default: the OUT/ds_config.json of the newest search)");
  Add(sub, "--config FILE", check.config,
      "The experiment file (default: the one that metrics.json beside the configuration names)");
  Add(sub, "--model-dir DIR", check.model_dir,
      "Base folder of relative paths (default: that of the experiment file)");
  Add(sub, "--against FILE", check.against,
      "Compare with this ds_config (default: that of the experiment file)");
  TakeOneOf(Add(sub, "--metric", check.metric,
                "The metric to compare (default: that of metrics.json, or FLOPS_per_gpu)"),
            SearchMetrics());
  Add(sub, "--tolerance PERCENT", check.tolerance,
      "Exit with 1 if the configuration is slower than recorded by more than this, and the 95 % "
      "interval of its speed does not contain the recorded one; with 2 if it could not be measured")
      ->transform(Percentage())
      ->default_str("3%");
  AddPositive(sub, "--confirm", check.rounds, "Rounds in which both configurations are measured");
  AddRunFlags(sub, check.run);
}

}  // namespace

void AddSearchCommands(Parser& parser) {
  parser.group = "Search";
  for (const MethodInfo& info : Methods()) {
    auto [sub, search] = parser.Add<SearchFlags>(info.name, "Search: " + info.summary);
    search.method = info.name;
    search.options = DefaultOptions(info.name, kConfirmRounds);
    AddConfigOrCommand(sub, parser, search);
    Add(sub, "-i,--include PATH", search.include,
        "A file or folder to add to the trials' working folder; may be given several times "
        "(docs/external.md)")
        ->allow_extra_args(false);
    AddSearchOptions(sub, info.name, search.options);
    TakeOneOf(
        Add(sub, "--profile", search.options.profile,
            "How the profile of a script is found: by a dry run on fake tensors if the script "
            "allows it, or measured by a launch (docs/external.md)"),
        {"dry-run", "measure"});
    AddProofOptions(sub, info.name, search.options);
    AddObjectiveOptions(sub, search.options, search.train_batch_size);
    AddMethodOptions(sub, info.name, search.options);
    AddRunFlags(sub, search.run);
  }
  AddInitCommand(parser);
  AddDemoCommand(parser);
  AddSpaceCommand(parser);
  auto [resume, flags] = parser.Add<ResumeFlags>(
      "resume", "Continue an experiment after a crash or Ctrl-C, or with higher limits");
  AddExperiment(resume, flags.experiment);
  AddLimits(resume, flags.limits);
  AddPositive(resume, "--confirm", flags.limits.confirm_rounds,
              "Measure the best configurations again in up to so many rounds, with those that have "
              "been; without other limits nothing more is searched");
  AddRunFlags(resume, flags.run);
  AddCheckCommand(parser);
}

void AddAskTellCommands(Parser& parser) {
  parser.group = "Let another program run the trials";
  CLI::App& create = *parser.app.add_subcommand(
      "create", "Create an experiment whose trials are run by other programs (ask and tell)");
  create.require_subcommand(1)->group(parser.group);
  for (const MethodInfo& info : Methods()) {
    auto [sub, flags] = parser.AddTo<CreateFlags>(create, info.name, info.summary);
    flags.method = info.name;
    flags.options = DefaultOptions(info.name, 0);
    AddConfig(sub, flags.config, flags.model_dir);
    Add(sub, "--profile FILE", flags.profile,
        "Model profile as JSON: num_params, trainable_num_params, activation_bytes_per_sample, "
        "device_memory_bytes; without it the first trial asked is the profiling trial");
    AddSearchOptions(sub, info.name, flags.options);
    // The times of trials that other programs run are not known, and dsat trains nothing.
    for (const char* option : {"--max-time", "--max-device-hours", "--run-full-experiment"})
      sub.remove_option(sub.get_option(option));
    AddObjectiveOptions(sub, flags.options, flags.train_batch_size);
    AddMethodOptions(sub, info.name, flags.options);
  }
  auto [ask, asked] = parser.Add<AskFlags>("ask", "Get the next trial to run");
  AddExperiment(ask, asked.experiment);
  auto [tell, told] = parser.Add<TellFlags>("tell", "Record how a trial ended");
  AddExperiment(tell, told.experiment);
  AddNonNegative(tell, "--trial", told.trial, "Number of the trial")->default_str("")->required();
  CLI::Option* const metrics =
      Add(tell, "--metrics FILE", told.metrics,
          "Succeeded: metrics as JSON, {\"throughput\": 12.5, ...}; - reads standard input");
  CLI::Option* const infeasible =
      Add(tell, "--infeasible REASON", told.infeasible,
          "This configuration cannot run here, for example out of memory");
  CLI::Option* const failed = Add(tell, "--failed REASON", told.failed,
                                  "Crashed or lost, which is no evidence about the configuration");
  metrics->excludes(infeasible)->excludes(failed);
  infeasible->excludes(failed);
  Add(tell, "--profile FILE", told.profile,
      "The model profile as JSON, for the profiling trial; - reads standard input");
  auto [serve, served] =
      parser.Add<ServeFlags>("serve", "Serve Ask and Tell over gRPC (docs/ask-tell.md)");
  Add(serve, "--listen ADDRESS", served.listen,
      "unix:/PATH, or HOST:PORT (0 = a free one) for clients on the network, which need the key "
      "file that is then written; default: a unix socket that only this user can reach");
}

}  // namespace dsat::cli
