// The check of a whole config: every key against the table, then the combinations.
#include "engine/config/validate.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace dsat::engine {
namespace {

constexpr int kMostUnknownKeys = 1000;

// Walks a config along the table.
class KeyChecker {
 public:
  KeyChecker(const KeyTable& keys, const std::string& source, std::vector<std::string>* warnings)
      : keys_(keys), source_(source), warnings_(warnings) {}

  // `type` is what the optimizer's or scheduler's "type" says, in lower case.
  void Check(const Json& object, const std::string& pointer, const std::string& type) {
    for (const auto& [name, value] : object.items()) {
      const std::string at = (Json::json_pointer(pointer) / name).to_string();
      const Key* key = keys_.Find(at);
      if (key != nullptr && *key->variants != '\0' && !IsOneOf(type, key->variants)) key = nullptr;
      if (key == nullptr) {
        Unknown(pointer, name, value, type);
      } else if (!value.is_null() && !IsAuto(value)) {
        CheckValue(*key, value, type);
      }
    }
    if (!pointer.empty() || ignored_.empty()) return;
    warnings_->push_back(fmt::format("{}: {} of DeepSpeed, which ignores unknown keys: {}", source_,
                                     ignored_.size() == 1 ? "not a key" : "not keys",
                                     fmt::join(ignored_, ", ")));
  }

 private:
  void CheckValue(const Key& key, const Json& value, const std::string& type) {
    std::string expected = keys_.Misfit(key, value);
    if (!expected.empty()) {
      Throw(ErrorCode::kInvalidArgument, "{}: {} is {}; expected {}", source_, key.pointer,
            value.dump(), expected);
    }
    const Key& target = keys_.Target(key);
    bool section = target.type == KeyType::kSection || target.type == KeyType::kOpenSection;
    if (section && value.is_object()) Check(value, target.pointer, TypeOf(value, type));
  }

  static std::string TypeOf(const Json& section, const std::string& outer) {
    auto found = section.find("type");
    if (found == section.end() || !found->is_string()) return outer;
    return LowerCase(found->get_ref<const std::string&>());
  }

  // True if other keys than the table's are legal: the parameters of an optimizer or a scheduler
  // that is not in the table, or a section that plug-ins extend.
  bool IsOpen(const std::string& section, const std::string& type) const {
    const Key* sets_type = nullptr;
    if (section.ends_with("/params")) {
      sets_type = keys_.Find(section.substr(0, section.rfind('/')) + "/type");
    }
    if (sets_type != nullptr) return !IsOneOf(type, LowerCase(sets_type->known));
    return !section.empty() && keys_.Find(section)->type == KeyType::kOpenSection;
  }

  void Unknown(const std::string& section, const std::string& name, const Json& value,
               const std::string& type) {
    const bool is_open = IsOpen(section, type);
    if (is_open && *keys_.Find(section)->members == '\0') return;
    if (++num_unknown_ > kMostUnknownKeys)
      Throw(ErrorCode::kInvalidArgument, "{}: more than {} keys are unknown; expected a ds_config",
            source_, kMostUnknownKeys);
    const std::vector<std::string> names = keys_.Names(section, type);
    const std::string nearest = NearestWord(name, names);
    if (is_open) {
      if (std::ranges::find(names, name) != names.end()) return;
      warnings_->push_back(
          fmt::format("{}: {}/{} is not a key that dsat knows of DeepSpeed{}", source_, section,
                      name, nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)));
      return;
    }
    if (section.empty() && nearest.empty()) {
      ignored_.push_back("/" + name);
      return;
    }
    const std::string of_others = fmt::format("{}/{}", section, name);
    if (!type.empty() && keys_.Find(of_others) != nullptr) {
      Throw(
          ErrorCode::kInvalidArgument,
          "{}: {} is {}: \"{}\" does not have it, but other types do; remove it or change the type",
          source_, of_others, value.dump(), type);
    }
    const std::string hint =
        nearest.empty() ? "remove it (docs/ds_config.md lists the keys); if the DeepSpeed of your "
                          "script is newer and has it, name it in search_space with one value"
                        : fmt::format("did you mean \"{}\"?", nearest);
    Throw(ErrorCode::kInvalidArgument, "{}: {}/{} is {}: unknown key; {}", source_, section, name,
          value.dump(), hint);
  }

  const KeyTable& keys_;
  const std::string& source_;
  std::vector<std::string>* warnings_;
  std::vector<std::string> ignored_;
  int num_unknown_ = 0;
};

void CheckRules(const Settings& settings, const std::string& source,
                std::vector<std::string>* warnings) {
  for (const Rule& rule : Rules()) {
    if (!rule.broken(settings)) continue;
    const Json* given = settings.Given(rule.pointer);
    std::string message = fmt::format("{}: {} is {}; {}", source, rule.pointer,
                                      given == nullptr ? "not given" : given->dump(), rule.text);
    if (rule.refuses) throw Error(ErrorCode::kInvalidArgument, message);
    warnings->push_back(message);
  }
}

// DeepSpeed ignores such a key below its stage, where it would not do what the file asks for.
void CheckStages(const Settings& settings, const std::string& source) {
  for (const Key& key : settings.keys()) {
    if (!key.needs_stage || settings.stage() >= key.from_stage || !settings.Differs(key)) continue;
    Throw(ErrorCode::kInvalidArgument,
          "{}: {} is {}; expected {}, or ZeRO stage {}: DeepSpeed ignores it below", source,
          key.pointer, settings.Given(key.pointer)->dump(), key.fallback,
          key.from_stage + 1 < kNumZeroStages ? fmt::format("{} or above", key.from_stage)
                                              : fmt::format("{}", key.from_stage));
  }
}

void WarnOfAutoBatch(const Json& ds_config, const std::string& source,
                     std::vector<std::string>* warnings) {
  const Json* micro = FindAtPointer(ds_config, "/train_micro_batch_size_per_gpu");
  const Json* total = FindAtPointer(ds_config, "/train_batch_size");
  bool no_total = total == nullptr || total->is_null() || IsAuto(*total);
  if (micro == nullptr || !IsAuto(*micro) || !no_total) return;
  warnings->push_back(fmt::format(
      "{}: /train_micro_batch_size_per_gpu is \"auto\"; it is 1 unless a trial sets it", source));
}

}  // namespace

Json KnownPart(Json ds_config, const Json& searched) {
  for (const auto& [pointer, values] : searched.items()) {
    if (Keys().Find(pointer) == nullptr) Take(ds_config, pointer);
  }
  return ds_config;
}

void RefuseOwnKeys(const Json& ds_config, const std::string& source) {
  const Settings settings(ds_config, source);
  for (const Key& key : settings.keys()) {
    const Json* given = settings.Given(key.pointer);
    // Another optimizer, of a package that DeepSpeed does not know either, may have it.
    const bool known =
        *key.variants == '\0' || IsOneOf(settings.Lower("/optimizer/type"), key.variants);
    if (!key.own || given == nullptr || !known) continue;
    Throw(ErrorCode::kInvalidArgument,
          "{}: {} is {}; remove it: DeepSpeed does not know it, only the built-in engine does",
          source, key.pointer, given->dump());
  }
}

void CheckIsObject(const Json& ds_config, const std::string& source) {
  if (ds_config.is_object()) return;
  Throw(ErrorCode::kInvalidArgument, "{}: the config is {}; expected an object", source,
        JsonTypeName(ds_config));
}

CheckedConfig ValidateDsConfig(const Json& ds_config, const std::string& source, int64_t world_size,
                               const KeyTable& keys) {
  CheckIsObject(ds_config, source);
  std::vector<std::string> warnings;
  KeyChecker(keys, source, &warnings).Check(ds_config, "", "");
  Settings settings(ds_config, source, keys);
  CheckRules(settings, source, &warnings);
  CheckStages(settings, source);
  const BatchSizes batch = ResolveBatchSizes(ds_config, source, world_size);
  WarnOfAutoBatch(ds_config, source, &warnings);
  return {std::move(settings), batch, std::move(warnings)};
}

}  // namespace dsat::engine
