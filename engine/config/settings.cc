// A ds_config in one spelling.
#include "engine/config/settings.h"

#include <iterator>
#include <optional>

#include "base/error.h"

namespace dsat::engine {

bool IsAuto(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>() == "auto";
}

Json Take(Json& config, const std::string& pointer) {
  const Json* found = FindAtPointer(config, pointer);
  if (found == nullptr) return Json();
  Json value = *found;
  const Json::json_pointer at(pointer);
  config[at.parent_pointer()].erase(at.back());
  return value;
}

namespace {

constexpr char kZero[] = "/zero_optimization";
constexpr char kStage[] = "/zero_optimization/stage";

void Rename(Json& config, const std::string& from, const std::string& to,
            const std::string& source) {
  Json value = Take(config, from);
  if (value.is_null()) return;
  if (FindAtPointer(config, to) != nullptr) {
    Throw(ErrorCode::kInvalidArgument, "{}: {} and {} are the same key; expected one of them",
          source, from, to);
  }
  SetAtPointer(config, to, value);
}

// DeepSpeed translates a deprecated flag only if it is true, and refuses it together with the new
// key.
void Translate(Json& config, const std::string& flag, const std::string& to, const Json& value,
               const std::string& source) {
  if (Take(config, kZero + flag) != true) return;
  if (FindAtPointer(config, kZero + to) != nullptr) {
    Throw(ErrorCode::kInvalidArgument,
          "{}: {}{} is deprecated and {}{} is given too; expected only the latter", source, kZero,
          flag, kZero, to);
  }
  SetAtPointer(config, kZero + to, value);
}

void TranslateOffload(Json& config, const std::string& source) {
  Json pin = Take(config, std::string(kZero) + "/cpu_offload_use_pin_memory");
  Json offload = {{"device", "cpu"}};
  if (pin == true) offload["pin_memory"] = true;
  Translate(config, "/cpu_offload", "/offload_optimizer", offload, source);
  Translate(config, "/cpu_offload_param", "/offload_param", offload, source);
}

void SettleStage(Json& config) {
  Json zero = config.value("zero_optimization", Json());
  if (zero.is_boolean()) config["zero_optimization"] = {{"stage", zero.get<bool>() ? 1 : 0}};
  const Json* stage = FindAtPointer(config, kStage);
  if (stage == nullptr) return;
  Json number = *stage;
  if (number.is_boolean()) number = number.get<bool>() ? 1 : 0;
  if (number.is_string() && !IsAuto(number)) {
    number = Json::parse(number.get_ref<const std::string&>(), nullptr, false);
  }
  if (std::optional<int64_t> whole = WholeNumber(number)) {
    SetAtPointer(config, kStage, *whole);
  }
}

// Drops what says nothing. "auto" asks for the default, but only DeepSpeed's own keys know it.
void DropUnset(Json& object, Auto autos, const std::string& pointer, const KeyTable& keys) {
  for (auto it = object.begin(); it != object.end();) {
    std::string at = pointer + "/" + it.key();
    bool unset = it->is_null() || (autos == Auto::kDrop && IsAuto(*it) && keys.Find(at) != nullptr);
    if (!unset && it->is_object()) DropUnset(*it, autos, at, keys);
    it = unset ? object.erase(it) : std::next(it);
  }
}

void WriteIntegersAsIntegers(Json& object, const std::string& pointer, const KeyTable& keys) {
  for (const auto& [name, value] : object.items()) {
    const std::string at = pointer + "/" + name;
    if (value.is_object()) WriteIntegersAsIntegers(value, at, keys);
    const Key* key = value.is_number() ? keys.Find(at) : nullptr;
    if (key == nullptr || key->type != KeyType::kInt) continue;
    if (const std::optional<int64_t> number = WholeNumber(value)) value = *number;
  }
}

}  // namespace

Json CanonicalConfig(const Json& ds_config, Auto autos, const std::string& source,
                     const KeyTable& keys) {
  Json config = ds_config;
  DropUnset(config, autos, "", keys);
  SettleStage(config);
  for (const Key& key : keys) {
    if (key.type == KeyType::kAlias) Rename(config, key.pointer, key.fallback, source);
  }
  TranslateOffload(config, source);
  WriteIntegersAsIntegers(config, "", keys);
  return config;
}

Settings::Settings(const Json& ds_config, const std::string& source, const KeyTable& keys)
    : keys_(&keys),
      written_(CanonicalConfig(ds_config, Auto::kKeep, source, keys)),
      config_(written_) {
  DropUnset(config_, Auto::kDrop, "", keys);
  stage_ = static_cast<int>(WholeNumber(Get(kStage)).value_or(0));
}

Settings Settings::AtStage(int stage) const {
  Settings other = *this;
  other.stage_ = stage;
  for (Json* config : {&other.written_, &other.config_})
    SetAtPointer(*config, kStage, stage);
  return other;
}

Json Settings::Get(const std::string& pointer) const {
  if (const Json* given = Given(pointer)) return *given;
  const Key* key = keys_->Find(pointer);
  DSAT_CHECK(key != nullptr, "{} is not in the key table", pointer);
  return DefaultOf(*key);
}

Json Settings::ValueOrNull(const std::string& pointer) const {
  if (const Json* given = Given(pointer)) return *given;
  const Key* key = keys_->Find(pointer);
  return key == nullptr ? Json() : DefaultOf(*key);
}

const Json& Settings::DefaultOf(const Key& key) const {
  if (*key.fallback_type == '\0') return keys_->Default(key, stage_);
  const std::string_view pointer = key.pointer;  // "/section/params/name"
  const std::string section(pointer.substr(0, pointer.find('/', 1)));
  return keys_->Default(key, stage_, Lower(section + "/type"));
}

std::string Settings::Text(const std::string& pointer) const {
  const Json value = Get(pointer);
  return value.is_string() ? value.get<std::string>() : "";
}

bool Settings::Differs(const Key& key) const {
  const Json* given = Given(key.pointer);
  return given != nullptr && *given != DefaultOf(key);
}

}  // namespace dsat::engine
