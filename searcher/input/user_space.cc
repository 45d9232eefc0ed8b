// Checks every key and value against the table of keys.
#include "searcher/input/user_space.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "engine/config/keys.h"

namespace dsat {
namespace {

using engine::Builtin;
using engine::Key;
using engine::Keys;
using engine::KeyType;

constexpr char kSection[] = "/search_space";
constexpr char kMicroBatch[] = "/train_micro_batch_size_per_gpu";
constexpr size_t kMostValues = 1000;

// Keys that a search never varies, and why.
struct Fixed {
  const char* prefix;
  const char* reason;
};
constexpr char kLearning[] =
    "changes what the model learns, and a search compares speeds only; set it in the ds_config";
constexpr std::array<Fixed, 9> kFixed = {{
    {"/optimizer", kLearning},
    {"/scheduler", kLearning},
    {"/gradient_clipping", kLearning},
    {"/prescale_gradients", kLearning},
    {"/gradient_predivide_factor", kLearning},
    {"/fp16", kLearning},
    {"/train_batch_size", "is set by --train-batch-size"},
    {"/gradient_accumulation_steps",
     "follows the micro-batch size if the global batch is fixed (--train-batch-size)"},
    {"/zero_optimization/stage", "is set by --zero-stages"},
}};

bool IsUnder(const std::string& pointer, const std::string& prefix) {
  return pointer == prefix || pointer.starts_with(prefix + "/");
}

class Reader {
 public:
  Reader(const ExperimentDocument& document, bool builtin, std::vector<std::string>* warnings)
      : document_(document), builtin_(builtin), warnings_(warnings) {}

  std::vector<Json> Read(const std::string& pointer, const Json& given) {
    const std::string place = fmt::format("{}/{}", kSection, Escaped(pointer));
    std::string line = document_.Place(place);
    line.resize(line.size() - place.size());
    place_ = fmt::format("{}search_space: {}", line, pointer);
    const Key* key = CheckKey(pointer);
    const std::vector<Json> values = given.is_object() ? Range(pointer, key, given) : List(given);
    for (const Json& value : values)
      CheckValue(pointer, key, value);
    return values;
  }

 private:
  // A name as a token of a JSON pointer (RFC 6901).
  static std::string Escaped(const std::string& name) {
    std::string token;
    for (const char c : name)
      token += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return token;
  }

  [[noreturn]] void Fail(const std::string& message) const {
    throw Error(ErrorCode::kInvalidArgument, place_ + " " + message);
  }

  const Key* CheckKey(const std::string& pointer) {
    if (!pointer.starts_with('/'))
      Fail("is no ds_config key; expected such as /zero_optimization/reduce_bucket_size");
    for (const Fixed& fixed : kFixed) {
      if (IsUnder(pointer, fixed.prefix)) Fail(fixed.reason);
    }
    const Key* key = Keys().Find(pointer);
    if (key == nullptr) {
      CheckUnknown(pointer);
      return nullptr;
    }
    if (key->type == KeyType::kAlias)
      Fail(fmt::format("is another name of a key; expected {}", key->fallback));
    if (key->type == KeyType::kSection || key->type == KeyType::kOpenSection)
      Fail("is a section; expected one of its keys");
    const bool is_idle = key->builtin == Builtin::kWarns || key->builtin == Builtin::kFollows;
    if (builtin_ && (is_idle || key->builtin == Builtin::kRefuses))
      Fail("has no effect in the builtin engine (docs/ds_config.md)");
    if (!builtin_ && key->own) Fail("is a key of the builtin engine alone");
    return key;
  }

  // Sections that are not open have all their keys in the table.
  void CheckUnknown(const std::string& pointer) {
    std::vector<std::string> known;
    for (const Key& key : Keys())
      known.emplace_back(key.pointer);
    const std::string nearest = NearestWord(pointer, known);
    if (!nearest.empty()) Fail(fmt::format("is unknown; did you mean {}?", nearest));
    const Key* section = Keys().Find(pointer.substr(0, pointer.rfind('/')));
    if (builtin_ || (section != nullptr && section->type != KeyType::kOpenSection))
      Fail("is unknown; docs/ds_config.md lists the keys");
    warnings_->push_back(
        place_ +
        " is not in dsat's table of keys: its values are compared without a model of their effect");
  }

  std::vector<Json> List(const Json& given) const {
    if (!given.is_array() || given.empty())
      Fail(fmt::format("is {}; expected a list of values or {{min: A, max: B}}", given.dump()));
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
    const bool is_size = pointer == kMicroBatch;
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
      for (int64_t size = (min + step - 1) / step * step; size <= max; size += step)
        values.emplace_back(size);
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
      if (value.is_structured())
        Fail(fmt::format("has {}; expected numbers, texts, true or false", value.dump()));
      return;
    }
    const std::string expected = Keys().Misfit(*key, value);
    if (!expected.empty()) Fail(fmt::format("has {}; expected {}", value.dump(), expected));
    if (pointer == kMicroBatch && !value.is_number_integer())
      Fail(fmt::format("has {}; expected a whole number", value.dump()));
  }

  const ExperimentDocument& document_;
  const bool builtin_;
  std::vector<std::string>* warnings_;
  std::string place_;  // "<path>:<line>: search_space: <pointer>".
};

}  // namespace

Json ReadUserSpace(const ExperimentDocument& document, const Json& section, bool builtin,
                   std::vector<std::string>* warnings) {
  if (!section.is_object() || section.empty()) {
    document.Fail(kSection,
                  fmt::format("is {}; expected ds_config keys with their values", section.dump()));
  }
  Json space = Json::object();
  Reader reader(document, builtin, warnings);
  for (const auto& [pointer, given] : section.items()) {
    std::vector<Json> values = reader.Read(pointer, given);
    if (pointer == kMicroBatch) std::sort(values.begin(), values.end());
    space[pointer] = std::move(values);
  }
  return space;
}

}  // namespace dsat
