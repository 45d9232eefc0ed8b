// Reads JSON with comments and trailing commas: these are replaced by blanks, so that offsets,
// lines and columns stay those of the file, and nlohmann's parser then reads strict JSON.
#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

// A limit on nesting, so that recursive functions over a value do not run out of stack.
constexpr int64_t kMaxDepth = 200;

// "<source>:<line>:<column>", counted from 1, columns in characters.
std::string Place(std::string_view text, size_t offset, const std::string& source) {
  const std::string_view before = text.substr(0, offset);
  const size_t column = CodePoints(before.substr(before.rfind('\n') + 1));
  return fmt::format("{}:{}:{}", source, std::ranges::count(before, '\n') + 1, column + 1);
}

bool IsBlank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Overwrites what is not strict JSON with blanks and records where each string starts.
class Blanker {
 public:
  Blanker(std::string_view text, const std::string& source)
      : text_(text), source_(source), strict_(text) {}

  void Run() {
    if (text_.starts_with("\xEF\xBB\xBF")) Blank(3);
    while (pos_ < text_.size())
      Step();
  }
  std::string& strict() { return strict_; }
  const std::vector<size_t>& string_starts() const { return string_starts_; }

 private:
  void Step() {
    char c = text_[pos_];
    std::string_view rest = text_.substr(pos_);
    if (c == '"') {
      SkipString();
    } else if (c == '#' || rest.starts_with("//")) {
      Blank(std::min(rest.find('\n'), rest.size()));
    } else if (rest.starts_with("/*")) {
      size_t end = rest.find("*/", 2);
      if (end == rest.npos) {
        Throw(ErrorCode::kInvalidArgument, "{}: a comment is not closed; expected */",
              Place(text_, pos_, source_));
      }
      Blank(end + 2);
    } else {
      if (!IsBlank(c)) Significant(c);
      ++pos_;
    }
  }

  // A comma is removed if it is between a value and a closing bracket.
  void Significant(char c) {
    depth_ += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    if (depth_ > kMaxDepth) {
      Throw(ErrorCode::kInvalidArgument, "{}: nested deeper than {} levels",
            Place(text_, pos_, source_), kMaxDepth);
    }
    if ((c == '}' || c == ']') && previous_ == ',' && value_before_comma_) strict_[comma_] = ' ';
    if (c == ',') {
      comma_ = pos_;
      value_before_comma_ = std::string_view("\0,:[{", 5).find(previous_) == std::string_view::npos;
    }
    previous_ = c;
  }

  void SkipString() {
    string_starts_.push_back(pos_);
    previous_ = '"';
    for (++pos_; pos_ < text_.size() && text_[pos_] != '"' && text_[pos_] != '\n'; ++pos_) {
      if (text_[pos_] == '\\') ++pos_;
    }
    ++pos_;
  }

  void Blank(size_t count) {
    for (size_t end = pos_ + count; pos_ < end; ++pos_) {
      if (!IsBlank(strict_[pos_])) strict_[pos_] = ' ';
    }
  }

  std::string_view text_;
  const std::string& source_;
  std::string strict_;
  std::vector<size_t> string_starts_;
  size_t pos_ = 0;
  size_t comma_ = 0;
  int64_t depth_ = 0;  // Brackets that are open.
  bool value_before_comma_ = false;
  char previous_ = '\0';  // The last character that is neither a blank nor in a comment.
};

Json::json_pointer ParsePointer(const std::string& pointer) {
  try {
    return Json::json_pointer(pointer);
  } catch (const Json::exception&) {
    Throw(ErrorCode::kInvalidArgument, "\"{}\" is not a JSON pointer; expected the form /key/key",
          pointer);
  }
}

// The value at `at`, which is created if it is missing.
Json& Create(Json& object, Json::json_pointer at) {
  if (at.empty()) return object;
  const std::string pointer = at.to_string(), key = at.back();
  at.pop_back();
  Json& parent = Create(object, at);
  if (parent.is_null()) parent = Json::object();  // A null means "not given".
  if (!parent.is_object()) {
    Throw(ErrorCode::kInvalidArgument, "cannot set {}: {} is {}, expected an object", pointer,
          at.empty() ? "the value above it" : at.to_string(), JsonTypeName(parent));
  }
  return parent[key];
}

}  // namespace

Json ParseTolerantJson(std::string_view text, const std::string& source) {
  Blanker blanker(text, source);
  blanker.Run();
  const std::string& strict = blanker.strict();
  if (std::all_of(strict.begin(), strict.end(), IsBlank)) {
    Throw(ErrorCode::kInvalidArgument, "{}:1:1: empty; expected JSON", source);
  }
  std::vector<std::set<std::string>> keys;
  size_t num_strings = 0;
  const auto check = [&](int, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value).second) {
      Throw(ErrorCode::kInvalidArgument, "{}: duplicate key {}",
            Place(text, blanker.string_starts()[num_strings], source), value.dump());
    }
    num_strings += value.is_string() ? 1 : 0;
    return true;
  };
  try {
    return Json::parse(strict, check);
  } catch (const Json::parse_error& error) {
    // "parse error at line 1, column 2: syntax error ..." -> "syntax error ..."
    const std::string what = JsonMessage(error);
    Throw(ErrorCode::kInvalidArgument, "{}: not JSON: {}",
          Place(text, error.byte == 0 ? 0 : error.byte - 1, source),
          what.substr(what.find(": ") + 2));
  } catch (const Json::out_of_range& error) {
    // "number overflow parsing '1e999'", without the place.
    const std::string what = JsonMessage(error);
    const std::string number = what.substr(what.find('\'') + 1);
    Throw(ErrorCode::kInvalidArgument, "{}: not JSON: {}",
          Place(text, strict.find(number.substr(0, number.size() - 1)) + number.size() - 2, source),
          what);
  }
}

Json ReadJsonFile(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{256} << 20;
  return ParseTolerantJson(ReadFile(path, kMaxBytes), path);
}

void WriteJsonFile(const std::string& path, const Json& value) {
  WriteFileAtomic(path, value.dump(2) + "\n");
}

void MergeJson(Json& base, const Json& overlay) {
  if (!base.is_object() || !overlay.is_object()) {
    base = overlay;
    return;
  }
  for (const auto& [key, value] : overlay.items()) {
    auto [place, inserted] = base.emplace(key, value);
    if (!inserted) MergeJson(*place, value);
  }
}

void SetAtPointer(Json& object, const std::string& pointer, const Json& value) {
  Create(object, ParsePointer(pointer)) = value;
}

const Json* FindAtPointer(const Json& object, const std::string& pointer) {
  const bool is_plain = pointer.starts_with('/') && pointer.find('~') == std::string::npos;
  const Json* found = &object;
  for (size_t begin = 1; is_plain && found->is_object(); ++begin) {  // Nearly every time.
    const size_t end = std::min(pointer.find('/', begin), pointer.size());
    const auto member = found->find(std::string_view(pointer).substr(begin, end - begin));
    if (member == found->end()) return nullptr;
    if (end == pointer.size()) return &*member;
    found = &*member;
    begin = end;
  }
  const Json::json_pointer at = ParsePointer(pointer);
  return object.contains(at) ? &object.at(at) : nullptr;
}

std::optional<int64_t> WholeNumber(const Json& value) {
  if (value.is_number_unsigned()) {
    uint64_t number = value.get<uint64_t>();
    bool fits = number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return fits ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  double number = value.get<double>();
  constexpr double kLimit = 9223372036854775808.0;  // 2^63, which a double holds exactly.
  bool whole = number == std::floor(number) && number >= -kLimit && number < kLimit;
  return whole ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

std::string JsonMessage(const Json::exception& error) {
  // "[json.exception.type_error.302] type must be string" -> "type must be string"
  const std::string what = error.what();
  return what.substr(std::min(what.find("] ") + 2, what.size()));
}

std::string JsonTypeName(const Json& value) {
  const std::string name = value.type_name();
  if (value.is_null()) return name;
  return (value.is_array() || value.is_object() ? "an " : "a ") + name;
}

}  // namespace dsat
