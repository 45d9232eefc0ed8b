// Lists the combinations of knobs and the legal sizes of every stage.
#include "methods/auto_space.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "base/rng.h"
#include "methods/constraints.h"
#include "methods/lineage.h"
#include "proto/experiment.h"

namespace dsat {
namespace {

constexpr char kReduceBucket[] = "/zero_optimization/reduce_bucket_size";
constexpr char kAllgatherBucket[] = "/zero_optimization/allgather_bucket_size";
constexpr char kOverlap[] = "/zero_optimization/overlap_comm";
constexpr char kReduceScatter[] = "/zero_optimization/reduce_scatter";
constexpr char kOffloadRatio[] = "/zero_optimization/offload_optimizer/ratio";
constexpr char kContiguous[] = "/zero_optimization/contiguous_gradients";

// Sets the field of a knob that has one.
bool SetField(const std::string& pointer, const Json& value, AutoKnobs& knobs) {
  const auto set = [&](bool& field) {
    if (value.is_boolean()) field = value.get<bool>();
    return true;
  };
  const auto set_size = [&](double& field) {
    if (value.is_number()) field = std::max(value.get<double>(), 1.0);
    return true;
  };
  if (pointer == kReduceBucket) return set_size(knobs.reduce_bucket);
  if (pointer == kAllgatherBucket) return set_size(knobs.allgather_bucket);
  if (pointer == kOverlap) return set(knobs.overlap);
  if (pointer == kReduceScatter) return set(knobs.reduce_scatter);
  if (pointer == kContiguous) return set(knobs.contiguous);
  return false;
}

bool IsOff(const Json& value) {
  return value == false || value == 0 || value == "none";
}

// A hash of the settings that are not off.
size_t HashOf(const Assignment& settings) {
  std::string text;
  for (const auto& [pointer, value] : settings)
    text += IsOff(value) ? "" : pointer + value.dump();
  return std::hash<std::string>()(text);
}

// Whether a knob is taken to have no effect, or the predicted one, until measurements say
// otherwise: those of a wide space, and at stage 3 the bucket that gathers parameters at stages 1
// and 2.
bool IsWide(const StageSpace& stage, const Knob& knob) {
  return !knob.effects.empty() || (stage.stage == 3 && knob.pointer == kAllgatherBucket);
}

// A structural key that is not given is off.
bool HasSettings(const Json& ds_config, const Assignment& settings) {
  return std::ranges::all_of(settings, [&](const auto& setting) {
    const auto& [pointer, value] = setting;
    const Json* given = FindAtPointer(ds_config, pointer);
    return given != nullptr ? *given == value : IsOff(value);
  });
}

// Up to 32 steps every one, then every second up to 64, every fourth up to 128 and so on.
bool IsListed(int64_t steps) {
  int64_t stride = 1;
  while (steps > 32 * stride)
    stride *= 2;
  return steps % stride == 0;
}

// The number of combinations of the knobs that vary.
double NumCombinations(const StageSpace& stage, const std::function<bool(const Knob&)>& varies) {
  double count = 1;
  for (const Knob& knob : stage.knobs)
    count *= varies(knob) ? knob.values.size() : 1;
  return count;
}

// All combinations of the indices of values of the knobs that vary. Other knobs keep those of
// `values`.
std::vector<std::vector<int>> Combinations(const StageSpace& stage, std::vector<int> values,
                                           const std::function<bool(const Knob&)>& varies) {
  for (int64_t i = 0; i < std::ssize(stage.knobs); ++i)
    values[i] = varies(stage.knobs[i]) ? 0 : values[i];
  std::vector<std::vector<int>> combinations;
  for (bool more = true; more;) {
    combinations.push_back(values);
    more = false;
    for (int64_t i = std::ssize(stage.knobs); i-- > 0 && !more;) {
      if (!varies(stage.knobs[i])) continue;
      more = ++values[i] < std::ssize(stage.knobs[i].values);
      if (!more) values[i] = 0;
    }
  }
  return combinations;
}

}  // namespace

int64_t AutoKnobs::NumDifferences(const AutoKnobs& knobs) const {
  int64_t count = (reduce_bucket != knobs.reduce_bucket) +
                  (allgather_bucket != knobs.allgather_bucket) + (overlap != knobs.overlap) +
                  (reduce_scatter != knobs.reduce_scatter) + (contiguous != knobs.contiguous);
  for (size_t i = 0; i < others.size(); ++i)
    count += others[i] != knobs.others[i];
  for (size_t i = 0; i < wide.size(); ++i)
    count += wide[i] != knobs.wide[i];
  return count;
}

AutoKnobs SubmittedKnobs(const StageSpace& stage) {
  AutoKnobs knobs;
  for (const auto& [pointer, value] : stage.submitted)
    SetField(pointer, value, knobs);
  return knobs;
}

AutoSpace::AutoSpace(const SearchSpace& space, const SearchOptions& options) : space_(space) {
  int64_t num_sizes = 1;
  for (const StageSpace& stage : space_.stages) {
    Place& place = places_.emplace_back();
    place.sizes = SizesOf(stage);
    place.settings = HashOf(stage.settings);
    num_sizes = std::max(num_sizes, std::ssize(place.sizes));
    for (const Knob& knob : stage.knobs) {
      if (IsWide(stage, knob) && std::ranges::find(wide_keys_, knob.pointer) == wide_keys_.end())
        wide_keys_.push_back(knob.pointer);
    }
  }
  const int64_t most = kMostCandidates / num_sizes / std::max<int64_t>(num_places(), 1);
  for (int64_t i = 0; i < num_places(); ++i) {
    const StageSpace& stage = space_.stages[i];
    Place& place = places_[i];
    const double allowed = ListKnobs(stage, std::max<int64_t>(most, 1), options.random_seed, place);
    num_candidates_ += std::ssize(place.knobs) * std::ssize(place.sizes);
    place.num_configs = allowed * NumCombinations(stage, [](const Knob&) { return true; }) *
                        std::ssize(place.sizes);
    num_configs_ += place.num_configs;
  }
}

std::vector<int64_t> AutoSpace::SizesOf(const StageSpace& stage) const {
  // Smaller buckets than the submitted ones leave room for more than the forecast says, and
  // formulas err.
  const int64_t approx = std::max<int64_t>(stage.approx_max_micro_batch, 1);
  int64_t most = std::min(space_.exact ? 2 * approx + 2 : 4 * approx + 8, kLargestMicroBatch);
  // The divisors of a batch are few.
  if (space_.samples_per_step > 0 && !space_.exact) most = kLargestMicroBatch;
  if (stage.is_bound_by_host) most = approx;
  std::vector<int64_t> sizes;
  if (space_.samples_per_step > 0 || !space_.micro_batch_sizes.empty()) {
    for (int64_t size = LegalMicroBatch(space_, most); size > 0;) {
      sizes.push_back(size);
      const int64_t next = size > 1 ? LegalMicroBatch(space_, size - 1) : 0;
      size = next < size ? next : 0;
    }
    std::reverse(sizes.begin(), sizes.end());
    return sizes;
  }
  const int64_t step = space_.divisible_by;
  for (int64_t steps = 1; steps <= std::max<int64_t>(most / step, 1); ++steps) {
    if (IsListed(steps)) sizes.push_back(steps * step);
  }
  return sizes;
}

double AutoSpace::ListKnobs(const StageSpace& stage, int64_t most, int64_t seed,
                            Place& place) const {
  const int64_t num = std::ssize(stage.knobs);
  const auto is_allowed = [&](const std::vector<int>& values) {
    Assignment assignment;
    for (int64_t i = 0; i < num && !space_.where.empty(); ++i)
      assignment[stage.knobs[i].pointer] = stage.knobs[i].values[values[i]];
    return IsAllowed(space_, stage, assignment);
  };
  const auto add = [&](const std::vector<int>& values) {
    place.values.push_back(values);
    place.knobs.push_back(KnobsOf(stage, values));
  };
  const auto all = [](const Knob&) { return true; };
  if (NumCombinations(stage, all) <= most) {
    for (const std::vector<int>& values : Combinations(stage, std::vector<int>(num, 0), all)) {
      if (is_allowed(values)) add(values);
    }
    return std::ssize(place.knobs) / NumCombinations(stage, all);
  }
  // The submitted combination or the nearest to it, those with one other value, all that differ in
  // the knobs that matter for sure, and random ones.
  std::set<std::vector<int>> chosen;
  std::vector<int> submitted(num, 0);
  Assignment nearest = NearestAllowed(space_, stage).value_or(Assignment());
  nearest.insert(stage.submitted.begin(), stage.submitted.end());
  for (int64_t i = 0; i < num; ++i) {
    const Knob& knob = stage.knobs[i];
    const auto found = nearest.find(knob.pointer);
    if (found == nearest.end()) continue;
    const auto value = std::find(knob.values.begin(), knob.values.end(), found->second);
    if (value != knob.values.end()) submitted[i] = value - knob.values.begin();
  }
  for (int64_t i = 0; i < num; ++i) {
    std::vector<int> values = submitted;
    for (values[i] = 0; values[i] < std::ssize(stage.knobs[i].values); ++values[i]) {
      if (is_allowed(values)) chosen.insert(values);
    }
  }
  const auto matters = [&](const Knob& knob) { return !IsWide(stage, knob); };
  if (2 * NumCombinations(stage, matters) <= most) {
    for (const std::vector<int>& values : Combinations(stage, submitted, matters)) {
      if (is_allowed(values)) chosen.insert(values);
    }
  }
  // Places of one stage are drawn differently.
  const std::string purpose =
      stage.settings.empty() ? "knobs" : "knobs " + Json(stage.settings).dump();
  Rng rng(seed, stage.stage, purpose);
  double draws = 0, allowed = 0;
  for (; draws < 4.0 * most && std::ssize(chosen) < most; ++draws) {
    std::vector<int> values;
    for (const Knob& knob : stage.knobs)
      values.push_back(rng.Below(knob.values.size()));
    if (!is_allowed(values)) continue;
    ++allowed;
    chosen.insert(values);
  }
  for (const std::vector<int>& values : chosen)
    add(values);
  return draws > 0 ? allowed / draws : 1;
}

void AutoSpace::AddOther(const StageSpace& stage, const Knob& knob, int index,
                         AutoKnobs& knobs) const {
  if (!IsWide(stage, knob)) return knobs.others.push_back(index);
  knobs.wide.resize(wide_keys_.size(), -1);
  knobs.wide[std::ranges::find(wide_keys_, knob.pointer) - wide_keys_.begin()] = index;
  if (index < 0 || index >= std::ssize(knob.effects)) return;
  const bool moves_states = !space_.exact && knob.pointer == kOffloadRatio;
  (moves_states ? knobs.state_bytes : knobs.effect.peak_bytes) += knob.effects[index].peak_bytes;
  knobs.effect.log_time += knob.effects[index].log_time;
}

AutoKnobs AutoSpace::KnobsOf(const StageSpace& stage, const std::vector<int>& values) const {
  AutoKnobs knobs = SubmittedKnobs(stage);
  for (int64_t i = 0; i < std::ssize(stage.knobs); ++i) {
    const Knob& knob = stage.knobs[i];
    if (IsWide(stage, knob) || !SetField(knob.pointer, knob.values[values[i]], knobs))
      AddOther(stage, knob, values[i], knobs);
  }
  return knobs;
}

int64_t AutoSpace::AccumulationOf(int64_t micro_batch) const {
  if (space_.samples_per_step == 0) return std::max<int64_t>(space_.workload.accumulation_steps, 1);
  return space_.samples_per_step / micro_batch;
}

AutoConfig AutoSpace::ConfigOf(const AutoCandidate& candidate) const {
  const int64_t size = SizeOf(candidate);
  return {.place = candidate.place,
          .stage = space_.stages[candidate.place].stage,
          .settings = places_[candidate.place].settings,
          .knobs = places_[candidate.place].knobs[candidate.knobs],
          .micro_batch = size,
          .accumulation = AccumulationOf(size)};
}

Assignment AutoSpace::AssignmentOf(const AutoCandidate& candidate) const {
  const StageSpace& stage = space_.stages[candidate.place];
  Assignment assignment = PlaceAssignment(stage);
  SetMicroBatch(assignment, SizeOf(candidate));
  const std::vector<int>& values = places_[candidate.place].values[candidate.knobs];
  for (int64_t i = 0; i < std::ssize(stage.knobs); ++i)
    assignment[stage.knobs[i].pointer] = stage.knobs[i].values[values[i]];
  return assignment;
}

std::optional<AutoConfig> AutoSpace::ConfigOf(const Trial& trial, const Point& point) const {
  const Json* given = FindAtPointer(trial.ds_config, "/zero_optimization/stage");
  const int number = given != nullptr && given->is_number_integer() ? given->get<int>() : 0;
  for (int64_t place = 0; place < num_places(); ++place) {
    const StageSpace& stage = space_.stages[place];
    if (stage.stage != number || !HasSettings(trial.ds_config, stage.settings)) continue;
    AutoConfig config{.place = place,
                      .stage = number,
                      .settings = places_[place].settings,
                      .knobs = SubmittedKnobs(stage),
                      .micro_batch = point.micro_batch_size,
                      .accumulation = point.accumulation_steps};
    for (const char* pointer :
         {kReduceBucket, kAllgatherBucket, kOverlap, kReduceScatter, kContiguous}) {
      const Json* value = FindAtPointer(trial.ds_config, pointer);
      if (value != nullptr && !(number == 3 && pointer == std::string_view(kAllgatherBucket)))
        SetField(pointer, *value, config.knobs);
    }
    for (const Knob& knob : stage.knobs) {
      if (AutoKnobs unused; !IsWide(stage, knob) && SetField(knob.pointer, nullptr, unused))
        continue;
      const Json* value = FindAtPointer(trial.ds_config, knob.pointer);
      const auto submitted = stage.submitted.find(knob.pointer);
      if (value == nullptr && submitted != stage.submitted.end()) value = &submitted->second;
      const auto found = value == nullptr
                             ? knob.values.end()
                             : std::find(knob.values.begin(), knob.values.end(), *value);
      const int64_t index = found - knob.values.begin();
      AddOther(stage, knob, found == knob.values.end() ? -1 : index, config.knobs);
    }
    return config;
  }
  return std::nullopt;
}

std::optional<AutoCandidate> AutoSpace::Find(const AutoConfig& config) const {
  const Place& place = places_[config.place];
  const auto size = std::ranges::lower_bound(place.sizes, config.micro_batch);
  if (size == place.sizes.end() || *size != config.micro_batch ||
      AccumulationOf(config.micro_batch) != config.accumulation)
    return std::nullopt;
  const auto knobs = std::ranges::find(place.knobs, config.knobs);
  if (knobs == place.knobs.end()) return std::nullopt;
  return AutoCandidate{config.place, knobs - place.knobs.begin(), size - place.sizes.begin()};
}

std::optional<AutoCandidate> AutoSpace::Find(const Assignment& assignment) const {
  const auto size = assignment.find(kMicroBatchKey);
  if (size == assignment.end()) return std::nullopt;
  const auto is_set = [&](const auto& setting) {
    const auto found = assignment.find(setting.first);
    return found != assignment.end() && found->second == setting.second;
  };
  for (int64_t place = 0; place < num_places(); ++place) {
    const StageSpace& stage = space_.stages[place];
    if (!std::ranges::all_of(PlaceAssignment(stage), is_set)) continue;
    std::vector<int> values;
    for (const Knob& knob : stage.knobs) {
      const auto found = assignment.find(knob.pointer);
      if (found == assignment.end()) break;
      values.push_back(std::ranges::find(knob.values, found->second) - knob.values.begin());
    }
    const Place& here = places_[place];
    const AutoCandidate candidate{
        place, std::ranges::find(here.values, values) - here.values.begin(),
        std::ranges::find(here.sizes, size->second.get<int64_t>()) - here.sizes.begin()};
    const bool is_listed =
        candidate.knobs < std::ssize(here.values) && candidate.size < std::ssize(here.sizes);
    if (is_listed) return candidate;
  }
  return std::nullopt;
}

}  // namespace dsat
