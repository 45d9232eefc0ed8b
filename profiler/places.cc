// Lists the combinations of structural keys and drops those that cannot pay.
#include "profiler/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/config/batch.h"
#include "engine/config/keys.h"
#include "engine/config/settings.h"
#include "engine/config/validate.h"
#include "profiler/conditions.h"
#include "profiler/effective_key.h"
#include "proto/experiment.h"
#include "proto/launch_settings.h"
#include "proto/search_policy.h"

namespace dsat {
namespace {

using engine::Key;

constexpr char kNvme[] = "nvme";
constexpr size_t kMostPlaces = 32;
// The DeepSpeed that a command is taken to have if it is not known: it has no newer keys.
constexpr char kLeastRelease[] = "0.12.3";
// A micro-batch may cost as much as so many samples besides its own, which no predictor counts.
constexpr double kMicroBatchSamples = 8;

struct Candidate {
  Place place;
  bool is_kept = false;   // Whatever is predicted: as submitted, or with nothing added.
  bool is_named = false;  // The user names all that it changes.
  bool offloads = false;
  bool uses_disk = false;
  bool checkpoints = false;
  std::string refused = {};
  std::string useless = {};  // Why it is dropped; "" if it is not.
  int64_t largest = 0;       // The largest micro-batch size that fits.
  int64_t legal = 0;         // The largest legal micro-batch size up to `largest`.
  double sample_ms = 0;  // The time of a step per sample at the largest legal size; 0 if unknown.
  bool fits() const { return refused.empty() && largest > 0; }
};

bool IsOffload(const std::string& pointer) {
  return pointer.ends_with("/device");
}

// Whether the DeepSpeed that the command imports has the key, by whatever name.
bool HasKey(const ExperimentSpec& spec, const Key& key) {
  const Json* release = FindAtPointer(spec.machine, "/packages/deepspeed");
  if (release == nullptr || !release->is_string())
    return !engine::IsOlder(kLeastRelease, key.since);
  return !engine::NameIn(release->get<std::string>(), key).empty();
}

// Whether a search has a place for each of the key's values.
bool IsVaried(const Key& key, const ExperimentSpec& spec) {
  if (!key.structural) return false;
  return spec.search_space.contains(key.pointer) || IsSearchedWidely(key, spec);
}

// Whether this machine has no GPUs. Nothing is known of other hosts.
bool LacksGpus(const ExperimentSpec& spec) {
  const bool is_known = spec.machine.contains("cores");
  return is_known && spec.machine.value("gpus", Json::array()).empty();
}

class Lister {
 public:
  Lister(const ExperimentSpec& spec, const engine::KeyTable& keys, std::vector<LeftOut>& left_out)
      : spec_(spec),
        keys_(keys),
        settings_(spec.ds_config, "ds_config", keys),
        where_(ConditionsOf(spec)),
        left_out_(left_out) {
    for (const Key& key : keys_) {
      if (IsVaried(key, spec)) varied_.push_back(&key);
    }
    for (int stage = 0; stage < engine::kNumZeroStages; ++stage)
      first_.emplace_back(FirstPlaceAt(spec, stage, keys), "ds_config", keys);
  }

  // All of them that the conditions leave. Throws if they leave none.
  void AddStages() {
    for (const int stage : spec_.options.zero_stages)
      AddStage(stage);
    if (candidates_.empty()) ThrowNothingLeft(spec_);
  }

  std::vector<Place> List(const Predictor& predictor, const SearchSpace& space) {
    AddStages();
    std::set<int> stages;
    for (const Candidate& candidate : candidates_)
      stages.insert(candidate.place.stage);
    if (candidates_.size() > stages.size()) {
      for (Candidate& candidate : candidates_)
        Predict(predictor, space, candidate);
      DropUseless();
      DropSlow(space.workload.micro_batch_size);
      DropBeyondMost();
    }
    Trim();
    std::vector<Place> places;
    for (Candidate& candidate : candidates_)
      places.push_back(std::move(candidate.place));
    return places;
  }

 private:
  bool IsNamed(const Key& key) const { return spec_.search_space.contains(key.pointer); }

  Json ValueAt(const Key& key, int stage) const { return first_[stage].Get(key.pointer); }

  // The first value is that of the stage's first place, unless the user names those of another
  // stage than the submitted one.
  std::vector<Json> ValuesAt(const Key& key, int stage) {
    const Json submitted = ValueAt(key, stage);
    std::vector<Json> values = {submitted};
    const bool is_named = IsNamed(key);
    if (stage < key.from_stage || stage > key.to_stage) return values;
    if (!is_named && stage < key.wide_from) return values;
    const Json others = is_named ? spec_.search_space.at(key.pointer) : Json::parse(key.values);
    if (is_named && stage != settings_.stage()) return others;
    for (const Json& value : others) {
      if (value == submitted) continue;
      if (is_named || value != kNvme || HasPath(key)) values.push_back(value);
    }
    return values;
  }

  // Whether the ds_config says where on disk the key's section may keep its state.
  bool HasPath(const Key& key) {
    const std::string pointer = key.pointer;
    const std::string path = pointer.substr(0, pointer.rfind('/')) + "/nvme_path";
    if (!settings_.Text(path).empty()) return true;
    LeaveOut(fmt::format("{} \"{}\"", key.pointer, kNvme),
             fmt::format("the ds_config has no {}", path));
    return false;
  }

  void AddStage(int stage) {
    std::vector<Assignment> all = {{}};
    for (const Key* key : varied_) {
      std::vector<Assignment> extended;
      for (const Assignment& settings : all) {
        for (const Json& value : ValuesAt(*key, stage)) {
          extended.push_back(settings);
          extended.back()[key->pointer] = value;
        }
      }
      all = std::move(extended);
    }
    const Json first = FirstPlaceAt(spec_, stage, keys_);
    const size_t num_before = candidates_.size();
    std::vector<LeftOut> excluded;
    for (const Assignment& settings : all) {
      Candidate candidate{.place = {.stage = stage, .settings = settings, .ds_config = first}};
      bool is_submitted = true;
      for (const auto& [pointer, value] : settings) {
        if (value == first_[stage].Get(pointer)) continue;
        is_submitted = false;
        SetAtPointer(candidate.place.ds_config, pointer, value);
      }
      if (!is_submitted && IsIdle(candidate)) continue;
      const std::string why = WhyExcluded(
          where_, [&](const std::string& pointer) { return PossibleAt(pointer, candidate.place); });
      if (!why.empty()) {
        excluded.push_back({Describe(candidate), why});
        continue;
      }
      Classify(candidate);
      candidate.is_kept = stage == settings_.stage() && is_submitted;
      candidate.is_kept |= !candidate.offloads && !candidate.checkpoints;
      candidates_.push_back(std::move(candidate));
    }
    if (candidates_.size() == num_before && !excluded.empty())
      excluded = {{DescribePlace(stage, {}, keys_), excluded.front().why}};
    for (const LeftOut& place : excluded)
      LeaveOut(place.what, place.why);
  }

  // At least the values that configurations of the place can have.
  std::vector<Json> PossibleAt(const std::string& pointer, const Place& place) const {
    const engine::Settings settings(place.ds_config, "ds_config", keys_);
    const Key* key = keys_.Find(pointer);
    const auto named = spec_.search_space.find(pointer);
    std::vector<Json> values;
    if (place.settings.contains(pointer)) return {place.settings.at(pointer)};
    if (named != spec_.search_space.end()) {
      if (key == nullptr || HasEffect(*key, spec_, place.stage)) return *named;
    } else if (key != nullptr && IsSearchedAt(*key, place)) {
      for (const Json& value : Json::parse(key->values))
        values.push_back(value);
    }
    values.push_back(settings.ValueOrNull(pointer));
    return values;
  }

  // Whether a search of the place varies a key that the user does not name, as far as that is known
  // before anything is predicted.
  bool IsSearchedAt(const Key& key, const Place& place) const {
    const bool published = PolicyOf(spec_.options).published_space;
    if (place.stage >= (published ? key.published_from : key.searched_from))
      return published || HasEffect(key, spec_, place.stage);
    return IsSearchedWidely(key, spec_) && place.stage >= key.wide_from &&
           HasEffect(key, spec_, place.stage) && !LacksItsSection(key, place.ds_config, keys_);
  }

  // Whether a key is varied without the one that it belongs to.
  bool IsIdle(const Candidate& candidate) const {
    return std::ranges::any_of(varied_, [&](const Key* key) {
      const Json& value = candidate.place.settings.at(key->pointer);
      return value != keys_.Default(*key, candidate.place.stage) && !IsNamed(*key) &&
             LacksItsSection(*key, candidate.place.ds_config, keys_);
    });
  }

  void Classify(Candidate& candidate) const {
    bool is_changed = false, all_named = true;
    for (const Key* key : varied_) {
      const Json& value = candidate.place.settings.at(key->pointer);
      if (value != ValueAt(*key, candidate.place.stage)) {
        is_changed = true;
        all_named &= IsNamed(*key);
      }
      if (value == keys_.Default(*key, candidate.place.stage)) continue;
      const bool offload = IsOffload(key->pointer);
      candidate.offloads |= offload;
      candidate.uses_disk |= offload && value == kNvme;
      candidate.checkpoints |= !offload;
    }
    candidate.is_named = is_changed && all_named;
  }

  void Predict(const Predictor& predictor, const SearchSpace& space, Candidate& candidate) const {
    Json config = candidate.place.ds_config;
    candidate.refused = RefusalOf([&] {
      const int64_t submitted = space.workload.accumulation_steps;
      SetPoint(config, {1, AccumulationInMemory(space, 1)});
      const int64_t world_size = spec_.slots_per_trial;
      // Formulas do not know which combinations are refused.
      engine::ValidateDsConfig(engine::ConfigForTrial(config, {}, world_size), "ds_config",
                               world_size);
      candidate.largest = LargestThatFits(predictor, config, space);
      const int64_t legal = LegalMicroBatch(space, candidate.largest);
      const int64_t size = candidate.legal = legal <= candidate.largest ? legal : 0;
      if (size == 0) return;
      const int64_t accumulation =
          space.samples_per_step > 0 ? space.samples_per_step / size : submitted;
      SetPoint(config, {size, accumulation});
      const Estimate predicted = predictor.Predict(config);
      if (predicted.compute_ms <= 0) return;
      candidate.sample_ms = predicted.step_ms / static_cast<double>(accumulation * size);
    });
    if (!candidate.refused.empty()) candidate.largest = 0;
  }

  // Drops the candidates that cannot be needed.
  void DropUseless() {
    const bool any_fits = std::ranges::any_of(candidates_, &Candidate::fits);
    const bool fits_without_disk = std::ranges::any_of(
        candidates_, [](const Candidate& c) { return c.fits() && !c.uses_disk; });
    Drop([&](const Candidate& c) -> std::string {
      if (c.is_kept) return "";
      if (!c.refused.empty()) return c.refused;
      if (!c.fits() && any_fits) return "it is predicted not to fit one sample";
      if (c.is_named) return "";
      if (c.uses_disk && fits_without_disk) return "other places fit without a disk";
      const Candidate* plain = Without(c);
      if (plain != nullptr && c.legal <= plain->legal)
        return fmt::format("it allows no larger micro-batch than {} without it", plain->largest);
      return "";
    });
  }

  // The candidate that differs from this one in not checkpointing; nullptr if there is none.
  const Candidate* Without(const Candidate& c) const {
    if (!c.checkpoints) return nullptr;
    const auto found = std::ranges::find_if(candidates_, [&](const Candidate& other) {
      if (other.place.stage != c.place.stage || other.checkpoints) return false;
      return std::ranges::all_of(c.place.settings, [&](const auto& setting) {
        return !IsOffload(setting.first) ||
               other.place.settings.at(setting.first) == setting.second;
      });
    });
    return found == candidates_.end() ? nullptr : &*found;
  }

  // Even if micro-batches cost that much, of which the candidate may have far fewer.
  static bool IsSlower(const Candidate& c, const Candidate& best) {
    const auto with_costs = [](const Candidate& any) {
      return 1 + kMicroBatchSamples / static_cast<double>(any.legal);
    };
    if (c.legal < 2 * best.legal) return c.sample_ms > best.sample_ms;
    return c.sample_ms * with_costs(c) > best.sample_ms * with_costs(best);
  }

  // Drops the candidates that are slower than others without the same offload or recomputation.
  void DropSlow(int64_t submitted_size) {
    const Candidate* best_without_offload = nullptr;
    const Candidate* best_plain = nullptr;
    const auto take = [](const Candidate& c, const Candidate*& best) {
      if (c.sample_ms > 0 && (best == nullptr || c.sample_ms < best->sample_ms)) best = &c;
    };
    bool submitted_fits = false;  // Without offload.
    for (const Candidate& c : candidates_) {
      if (!c.fits() || c.offloads) continue;
      take(c, best_without_offload);
      if (!c.checkpoints) take(c, best_plain);
      submitted_fits |= c.largest >= submitted_size;
    }
    const auto than = [this](const Candidate& c, const Candidate& best) {
      return fmt::format("it is predicted to take {:.3g} ms per sample, {} takes {:.3g} ms",
                         c.sample_ms, Describe(best), best.sample_ms);
    };
    Drop([&](const Candidate& c) -> std::string {
      if (c.is_kept || c.is_named || !c.fits()) return "";
      if (c.offloads && c.sample_ms == 0 && submitted_fits)
        return "the submitted micro-batch size fits without offload";
      if (c.offloads && best_without_offload != nullptr && IsSlower(c, *best_without_offload))
        return than(c, *best_without_offload);
      if (c.checkpoints && best_plain != nullptr && IsSlower(c, *best_plain))
        return than(c, *best_plain);
      return "";
    });
  }

  void DropBeyondMost() {
    std::vector<double> times;
    for (const Candidate& c : candidates_) {
      if (!c.is_kept) times.push_back(c.sample_ms);
    }
    if (times.size() <= kMostPlaces) return;
    std::ranges::sort(times);
    const double last = times[kMostPlaces - 1];
    size_t num_kept = 0;
    Drop([&](const Candidate& c) -> std::string {
      if (c.is_kept || (c.sample_ms <= last && num_kept++ < kMostPlaces)) return "";
      return fmt::format("{} other places are predicted to be faster", kMostPlaces);
    });
  }

  template <typename Reason>
  void Drop(Reason reason_of) {
    for (Candidate& c : candidates_)
      c.useless = reason_of(c);
    std::erase_if(candidates_, [&](const Candidate& c) {
      if (!c.useless.empty()) LeaveOut(Describe(c), c.useless);
      return !c.useless.empty();
    });
  }

  // Settings that every place of a stage shares with the submitted config are none.
  void Trim() {
    for (int stage = 0; stage < engine::kNumZeroStages; ++stage) {
      for (const Key* key : varied_) {
        const Json submitted = settings_.AtStage(stage).Get(key->pointer);
        const bool differs = std::ranges::any_of(candidates_, [&](const Candidate& c) {
          return c.place.stage == stage && c.place.settings.at(key->pointer) != submitted;
        });
        for (Candidate& c : candidates_) {
          if (c.place.stage == stage && !differs) c.place.settings.erase(key->pointer);
        }
      }
    }
  }

  std::string Describe(const Candidate& c) const {
    return DescribePlace(c.place.stage, c.place.settings, keys_);
  }

  void LeaveOut(const std::string& what, const std::string& why) {
    const bool known =
        std::ranges::any_of(left_out_, [&](const LeftOut& other) { return other.what == what; });
    if (!known) left_out_.push_back({what, why});
  }

  const ExperimentSpec& spec_;
  const engine::KeyTable& keys_;
  const engine::Settings settings_;
  std::vector<engine::Settings> first_;  // The settings of the first place of each stage.
  const std::vector<Comparison> where_;
  std::vector<LeftOut>& left_out_;
  std::vector<const Key*> varied_;
  std::vector<Candidate> candidates_;
};

}  // namespace

bool IsOfTrainer(const Key& key) {
  return std::string_view(key.pointer).starts_with(kTrainerPrefix);
}

bool IsSearchedWidely(const Key& key, const ExperimentSpec& spec) {
  if (key.wide_from == engine::kNumZeroStages) return false;
  // The profile says which ones the script has.
  if (IsOfTrainer(key) && FindAtPointer(spec.ds_config, key.pointer) == nullptr) return false;
  const bool is_semantic = key.key_class == engine::KeyClass::kSemantic;
  if (is_semantic ? !spec.options.allow_semantic : spec.options.space != "wide") return false;
  if (IsBuiltin(spec)) return key.builtin == engine::Builtin::kHonors;
  if (key.needs_gpu && LacksGpus(spec)) return false;
  return !key.builtin_only && HasKey(spec, key);
}

Json FirstPlaceAt(const ExperimentSpec& spec, int stage, const engine::KeyTable& keys) {
  Json config = engine::CanonicalConfig(spec.ds_config, engine::Auto::kKeep, "ds_config", keys);
  SetAtPointer(config, kStageKey, stage);
  for (const Key& key : keys) {
    const bool is_refused = key.needs_stage && stage < key.from_stage;
    if (is_refused && IsVaried(key, spec) && FindAtPointer(config, key.pointer) != nullptr)
      SetAtPointer(config, key.pointer, keys.Default(key, stage));
  }
  return config;
}

bool LacksItsSection(const Key& key, const Json& ds_config, const engine::KeyTable& keys) {
  if (key.only_with[0] == 0) return false;
  const engine::Settings settings(ds_config, "ds_config", keys);
  std::istringstream others(key.only_with);
  for (std::string pointer; others >> pointer;) {
    const Key* other = keys.Find(pointer);
    DSAT_CHECK(other != nullptr, "{} belongs to {}, which is no key", key.pointer, pointer);
    const Json value = settings.Get(pointer);
    const bool has_value = key.only_value[0] == 0 ? value != keys.Default(*other, settings.stage())
                                                  : value == Json::parse(key.only_value);
    if (has_value) return false;
  }
  return true;
}

int64_t AccumulationInMemory(const SearchSpace& space, int64_t micro_batch) {
  const int64_t kept = space.samples_per_step;
  const int64_t times = kept > 0 ? kept / micro_batch : space.workload.accumulation_steps;
  return std::clamp<int64_t>(times, 1, 2);
}

int64_t LargestThatFits(const Predictor& predictor, Json ds_config, const SearchSpace& space) {
  const int64_t whole = std::max<int64_t>(space.samples_per_step, 1);
  SetPoint(ds_config, {whole, AccumulationInMemory(space, whole)});
  const bool fits = predictor.Predict(ds_config).fits();
  SetPoint(ds_config, {1, AccumulationInMemory(space, fits ? whole : 1)});
  return predictor.LargestMicroBatch(ds_config);
}

std::vector<Place> ListPlaces(const Predictor& predictor, const ExperimentSpec& spec,
                              const SearchSpace& space, const engine::KeyTable& keys,
                              std::vector<LeftOut>& left_out) {
  return Lister(spec, keys, left_out).List(predictor, space);
}

void CheckPlaces(const ExperimentSpec& spec, const engine::KeyTable& keys) {
  std::vector<LeftOut> left_out;
  Lister(spec, keys, left_out).AddStages();
}

std::string DescribePlace(int stage, const Assignment& settings, const engine::KeyTable& keys) {
  std::string text = fmt::format("stage {}", stage);
  const char* separator = " with ";
  for (const Key& key : keys) {
    const auto setting = settings.find(key.pointer);
    if (setting == settings.end() || setting->second == keys.Default(key, stage)) continue;
    text += fmt::format("{}{} {}", separator, setting->first, setting->second.dump());
    separator = ", ";
  }
  return text;
}

}  // namespace dsat
