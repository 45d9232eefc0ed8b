// The options of training, and of the commands before and after it.
#include <fmt/format.h>

#include "base/parse_number.h"
#include "cli/flags_parser.h"

namespace dsat::cli {
namespace {

// A limit on the size of a trace.
constexpr int64_t kMostTracedSteps = 100;

void AddTrace(CLI::App& train, TraceTask& trace) {
  CLI::Option* const file =
      Add(train, "--trace FILE", trace.path,
          "Write a trace of some steps of every rank for chrome://tracing or ui.perfetto.dev "
          "(docs/engine.md)");
  train
      .add_option_function<std::string>(
          "--trace-steps",
          [&trace](const std::string& text) {
            const size_t dash = text.find('-');
            const std::string last = dash == text.npos ? text : text.substr(dash + 1);
            trace.first_step = ParseNumber<int32_t>(text.substr(0, dash)).value_or(0);
            trace.last_step = ParseNumber<int32_t>(last).value_or(0);
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
  auto [train, flags] = parser.Add<TrainFlags>(
      "train", "Run the full training of an experiment file", /*uses_db=*/false);
  AddConfig(train, flags.config, flags.model_dir);
  Add(train, "--ds-config FILE", flags.ds_config,
      "Train with this ds_config.json, such as one written by a search, or a strategy such as "
      "stage_2_offload");
  AddPositive(train, "--steps", flags.steps, "Optimizer steps (default: searcher.max_length)");
  Add(train, "--out DIR", flags.run.out_dir,
      "Folder for logs and the newest checkpoint; training continues from a checkpoint that is "
      "already in it (default: dsat-out/train/NAME for NAME.yaml)");
  TrainingOptions& training = flags.training;
  AddPositive(train, "--checkpoint-interval", training.checkpoint_interval,
              "Save a checkpoint every N steps and at the end (default: a tenth of the steps, and "
              "after ten minutes at the latest)");
  AddPositive(train, "--keep", training.keep,
              "Checkpoints that stay in DIR/checkpoint, the newest ones");
  CLI::Option* const interval =
      AddPositive(train, "--eval-interval", training.eval_interval,
                  "Print the validation loss every N steps and at the end; the data block needs a "
                  "\"validation\" (default: never)");
  AddPositive(train, "--eval-batches", training.eval_batches,
              "Validate on the first N batches of train_batch_size samples (default: all)")
      ->needs(interval);
  train
      .add_flag("--keep-best", training.keep_best,
                "Save a checkpoint at each validation with the lowest loss so far, and keep the "
                "last of these, too; its tag is \"best\" for eval, generate and collate")
      ->needs(interval);
  AddTrace(train, flags.trace);
  AddTimeouts(train, flags.run);
  AddHosts(train, flags.run.hosts, FilterNames::kAndDeepSpeeds);
}

void AddCheckpoint(CLI::App& command, CheckpointFlags& flags) {
  AddConfig(command, flags.config, flags.model_dir);
  Add(command, "--checkpoint DIR", flags.checkpoint_dir,
      "Folder of checkpoints (default: dsat-out/train/NAME/checkpoint for NAME.yaml)");
  Add(command, "--tag TAG", flags.tag, "Tag of the checkpoint (default: the newest one)");
}

void AddInferenceCommands(Parser& parser) {
  auto [eval, evaluated] = parser.Add<EvalFlags>(
      "eval", "Compute the loss of a checkpoint over the validation data", /*uses_db=*/false);
  AddCheckpoint(eval, evaluated.checkpoint);
  auto [generate, flags] = parser.Add<GenerateFlags>(
      "generate", "Generate text after a prompt with a trained language model",
      /*uses_db=*/false);
  AddCheckpoint(generate, flags.checkpoint);
  Add(generate, "--prompt TEXT", flags.task.prompt,
      "The text to continue; for data that is not text, the numbers of its tokens, such as "
      "\"464 3290\"")
      ->required();
  AddPositive(generate, "--max-new-tokens", flags.task.max_new_tokens,
              "The most tokens to generate");
  AddNonNegative(
      generate, "--temperature", flags.task.temperature,
      "Values below 1 prefer more probable tokens; 0 always takes the most probable one");
  AddNonNegative(generate, "--top-k", flags.task.top_k,
                 "Draw from the k most probable tokens only; 0: from all");
  AddPositive(generate, "--num-samples", flags.task.num_samples, "Number of texts to generate");
  AddNonNegative(generate, "--seed", flags.seed, "The same seed gives the same text");
}

void AddEstimateCommand(Parser& parser) {
  auto [sub, flags] = parser.Add<EstimateFlags>(
      "estimate", "Predict memory, traffic and time of a configuration", /*uses_db=*/false);
  flags.command = parser.command;
  Add(sub, "config CONFIG.yaml", flags.config, "Experiment file: its model, data and ds_config");
  Add(sub, "model_dir MODEL_DIR", flags.model_dir,
      "Base folder of its relative paths (default: the file's folder)");
  Add(sub, "--model SIZE|FILE|JSON", flags.model,
      "A GPT with about so many parameters, such as 7B; a config.json of Hugging Face; or a model "
      "block (docs/models.md)");
  Add(sub, "--ds-config FILE", flags.ds_config,
      "A ds_config.json, or a strategy such as stage_2_offload (default: the experiment file's, or "
      "stage_2)");
  Add(sub, "--set /KEY=JSON", flags.settings,
      "Override a key of the ds_config, such as /zero_optimization/stage=3; may be given several "
      "times")
      ->allow_extra_args(false);
  AddPositive(sub, "--micro-batch", flags.micro_batch, "Override train_micro_batch_size_per_gpu");
  AddPositive(sub, "--seq-len", flags.seq_len,
              "Sequence length (default: the data's, or the model's longest)");
  TakeOneOf(Add(sub, "--stages", flags.stages, "A row for every ZeRO stage and offload"), {"all"});
  Add(sub, "--device NAME|FILE", flags.device,
      "A node of these devices, such as h100, rtx4090 or cpu; or a JSON file with figures of your "
      "own, docs/estimate.md (default: cpu for CONFIG.yaml unless its device is cuda, else a100)");
  AddPositive(sub, "--ranks", flags.ranks,
              "Total number of devices (default: slots_per_trial, or 1)");
  Add(sub, "--device-memory BYTES", flags.device_memory, "Memory of a device, such as 32GiB");
}

void AddCollateCommand(Parser& parser) {
  auto [collate, flags] = parser.Add<CollateFlags>(
      "collate", "Convert a checkpoint to one file with the whole parameters", /*uses_db=*/false);
  Add(collate, "checkpoint_dir CHECKPOINT_DIR", flags.checkpoint_dir,
      "Folder of checkpoints, such as dsat-out/train/NAME/checkpoint")
      ->required();
  Add(collate, "out OUT", flags.out, "The file to write, whose name ends in .safetensors")
      ->required();
  Add(collate, "--tag TAG", flags.tag, "Tag of the checkpoint (default: the newest one)");
  TakeOneOf(Add(collate, "--dtype", flags.dtype, "Type of the numbers"), {"fp32", "bf16", "fp16"});
  collate.add_flag("--force", flags.force, "Replace OUT if it exists");
}

void AddAioBench(Parser& parser) {
  auto [sub, bench] = parser.Add<AioBenchFlags>(
      "aio-bench", "Measure the best `aio` settings for a folder (docs/io.md)", /*uses_db=*/false);
  Add(sub, "folder PATH", bench.folder, "Folder of the nvme tier")->required();
  Add(sub, "--size BYTES", bench.size,
      "Size of the file that is written and read, and of the buffer in memory");
  Add(sub, "--repeats N", bench.repeats, "Runs of each setting; the median is reported")
      ->check(CLI::Range(1, 1000).description(""));
  Add(sub, "--block-sizes BYTES,...", bench.block_sizes, "Values of block_size to try")
      ->delimiter(',');
  Add(sub, "--queue-depths N,...", bench.queue_depths, "Values of queue_depth to try")
      ->delimiter(',');
  Add(sub, "--intra-op-parallelism N,...", bench.parallelisms,
      "Values of intra_op_parallelism to try")
      ->delimiter(',');
}

}  // namespace

void AddTrainingCommands(Parser& parser) {
  parser.group = "Train and predict";
  AddTrainCommand(parser);
  AddInferenceCommands(parser);
  AddEstimateCommand(parser);
  AddCollateCommand(parser);
  AddAioBench(parser);
  parser.Add<DoctorFlags>("doctor", "Report what this machine provides and what is missing",
                          /*uses_db=*/false);
  parser.Add<SuperviseFlags>("supervise", "", /*uses_db=*/false).first.group("");  // Hidden.
}

}  // namespace dsat::cli
