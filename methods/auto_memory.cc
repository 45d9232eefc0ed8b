// What a configuration needs by the forecasts, and by what was measured.
#include "methods/auto_memory.h"

#include <algorithm>
#include <cmath>

#include "base/regex.h"
#include "methods/auto_normal.h"

namespace dsat {
namespace {

// How many standard deviations below its limit a need is believed to be.
constexpr double kImpossible = 4, kSurprising = 0.7;
// Misfits that are surprising, from the second in a row on, widen the belief by so much.
constexpr double kWiden = 3;

constexpr int kBuffers = 4, kActivations = 5, kConstant = 6, kOthers = 7;

// Whether the reason of an infeasible trial names memory.
bool SaysOutOfMemory(const std::string& reason) {
  static const RE2 kOutOfMemory(R"((?i)out ?of (device )?memory|\boom\b)", RegexOptions());
  return RE2::PartialMatch(reason, kOutOfMemory);
}

bool HasCapacity(const SearchSpace& space) {
  return space.workload.device_memory_bytes > 0 &&
         std::ranges::all_of(space.stages, [](const StageSpace& stage) {
           return stage.approx_max_micro_batch == 0 || !stage.forecasts.empty();
         });
}

}  // namespace

AutoMemory::AutoMemory(const SearchSpace& space)
    : space_(space), has_capacity_(HasCapacity(space)), belief_(Prior()) {
  for (const StageSpace& stage : space_.stages)
    places_.push_back(PlaceOf(stage));
}

AutoBelief AutoMemory::Prior() const {
  Vector mean, sd;
  mean << 1, 1, 1, 1, 1, 1, 0, 1;
  double noise = 0.008;
  if (!has_capacity_) {
    // Only the largest size that fits is known, roughly.
    sd << 0.5, 0.5, 0.5, 0.5, 0, 0.35, 0.05, 0;
    noise = 0.03;
  } else if (space_.exact) {
    sd << 0.002, 0.002, 0.002, 0.002, 0.3, 0.01, 0.003, 0.2;
    noise = 0.002;
  } else {
    // Formulas leave out temporary buffers, the framework's context and fragmentation. How many
    // gathered layers are live at the peak of stage 3 is less certain than the states of other
    // stages.
    sd << 0.06, 0.06, 0.06, 0.15, 0.35, 0.35, 0.02, 0.7;
    mean[kActivations] = 1.15;
    mean[kConstant] = 0.03;
  }
  return {mean, sd, noise};
}

AutoMemory::Place AutoMemory::PlaceOf(const StageSpace& stage) const {
  Place out;
  out.is_refused = space_.exact && stage.approx_max_micro_batch == 0 && stage.forecasts.empty();
  if (!has_capacity_ || stage.forecasts.empty()) {
    const double largest = std::max(static_cast<double>(stage.approx_max_micro_batch), 0.7);
    out.state = 0.1;
    out.samples = {{0, 0}, {largest, 0.85}};
    return out;
  }
  const auto capacity = static_cast<double>(space_.workload.device_memory_bytes);
  for (const Forecast& forecast : stage.forecasts)
    out.samples.push_back({static_cast<double>(forecast.micro_batch_size),
                           static_cast<double>(forecast.peak_bytes) / capacity});
  const auto& first = out.samples.front();
  double slope = first[1] / first[0];
  if (out.samples.size() > 1)
    slope = (out.samples[1][1] - first[1]) / (out.samples[1][0] - first[0]);
  out.state = std::max(first[1] - slope * first[0], 0.0);
  for (auto& sample : out.samples)
    sample[1] -= out.state;
  out.samples.insert(out.samples.begin(), {0, 0});
  out.submitted_buffers = Buffers(stage.stage, SubmittedKnobs(stage));
  if (!space_.exact) out.state = std::max(out.state - out.submitted_buffers, 0.0);
  return out;
}

// As the formulas of the memory model say (docs/methods.md).
double AutoMemory::Buffers(int stage, const AutoKnobs& knobs) const {
  const Workload& workload = space_.workload;
  if (workload.device_memory_bytes <= 0) return 0;
  const bool alone = workload.data_parallel <= 1;
  const auto params = static_cast<double>(workload.num_params);
  const bool is_whole = workload.whole_buckets && stage > 0 && knobs.contiguous;
  const double used = alone && !is_whole ? 0 : std::min(knobs.reduce_bucket, params);
  double elems = is_whole && !workload.on_cpu ? knobs.reduce_bucket : used;
  if (knobs.overlap && !(workload.whole_buckets && stage == 3)) elems *= 2;
  if (!alone && (stage == 1 || stage == 2)) elems += std::min(knobs.allgather_bucket, params);
  return elems * static_cast<double>(workload.bytes_per_param) /
         static_cast<double>(workload.device_memory_bytes);
}

double AutoMemory::Activations(const Place& place, double micro_batch) const {
  size_t i = 1;
  while (i + 1 < place.samples.size() && place.samples[i][0] < micro_batch)
    ++i;
  const auto& low = place.samples[i - 1];
  const auto& high = place.samples[i];
  return low[1] + (high[1] - low[1]) * (micro_batch - low[0]) / (high[0] - low[0]);
}

AutoMemory::Vector AutoMemory::Row(const AutoConfig& config) const {
  const Place& place = places_[config.place];
  Vector row = Vector::Zero();
  row[config.stage] = place.state;
  row[kBuffers] = Buffers(config.stage, config.knobs);
  if (space_.exact) row[kBuffers] -= place.submitted_buffers;
  row[kActivations] = Activations(place, config.micro_batch);
  row[kConstant] = 1;
  if (has_capacity_) {
    const auto capacity = static_cast<double>(space_.workload.device_memory_bytes);
    row[config.stage] += config.knobs.state_bytes / capacity;
    row[kOthers] = config.knobs.effect.peak_bytes / capacity;
  }
  return row;
}

void AutoMemory::Inherit(const AutoMemory& earlier, double widen) {
  if (has_capacity_ != earlier.has_capacity_ || space_.exact != earlier.space_.exact) return;
  belief_.Inherit(earlier.belief_, widen);
}

void AutoMemory::Fitted(const AutoConfig& config, double peak_bytes) {
  surprises_in_a_row_ = 0;
  const auto capacity = static_cast<double>(space_.workload.device_memory_bytes);
  // A peak beyond the device's memory counts something else, too, such as a process's whole size.
  if (!has_capacity_ || peak_bytes <= 0 || peak_bytes > capacity) {
    belief_.IsBelow(Row(config), 1);
  } else {
    belief_.Measured(Row(config), peak_bytes / capacity);
  }
}

bool AutoMemory::DidNotFit(const AutoConfig& config, const std::string& reason) {
  did_not_fit_.push_back(config);
  const Vector row = Row(config);
  const double margin = (1 - belief_.MeanOf(row)) / belief_.SdOf(row);
  const bool is_sure = !space_.exact && SaysOutOfMemory(reason);
  // What cannot have been the memory must not spoil the belief about it. Effects of knobs may not
  // add up, which is no evidence against the place.
  if (margin > kImpossible && !is_sure) {
    if (space_.exact && config.knobs.effect.peak_bytes != 0) return true;
    other_evidence_ += std::log(NormalCdf(-kImpossible));
    return false;
  }
  belief_.IsAbove(row, 1);
  // Forecasts that are this wrong, or again and again, are less certain than was believed: the
  // profile may not see the activations, or others may use the device, too.
  double widen = margin > kImpossible ? margin : 1;
  if (is_sure && margin > kSurprising && ++surprises_in_a_row_ > 1) widen = std::max(widen, kWiden);
  Vector times = Vector::Ones();
  times[kActivations] = times[kConstant] = widen;
  if (widen > 1) belief_.Widen(times);
  return true;
}

bool AutoMemory::IsRuledOut(const AutoConfig& config) const {
  if (places_[config.place].is_refused) return true;
  return std::any_of(did_not_fit_.begin(), did_not_fit_.end(), [&](const AutoConfig& other) {
    const AutoKnobs &ours = config.knobs, &theirs = other.knobs;
    return config.place == other.place && config.micro_batch >= other.micro_batch &&
           ours.reduce_bucket >= theirs.reduce_bucket &&
           ours.allgather_bucket >= theirs.allgather_bucket && ours.overlap >= theirs.overlap &&
           ours.reduce_scatter == theirs.reduce_scatter && ours.contiguous == theirs.contiguous &&
           ours.others == theirs.others && ours.state_bytes >= theirs.state_bytes &&
           ours.effect.peak_bytes >= theirs.effect.peak_bytes;
  });
}

double AutoMemory::ProbabilityFits(const AutoConfig& config) const {
  return belief_.ProbabilityBelow(Row(config), 1);
}

double AutoMemory::Share(const AutoConfig& config) const {
  return belief_.MeanOf(Row(config));
}

}  // namespace dsat
