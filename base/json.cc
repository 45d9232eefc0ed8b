// Reads JSON with comments and trailing commas: these are replaced by blanks, so that offsets,
// lines and columns stay those of the file, and nlohmann's parser then reads strict JSON.
#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

// A limit on nesting, so that recursive functions over a value do not run out of stack.
constexpr size_t kMaxDepth = 200;

// "<source>:<line>:<column>", counted from 1, columns in characters.
std::string Place(std::string_view text, size_t offset, const std::string& source) {
  offset = std::min(offset, text.size());
  size_t line = 1;
  size_t column = 1;
  for (char c : text.substr(0, offset)) {
    if (c == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {  // Not a UTF-8 continuation.
      ++column;
    }
  }
  return fmt::format("{}:{}:{}", source, line, column);
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
  bool value_before_comma_ = false;
  char previous_ = '\0';  // The last character that is neither a blank nor in a comment.
};

// An input iterator that counts the characters that the lexer has read.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, size_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  size_t* count_;
};

// Builds the value; refuses duplicate keys and deep nesting.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(Json& root, std::string_view text, const std::string& source,
                const std::vector<size_t>& string_starts, const size_t* bytes_read)
      : root_(root),
        text_(text),
        source_(source),
        string_starts_(string_starts),
        bytes_read_(bytes_read) {}

  bool null() override { return Add(Json()); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& value) override { return Add(Json::binary(std::move(value))); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Container& object = open_.back();
    if (object.value->contains(name)) {
      // The lexer is behind the key's closing quote.
      auto start = std::lower_bound(string_starts_.begin(), string_starts_.end(), *bytes_read_);
      Throw(ErrorCode::kInvalidArgument, "{}: duplicate key \"{}\"",
            Place(text_, *std::prev(start), source_), name);
    }
    object.key = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    std::string what = JsonMessage(error);
    // "parse error at line 1, column 2: syntax error ..." -> "syntax error ..."
    if (what.starts_with("parse error at")) what.erase(0, what.find(": ") + 2);
    Throw(ErrorCode::kInvalidArgument, "{}: not JSON: {}",
          Place(text_, position == 0 ? 0 : position - 1, source_), what);
  }

 private:
  // An object or array whose end has not been read.
  struct Container {
    Json* value;
    std::string key = {};  // The key of the next value in an object.
  };

  // Where the next value belongs. The addresses in open_ stay valid: only the innermost container
  // grows.
  Json& Append() {
    if (open_.empty()) return root_;
    Json& parent = *open_.back().value;
    return parent.is_array() ? parent.emplace_back() : parent[open_.back().key];
  }
  bool Add(Json value) {
    Append() = std::move(value);
    return true;
  }
  bool Open(Json empty) {
    if (open_.size() == kMaxDepth) {
      Throw(ErrorCode::kInvalidArgument, "{}: nested deeper than {} levels",
            Place(text_, *bytes_read_ - 1, source_), kMaxDepth);
    }
    Json& value = Append();
    value = std::move(empty);
    open_.push_back({&value});
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  std::string_view text_;
  const std::string& source_;
  const std::vector<size_t>& string_starts_;
  const size_t* bytes_read_;
  std::vector<Container> open_;
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
  size_t bytes_read = 0;
  Json root;
  StrictBuilder builder(root, text, source, blanker.string_starts(), &bytes_read);
  Json::sax_parse(CountingIterator(strict.data(), &bytes_read),
                  CountingIterator(strict.data() + strict.size(), &bytes_read), &builder);
  return root;
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
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return "a number";
    default:
      return "binary data";
  }
}

}  // namespace dsat
