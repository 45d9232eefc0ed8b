// The searched rows of the key table, less what has no effect.
#include "profiler/tuning_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "engine/config/validate.h"
#include "profiler/conditions.h"
#include "profiler/effective_key.h"
#include "profiler/places.h"
#include "proto/search_policy.h"

namespace dsat {
namespace {

using engine::Key;

// The facts that decide about the knobs of a place.
struct Scope {
  const Predictor& predictor;
  const ExperimentSpec& spec;
  const engine::KeyTable& keys;
  int64_t num_params = 0;  // 0 if it does not bound sizes.
  bool published = false;  // Exactly the published knobs.
};

// Sizes end with the smallest that holds every parameter: larger ones are not faster.
std::vector<Json> ValuesOf(const Key& key, const Scope& scope) {
  const int64_t num_ranks = scope.spec.slots_per_trial;
  std::vector<Json> values;
  for (const Json& value : Json::parse(key.values)) {
    if (key.divides_ranks && value != 1) {
      const auto share = value.get<int64_t>();
      if (share >= num_ranks || num_ranks % share != 0) continue;
    }
    values.push_back(value);
    if (key.up_to_params && scope.num_params > 0 && value >= scope.num_params) break;
  }
  return values;
}

// Whether ranks can share samples, tensors and experts as the place with this value says. A kept
// batch is divided among as many ranks as submitted.
bool SplitsRanks(const Key& key, const Json& value, const Scope& scope, const Place& place) {
  const int64_t world_size = scope.spec.slots_per_trial;
  const std::string source = "ds_config";
  bool splits = false;
  RefusalOf([&] {
    const Json config = engine::ConfigForTrial(place.ds_config, {{key.pointer, value}}, world_size);
    engine::ValidateDsConfig(config, source, world_size);
    splits = !scope.spec.options.train_batch_size ||
             engine::DataParallelSize(config, source, world_size) ==
                 engine::DataParallelSize(place.ds_config, source, world_size);
  });
  return splits;
}

// The submitted value and those that mean something else: nothing is learned otherwise unless a
// trial chooses so. A type that is not given is that of training.
std::vector<Json> ValuesBesidesSubmitted(const Key& key, const Scope& scope, const Place& place) {
  const engine::Settings settings(place.ds_config, "ds_config", scope.keys);
  const char* const precision = settings.Is("/bf16/enabled")   ? "bf16"
                                : settings.Is("/fp16/enabled") ? "fp16"
                                                               : "fp32";
  const auto meaning = [&](const Json& value) { return value.is_null() ? Json(precision) : value; };
  std::vector<Json> values = {settings.Get(key.pointer)};
  for (const Json& value : ValuesOf(key, scope)) {
    if (meaning(value) == meaning(values.front())) continue;
    if (!key.splits_ranks || SplitsRanks(key, value, scope, place)) values.push_back(value);
  }
  return values;
}

// The change by each value in the place at its largest micro-batch size; {} if nothing is
// predicted.
std::vector<KnobEffect> EffectsOf(const Knob& knob, const Scope& scope, Json ds_config,
                                  int64_t largest) {
  std::vector<KnobEffect> effects;
  SetPoint(ds_config, {std::max<int64_t>(largest, 1), 1});
  const std::string refusal = RefusalOf([&] {
    const Estimate submitted = scope.predictor.Predict(ds_config);
    for (const Json& value : knob.values) {
      SetAtPointer(ds_config, knob.pointer, value);
      const Estimate predicted = scope.predictor.Predict(ds_config);
      KnobEffect& effect = effects.emplace_back();
      effect.peak_bytes =
          static_cast<double>(predicted.device.peak_bytes - submitted.device.peak_bytes);
      if (submitted.step_ms > 0 && predicted.step_ms > 0)
        effect.log_time = std::log(predicted.step_ms / submitted.step_ms);
    }
  });
  if (!refusal.empty()) effects.clear();
  return effects;
}

// Whether the engine's own plan is the same at every value.
bool IsIdle(const Knob& knob) {
  return std::ranges::all_of(knob.effects, [](const KnobEffect& effect) {
    return effect.peak_bytes == 0 && std::abs(effect.log_time) < 1e-9;
  });
}

// A share of a step means nothing where the time of computing is unknown.
void ForgetTimes(const StageSpace& space, Knob& knob) {
  if (!space.forecasts.empty() && space.forecasts.front().compute_ms > 0) return;
  for (KnobEffect& effect : knob.effects)
    effect.log_time = 0;
}

// A knob that only a wide search has; nullopt if it changes nothing here.
std::optional<Knob> WideKnobOf(const Key& key, const Scope& scope, const Place& place,
                               const StageSpace& space, bool exact,
                               std::vector<LeftOut>& left_out) {
  if (!IsSearchedWidely(key, scope.spec) || place.stage < key.wide_from) return std::nullopt;
  if (LacksItsSection(key, place.ds_config, scope.keys)) return std::nullopt;
  const bool is_unpredicted = IsOfTrainer(key) || key.splits_ranks;
  const bool is_besides = key.key_class == engine::KeyClass::kSemantic || is_unpredicted;
  Knob knob{
      .pointer = key.pointer,
      .values = is_besides ? ValuesBesidesSubmitted(key, scope, place) : ValuesOf(key, scope)};
  if (knob.values.size() > 1 && !is_unpredicted)
    knob.effects = EffectsOf(knob, scope, place.ds_config, space.approx_max_micro_batch);
  if (knob.values.size() > 1 && !(exact && !key.beyond_plan && IsIdle(knob))) {
    ForgetTimes(space, knob);
    return knob;
  }
  LeftOut idle{fmt::format("{} at stage {}", key.pointer, place.stage),
               knob.values.size() > 1 ? "no value is predicted to change memory or time"
                                      : "only one of its values is possible here"};
  if (std::ranges::find(left_out, idle.what, &LeftOut::what) == left_out.end())
    left_out.push_back(std::move(idle));
  return std::nullopt;
}

// The user's values replace those of the table. Keys that are not in the table come last.
std::vector<Knob> KnobsOf(const Scope& scope, const Place& place, const StageSpace& space,
                          bool exact, std::vector<LeftOut>& left_out) {
  const Json& user_space = scope.spec.search_space;
  std::vector<Knob> knobs;
  for (const Key& key : scope.keys) {
    const auto given = user_space.find(key.pointer);
    if (key.pointer == std::string_view(kMicroBatchKey) || key.structural) continue;
    const bool acts = HasEffect(key, scope.spec, place.stage);
    const int from = scope.published ? key.published_from : key.searched_from;
    if (given != user_space.end()) {
      if (!acts) continue;
      Knob& knob = knobs.emplace_back(Knob{.pointer = key.pointer, .values = *given});
      if (scope.spec.options.space == "wide" && key.searched_from == engine::kNumZeroStages)
        knob.effects = EffectsOf(knob, scope, place.ds_config, space.approx_max_micro_batch);
      ForgetTimes(space, knob);
    } else if (place.stage >= from && (acts || scope.published)) {
      knobs.push_back({.pointer = key.pointer, .values = ValuesOf(key, scope)});
    } else if (acts) {
      if (auto knob = WideKnobOf(key, scope, place, space, exact, left_out))
        knobs.push_back(*std::move(knob));
    }
  }
  for (const auto& [pointer, values] : user_space.items()) {
    if (scope.keys.Find(pointer) == nullptr)
      knobs.push_back({.pointer = pointer, .values = values});
  }
  return knobs;
}

// The predictions at sizes 1, 2, 4, ..., up to twice the largest that fits.
std::vector<Forecast> ForecastsOf(const Predictor& predictor, Json ds_config, int64_t largest,
                                  const SearchSpace& space) {
  std::vector<Forecast> forecasts;
  for (int64_t size = 1; size <= std::max<int64_t>(2 * largest, 2); size *= 2) {
    const int64_t accumulation = AccumulationInMemory(space, size);
    SetPoint(ds_config, {size, accumulation});
    const Estimate predicted = predictor.Predict(ds_config);
    forecasts.push_back({.micro_batch_size = size,
                         .accumulation_steps = accumulation,
                         .peak_bytes = predicted.device.peak_bytes,
                         .compute_ms = predicted.compute_ms,
                         .update_ms = predicted.update_ms,
                         .link_ms = predicted.link_ms});
  }
  return forecasts;
}

// Whether one sample more than the largest size lacks another memory than the device's.
bool IsBoundByHost(const Predictor& predictor, Json ds_config, int64_t largest) {
  SetPoint(ds_config, {largest + 1, 1});
  const Estimate predicted = predictor.Predict(ds_config);
  return predicted.device.fits() && !predicted.fits();
}

// Fills in what is predicted of the place, and the device memory that the predictor allows.
void PredictSizes(const Predictor& predictor, const Json& ds_config, StageSpace& stage,
                  SearchSpace& space) {
  const std::string refusal = RefusalOf([&] {
    stage.approx_max_micro_batch = LargestThatFits(predictor, ds_config, space);
    const Estimate predicted = predictor.Predict(ds_config);
    stage.state_bytes = predicted.device.state_bytes;
    space.exact = predicted.exact;
    space.tracked = predicted.tracked;
    space.workload.device_memory_bytes = predicted.device.limit_bytes;
    stage.is_bound_by_host = IsBoundByHost(predictor, ds_config, stage.approx_max_micro_batch);
    stage.forecasts = ForecastsOf(predictor, ds_config, stage.approx_max_micro_batch, space);
  });
  if (!refusal.empty()) stage.approx_max_micro_batch = 0;
}

Assignment SubmittedAt(int stage, const Json& ds_config, const engine::KeyTable& keys,
                       const Json& user_space) {
  const engine::Settings settings = engine::Settings(ds_config, "ds_config", keys).AtStage(stage);
  Assignment submitted;
  for (const Key& key : keys) {
    const bool is_searched = key.values[0] != 0 || user_space.contains(key.pointer);
    const bool is_lacking = IsOfTrainer(key) && settings.Given(key.pointer) == nullptr;
    if (is_searched && !is_lacking) submitted[key.pointer] = settings.Get(key.pointer);
  }
  for (const auto& [pointer, values] : user_space.items()) {
    const Json* given = FindAtPointer(ds_config, pointer);
    if (keys.Find(pointer) == nullptr && given != nullptr) submitted[pointer] = *given;
  }
  submitted.erase(kMicroBatchKey);
  return submitted;
}

// Why the conditions allow no configuration of a place with these knobs; "" if they allow one.
std::string WhyExcluded(const std::vector<Comparison>& where, const StageSpace& stage,
                        const Place& place, const engine::KeyTable& keys) {
  const engine::Settings settings(place.ds_config, "ds_config", keys);
  return WhyExcluded(where, [&](const std::string& pointer) -> std::vector<Json> {
    const auto knob = std::ranges::find(stage.knobs, pointer, &Knob::pointer);
    if (knob != stage.knobs.end()) return knob->values;
    return {settings.ValueOrNull(pointer)};
  });
}

Workload WorkloadOf(const ModelProfile& profile, const ExperimentSpec& spec) {
  const Json& ds_config = spec.ds_config;
  const int64_t world_size = spec.slots_per_trial;
  const engine::Settings settings(ds_config, "ds_config");
  engine::BatchSizes batch{.micro_batch_size = 1, .accumulation_steps = 1};
  const int64_t data_parallel = engine::DataParallelSize(ds_config, "ds_config", world_size);
  const auto is_given = [&](const char* pointer) { return settings.Given(pointer) != nullptr; };
  if (is_given(kMicroBatchKey) || is_given("/train_batch_size"))
    batch = engine::ResolveBatchSizes(ds_config, "ds_config", world_size);
  return {.num_params = profile.num_params,
          .trainable_num_params = profile.trainable_num_params,
          .bytes_per_param = settings.IsHalf() ? 2 : 4,
          .data_parallel = data_parallel,
          .pipeline_stages = settings.Int("/pipeline/stages"),
          .forward_flops_per_sample = profile.forward_flops_per_sample,
          .matmul_flops_per_s = profile.matmul_flops_per_s,
          .copy_bytes_per_s = profile.copy_bytes_per_s,
          .device_memory_bytes = profile.device_memory_bytes,
          .accumulation_steps = batch.accumulation_steps,
          .micro_batch_size = batch.micro_batch_size,
          .stage = settings.stage(),
          .whole_buckets = !IsBuiltin(spec),
          .on_cpu = profile.device == "cpu"};
}

}  // namespace

SearchSpace MakeSearchSpace(const Predictor& predictor, const ModelProfile& profile,
                            const ExperimentSpec& spec, const engine::KeyTable& keys) {
  const SearchOptions& options = spec.options;
  const bool published = PolicyOf(options).published_space;
  SearchSpace space;
  space.workload = WorkloadOf(profile, spec);
  space.divisible_by = options.divisible_by;
  space.micro_batch_sizes = spec.search_space.value(kMicroBatchKey, std::vector<int64_t>());
  if (options.train_batch_size)
    space.samples_per_step = *options.train_batch_size / space.workload.data_parallel;
  const Scope scope{.predictor = predictor,
                    .spec = spec,
                    .keys = keys,
                    .num_params = published ? 0 : profile.num_params,
                    .published = published};
  const std::vector<Comparison> where = ConditionsOf(spec);
  for (const Place& place : ListPlaces(predictor, spec, space, keys, space.left_out)) {
    StageSpace stage{.stage = place.stage, .settings = place.settings};
    stage.submitted = SubmittedAt(place.stage, spec.ds_config, keys, spec.search_space);
    PredictSizes(predictor, place.ds_config, stage, space);
    stage.knobs = KnobsOf(scope, place, stage, space.exact, space.left_out);
    const std::string excluded = WhyExcluded(where, stage, place, keys);
    if (excluded.empty()) {
      space.stages.push_back(std::move(stage));
    } else {
      space.left_out.push_back({DescribePlace(place.stage, place.settings, keys), excluded});
    }
  }
  if (space.stages.empty()) ThrowNothingLeft(spec);
  return space;
}

}  // namespace dsat
