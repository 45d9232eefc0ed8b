// The JSON form of an experiment, as stored in the database.
#include "proto/experiment.h"

#include <concepts>
#include <type_traits>

#include "proto/fields.h"

namespace dsat {

// T is the struct, const if it is written.
template <typename Visitor, typename T>
requires std::same_as<std::remove_const_t<T>, SearchOptions>
void VisitFields(Visitor& visit, T& options) {
  visit("max_trials", options.max_trials);
  visit("max_concurrent_trials", options.max_concurrent_trials);
  visit("max_slots", options.max_slots);
  visit("metric", options.metric);
  visit("zero_stages", options.zero_stages);
  visit("random_seed", options.random_seed);
  visit("start_profile_step", options.start_profile_step);
  visit("end_profile_step", options.end_profile_step);
  visit("run_full_experiment", options.run_full_experiment);
  visit("train_batch_size", options.train_batch_size);
  visit("divisible_by", options.divisible_by);
  visit("confirm_rounds", options.confirm_rounds);
  visit("check_losses", options.check_losses);
  visit("soak_steps", options.soak_steps);
  visit("soak_in_budget", options.soak_in_budget);
  visit("loss_pattern", options.loss_pattern);
  visit("max_time_s", options.max_time_s);
  visit("max_device_hours", options.max_device_hours);
  visit("run_steps", options.auto_method.run_steps);
  visit("compat_determined", options.compat_determined);
  visit("space", options.space);
  visit("allow_semantic", options.allow_semantic);
  visit("cover_stages", options.lineages.cover_stages);
  visit("warm_start", options.auto_method.warm_start);
  visit("prior", options.auto_method.prior);
  visit("trials_per_random_config", options.random.trials_per_random_config);
  visit("early_stopping", options.random.early_stopping);
  visit("search_range_factor", options.lineages.search_range_factor);
  visit("max_rungs", options.asha.max_rungs);
  visit("min_binary_search_trials", options.asha.min_binary_search_trials);
  visit("asha_early_stopping", options.asha.asha_early_stopping);
  visit("divisor", options.asha.divisor);
}

// A profile has its own reader, because users write profiles, too.
static void to_json(Json& json, const ModelProfile& profile) {
  json = ToJson(profile);
}
static void from_json(const Json& json, ModelProfile& profile) {
  profile = ProfileFromJson(json, "profile");
}
static bool Fits(const Json& json, const ModelProfile*) {
  return json.is_object();
}

template <typename Visitor, typename T>
requires std::same_as<std::remove_const_t<T>, ExperimentSpec>
void VisitFields(Visitor& visit, T& spec) {
  visit("name", spec.name);
  visit("method", spec.method);
  visit("entrypoint", spec.entrypoint);
  visit("config_path", spec.config_path);
  visit("model_dir", spec.model_dir);
  visit("start_dir", spec.start_dir);
  visit("out_dir", spec.out_dir);
  visit("slots_per_trial", spec.slots_per_trial);
  visit("device", spec.device);
  visit("device_memory_bytes", spec.device_memory_bytes);
  visit("host_memory_bytes", spec.host_memory_bytes);
  visit("environment", spec.environment);
  visit("hyperparameters", spec.hyperparameters);
  visit("ds_config_path", spec.ds_config_path);
  visit("ds_config", spec.ds_config);
  visit("search_space", spec.search_space);
  visit("where", spec.where);
  visit("max_restarts", spec.max_restarts);
  visit("max_length_steps", spec.max_length_steps);
  visit("profile", spec.profile);
  visit("candidate", spec.candidate);
  visit("machine", spec.machine);
  visit("options", spec.options);
}

template <typename Visitor, typename T>
requires std::same_as<std::remove_const_t<T>, Forecast>
void VisitFields(Visitor& visit, T& forecast) {
  visit("micro_batch_size", forecast.micro_batch_size);
  visit("accumulation_steps", forecast.accumulation_steps);
  visit("peak_bytes", forecast.peak_bytes);
  visit("compute_ms", forecast.compute_ms);
  visit("update_ms", forecast.update_ms);
  visit("link_ms", forecast.link_ms);
}

template <typename Visitor, typename T>
requires std::same_as<std::remove_const_t<T>, KnobEffect>
void VisitFields(Visitor& visit, T& effect) {
  visit("peak_bytes", effect.peak_bytes);
  visit("log_time", effect.log_time);
}

template <typename Visitor, typename T>
requires std::same_as<std::remove_const_t<T>, LeftOut>
void VisitFields(Visitor& visit, T& left_out) {
  visit("what", left_out.what);
  visit("why", left_out.why);
}

template <typename Visitor, typename T>
requires std::same_as<std::remove_const_t<T>, Workload>
void VisitFields(Visitor& visit, T& workload) {
  visit("num_params", workload.num_params);
  visit("trainable_num_params", workload.trainable_num_params);
  visit("bytes_per_param", workload.bytes_per_param);
  visit("data_parallel", workload.data_parallel);
  visit("forward_flops_per_sample", workload.forward_flops_per_sample);
  visit("matmul_flops_per_s", workload.matmul_flops_per_s);
  visit("copy_bytes_per_s", workload.copy_bytes_per_s);
  visit("device_memory_bytes", workload.device_memory_bytes);
  visit("accumulation_steps", workload.accumulation_steps);
  visit("micro_batch_size", workload.micro_batch_size);
  visit("stage", workload.stage);
  visit("whole_buckets", workload.whole_buckets);
  visit("on_cpu", workload.on_cpu);
}

Json ToJson(const SearchOptions& options) {
  return fields::Encode(options);
}

Json ToJson(const ExperimentSpec& spec) {
  return fields::Encode(spec);
}

ExperimentSpec ExperimentSpecFromJson(const Json& json) {
  ExperimentSpec spec;
  fields::Decode(json, "experiment", spec);
  return spec;
}

namespace {

template <typename T>
Json EncodeAll(const std::vector<T>& values) {
  Json json = Json::array();
  for (const T& value : values)
    json.push_back(fields::Encode(value));
  return json;
}

// The array of that name; empty if the object, which an older dsat wrote, has none.
template <typename T>
std::vector<T> DecodeAll(const Json& object, const char* name) {
  std::vector<T> values;
  for (const Json& json : object.value(name, Json::array()))
    fields::Decode(json, name, values.emplace_back());
  return values;
}

}  // namespace

bool IsBuiltin(const ExperimentSpec& spec) {
  return spec.entrypoint == std::vector<std::string>{"builtin"};
}

Json ToJson(const SearchSpace& space) {
  Json json{{"stages", Json::array()},
            {"exact", space.exact},
            {"samples_per_step", space.samples_per_step},
            {"divisible_by", space.divisible_by},
            {"micro_batch_sizes", space.micro_batch_sizes},
            {"workload", fields::Encode(space.workload)},
            {"left_out", EncodeAll(space.left_out)}};
  for (const StageSpace& stage : space.stages) {
    Json knobs = Json::array();
    for (const Knob& knob : stage.knobs) {
      knobs.push_back({{"pointer", knob.pointer},
                       {"values", knob.values},
                       {"effects", EncodeAll(knob.effects)}});
    }
    json["stages"].push_back({{"stage", stage.stage},
                              {"settings", stage.settings},
                              {"approx_max_micro_batch", stage.approx_max_micro_batch},
                              {"is_bound_by_host", stage.is_bound_by_host},
                              {"state_bytes", stage.state_bytes},
                              {"knobs", std::move(knobs)},
                              {"forecasts", EncodeAll(stage.forecasts)},
                              {"submitted", stage.submitted}});
  }
  return json;
}

SearchSpace SearchSpaceFromJson(const Json& json) {
  SearchSpace space;
  space.exact = json.at("exact").get<bool>();
  space.samples_per_step = json.value("samples_per_step", int64_t{0});
  space.divisible_by = json.value("divisible_by", int64_t{1});
  space.micro_batch_sizes = json.value("micro_batch_sizes", std::vector<int64_t>());
  // Older logs have neither a workload nor forecasts, settings nor effects.
  if (json.contains("workload")) fields::Decode(json["workload"], "workload", space.workload);
  space.left_out = DecodeAll<LeftOut>(json, "left_out");
  for (const Json& entry : json.at("stages")) {
    StageSpace stage{
        .stage = entry.at("stage").get<int>(),
        .settings = entry.value("settings", Assignment()),
        .approx_max_micro_batch = entry.at("approx_max_micro_batch").get<int64_t>(),
        .is_bound_by_host = entry.value("is_bound_by_host", false),
        .state_bytes = entry.at("state_bytes").get<int64_t>(),
        .knobs = {},
    };
    for (const Json& knob : entry.at("knobs")) {
      stage.knobs.push_back({.pointer = knob.at("pointer").get<std::string>(),
                             .values = knob.at("values").get<std::vector<Json>>(),
                             .effects = DecodeAll<KnobEffect>(knob, "effects")});
    }
    stage.forecasts = DecodeAll<Forecast>(entry, "forecasts");
    stage.submitted = entry.value("submitted", Assignment());
    space.stages.push_back(std::move(stage));
  }
  return space;
}

}  // namespace dsat
