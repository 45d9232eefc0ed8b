// States defaults by the key table's record of their changes.
#include "searcher/stated_defaults.h"

#include <algorithm>
#include <string>

#include "base/version.h"
#include "engine/config/keys.h"
#include "engine/config/settings.h"
#include "searcher/command/trainer_command.h"

namespace dsat {
namespace {

using engine::Key;
using engine::KeyType;

class Stater {
 public:
  Stater(const ExperimentSpec& spec, const std::vector<Knob>& knobs, const Json& ds_config)
      : spec_(spec),
        knobs_(knobs),
        settings_(ds_config, "ds_config"),
        is_script_(!IsBuiltin(spec)) {
    if (is_script_) release_ = VersionsOf(spec).value("deepspeed", "");
  }

  // The value that `key` has without being given; null if it is not to be stated.
  Json ValueOf(const Key& key) const {
    const std::string pointer = key.pointer;
    const bool is_changed = *key.changed != '\0';
    const bool is_knob = std::ranges::find(knobs_, pointer, &Knob::pointer) != knobs_.end();
    if (!is_changed && !is_knob && key.fallback_stage == engine::kNumZeroStages) return nullptr;
    if (settings_.Has(pointer) || settings_.stage() < key.from_stage) return nullptr;
    if (!settings_.Has(pointer.substr(0, pointer.rfind('/'))) && pointer.rfind('/') > 0)
      return nullptr;
    if (is_script_) {
      const bool is_known = release_.empty() || !engine::NameIn(release_, key).empty();
      if (key.own || !is_known || (is_changed && release_.empty())) return nullptr;
      if (pointer == "/gradient_clipping" && RunsTrainer(spec_)) return nullptr;
      if (is_changed && IsBefore(key.changed)) return Json::parse(key.earlier);
    }
    return settings_.Get(pointer);
  }

 private:
  // Whether the script's DeepSpeed is older than a release.
  bool IsBefore(const char* release) const {
    return !release_.empty() && engine::IsOlder(release_, release);
  }

  const ExperimentSpec& spec_;
  const std::vector<Knob>& knobs_;
  engine::Settings settings_;
  bool is_script_;
  std::string release_;  // The release of the script's DeepSpeed; empty if unknown.
};

}  // namespace

Json VersionsOf(const ExperimentSpec& spec) {
  Json versions{{"dsat", spec.machine.value("dsat", kVersion)}};
  const Json packages = spec.machine.value("packages", Json());
  if (packages.is_object()) versions.update(packages);
  return versions;
}

Json WithStatedDefaults(const ExperimentSpec& spec, const std::vector<Knob>& knobs,
                        Json ds_config) {
  const Stater stater(spec, knobs, ds_config);
  for (const Key& key : engine::Keys()) {
    const Json value = stater.ValueOf(key);
    if (!value.is_null()) SetAtPointer(ds_config, key.pointer, value);
  }
  return ds_config;
}

}  // namespace dsat
