// The command line, parsed. The only file that includes CLI11.
#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "methods/method.h"
#include "methods/options.h"

namespace dsat::cli {
namespace {

constexpr char kVersion[] = "dsat 0.1.0";

constexpr char kIntro[] =
    "Finds the fastest DeepSpeed-style training configuration for a model on your machines.\n\n"
    "  dsat asha deepspeed.yaml      search; writes the best ds_config.json\n"
    "  dsat show 1                   every trial of experiment 1\n"
    "  dsat train deepspeed.yaml --ds-config dsat-out/1/ds_config.json";

void AddDb(CLI::App& app, Flags& flags) {
  app.add_option("--db", flags.db, "Database file")
      ->envname("DSAT_DB")
      ->default_str("dsat.db")
      ->type_name("FILE");
}

void AddJson(CLI::App& app, Flags& flags) {
  app.add_flag("--json", flags.json, "Print the result as JSON on stdout");
}

void AddExperiment(CLI::App& app, std::string& experiment) {
  app.add_option("experiment", experiment, "Number or name of the experiment")->required();
}

void AddConfig(CLI::App& app, std::string& config, std::string& model_dir) {
  app.add_option("config", config, "Experiment file (docs/experiment-file.md)")
      ->required()
      ->type_name("CONFIG.yaml");
  app.add_option("model_dir", model_dir,
                 "Where relative paths and the command start (default: the file's folder)")
      ->type_name("MODEL_DIR");
}

// How long to wait for a trial, or for the full run.
void AddTimeouts(CLI::App& app, RunFlags& run) {
  app.add_option("--hang-timeout", run.hang_timeout_s,
                 "Kill a run after so many seconds without a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--start-timeout", run.start_timeout_s,
                 "Kill a run that has not shown itself after so many seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void AddRunFlags(CLI::App& app, RunFlags& run) {
  app.add_option("--out", run.out_dir,
                 "Folder for ds_config.json, metrics.json and the trials' logs "
                 "(default: dsat-out/EXPERIMENT)")
      ->type_name("DIR");
  app.add_option("--slots", run.num_slots,
                 "Slots of this machine that trials may use at once (default: its cores)")
      ->check(CLI::PositiveNumber);
  AddTimeouts(app, run);
  app.add_option("--trial-timeout", run.trial_timeout_s,
                 "Kill a trial that runs longer than so many seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

// Options that every method has.
void AddSearchOptions(CLI::App& app, SearchOptions& options) {
  app.add_option("--max-trials", options.max_trials,
                 "Trials in all, the profiling trial and the submitted configuration included")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-concurrent-trials", options.max_concurrent_trials,
                 "Trials that may run at the same time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-slots", options.max_slots, "Slots of all running trials together")
      ->check(CLI::PositiveNumber);
  app.add_option("--metric", options.metric, "What to optimise")
      ->check(CLI::IsMember(SearchMetrics()))
      ->capture_default_str();
  app.add_option("--zero-stages", options.zero_stages, "ZeRO stages to search")
      ->check(CLI::Range(0, 3))
      ->expected(1, 4)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--random-seed", options.random_seed, "The same seed gives the same search")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--start-profile-step", options.start_profile_step,
                 "First optimizer step measured, counted from 0")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--end-profile-step", options.end_profile_step, "Last optimizer step measured")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--run-full-experiment", options.run_full_experiment,
               "Then train to the end (searcher.max_length) with the best configuration");
  app.add_option_function<std::string>(
         "--compat",
         [&options](const std::string& value) {
           options.compat_determined = value == "determined";
         },
         "\"determined\": the published behaviour to the letter (docs/methods.md)")
      ->check(CLI::IsMember({"determined"}));
}

// Options of one method only.
void AddMethodOptions(CLI::App& app, const std::string& method, SearchOptions& options) {
  if (method == "random") {
    app.add_option("--trials-per-random-config", options.trials_per_random_config,
                   "Micro-batch sizes tried for one drawn configuration")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--early-stopping", options.early_stopping,
                   "Stop after so many trials without a new best")
        ->check(CLI::PositiveNumber);
  }
  if (method == "binary" || method == "asha") {
    app.add_option("--search-range-factor", options.search_range_factor,
                   "Stretches the micro-batch range of the binary search")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
  }
  if (method == "asha") {
    app.add_option("--max-rungs", options.max_rungs, "Rungs of the ladder")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--min-binary-search-trials", options.min_binary_search_trials,
                   "Binary-search trials of a configuration in the lowest rung")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--asha-early-stopping", options.asha_early_stopping,
                   "Multiplies the trials of each rung by divisor to this power")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--divisor", options.divisor,
                   "One of so many configurations is promoted to the next rung")
        ->check(CLI::Range(2, 1'000'000))
        ->capture_default_str();
  }
}

// Each command's flags live here while CLI11 fills them in; the chosen one becomes Flags::command.
struct Parser {
  CLI::App app{kIntro, "dsat"};
  Flags flags;
  std::vector<std::unique_ptr<SearchFlags>> searches;
  std::vector<std::unique_ptr<CreateFlags>> creates;
  ResumeFlags resume;
  AskFlags ask;
  TellFlags tell;
  ServeFlags serve;
  ListFlags list;
  ShowFlags show;
  BestFlags best;
  QueryFlags query;
  ExportFlags export_flags;
  TrainFlags train;
  EvalFlags eval;
  PredictFlags predict;
  EstimateFlags estimate;
  CollateFlags collate;
  AioBenchFlags aio_bench;
  DoctorFlags doctor;
  SuperviseFlags supervise;

  template <typename T>
  CLI::App& Add(const std::string& name, const std::string& summary, T& command,
                bool uses_db = true) {
    CLI::App& sub = *app.add_subcommand(name, summary);
    sub.final_callback([this, &command] { flags.command = command; });
    if (uses_db) AddDb(sub, flags);
    AddJson(sub, flags);
    return sub;
  }
};

void AddSearchCommands(Parser& parser) {
  for (const MethodInfo& info : Methods()) {
    SearchFlags& search = *parser.searches.emplace_back(std::make_unique<SearchFlags>());
    search.method = info.name;
    CLI::App& sub = parser.Add(info.name, "Search: " + info.summary, search);
    AddConfig(sub, search.config, search.model_dir);
    AddSearchOptions(sub, search.options);
    AddMethodOptions(sub, info.name, search.options);
    AddRunFlags(sub, search.run);
  }
  CLI::App& resume =
      parser.Add("resume", "Go on with an experiment after a crash or Ctrl-C", parser.resume);
  AddExperiment(resume, parser.resume.experiment);
  AddRunFlags(resume, parser.resume.run);
}

void AddAskTellCommands(Parser& parser) {
  CLI::App& create = *parser.app.add_subcommand(
      "create", "Record an experiment whose trials other programs run (ask and tell)");
  create.require_subcommand(1);
  for (const MethodInfo& info : Methods()) {
    CreateFlags& flags = *parser.creates.emplace_back(std::make_unique<CreateFlags>());
    flags.method = info.name;
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
    AddSearchOptions(sub, flags.options);
    AddMethodOptions(sub, info.name, flags.options);
  }
  CLI::App& ask = parser.Add("ask", "The next trial to run, to be told of later", parser.ask);
  AddExperiment(ask, parser.ask.experiment);
  CLI::App& tell = parser.Add("tell", "Record how a trial that was asked for ended", parser.tell);
  AddExperiment(tell, parser.tell.experiment);
  tell.add_option("--trial", parser.tell.trial, "Number of the trial")
      ->required()
      ->check(CLI::NonNegativeNumber);
  CLI::Option* metrics = tell.add_option("--metrics", parser.tell.metrics,
                                         "Succeeded: metrics as JSON, {\"throughput\": 12.5, ...}; "
                                         "- reads standard input")
                             ->type_name("FILE");
  CLI::Option* infeasible =
      tell.add_option("--infeasible", parser.tell.infeasible,
                      "This configuration cannot run here (out of memory): why")
          ->type_name("REASON");
  CLI::Option* failed = tell.add_option("--failed", parser.tell.failed,
                                        "Crashed or lost, which says nothing of the configuration")
                            ->type_name("REASON");
  metrics->excludes(infeasible)->excludes(failed);
  infeasible->excludes(failed);
  tell.add_option("--profile", parser.tell.profile,
                  "Of the profiling trial: the model profile as JSON")
      ->type_name("FILE");
  CLI::App& serve =
      parser.Add("serve", "Serve Ask and Tell over gRPC (docs/ask-tell.md)", parser.serve);
  serve
      .add_option("--listen", parser.serve.listen, "unix:/PATH or 127.0.0.1:PORT (0 = a free one)")
      ->capture_default_str();
}

void AddResultCommands(Parser& parser) {
  parser.Add("list", "All experiments", parser.list);
  CLI::App& show = parser.Add("show", "One experiment and all its trials", parser.show);
  AddExperiment(show, parser.show.experiment);
  CLI::App& best = parser.Add("best", "The best configuration of an experiment", parser.best);
  AddExperiment(best, parser.best.experiment);
  best.add_option("--out", parser.best.out_dir, "Write ds_config.json and metrics.json there")
      ->type_name("DIR");
  CLI::App& query =
      parser.Add("query", "Read-only SQL on the database (docs/schema.md)", parser.query);
  query.add_option("sql", parser.query.sql, "One SELECT statement")->required();
  CLI::App& exporter =
      parser.Add("export", "All trials of an experiment as CSV or JSON", parser.export_flags);
  AddExperiment(exporter, parser.export_flags.experiment);
  exporter.add_option("--format", parser.export_flags.format, "csv or json")
      ->check(CLI::IsMember({"csv", "json"}))
      ->capture_default_str();
}

void AddCluster(CLI::App& sub, EstimateFlags& flags) {
  sub.add_option("--device", flags.device,
                 "v100, a100, h100, h200 or cpu: memory and speeds of a node of them "
                 "(default: cpu with CONFIG.yaml, else a100)");
  sub.add_option("--ranks", flags.ranks, "Devices in all (default: slots_per_trial, or 1)")
      ->check(CLI::PositiveNumber);
  sub.add_option("--nodes", flags.nodes, "Full nodes, in place of --ranks")
      ->check(CLI::PositiveNumber)
      ->excludes("--ranks");
  sub.add_option("--ranks-per-node", flags.ranks_per_node, "Devices of a node")
      ->check(CLI::PositiveNumber);
  sub.add_option("--device-memory", flags.device_memory, "Of a device, such as 32GiB");
  sub.add_option("--host-memory", flags.host_memory, "Of a node, such as 1.5TB");
  sub.add_option("--disk-space", flags.disk_space, "Of a node");
  sub.add_option("--flops", flags.flops, "Peak of a device, such as 312e12")
      ->check(CLI::PositiveNumber);
  sub.add_option("--efficiency", flags.efficiency, "Share of the peak that training reaches")
      ->check(CLI::Range(0.001, 1.0));
  sub.add_option("--link", flags.link, "Bytes a second between devices of a node, such as 300GB");
  sub.add_option("--network", flags.network, "Bytes a second from node to node");
  sub.add_option("--pcie", flags.pcie, "Bytes a second between a device and host memory");
  sub.add_option("--disk", flags.disk, "Bytes a second of a node's disk");
}

void AddEstimateCommand(Parser& parser) {
  EstimateFlags& flags = parser.estimate;
  CLI::App& sub = parser.Add("estimate", "Memory, traffic and time of a configuration, on paper",
                             flags, /*uses_db=*/false);
  sub.add_option("config", flags.config, "Experiment file: its model, data and ds_config")
      ->type_name("CONFIG.yaml");
  sub.add_option("model_dir", flags.model_dir, "Where its relative paths start")
      ->type_name("MODEL_DIR");
  CLI::Option* model = sub.add_option(
      "--model", flags.model, "A model block as JSON (docs/models.md), or a preset such as 1558M");
  sub.add_option("--params", flags.params, "A GPT of about so many parameters, such as 40e9")
      ->excludes(model);
  sub.add_option("--ds-config", flags.ds_config,
                 "A ds_config.json, or a strategy such as stage_2_offload (default: the "
                 "experiment file's, or stage_2)")
      ->type_name("FILE");
  sub.add_option("--set", flags.settings,
                 "Over it: /zero_optimization/stage=3; may be given several times")
      ->type_name("/KEY=JSON")
      ->allow_extra_args(false);
  sub.add_option("--micro-batch", flags.micro_batch, "Over it: train_micro_batch_size_per_gpu")
      ->check(CLI::PositiveNumber);
  sub.add_option("--seq-len", flags.seq_len, "T (default: the data's, or the model's longest)")
      ->check(CLI::PositiveNumber);
  sub.add_option_function<std::string>(
         "--stages", [&flags](const std::string& value) { flags.all_stages = value == "all"; },
         "\"all\": a row for every ZeRO stage and offload")
      ->check(CLI::IsMember({"all"}));
  AddCluster(sub, flags);
}

void AddCheckpoint(CLI::App& command, CheckpointFlags& flags) {
  AddConfig(command, flags.config, flags.model_dir);
  command
      .add_option("--checkpoint", flags.checkpoint_dir,
                  "Folder of checkpoints (default: dsat-out/train/checkpoint)")
      ->type_name("DIR");
  command.add_option("--tag", flags.tag, "Which checkpoint (default: the newest)");
}

void AddInferenceCommands(Parser& parser) {
  CLI::App& eval = parser.Add("eval", "Loss of a checkpoint over the validation data", parser.eval,
                              /*uses_db=*/false);
  AddCheckpoint(eval, parser.eval.checkpoint);
  PredictFlags& flags = parser.predict;
  CLI::App& predict = parser.Add("predict", "What a trained language model writes after a prompt",
                                 flags, /*uses_db=*/false);
  AddCheckpoint(predict, flags.checkpoint);
  predict.add_option("--prompt", flags.predict.prompt, "The text to go on from")
      ->required()
      ->type_name("TEXT");
  predict.add_option("--max-new-tokens", flags.predict.max_new_tokens, "Tokens to write")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  predict
      .add_option("--temperature", flags.predict.temperature,
                  "Below 1: more probable tokens; 0: always the most probable one")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  predict.add_option("--top-k", flags.predict.top_k, "Of the k most probable tokens only; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  predict.add_option("--num-samples", flags.predict.num_samples, "How many texts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  predict.add_option("--seed", flags.seed, "The same seed gives the same text")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void AddCollateCommand(Parser& parser) {
  CollateFlags& flags = parser.collate;
  CLI::App& collate = parser.Add("collate", "One file of whole parameters from a checkpoint", flags,
                                 /*uses_db=*/false);
  collate
      .add_option("checkpoint_dir", flags.checkpoint_dir,
                  "Folder of checkpoints, such as dsat-out/train/checkpoint")
      ->required()
      ->type_name("CHECKPOINT_DIR");
  collate.add_option("out", flags.out, "The file to write: .safetensors, or .bin for torch.load")
      ->required()
      ->type_name("OUT");
  collate.add_option("--tag", flags.tag, "Which checkpoint (default: the newest)");
  collate.add_option("--format", flags.format, "safetensors or bin (default: as OUT ends)")
      ->check(CLI::IsMember({"safetensors", "bin"}));
  collate.add_option("--dtype", flags.dtype, "Of the numbers: fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  collate.add_flag("--force", flags.force, "Replace OUT if it exists");
}

void AddAioBench(Parser& parser) {
  AioBenchFlags& bench = parser.aio_bench;
  CLI::App& sub = parser.Add("aio-bench", "The best `aio` block for a folder (docs/io.md)", bench,
                             /*uses_db=*/false);
  sub.add_option("folder", bench.folder, "Where the nvme tier would be")
      ->required()
      ->type_name("PATH");
  sub.add_option("--size", bench.size, "Bytes of the file, and of memory, to write and read")
      ->capture_default_str();
  sub.add_option("--repeats", bench.repeats, "Runs of each setting, of which the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub.add_option("--block-sizes", bench.block_sizes, "Values of block_size to try")
      ->delimiter(',')
      ->capture_default_str();
  sub.add_option("--queue-depths", bench.queue_depths, "Values of queue_depth to try")
      ->delimiter(',')
      ->capture_default_str();
  sub.add_option("--intra-op-parallelism", bench.parallelisms,
                 "Values of intra_op_parallelism to try")
      ->delimiter(',')
      ->capture_default_str();
  sub.add_option("--engine", bench.engine, "io_uring or threads (default: io_uring if allowed)")
      ->check(CLI::IsMember({"io_uring", "threads"}));
}

void AddTrainCommands(Parser& parser) {
  CLI::App& train = parser.Add("train", "The full training run of an experiment file", parser.train,
                               /*uses_db=*/false);
  AddConfig(train, parser.train.config, parser.train.model_dir);
  train
      .add_option("--ds-config", parser.train.ds_config,
                  "Train with this ds_config.json, the one a search has written for example, or "
                  "a strategy such as stage_2_offload")
      ->type_name("FILE");
  train.add_option("--steps", parser.train.steps, "Optimizer steps (default: searcher.max_length)")
      ->check(CLI::PositiveNumber);
  train
      .add_option("--out", parser.train.run.out_dir,
                  "Folder for logs and the newest checkpoint; training goes on from a checkpoint "
                  "that is in it already (default: dsat-out/train)")
      ->type_name("DIR");
  train
      .add_option("--checkpoint-interval", parser.train.checkpoint_interval,
                  "Save a checkpoint every so many steps, besides the one at the end "
                  "(default: a tenth of the steps)")
      ->check(CLI::PositiveNumber);
  train
      .add_option("--eval-interval", parser.train.eval_interval,
                  "Print the validation loss every so many steps and at the end; the data need a "
                  "\"validation\" (default: never)")
      ->check(CLI::PositiveNumber);
  AddTimeouts(train, parser.train.run);
  AddInferenceCommands(parser);
  AddEstimateCommand(parser);
  AddCollateCommand(parser);
  AddAioBench(parser);
  parser.Add("doctor", "What this machine has, and what is missing", parser.doctor,
             /*uses_db=*/false);
  CLI::App& supervise = parser.Add("supervise", "", parser.supervise, /*uses_db=*/false);
  supervise.group("");  // Hidden.
  supervise.add_option("--control-fd", parser.supervise.control_fd)->capture_default_str();
}

// What only several options together can get wrong. Throws kInvalidArgument.
template <typename Command>
void CheckUsage(const Command&) {}

void CheckUsage(const SearchFlags& search) {
  ValidateOptions(search.options);
}

void CheckUsage(const CreateFlags& create) {
  ValidateOptions(create.options);
}

void CheckUsage(const TellFlags& tell) {
  if (!tell.metrics.empty() || tell.infeasible || tell.failed || !tell.profile.empty()) return;
  Throw(ErrorCode::kInvalidArgument,
        "tell: say how trial {} ended: --metrics FILE, --infeasible REASON or --failed REASON",
        tell.trial);
}

}  // namespace

std::variant<Flags, int> ParseFlags(int argc, const char* const* argv) {
  Parser parser;
  parser.app.require_subcommand(1);
  parser.app.set_version_flag("--version", kVersion);
  parser.app.get_formatter()->column_width(34);
  AddSearchCommands(parser);
  AddTrainCommands(parser);
  AddResultCommands(parser);
  AddAskTellCommands(parser);
  try {
    parser.app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return parser.app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr,
                 "dsat: %s; dsat --help shows the commands, dsat COMMAND --help their options\n",
                 error.what());
    return kExitUsage;
  }
  try {
    std::visit([](const auto& command) { CheckUsage(command); }, parser.flags.command);
  } catch (const Error& error) {
    std::fprintf(stderr, "dsat: %s\n", error.what());
    return kExitUsage;
  }
  if (parser.flags.db.empty()) parser.flags.db = "dsat.db";
  return parser.flags;
}

}  // namespace dsat::cli
