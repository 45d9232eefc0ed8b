// The need of a configuration by the forecasts, and by what was measured.
#include "methods/auto_memory.h"

#include <algorithm>
#include <cmath>

#include "base/regex.h"
#include "methods/auto_normal.h"
#include "methods/auto_priors.h"

namespace dsat {
namespace {

constexpr int kBuffers = 4, kActivations = 5, kConstant = 6, kOthers = 7, kGap = 8,
              kKeptActivations = 9;

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
    : space_(space), has_capacity_(HasCapacity(space)), factors_(Prior()) {
  for (const StageSpace& stage : space_.stages)
    places_.push_back(PlaceOf(stage));
  for (size_t i = 0; i < places_.size(); ++i) {
    size_t& most = places_[i].most_activations = i;
    const double size = places_[i].samples.back()[0];
    for (size_t other = 0; other < places_.size(); ++other) {
      if (space_.stages[other].stage == space_.stages[i].stage &&
          Activations(places_[other], size) > Activations(places_[most], size))
        most = other;
    }
  }
}

AutoFactors AutoMemory::Prior() const {
  const auto made = [](const AutoPriors::Memory::Factors& mean,
                       const AutoPriors::Memory::Factors& sd, double noise) {
    return AutoFactors(Eigen::Map<const Vector>(mean.data()), Eigen::Map<const Vector>(sd.data()),
                       noise);
  };
  if (!has_capacity_)
    return made(kAutoMemory.mean, kAutoMemory.unknown_sd, kAutoMemory.unknown_noise);
  if (space_.exact) return made(kAutoMemory.mean, kAutoMemory.exact_sd, kAutoMemory.exact_noise);
  if (space_.tracked)
    return made(kAutoMemory.tracked_mean, kAutoMemory.tracked_sd, kAutoMemory.tracked_noise);
  return made(kAutoMemory.formula_mean, kAutoMemory.formula_sd, kAutoMemory.formula_noise);
}

AutoMemory::Place AutoMemory::PlaceOf(const StageSpace& stage) const {
  Place out;
  out.is_refused = space_.exact && stage.approx_max_micro_batch == 0 && stage.forecasts.empty();
  if (!has_capacity_ || stage.forecasts.empty()) {
    const double largest =
        std::max<double>(stage.approx_max_micro_batch, kAutoMemory.unknown_least_size);
    out.state = kAutoMemory.unknown_state;
    out.samples = {{0, 0}, {largest, kAutoMemory.unknown_activations}};
    return out;
  }
  const double capacity = space_.workload.device_memory_bytes;
  for (const Forecast& forecast : stage.forecasts)
    out.samples.push_back({1.0 * forecast.micro_batch_size, forecast.peak_bytes / capacity});
  const auto& first = out.samples.front();
  double slope = first[1] / first[0];
  if (out.samples.size() > 1)
    slope = (out.samples[1][1] - first[1]) / (out.samples[1][0] - first[0]);
  out.state = std::max(first[1] - slope * first[0], 0.0);
  for (auto& sample : out.samples)
    sample[1] -= out.state;
  out.samples.insert(out.samples.begin(), {0, 0});
  out.submitted_buffers = Buffers(stage.stage, SubmittedKnobs(stage));
  if (!HasBuffers()) out.state = std::max(out.state - out.submitted_buffers, 0.0);
  return out;
}

// As the formulas of the memory model say (docs/dev/methods.md).
double AutoMemory::Buffers(int stage, const AutoKnobs& knobs) const {
  const Workload& workload = space_.workload;
  if (workload.device_memory_bytes <= 0) return 0;
  const bool alone = workload.data_parallel <= 1;
  const double params = workload.num_params;
  const bool is_whole = workload.whole_buckets && stage > 0 && knobs.contiguous;
  const double used = alone && !is_whole ? 0 : std::min(knobs.reduce_bucket, params);
  double elems = is_whole && !workload.on_cpu ? knobs.reduce_bucket : used;
  if (knobs.overlap && !(workload.whole_buckets && stage == 3)) elems *= 2;
  if (!alone && (stage == 1 || stage == 2)) elems += std::min(knobs.allgather_bucket, params);
  return elems * workload.bytes_per_param / workload.device_memory_bytes;
}

double AutoMemory::Activations(const Place& place, double micro_batch) const {
  size_t i = 1;
  while (i + 1 < place.samples.size() && place.samples[i][0] < micro_batch)
    ++i;
  const auto& low = place.samples[i - 1];
  const auto& high = place.samples[i];
  return low[1] + (high[1] - low[1]) * (micro_batch - low[0]) / (high[0] - low[0]);
}

void AutoMemory::SetActivations(const AutoConfig& config, int64_t micro_batch, Vector& row) const {
  const Place& place = places_[config.place];
  const auto size = static_cast<double>(micro_batch);
  row[kActivations] = Activations(place, size);
  if (place.most_activations != static_cast<size_t>(config.place))
    row[kKeptActivations] = Activations(places_[place.most_activations], size) - row[kActivations];
}

AutoMemory::Vector AutoMemory::Row(const AutoConfig& config) const {
  const Place& place = places_[config.place];
  Vector row = Vector::Zero();
  row[config.stage] = place.state;
  row[kBuffers] = Buffers(config.stage, config.knobs);
  if (HasBuffers()) row[kBuffers] -= place.submitted_buffers;
  SetActivations(config, config.micro_batch, row);
  row[kConstant] = 1;
  if (has_capacity_) {
    const double capacity = space_.workload.device_memory_bytes;
    row[config.stage] += config.knobs.state_bytes / capacity;
    row[kOthers] = config.knobs.effect.peak_bytes / capacity;
  }
  return row;
}

AutoMemory::Vector AutoMemory::Need(const AutoConfig& config) const {
  Vector row = Row(config);
  row[kGap] = 1;
  return row;
}

void AutoMemory::Inherit(const AutoMemory& earlier, double widen) {
  if (has_capacity_ != earlier.has_capacity_ || space_.exact != earlier.space_.exact ||
      space_.tracked != earlier.space_.tracked)
    return;
  factors_.Inherit(earlier.factors_, widen);
}

void AutoMemory::Fitted(const AutoConfig& config, double peak_bytes) {
  surprises_in_a_row_ = 0;
  const double capacity = space_.workload.device_memory_bytes;
  // A peak beyond the device's memory counts something else, too, such as a process's whole size.
  const bool is_known = has_capacity_ && peak_bytes > 0 && peak_bytes <= capacity;
  if (is_known) factors_.Measured(Row(config), peak_bytes / capacity);
  const Vector need = Need(config);
  if (!is_known || Margin(need, 1) < kAutoMemory.certain) factors_.IsBelow(need, 1);
}

bool AutoMemory::IsDoubtful(const AutoConfig& config, double peak_bytes) const {
  if (!has_capacity_ || space_.exact) return false;
  if (Margin(Need(config), 1) > kAutoMemory.impossible) return true;
  Vector gap = Vector::Zero();
  gap[kGap] = 1;
  const double left = 1 - peak_bytes / static_cast<double>(space_.workload.device_memory_bytes);
  return peak_bytes > 0 && Margin(gap, left) > kAutoMemory.impossible;
}

bool AutoMemory::DidNotFit(const AutoConfig& config, const std::string& reason) {
  did_not_fit_.push_back(config);
  const Vector row = Need(config);
  const double margin = Margin(row, 1);
  const bool is_sure = !space_.exact && SaysOutOfMemory(reason);
  // A misfit that cannot have been the memory must not spoil the belief about it. Effects of knobs
  // may not add up, which is no evidence against the place.
  if (margin > kAutoMemory.impossible && !is_sure) {
    if (space_.exact && config.knobs.effect.peak_bytes != 0) return true;
    other_evidence_ += std::log(NormalCdf(-kAutoMemory.impossible));
    return false;
  }
  factors_.IsAbove(row, 1);
  // Forecasts that are this wrong, or again and again, are less certain than was believed: the
  // profile may not see the activations, or others may use the device, too.
  double widen = margin > kAutoMemory.impossible ? margin : 1;
  if (is_sure && margin > kAutoMemory.surprising && ++surprises_in_a_row_ > 1)
    widen = std::max(widen, kAutoMemory.widen);
  Vector times = Vector::Ones();
  times[kActivations] = times[kConstant] = times[kKeptActivations] = widen;
  if (widen > 1) factors_.Widen(times);
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

std::vector<double> AutoMemory::ProbabilitiesFit(const AutoConfig& config,
                                                 const std::vector<int64_t>& sizes) const {
  Vector row = Need(config);  // Only its activations differ between sizes.
  std::vector<double> fits;
  for (const int64_t size : sizes) {
    SetActivations(config, size, row);
    const double margin = Margin(row, 1);
    if (margin < -kAutoMemory.certain) break;
    fits.push_back(margin > kAutoMemory.certain ? 1 : factors_.ProbabilityBelow(row, 1));
  }
  return fits;
}

}  // namespace dsat
