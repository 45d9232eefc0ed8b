// The lists of docs/ds_config.md, generated from the key table and the rules.
#include "tests/engine/config/key_docs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <string_view>
#include <vector>

#include "engine/config/validate.h"

namespace dsat::engine {
namespace {

// A list item in lines of at most 100 columns.
std::string Item(std::string_view text) {
  std::string item;
  std::string line = "-";
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (line.size() + 1 + word.size() > 100) {
      item += line + "\n";
      line = " ";
    }
    line += fmt::format(" {}", word);
  }
  return item + line + "\n";
}

// "adam, adamw" of "adam adamw".
std::string Listed(const std::string& words) {
  std::string list;
  for (const char c : words)
    list += c == ' ' ? std::string(", ") : std::string(1, c);
  return list;
}

bool IsSection(const Key& key) {
  return key.type == KeyType::kSection || key.type == KeyType::kOpenSection;
}

// "/zero_optimization" of what that section holds and of itself; "" of other keys.
std::string SectionOf(const Key& key) {
  const std::string pointer = key.pointer;
  const size_t end = pointer.find('/', 1);
  if (end == pointer.npos && !IsSection(key)) return "";
  return pointer.substr(0, end);
}

std::string TypeText(const Key& key, const KeyTable& keys) {
  std::string text = keys.Expected(key);
  if (key.unit == KeyUnit::kElems) text += ", in elements";
  if (key.unit == KeyUnit::kBytes) text += ", in bytes";
  if (*key.variants != '\0') text += fmt::format(", for {}", Listed(key.variants));
  return text;
}

std::string DefaultText(const Key& key) {
  if (IsSection(key)) return "";
  const bool has_default = std::string_view(key.fallback) != "null";
  std::string text = has_default ? fmt::format("default `{}`", key.fallback) : "";
  if (*key.changed != '\0') text += fmt::format(", before {} `{}`", key.changed, key.earlier);
  if (key.fallback_stage < kNumZeroStages)
    text += fmt::format(", from stage {} on `{}`", key.fallback_stage, key.stage_fallback);
  if (*key.fallback_type != '\0') {
    text += fmt::format("{} for {} `{}`", has_default ? "," : "default", key.fallback_type,
                        key.type_fallback);
  }
  return text;
}

std::string ClassText(const Key& key) {
  if (IsSection(key)) return "";
  switch (key.key_class) {
    case KeyClass::kExact:
      return "exact";
    case KeyClass::kRounding:
      return "rounding";
    case KeyClass::kSemantic:
      return "semantic";
  }
  return "";
}

// Says on which other keys the key depends.
std::string ConditionText(const Key& key) {
  std::string text;
  std::istringstream others(key.only_with);
  for (std::string other; others >> other;)
    text += fmt::format("{}`{}`", text.empty() ? " if " : " or ", other);
  if (text.empty()) return "";
  return text + (*key.only_value == '\0' ? " is not its default"
                                         : fmt::format(" is `{}`", key.only_value));
}

std::string SearchText(const Key& key) {
  if (key.values[0] == 0) return "";
  const int from = std::min({key.searched_from, key.wide_from, key.published_from});
  std::string text = fmt::format("searched over `{}`", key.values);
  if (from > 0) text += fmt::format(" from stage {} on", from);
  const bool is_semantic = key.key_class == KeyClass::kSemantic;
  if (key.wide_from == from)
    text += is_semantic ? " with `--allow semantic`" : " with `--space wide`";
  text += ConditionText(key);
  if (key.divides_ranks) text += ", of these 1 and proper divisors of the number of ranks";
  if (key.needs_gpu) text += ", on GPUs";
  if (key.builtin_only) text += ", not for scripts";
  if (key.published_from == from && key.searched_from == kNumZeroStages)
    text += " by the published method alone";
  return text;
}

std::string BuiltinText(const Key& key) {
  switch (key.builtin) {
    case Builtin::kHonors:
      return "honors";
    case Builtin::kWarns:
      return "warns";
    case Builtin::kRefuses:
      return "refuses other values";
    case Builtin::kFollows:
      break;
  }
  return "";
}

std::string KeyItem(const Key& key, const KeyTable& keys) {
  const std::string section = SectionOf(key);
  const bool itself = section == key.pointer || section.empty();
  const std::string name =
      itself ? key.pointer : std::string(key.pointer).substr(section.size() + 1);
  const std::string until = *key.until == '\0' ? "" : fmt::format(", removed in {}", key.until);
  const std::string since = *key.since == '\0' ? "" : fmt::format(" ({}{})", key.since, until);
  if (key.type == KeyType::kAlias) {
    return Item(fmt::format("`{}`{}: another name of `{}`.", name, since, key.fallback));
  }
  std::vector<std::string> parts;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) parts.push_back(part);
  };
  add(TypeText(key, keys));
  add(DefaultText(key));
  add(ClassText(key));
  if (key.from_stage > 0) {
    add(fmt::format("{} stage {}", key.needs_stage ? "refused below" : "without effect below",
                    key.from_stage));
  }
  if (key.to_stage < kNumZeroStages - 1)
    add(fmt::format("without effect above stage {}", key.to_stage));
  if (key.several_ranks)
    add(std::string("without effect on one rank") +
        (key.sizes_buckets ? ", except for your own command from stage 1 on" : ""));
  add(SearchText(key));
  add(BuiltinText(key));
  if (*key.known != '\0') add("the built-in engine has " + Listed(key.known));
  add(key.note);
  return Item(fmt::format("`{}`{}: {}.", name, since, fmt::join(parts, "; ")));
}

}  // namespace

std::string KeyDocs(const KeyTable& keys) {
  std::vector<std::string> sections = {""};
  for (const Key& key : keys) {
    if (IsSection(key) && SectionOf(key) == key.pointer) sections.push_back(key.pointer);
  }
  std::string text;
  for (const std::string& section : sections) {
    text += section.empty() ? "### Top level\n\n" : fmt::format("\n### `{}`\n\n", section);
    for (const Key& key : keys) {
      if (SectionOf(key) == section) text += KeyItem(key, keys);
    }
  }
  return text;
}

std::string RuleDocs() {
  std::string text;
  for (const Rule& rule : Rules()) {
    text += Item(fmt::format("`{}`, {}: {}.", rule.pointer, rule.refuses ? "refused" : "warning",
                             rule.text));
  }
  return text;
}

}  // namespace dsat::engine
