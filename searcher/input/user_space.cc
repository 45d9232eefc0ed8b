// Checks every key and value against the table of keys, and every condition against the values.
#include "searcher/input/user_space.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/regex.h"
#include "engine/config/keys.h"
#include "engine/config/settings.h"
#include "proto/comparison.h"
#include "proto/launch_settings.h"
#include "searcher/command/command_words.h"
#include "searcher/command/deepspeed_command.h"
#include "searcher/command/rank_launcher.h"

namespace dsat {
namespace {

using engine::Builtin;
using engine::Key;
using engine::Keys;
using engine::KeyType;
using engine::Settings;

constexpr char kSection[] = "/search_space";
constexpr char kArgument[] = "arguments.";
constexpr char kVariable[] = "environment.";
constexpr size_t kMostKeys = 100;
constexpr size_t kMostValues = 1000;

// Keys that a search never varies, and why.
struct Fixed {
  const char* prefix;
  const char* reason;
};
constexpr char kLearning[] =
    "changes what the model learns, and a search compares speeds only; set it in the ds_config";
constexpr char kRanks[] =
    "changes how many ranks share a sample, and with them the global batch; set it in the "
    "ds_config";
constexpr char kHook[] = "is set by dsat itself in every trial of a script";
constexpr Fixed kFixed[] = {
    {"/optimizer", kLearning},
    {"/scheduler", kLearning},
    {"/gradient_clipping", kLearning},
    {"/prescale_gradients", kLearning},
    {"/gradient_predivide_factor", kLearning},
    {"/gradient_allreduce_op", kLearning},
    {"/fp16", kLearning},
    {"/bf16", kLearning},
    {"/data_types", kLearning},
    {"/seed", kLearning},
    {"/train_batch_size", "is set by --train-batch-size"},
    {kAccumulationKey,
     "follows the micro-batch size if the global batch is fixed (--train-batch-size)"},
    {kStageKey, "is set by --zero-stages"},
    {"/pipeline/stages", kRanks},
    {"/sequence_parallel_size", kRanks},
    {"/tensor_parallel", kRanks},
};

bool IsUnder(const std::string& pointer, const std::string& prefix) {
  return pointer == prefix || pointer.starts_with(prefix + "/");
}

bool IsSection(const Key& key) {
  return key.type == KeyType::kSection || key.type == KeyType::kOpenSection;
}

class Reader {
 public:
  Reader(const ExperimentDocument& document, const ExperimentSpec& spec,
         std::vector<std::string>* warnings)
      : document_(document), spec_(spec), warnings_(warnings) {}

  // The pointer in a trial's config, and the values.
  std::pair<std::string, std::vector<Json>> Read(const std::string& name, const Json& given) {
    const std::string place = fmt::format("{}/{}", kSection, name);
    std::string line = document_.Place(place);
    line.resize(line.size() - place.size());
    place_ = fmt::format("{}search_space: {}", line, name);
    const std::string pointer = PointerOf(name);
    const Key* key = pointer == name ? CheckKey(pointer) : nullptr;
    const std::vector<Json> values = given.is_object() ? Range(pointer, key, given) : List(given);
    for (const Json& value : values)
      CheckValue(pointer, key, value);
    return {pointer, values};
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    throw Error(ErrorCode::kInvalidArgument, place_ + " " + message);
  }

  // The JSON pointer of "arguments.--flag", "environment.NAME" or a pointer.
  std::string PointerOf(const std::string& name) const {
    std::string pointer = PointerOfName(name);
    if (name.starts_with(kArgument)) CheckArgument(name.substr(sizeof(kArgument) - 1));
    if (name.starts_with(kVariable)) CheckVariable(name.substr(sizeof(kVariable) - 1));
    if (!pointer.empty()) return pointer;
    Fail(
        "is no ds_config key; expected one, such as /zero_optimization/reduce_bucket_size, "
        "arguments.--flag or environment.NAME");
  }

  void CheckArgument(const std::string& flag) const {
    if (IsBuiltin(spec_)) Fail("is an argument, and the builtin engine takes none");
    static const RE2 kFlag("--?[A-Za-z0-9][A-Za-z0-9_.-]*", RegexOptions());
    if (!RE2::FullMatch(flag, kFlag))
      Fail("names no flag; expected one, such as arguments.--num-workers");
    const std::string name = WithUnderscores(flag);
    if (std::ranges::any_of(kBatchArguments, [&](const auto& each) { return name == each.flag; }))
      Fail("follows the micro-batch size; expected /train_micro_batch_size_per_gpu");
    constexpr std::array<std::string_view, 8> kOfLaunchers = {
        "--nproc_per_node", "--nnodes",       "--num_gpus",    "--num_nodes",
        "--num_processes",  "--num_machines", "--master_port", "--main_process_port"};
    const CommandWords command(spec_.entrypoint);
    if (std::ranges::find(kOfLaunchers, name) != kOfLaunchers.end() && FindRankLauncher(command))
      Fail("says where ranks run, which dsat decides (resources.slots_per_trial)");
    if (std::ranges::find(kConfigFlags, flag) != kConfigFlags.end())
      Fail("names the config of each trial; expected keys of the ds_config");
    const bool has_flag = std::ranges::any_of(command.words(), [&](const CommandWord& word) {
      return word.text == flag || word.text.starts_with(flag + "=");
    });
    if (command.in_shell() && !has_flag)
      Fail("is not in the entrypoint, which runs in a shell; put the flag with a value there");
  }

  void CheckVariable(const std::string& name) const {
    if (!IsVariableName(name)) Fail("names no environment variable");
    const bool is_place =
        name == "CUDA_VISIBLE_DEVICES" || name == "MASTER_ADDR" || name == "MASTER_PORT";
    if (SetsItself(name) || is_place) Fail("is a variable that dsat sets itself");
  }

  const Key* CheckKey(const std::string& pointer) {
    for (const Fixed& fixed : kFixed) {
      if (IsUnder(pointer, fixed.prefix)) Fail(fixed.reason);
    }
    for (const std::string key : kOffInTrials) {
      if (!IsBuiltin(spec_) && IsUnder(pointer, "/" + key)) Fail(kHook);
    }
    const Key* key = Keys().Find(pointer);
    if (key == nullptr) {
      CheckUnknown(pointer);
      return nullptr;
    }
    if (key->type == KeyType::kAlias)
      Fail(fmt::format("is another name of a key; expected {}", key->fallback));
    if (IsSection(*key)) Fail("is a section; expected one of its keys");
    const bool is_idle = key->builtin == Builtin::kWarns || key->builtin == Builtin::kFollows;
    if (IsBuiltin(spec_) && (is_idle || key->builtin == Builtin::kRefuses))
      Fail("has no effect in the builtin engine (docs/ds_config.md)");
    if (!IsBuiltin(spec_) && key->own) Fail("is a key of the builtin engine alone");
    if (key->key_class == engine::KeyClass::kSemantic && pointer != kMicroBatchKey) {
      warnings_->push_back(place_ +
                           " changes what is learned: the losses of such a pick are compared by "
                           "how much they fall (docs/proof.md)");
    }
    return key;
  }

  // A script's DeepSpeed may know more than the table.
  void CheckUnknown(const std::string& pointer) {
    std::vector<std::string> known;
    for (const Key& key : Keys())
      known.emplace_back(key.pointer);
    const std::string nearest = NearestWord(pointer, known);
    if (!nearest.empty()) Fail(fmt::format("is unknown; did you mean {}?", nearest));
    if (IsBuiltin(spec_)) Fail("is unknown; docs/ds_config.md lists the keys");
    for (size_t end = pointer.rfind('/'); end > 0; end = pointer.rfind('/', end - 1)) {
      const Key* above = Keys().Find(pointer.substr(0, end));
      if (above != nullptr && !IsSection(*above))
        Fail(fmt::format("is a part of {}, which is no section", above->pointer));
    }
    warnings_->push_back(
        place_ +
        " is not in dsat's table of keys: its values are compared without a model of their effect");
  }

  std::vector<Json> List(const Json& given) const {
    if (!given.is_array() || given.empty())
      Fail(fmt::format("is {}; expected a list of values or {{min: A, max: B}}", given.dump()));
    if (given.size() > kMostValues)
      Fail(fmt::format("has {} values; expected at most {}", given.size(), kMostValues));
    for (auto it = given.begin(); it != given.end(); ++it) {
      if (std::find(std::next(it), given.end(), *it) != given.end())
        Fail(fmt::format("has {} twice", it->dump()));
    }
    return given;
  }

  int64_t Bound(const Json& given, const char* name) const {
    const std::optional<int64_t> bound = WholeNumber(given.value(name, Json()));
    if (bound && *bound >= 1) return *bound;
    Fail(fmt::format("is {}; expected a whole number >= 1 for {}", given.dump(), name));
  }

  std::vector<Json> Range(const std::string& pointer, const Key* key, const Json& given) const {
    const bool is_size = pointer == kMicroBatchKey;
    if (key == nullptr || key->type != KeyType::kInt)
      Fail("is a range; expected a list of values, because the key is not a whole number");
    for (const auto& [name, value] : given.items()) {
      if (name == "min" || name == "max" || (is_size && name == "divisible_by")) continue;
      Fail(fmt::format("has {}; expected min, max{}", name,
                       is_size ? " and divisible_by" : ", which are searched in doublings"));
    }
    const int64_t min = Bound(given, "min"), max = Bound(given, "max");
    if (min > max) Fail(fmt::format("has min {} and max {}; expected min <= max", min, max));
    std::vector<Json> values;
    if (is_size) {
      const int64_t step = given.contains("divisible_by") ? Bound(given, "divisible_by") : 1;
      if ((max - min) / step >= static_cast<int64_t>(kMostValues))
        Fail(fmt::format("has more than {} sizes; expected a larger divisible_by", kMostValues));
      for (int64_t factor = (min - 1) / step + 1; factor <= max / step; ++factor)
        values.emplace_back(factor * step);
      if (values.empty()) Fail(fmt::format("has no multiple of {} from {} to {}", step, min, max));
      return values;
    }
    for (int64_t value = min; value<max; value = value> max / 2 ? max : 2 * value)
      values.emplace_back(value);
    values.emplace_back(max);
    return values;
  }

  void CheckValue(const std::string& pointer, const Key* key, const Json& value) const {
    if (key == nullptr) {
      if (value.is_structured() || value.is_null())
        Fail(fmt::format("has {}; expected numbers, texts, true or false", value.dump()));
      return;
    }
    const std::string expected = Keys().Misfit(*key, value);
    if (!expected.empty()) Fail(fmt::format("has {}; expected {}", value.dump(), expected));
    if (pointer == kMicroBatchKey && !value.is_number_integer())
      Fail(fmt::format("has {}; expected a whole number", value.dump()));
  }

  const ExperimentDocument& document_;
  const ExperimentSpec& spec_;
  std::vector<std::string>* warnings_;
  std::string place_;  // "<path>:<line>: search_space: <pointer>".
};

constexpr char kWhere[] = "/where";
constexpr size_t kMostPairs = 100'000;  // Pairs of values that conditions compare.

// Keys whose values a search does not choose freely, and what to use in place of a condition.
constexpr std::array<std::pair<const char*, const char*>, 4> kElsewhere = {{
    {kMicroBatchKey, "a range of it in search_space"},
    {"/train_batch_size", "--train-batch-size"},
    {kAccumulationKey, "--train-batch-size, which it follows"},
    {kStageKey, "--zero-stages"},
}};

class WhereReader {
 public:
  WhereReader(const ExperimentDocument& document, const ExperimentSpec& spec)
      : document_(document), spec_(spec), settings_(spec.ds_config, "ds_config") {}

  Comparison Read(const std::string& place, const Json& entry) {
    const auto fail = [&](const std::string& message) { document_.Fail(place, message); };
    if (!entry.is_string())
      fail(fmt::format("is {}; expected a text such as \"/KEY <= 5\"", entry.dump()));
    Comparison condition;
    try {
      condition = ParseComparison(entry.get<std::string>());
    } catch (const Error& error) {
      fail(error.what());
    }
    place_ = place;
    text_ = condition.text;
    const std::vector<Json> left = ValuesOf(condition.left);
    const std::vector<Json> right =
        condition.right.empty() ? std::vector{condition.constant} : ValuesOf(condition.right);
    if (!IsSearched(condition.left) && !IsSearched(condition.right))
      Fail("has no key that is searched; expected one of search_space");
    CheckValues(condition, left, right);
    return condition;
  }

  // Whether the submitted config meets the condition.
  bool IsMet(const Comparison& condition) const {
    return Holds(condition,
                 [&](const std::string& pointer) { return settings_.ValueOrNull(pointer); });
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    document_.Fail(place_, fmt::format("is \"{}\", which {}", text_, message));
  }

  const Json* UserValues(const std::string& pointer) const {
    const auto found = spec_.search_space.find(pointer);
    return found == spec_.search_space.end() ? nullptr : &*found;
  }

  // Whether the user searches it, or a search may by default.
  bool IsSearched(const std::string& pointer) const {
    const Key* key = settings_.keys().Find(pointer);
    return UserValues(pointer) != nullptr || (key != nullptr && *key->values != '\0');
  }

  // All values that a configuration can have at a pointer, as far as they are known here.
  std::vector<Json> ValuesOf(const std::string& pointer) const {
    for (const auto& [key, instead] : kElsewhere) {
      if (pointer == key) Fail(fmt::format("has {}; expected {} instead", key, instead));
    }
    const Key* key = settings_.keys().Find(pointer);
    if (key != nullptr && key->type == engine::KeyType::kAlias)
      Fail(fmt::format("has {}; expected its other name, {}", pointer, key->fallback));
    std::vector<Json> values;
    if (const Json* user_values = UserValues(pointer)) {
      values = *user_values;
    } else if (key != nullptr && *key->values != '\0') {
      values = Json::parse(key->values);
    }
    const Json submitted = settings_.ValueOrNull(pointer);
    if (!submitted.is_null()) values.push_back(submitted);
    if (values.empty()) {
      Fail(
          fmt::format("has {}, which is not searched and has no value; expected a key of "
                      "search_space or of the ds_config",
                      NameOfPointer(pointer)));
    }
    return values;
  }

  void CheckValues(const Comparison& condition, const std::vector<Json>& left,
                   const std::vector<Json>& right) {
    num_pairs_ += left.size() * right.size();
    if (num_pairs_ > kMostPairs)
      Fail(
          fmt::format("makes more than {} pairs of values; expected fewer conditions, or fewer "
                      "values in search_space",
                      kMostPairs));
    bool can_hold = false;
    for (const Json& a : left) {
      for (const Json& b : right) {
        if (!CanCompare(condition.op, a, b)) {
          Fail(
              fmt::format("compares {} with {}; expected two numbers, or with == and != two texts "
                          "or two booleans",
                          a.dump(), b.dump()));
        }
        const auto value_of = [&](const std::string& at) { return at == condition.left ? a : b; };
        can_hold = can_hold || Holds(condition, value_of);
      }
    }
    if (!can_hold) Fail("no values of its keys meet; expected other values or another condition");
  }

  const ExperimentDocument& document_;
  const ExperimentSpec& spec_;
  Settings settings_;
  std::string place_;  // The place of the entry that is read, and its text.
  std::string text_;
  size_t num_pairs_ = 0;
};

}  // namespace

bool SetsItself(const std::string& name) {
  return name == "RANK" || name == "LOCAL_RANK" || name == "WORLD_SIZE" ||
         name == "LOCAL_WORLD_SIZE" || name.starts_with("DSAT_");
}

void AddSubmittedValues(ExperimentSpec& spec) {
  const CommandWords command(spec.entrypoint);
  for (const auto& [pointer, values] : spec.search_space.items()) {
    const std::string name = NameOfPointer(pointer);
    std::optional<Json> submitted;
    if (name.starts_with(kArgument)) {
      submitted = ArgumentOf(command, name.substr(sizeof(kArgument) - 1), values[0].is_boolean());
    } else if (name.starts_with(kVariable)) {
      const auto found = spec.environment.find(name.substr(sizeof(kVariable) - 1));
      if (found != spec.environment.end()) submitted = found->second;
    }
    if (!submitted) continue;
    // A value of the list that reads the same. Another number is left out unless it is written as a
    // trial would write it.
    const auto same = std::ranges::find_if(
        values, [&](const Json& value) { return WordOf(value) == WordOf(*submitted); });
    const Json number = Json::parse(WordOf(*submitted), nullptr, /*allow_exceptions=*/false);
    if (same != values.end()) {
      submitted = *same;
    } else if (values[0].is_number()) {
      if (!number.is_number() || WordOf(number) != WordOf(*submitted)) continue;
      submitted = number;
    }
    SetAtPointer(spec.ds_config, pointer, *submitted);
  }
}

Json TakeLists(const std::string& source, Json& ds_config) {
  Json lists = Json::object();
  for (const Key& key : Keys()) {
    const bool is_value = key.type == KeyType::kBool || key.type == KeyType::kInt ||
                          key.type == KeyType::kNumber || key.type == KeyType::kText ||
                          key.type == KeyType::kStage;
    const Json* given = is_value ? FindAtPointer(ds_config, key.pointer) : nullptr;
    if (given == nullptr || !given->is_array() || given->empty()) continue;
    if (key.type == KeyType::kStage) {
      Throw(ErrorCode::kInvalidArgument,
            "{}: {} is {}; expected the stage to start from, and --zero-stages for those to search",
            source, key.pointer, given->dump());
    }
    lists[key.pointer] = *given;
  }
  for (const auto& [pointer, values] : lists.items())
    SetAtPointer(ds_config, pointer, values.front());
  return lists;
}

Json ReadUserSpace(const ExperimentDocument& document, const Json& section,
                   const ExperimentSpec& spec, std::vector<std::string>* warnings) {
  if (!section.is_object() || section.empty()) {
    document.Fail(kSection,
                  fmt::format("is {}; expected ds_config keys with their values", section.dump()));
  }
  if (section.size() > kMostKeys)
    document.Fail(kSection,
                  fmt::format("has {} keys; expected at most {}", section.size(), kMostKeys));
  Json space = Json::object();
  Reader reader(document, spec, warnings);
  for (const auto& [name, given] : section.items()) {
    auto [pointer, values] = reader.Read(name, given);
    if (pointer == kMicroBatchKey) std::sort(values.begin(), values.end());
    space[pointer] = std::move(values);
  }
  return space;
}

std::vector<std::string> ReadWhere(const ExperimentDocument& document, const Json& section,
                                   const ExperimentSpec& spec, std::vector<std::string>* warnings) {
  if (!section.is_array() || section.empty())
    document.Fail(kWhere, fmt::format("is {}; expected a list of conditions such as \"/KEY <= 5\"",
                                      section.dump()));
  WhereReader reader(document, spec);
  std::vector<std::string> conditions;
  for (const Json& entry : section) {
    const std::string place = fmt::format("{}/{}", kWhere, conditions.size());
    const Comparison condition = reader.Read(place, entry);
    conditions.push_back(condition.text);
    if (reader.IsMet(condition)) continue;
    warnings->push_back(fmt::format(
        "{}: the submitted configuration does not meet \"{}\"; it is measured as it is, "
        "to compare with, and stays the answer if nothing else is faster",
        document.Place(place), condition.text));
  }
  return conditions;
}

}  // namespace dsat
