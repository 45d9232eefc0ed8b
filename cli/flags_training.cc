// The options of training, and of the commands before and after it.
#include "cli/flags_training.h"

#include <fmt/format.h>

#include "cli/flags_checks.h"
#include "cli/flags_hosts.h"

namespace dsat::cli {
namespace {

// A limit on the size of a trace.
constexpr int64_t kMostTracedSteps = 100;

int64_t StepNumber(const std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  return digits && text.size() <= 12 ? std::stoll(text) : 0;
}

void AddTrace(CLI::App& train, TraceTask& trace) {
  CLI::Option* file =
      train
          .add_option("--trace", trace.path,
                      "Write a trace of some steps of every rank for chrome://tracing or "
                      "ui.perfetto.dev (docs/engine.md)")
          ->type_name("FILE");
  train
      .add_option_function<std::string>(
          "--trace-steps",
          [&trace](const std::string& text) {
            const size_t dash = text.find('-');
            trace.first_step = StepNumber(text.substr(0, dash));
            trace.last_step =
                dash == text.npos ? trace.first_step : StepNumber(text.substr(dash + 1));
            const int64_t num_steps = trace.last_step - trace.first_step + 1;
            if (trace.first_step >= 1 && num_steps >= 1 && num_steps <= kMostTracedSteps) return;
            throw CLI::ValidationError(
                "--trace-steps",
                fmt::format("{}: expected FIRST-LAST, such as 4-6, at most {} steps "
                            "counted from 1",
                            text, kMostTracedSteps));
          },
          "The steps that --trace records, counted from the first step of this run; a shorter run "
          "records its last steps (default: 4-6)")
      ->type_name("FIRST-LAST")
      ->needs(file);
}

void AddTrainCommand(Parser& parser) {
  CLI::App& train = parser.Add("train", "Run the full training of an experiment file", parser.train,
                               /*uses_db=*/false);
  AddConfig(train, parser.train.config, parser.train.model_dir);
  train
      .add_option("--ds-config", parser.train.ds_config,
                  "Train with this ds_config.json, such as one written by a search, or a strategy "
                  "such as stage_2_offload")
      ->type_name("FILE");
  train.add_option("--steps", parser.train.steps, "Optimizer steps (default: searcher.max_length)")
      ->check(WholeNumberFrom1());
  train
      .add_option("--out", parser.train.run.out_dir,
                  "Folder for logs and the newest checkpoint; training continues from a checkpoint "
                  "that is already in it (default: dsat-out/train)")
      ->type_name("DIR");
  TrainingOptions& training = parser.train.training;
  train
      .add_option("--checkpoint-interval", training.checkpoint_interval,
                  "Save a checkpoint every N steps and at the end (default: a tenth of the steps, "
                  "and after ten minutes at the latest)")
      ->check(WholeNumberFrom1());
  train
      .add_option("--keep", training.keep,
                  "Checkpoints that stay in DIR/checkpoint, the newest ones")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
  CLI::Option* interval =
      train
          .add_option("--eval-interval", training.eval_interval,
                      "Print the validation loss every N steps and at the end; the data block "
                      "needs a \"validation\" (default: never)")
          ->check(WholeNumberFrom1());
  train
      .add_option("--eval-batches", training.eval_batches,
                  "Validate on the first N batches of train_batch_size samples (default: all)")
      ->check(WholeNumberFrom1())
      ->needs(interval);
  train
      .add_flag("--keep-best", training.keep_best,
                "Save a checkpoint at each validation with the lowest loss so far, and keep the "
                "last of these, too; its tag is \"best\" for eval, generate and collate")
      ->needs(interval);
  AddTrace(train, parser.train.trace);
  AddTimeouts(train, parser.train.run);
  AddHosts(train, parser.train.run.hosts, FilterNames::kAndDeepSpeeds);
}

void AddCheckpoint(CLI::App& command, CheckpointFlags& flags) {
  AddConfig(command, flags.config, flags.model_dir);
  command
      .add_option("--checkpoint", flags.checkpoint_dir,
                  "Folder of checkpoints (default: dsat-out/train/checkpoint)")
      ->type_name("DIR");
  command.add_option("--tag", flags.tag, "Tag of the checkpoint (default: the newest one)");
}

void AddInferenceCommands(Parser& parser) {
  CLI::App& eval =
      parser.Add("eval", "Compute the loss of a checkpoint over the validation data", parser.eval,
                 /*uses_db=*/false);
  AddCheckpoint(eval, parser.eval.checkpoint);
  GenerateFlags& flags = parser.generate;
  CLI::App& generate =
      parser.Add("generate", "Generate text after a prompt with a trained language model", flags,
                 /*uses_db=*/false);
  AddCheckpoint(generate, flags.checkpoint);
  generate
      .add_option("--prompt", flags.task.prompt,
                  "The text to continue; for data that is not text, the numbers of its tokens, "
                  "such as \"464 3290\"")
      ->required()
      ->type_name("TEXT");
  generate.add_option("--max-new-tokens", flags.task.max_new_tokens, "The most tokens to generate")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
  generate
      .add_option(
          "--temperature", flags.task.temperature,
          "Values below 1 prefer more probable tokens; 0 always takes the most probable one")
      ->check(NumberFrom0())
      ->capture_default_str();
  generate
      .add_option("--top-k", flags.task.top_k,
                  "Draw from the k most probable tokens only; 0: from all")
      ->check(WholeNumberFrom0())
      ->capture_default_str();
  generate.add_option("--num-samples", flags.task.num_samples, "Number of texts to generate")
      ->check(WholeNumberFrom1())
      ->capture_default_str();
  generate.add_option("--seed", flags.seed, "The same seed gives the same text")
      ->check(WholeNumberFrom0())
      ->capture_default_str();
}

void AddCluster(CLI::App& sub, EstimateFlags& flags) {
  sub.add_option("--device", flags.device,
                 "v100, a100, h100, h200 or cpu: memory and speeds of a node of them "
                 "(default: cpu for CONFIG.yaml unless its device is cuda, else a100)");
  sub.add_option("--ranks", flags.ranks, "Total number of devices (default: slots_per_trial, or 1)")
      ->check(WholeNumberFrom1());
  sub.add_option("--nodes", flags.nodes, "Number of full nodes, instead of --ranks")
      ->check(WholeNumberFrom1())
      ->excludes("--ranks");
  sub.add_option("--ranks-per-node", flags.ranks_per_node, "Number of devices of a node")
      ->check(WholeNumberFrom1());
  sub.add_option("--device-memory", flags.device_memory, "Memory of a device, such as 32GiB");
  sub.add_option("--host-memory", flags.host_memory, "Host memory of a node, such as 1.5TB");
  sub.add_option("--disk-space", flags.disk_space, "Disk space of a node");
  sub.add_option("--flops", flags.flops, "Peak FLOP/s of a device, such as 312e12")
      ->check(NumberAbove0());
  sub.add_option("--efficiency", flags.efficiency, "Share of the peak that training reaches")
      ->check(NumberAbove0())  // Not a NaN, which Range lets pass.
      ->check(CLI::Range(0.001, 1.0));
  sub.add_option("--link", flags.link, "Bytes per second between devices of a node, such as 300GB");
  sub.add_option("--network", flags.network, "Bytes per second between nodes");
  sub.add_option("--pcie", flags.pcie, "Bytes per second between a device and host memory");
  sub.add_option("--disk", flags.disk, "Bytes per second of a node's disk");
}

void AddEstimateCommand(Parser& parser) {
  EstimateFlags& flags = parser.estimate;
  flags.command = parser.command;
  CLI::App& sub = parser.Add("estimate", "Predict memory, traffic and time of a configuration",
                             flags, /*uses_db=*/false);
  sub.add_option("config", flags.config, "Experiment file: its model, data and ds_config")
      ->type_name("CONFIG.yaml");
  sub.add_option("model_dir", flags.model_dir,
                 "Base folder of its relative paths (default: the file's folder)")
      ->type_name("MODEL_DIR");
  CLI::Option* model = sub.add_option(
      "--model", flags.model, "A model block as JSON (docs/models.md), or a preset such as 1558M");
  sub.add_option("--params", flags.params, "A GPT with about this many parameters, such as 40e9")
      ->excludes(model);
  sub.add_option("--ds-config", flags.ds_config,
                 "A ds_config.json, or a strategy such as stage_2_offload (default: the "
                 "experiment file's, or stage_2)")
      ->type_name("FILE");
  sub.add_option("--set", flags.settings,
                 "Override a key of the ds_config, such as /zero_optimization/stage=3; may be "
                 "given several times")
      ->type_name("/KEY=JSON")
      ->allow_extra_args(false);
  sub.add_option("--micro-batch", flags.micro_batch, "Override train_micro_batch_size_per_gpu")
      ->check(WholeNumberFrom1());
  sub.add_option("--seq-len", flags.seq_len,
                 "Sequence length (default: the data's, or the model's longest)")
      ->check(WholeNumberFrom1());
  sub.add_option_function<std::string>(
         "--stages", [&flags](const std::string& value) { flags.all_stages = value == "all"; },
         "\"all\": a row for every ZeRO stage and offload")
      ->check(CLI::IsMember({"all"}));
  AddCluster(sub, flags);
}

void AddCollateCommand(Parser& parser) {
  CollateFlags& flags = parser.collate;
  CLI::App& collate =
      parser.Add("collate", "Convert a checkpoint to one file with the whole parameters", flags,
                 /*uses_db=*/false);
  collate
      .add_option("checkpoint_dir", flags.checkpoint_dir,
                  "Folder of checkpoints, such as dsat-out/train/checkpoint")
      ->required()
      ->type_name("CHECKPOINT_DIR");
  collate.add_option("out", flags.out, "The file to write, whose name ends in .safetensors")
      ->required()
      ->type_name("OUT");
  collate.add_option("--tag", flags.tag, "Tag of the checkpoint (default: the newest one)");
  collate.add_option("--dtype", flags.dtype, "Type of the numbers: fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  collate.add_flag("--force", flags.force, "Replace OUT if it exists");
}

void AddAioBench(Parser& parser) {
  AioBenchFlags& bench = parser.aio_bench;
  CLI::App& sub =
      parser.Add("aio-bench", "Measure the best `aio` settings for a folder (docs/io.md)", bench,
                 /*uses_db=*/false);
  sub.add_option("folder", bench.folder, "Folder of the nvme tier")->required()->type_name("PATH");
  sub.add_option("--size", bench.size,
                 "Size of the file that is written and read, and of the buffer in memory")
      ->capture_default_str();
  sub.add_option("--repeats", bench.repeats, "Runs of each setting; the median is reported")
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

}  // namespace

void AddTrainingCommands(Parser& parser) {
  AddTrainCommand(parser);
  AddInferenceCommands(parser);
  AddEstimateCommand(parser);
  AddCollateCommand(parser);
  AddAioBench(parser);
  parser.Add("doctor", "Report what this machine provides and what is missing", parser.doctor,
             /*uses_db=*/false);
  parser.Add("supervise", "", parser.supervise, /*uses_db=*/false).group("");  // Hidden.
}

}  // namespace dsat::cli
