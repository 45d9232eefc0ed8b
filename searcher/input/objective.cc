// Decides whether a search keeps the global batch fixed while configurations vary.
#include "searcher/input/objective.h"

#include <algorithm>

#include "base/error.h"
#include "base/parse_number.h"
#include "engine/config/batch.h"
#include "proto/search_policy.h"

namespace dsat {
namespace {

constexpr char kFlag[] = "--train-batch-size";

// Whether the batch is kept if no rule is given.
bool KeepsByDefault(const ExperimentSpec& spec) {
  const Json* total = FindAtPointer(spec.ds_config, "/train_batch_size");
  if (total != nullptr && total->is_number()) return true;
  return spec.method == "auto" && !spec.search_space.contains(kMicroBatchKey);
}

int64_t ParseBatch(const std::string& text) {
  const std::optional<int64_t> batch = ParseNumber<int64_t>(text);
  if (batch && *batch >= 1) return *batch;
  Throw(ErrorCode::kInvalidArgument,
        "{}: \"{}\"; expected a whole number of 1 or more, keep or any", kFlag, text);
}

// The submitted micro-batch size must reach the batch in the micro-batches that a step may have.
void CheckAccumulation(int64_t batch, int64_t ranks, const std::string& source,
                       const ExperimentSpec& spec) {
  const int64_t micro =
      engine::ResolveBatchSizes(spec.ds_config, source, spec.slots_per_trial).micro_batch_size;
  if (batch / ranks / micro <= engine::kMostAccumulation) return;
  Throw(
      ErrorCode::kInvalidArgument,
      "{}: {} samples are {} micro-batches of {} samples on each of {} ranks; expected at most {} "
      "micro-batches",
      kFlag, batch, batch / ranks / micro, micro, ranks, engine::kMostAccumulation);
}

void CheckBatch(int64_t batch, int64_t ranks, const std::string& source,
                const ExperimentSpec& spec) {
  if (batch % ranks != 0) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: the fixed train_batch_size {} is not a multiple of the data-parallel size {} (of {} "
          "ranks); expected one, such as {}, or {} any",
          kFlag, batch, ranks, spec.slots_per_trial, std::max(batch / ranks, int64_t{1}) * ranks,
          kFlag);
  }
  CheckAccumulation(batch, ranks, source, spec);
  SearchSpace space;
  space.samples_per_step = batch / ranks;
  space.divisible_by = spec.options.divisible_by;
  if (spec.search_space.contains(kMicroBatchKey)) return;
  if (LegalMicroBatch(space, 1) > 0) return;
  Throw(ErrorCode::kInvalidArgument,
        "--divisible-by: no micro-batch size is a multiple of {} and divides {}, the samples per "
        "rank of the fixed train_batch_size {} (data-parallel size {}); expected a divisor of {}, "
        "or {} any",
        space.divisible_by, space.samples_per_step, batch, ranks, space.samples_per_step, kFlag);
}

// The sizes of the user's own space, where it has them.
void CheckOwnSizes(const ExperimentSpec& spec) {
  const auto sizes = spec.search_space.find(kMicroBatchKey);
  if (sizes == spec.search_space.end()) return;
  SearchSpace space;
  space.micro_batch_sizes = sizes->get<std::vector<int64_t>>();
  space.divisible_by = spec.options.divisible_by;
  const std::string of = space.divisible_by == 1
                             ? "size"
                             : fmt::format("multiple of {} (--divisible-by)", space.divisible_by);
  std::string also, way_out = "other sizes";
  if (spec.options.train_batch_size) {
    const int64_t ranks =
        engine::DataParallelSize(spec.ds_config, spec.config_path, spec.slots_per_trial);
    space.samples_per_step = *spec.options.train_batch_size / ranks;
    also = fmt::format(" that divides {}, the samples per rank of the fixed train_batch_size {}",
                       space.samples_per_step, *spec.options.train_batch_size);
    way_out += fmt::format(", or {} any", kFlag);
  }
  if (LegalMicroBatch(space, 1) > 0) return;
  Throw(ErrorCode::kInvalidArgument, "{}: search_space: {} has no {}{}; expected {}",
        spec.config_path, kMicroBatchKey, of, also, way_out);
}

}  // namespace

void SetTrainBatchSize(const std::string& rule, ExperimentSpec& spec) {
  const bool is_free = PolicyOf(spec.options).free_batch;
  if (is_free && !rule.empty() && rule != "any") {
    Throw(ErrorCode::kInvalidArgument,
          "{}: {} contradicts --compat determined, where train_batch_size follows the micro-batch "
          "size; expected any",
          kFlag, rule);
  }
  const bool keep = rule == "keep" || (rule.empty() && KeepsByDefault(spec));
  spec.options.train_batch_size.reset();
  if (is_free || (!keep && (rule.empty() || rule == "any"))) return CheckOwnSizes(spec);
  const std::string& source = spec.ds_config_path.empty() ? spec.config_path : spec.ds_config_path;
  const int64_t ranks = engine::DataParallelSize(spec.ds_config, source, spec.slots_per_trial);
  const int64_t batch =
      keep
          ? engine::ResolveBatchSizes(spec.ds_config, source, spec.slots_per_trial).train_batch_size
          : ParseBatch(rule);
  CheckBatch(batch, ranks, source, spec);
  spec.options.train_batch_size = batch;
  CheckOwnSizes(spec);
}

}  // namespace dsat
