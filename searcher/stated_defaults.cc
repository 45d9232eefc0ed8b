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

// The value that `key` has without being given; null if it is not to be stated. `release` is that
// of the script's DeepSpeed; empty if unknown.
Json StatedValue(const Key& key, const ExperimentSpec& spec, const std::vector<Knob>& knobs,
                 const engine::Settings& settings, const std::string& release) {
  const std::string pointer = key.pointer;
  const bool is_changed = *key.changed != '\0';
  const bool is_knob = std::ranges::find(knobs, pointer, &Knob::pointer) != knobs.end();
  if (!is_changed && !is_knob && key.fallback_stage == engine::kNumZeroStages) return nullptr;
  if (settings.Has(pointer) || settings.stage() < key.from_stage) return nullptr;
  if (!settings.Has(pointer.substr(0, pointer.rfind('/'))) && pointer.rfind('/') > 0)
    return nullptr;
  if (!IsBuiltin(spec)) {
    const bool is_known = release.empty() || !engine::NameIn(release, key).empty();
    if (key.own || !is_known || (is_changed && release.empty())) return nullptr;
    if (pointer == "/gradient_clipping" && RunsTrainer(spec)) return nullptr;
    if (is_changed && engine::IsOlder(release, key.changed)) return Json::parse(key.earlier);
  }
  return settings.Get(pointer);
}

}  // namespace

Json VersionsOf(const ExperimentSpec& spec) {
  Json versions{{"dsat", spec.machine.value("dsat", kVersion)}};
  const Json packages = spec.machine.value("packages", Json());
  if (packages.is_object()) versions.update(packages);
  return versions;
}

Json WithStatedDefaults(const ExperimentSpec& spec, const std::vector<Knob>& knobs,
                        Json ds_config) {
  const engine::Settings settings(ds_config, "ds_config");
  const std::string release = VersionsOf(spec).value("deepspeed", "");
  for (const Key& key : engine::Keys()) {
    const Json value = StatedValue(key, spec, knobs, settings, release);
    if (!value.is_null()) SetAtPointer(ds_config, key.pointer, value);
  }
  return ds_config;
}

}  // namespace dsat
