// The text and JSON forms of trials, and the table of metrics.
#include "proto/trial.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/fields.h"
#include "base/json_block.h"

namespace dsat {
namespace {

struct MetricInfo {
  const char* name;
  const char* unit;
  bool smaller_is_better;
  bool searchable;
};

constexpr std::array<MetricInfo, 16> kMetrics = {{
    {"FLOPS_per_gpu", "FLOP/s", false, true},
    {"throughput", "samples/s", false, true},
    {"tokens_per_second", "tokens/s", false, false},
    {"MFU", "of peak", false, false},
    {"latency", "ms", true, true},
    {"forward", "ms", true, true},
    {"backward", "ms", true, true},
    {"step", "ms", true, false},
    {"peak_bytes", "bytes", true, false},
    {"loss", "nats/token", true, false},
    {"pipeline_idle", "of latency", true, false},
    {"data_wait", "of latency", true, false},
    {"alloc_retries", "flushes", true, false},
    {"host_bytes", "bytes", true, false},
    {"checkpoint_ms", "ms", true, false},
    {"skipped_steps", "steps", true, false},
}};

const MetricInfo* FindMetric(const std::string& name) {
  auto found = std::find_if(kMetrics.begin(), kMetrics.end(),
                            [&](const MetricInfo& metric) { return name == metric.name; });
  return found == kMetrics.end() ? nullptr : &*found;
}

std::vector<std::string> MetricNames(bool searchable_only) {
  std::vector<std::string> names;
  for (const MetricInfo& metric : kMetrics)
    if (metric.searchable || !searchable_only) names.emplace_back(metric.name);
  return names;
}

// Renames the keys of DeepSpeed's model_info.json, to which Determined adds gpu_mem, to ours.
Json WithOurProfileNames(Json json) {
  const std::pair<const char*, const char*> names[] = {
      {"activation_mem_per_gpu", "activation_bytes_per_sample"},
      {"gpu_mem", "device_memory_bytes"}};
  for (const auto& [theirs, ours] : names) {
    if (!json.contains(theirs) || json.contains(ours)) continue;
    json[ours] = json[theirs];
    json.erase(theirs);
  }
  json.erase("rank");
  return json;
}

double Quantile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

void Scale(Metric& metric, double factor) {
  metric.value *= factor;
  metric.spread *= factor;
}

}  // namespace

std::vector<double> LossesFromJson(const Json& json) {
  std::vector<double> losses;
  for (const Json& loss : json)
    losses.push_back(loss.is_null() ? std::nan("") : loss.get<double>());
  return losses;
}

bool RunsAgain(TrialKind kind) {
  return kind == TrialKind::kConfirm || kind == TrialKind::kReference || kind == TrialKind::kSoak ||
         kind == TrialKind::kLarger;
}

DSAT_FIELDS(Metric, value, spread, samples)

Json ToJson(const Measurement& measurement) {
  Json json = Json::object();
  for (const auto& [name, metric] : measurement)
    json[name] = fields::Encode(metric);
  return json;
}

DSAT_FIELDS(DryPlace, stage, offloads_optimizer, offloads_params, switched, lines, passes_ms,
            update_ms, passes_sent, update_sent)

// Not VisitFields, because users write profiles, too, and the specs that hold one read it as such.
template <typename Visitor, typename Profile>
void VisitProfile(Visitor& visit, Profile& object){DSAT_VISIT_FIELDS(
    num_params, trainable_num_params, activation_bytes_per_sample, device_memory_bytes,
    forward_flops_per_sample, two_units_num_params, matmul_flops_per_s, copy_bytes_per_s,
    to_device_bytes_per_s, to_host_bytes_per_s, link_bytes_per_s, micro_batch_1_peak_bytes,
    micro_batch_2_peak_bytes, timings, device, num_threads, trainer, dry_places, process_bytes)}

Json ToJson(const ModelProfile& profile) {
  Json json;
  fields::Writer writer(json);
  VisitProfile(writer, profile);
  return json;
}

Metric Summarize(std::vector<double> values) {
  DSAT_CHECK(!values.empty());
  std::ranges::sort(values);
  return {.value = Quantile(values, 0.5),
          .spread = (Quantile(values, 0.75) - Quantile(values, 0.25)) / 2,
          .samples = static_cast<int64_t>(values.size())};
}

double StandardError(const Metric& metric) {
  if (metric.samples < 2) return std::numeric_limits<double>::infinity();
  // A normal distribution's half interquartile range is 0.6745 standard deviations, and its median
  // varies sqrt(pi / 2) times as much as its mean.
  constexpr double kOfSpread = 1.2533 / 0.6745;
  const auto samples = static_cast<double>(metric.samples);
  const double few = (samples + 2) / (samples - 1);  // Fits simulated measurements of 2 to 30.
  return kOfSpread * few * metric.spread / std::sqrt(samples);
}

Measurement MeasurementFromJson(const Json& json, const std::string& what) {
  constexpr double kNoLimit = std::numeric_limits<double>::max();
  static const std::vector<std::string> kKnown = MetricNames(/*searchable_only=*/false);
  const JsonBlock all(json, what);
  all.CheckKeys(kKnown);
  Measurement measurement;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object()) {
      measurement[name] = {.value = all.Number(name, 0, 0, kNoLimit), .samples = 1};
      continue;
    }
    const JsonBlock metric(value, all.PointerTo(name));
    metric.CheckKeys({"value", "spread", "samples"});
    metric.At("value");  // It is required.
    measurement[name] = {
        .value = metric.Number("value", 0, 0, kNoLimit),
        .spread = metric.Number("spread", 0, 0, kNoLimit),
        .samples = metric.Int("samples", 1, 0, std::numeric_limits<int64_t>::max())};
  }
  return measurement;
}

namespace {

// Throws unless the lists of a profile have the lengths and the order that readers rely on.
void CheckLists(const ModelProfile& profile, const std::string& what) {
  const auto is_pair = [](const std::vector<double>& numbers) { return numbers.size() == 2; };
  for (const DryPlace& place : profile.dry_places) {
    if (place.lines.empty() || !std::ranges::all_of(place.lines, is_pair) ||
        !is_pair(place.passes_ms) || !is_pair(place.passes_sent) || !is_pair(place.update_sent))
      Throw(ErrorCode::kInvalidArgument, "{}/dry_places: expected pairs of numbers", what);
  }
  double last_size = 0;
  for (const std::vector<double>& timing : profile.timings) {
    if (timing.size() != 3 || timing[0] < last_size + 1 || timing[1] <= 0 || timing[2] <= 0)
      Throw(ErrorCode::kInvalidArgument,
            "{}/timings: expected triples of an increasing micro-batch size and two times", what);
    last_size = timing[0];
  }
}

// A sum of some tens of bytes per parameter fits 64 bits.
constexpr int64_t kMostOfProfile = 100'000'000'000'000'000;
// The numbers that a profile must have, with their least values.
constexpr std::array<std::pair<const char*, int64_t>, 4> kRequired = {
    {{"num_params", 1},
     {"trainable_num_params", 1},
     {"activation_bytes_per_sample", 0},
     {"device_memory_bytes", 1}}};

}  // namespace

ModelProfile ProfileFromJson(const Json& given, const std::string& what) {
  const JsonBlock checked(given, what);  // Throws unless it is an object.
  Json json = WithOurProfileNames(given);
  const Json defaults = ToJson(ModelProfile());
  std::vector<std::string> known;
  for (const auto& [name, value] : defaults.items())
    known.push_back(name);
  const JsonBlock block(json, what);
  block.CheckKeys(known);
  for (const auto& [key, least] : kRequired) {
    if (!json.contains(key))
      Throw(ErrorCode::kInvalidArgument, "{}: \"{}\" is missing (docs/ask-tell.md)", what, key);
    json[key] = block.Int(key, 0, least, kMostOfProfile);
  }
  for (const auto& [name, value] : json.items()) {
    if (defaults[name].is_number_integer()) value = block.Int(name, 0, 0, kMostOfProfile);
  }
  const Json device = json.value("device", Json(""));
  if (device != "" && device != "cpu" && device != "cuda") {
    Throw(ErrorCode::kInvalidArgument, "{}/device is {}; expected \"cpu\" or \"cuda\"", what,
          device.dump());
  }
  // Throws unless it is an object.
  if (block.Has("trainer")) JsonBlock(json["trainer"], what + "/trainer");
  ModelProfile profile;
  fields::Reader reader(json, what);
  VisitProfile(reader, profile);
  CheckLists(profile, what);
  if (profile.trainable_num_params > profile.num_params) {
    Throw(ErrorCode::kInvalidArgument,
          "{}/trainable_num_params is {}; expected at most num_params, {}", what,
          profile.trainable_num_params, profile.num_params);
  }
  return profile;
}

Assignment AssignmentFromJson(const Json& json) {
  const JsonBlock checked(json, "assignment");  // Throws unless it is an object.
  for (const auto& [pointer, value] : json.items()) {
    if (!pointer.starts_with('/'))
      Throw(ErrorCode::kInvalidArgument, "assignment: \"{}\" is no JSON pointer", pointer);
  }
  return json.get<Assignment>();
}

int ZeroStage(const Json& ds_config) {
  const Json* stage = FindAtPointer(ds_config, kStageKey);
  return stage != nullptr && stage->is_number_integer() ? stage->get<int>() : 0;
}

Point ConfigPoint(const Trial& trial) {
  Point point;
  if (const Json* size = FindAtPointer(trial.ds_config, kMicroBatchKey)) {
    point.micro_batch_size = size->get<int64_t>();
  }
  if (const Json* steps = FindAtPointer(trial.ds_config, kAccumulationKey)) {
    point.accumulation_steps = steps->get<int64_t>();
  }
  return point;
}

void SetPoint(Json& ds_config, const Point& point) {
  ds_config.erase("train_batch_size");
  SetAtPointer(ds_config, kMicroBatchKey, point.micro_batch_size);
  SetAtPointer(ds_config, kAccumulationKey, point.accumulation_steps);
}

double LogLeft(const Trial& trial) {
  return std::log1p(-std::min(trial.times.others, 0.9));
}

std::optional<double> MetricValue(const Trial& trial, const std::string& metric) {
  return ValueAtBest(trial, metric, metric);
}

const PointResult* BestPoint(const Trial& trial, const std::string& metric) {
  const PointResult* best = nullptr;
  double best_value = 0;
  for (const PointResult& result : trial.points) {
    const auto found = result.measurement.find(metric);
    if (found == result.measurement.end()) continue;
    const double value = found->second.value;
    const bool wins = SmallerIsBetter(metric) ? value < best_value : value > best_value;
    if (best == nullptr || wins) std::tie(best, best_value) = std::pair(&result, value);
  }
  return best;
}

const Metric* MetricAtBest(const Trial& trial, const std::string& metric, const std::string& name) {
  const PointResult* best = BestPoint(trial, metric);
  if (best == nullptr) return nullptr;
  const auto found = best->measurement.find(name);
  return found == best->measurement.end() ? nullptr : &found->second;
}

std::optional<double> ValueAtBest(const Trial& trial, const std::string& metric,
                                  const std::string& name) {
  const Metric* found = MetricAtBest(trial, metric, name);
  return found == nullptr ? std::nullopt : std::optional(found->value);
}

Point BestOrConfigPoint(const Trial& trial, const std::string& metric) {
  const PointResult* best = BestPoint(trial, metric);
  return best == nullptr ? ConfigPoint(trial) : best->point;
}

const std::vector<std::string>& SearchMetrics() {
  static const std::vector<std::string> kNames = MetricNames(/*searchable_only=*/true);
  return kNames;
}

bool SmallerIsBetter(const std::string& metric) {
  const MetricInfo* info = FindMetric(metric);
  return info != nullptr && info->smaller_is_better;
}

std::string MetricUnit(const std::string& metric) {
  const MetricInfo* info = FindMetric(metric);
  return info == nullptr ? "" : info->unit;
}

std::optional<double> RankFlopsPerSample(const Measurement& measurement) {
  const auto flops = measurement.find("FLOPS_per_gpu");
  const auto throughput = measurement.find("throughput");
  if (flops == measurement.end() || throughput == measurement.end()) return std::nullopt;
  if (flops->second.value <= 0 || throughput->second.value <= 0) return std::nullopt;
  return flops->second.value / throughput->second.value;
}

Measurement WithFlopsPerSample(Measurement measurement, double rank_flops_per_sample) {
  const std::optional<double> reported = RankFlopsPerSample(measurement);
  if (!reported) return measurement;
  Metric flops = measurement.at("throughput");
  Scale(flops, rank_flops_per_sample);
  measurement["FLOPS_per_gpu"] = flops;
  if (const auto mfu = measurement.find("MFU"); mfu != measurement.end()) {
    Scale(mfu->second, rank_flops_per_sample / *reported);
  }
  return measurement;
}

}  // namespace dsat
