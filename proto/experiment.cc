// The JSON form of an experiment, as stored in the database.
#include "proto/experiment.h"

#include <algorithm>
#include <concepts>
#include <type_traits>

#include "base/fields.h"

namespace dsat {

DSAT_FIELDS(LineageOptions, cover_stages, search_range_factor)
DSAT_FIELDS(RandomOptions, trials_per_random_config, early_stopping)
DSAT_FIELDS(AshaOptions, max_rungs, min_binary_search_trials, asha_early_stopping, divisor)
DSAT_FIELDS(AutoOptions, run_steps, warm_start, prior)

// The fields of all structs side by side. T is the struct, const if it is written.
template <typename Visitor, typename T>
requires std::same_as<std::remove_const_t<T>, SearchOptions>
void VisitFields(Visitor& visit, T& object) {
  DSAT_VISIT_FIELDS(max_trials, max_concurrent_trials, max_slots, metric, zero_stages, random_seed,
                    start_profile_step, end_profile_step, run_full_experiment, train_batch_size,
                    divisible_by, confirm_rounds, check_losses, soak_steps, soak_in_budget, profile,
                    loss_pattern, max_time_s, max_device_hours, compat_determined, space,
                    allow_semantic)
  VisitFields(visit, object.auto_method);
  VisitFields(visit, object.lineages);
  VisitFields(visit, object.random);
  VisitFields(visit, object.asha);
}

// A profile has its own reader, because users write profiles, too.
static void to_json(Json& json, const ModelProfile& profile) {
  json = ToJson(profile);
}
static void from_json(const Json& json, ModelProfile& profile) {
  profile = ProfileFromJson(json, "profile");
}

DSAT_FIELDS(ExperimentSpec, name, method, entrypoint, config_path, model_dir, start_dir, out_dir,
            slots_per_trial, device, device_memory_bytes, host_memory_bytes, environment,
            hyperparameters, file, ds_config_path, ds_config, search_space, where, max_restarts,
            max_length_steps, profile, candidate, machine, options)

DSAT_FIELDS(Forecast, micro_batch_size, accumulation_steps, peak_bytes, compute_ms, update_ms,
            link_ms)

DSAT_FIELDS(KnobEffect, peak_bytes, log_time)

DSAT_FIELDS(LeftOut, what, why)

DSAT_FIELDS(Workload, num_params, trainable_num_params, bytes_per_param, data_parallel,
            forward_flops_per_sample, matmul_flops_per_s, copy_bytes_per_s, device_memory_bytes,
            accumulation_steps, pipeline_stages, micro_batch_size, stage, whole_buckets, on_cpu)

DSAT_FIELDS(Knob, pointer, values, effects)
DSAT_FIELDS(StageSpace, stage, settings, approx_max_micro_batch, is_bound_by_host, state_bytes,
            knobs, forecasts, submitted)
// The conditions are those of the spec.
DSAT_SOME_FIELDS(SearchSpace, stages, exact, tracked, samples_per_step, divisible_by,
                 micro_batch_sizes, workload, left_out)

Json ToJson(const SearchOptions& options) {
  return fields::Encode(options);
}

Json ToJson(const ExperimentSpec& spec) {
  return fields::Encode(spec);
}

ExperimentSpec ExperimentSpecFromJson(const Json& json) {
  return fields::DecodeAs<ExperimentSpec>(json, "experiment");
}

bool IsBuiltin(const ExperimentSpec& spec) {
  return spec.entrypoint == std::vector<std::string>{"builtin"};
}

Json ToJson(const SearchSpace& space) {
  return fields::Encode(space);
}

SearchSpace SearchSpaceFromJson(const Json& json) {
  return fields::DecodeAs<SearchSpace>(json, "space");
}

int64_t LargestDivisor(int64_t samples, int64_t most, int64_t step) {
  for (int64_t divisor = std::min(samples, most) / step * step; divisor > 0; divisor -= step) {
    if (samples % divisor == 0) return divisor;
  }
  return 0;
}

int64_t LegalMicroBatch(const SearchSpace& space, int64_t size) {
  const int64_t step = space.divisible_by, batch = space.samples_per_step;
  if (!space.micro_batch_sizes.empty()) {
    int64_t best = 0;
    for (const int64_t legal : space.micro_batch_sizes) {
      if (legal % step != 0 || (batch > 0 && batch % legal != 0)) continue;
      if (best == 0 || legal <= size) best = legal;
    }
    return best;
  }
  if (batch == 0) return std::max(size / step, int64_t{1}) * step;
  const int64_t largest = LargestDivisor(batch, size, step);
  return largest > 0 ? largest : batch % step == 0 ? step : 0;
}

}  // namespace dsat
