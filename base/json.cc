// Tolerant reading: comments and trailing commas are blanked in place, so that offsets, lines and
// columns stay those of the file; nlohmann's parser then reads strict JSON.
#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

// Deeper nesting is a mistake or an attack; recursive users of a value must not run out of stack.
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

// Overwrites what strict JSON does not know with blanks, and notes where each string starts.
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
        Throw(ErrorCode::kInvalidArgument, "{}: comment without end, expected */",
              Place(text_, pos_, source_));
      }
      Blank(end + 2);
    } else {
      if (!IsBlank(c)) Significant(c);
      ++pos_;
    }
  }

  // A comma goes if a value stands before it and a closing bracket behind it.
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
  char previous_ = '\0';  // The last character that is neither blank nor comment.
};

// An input iterator that tells how far the lexer has read.
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

// Builds the value as nlohmann's own builder does; refuses duplicate keys and deep nesting.
class StrictBuilder : public nlohmann::detail::json_sax_dom_parser<Json> {
 public:
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;

  StrictBuilder(Json& root, std::string_view text, const std::string& source,
                const std::vector<size_t>& string_starts, const size_t* bytes_read)
      : Base(root, true),
        text_(text),
        source_(source),
        string_starts_(string_starts),
        bytes_read_(bytes_read) {}

  bool start_object(size_t count) {
    Enter();
    return Base::start_object(count);
  }
  bool end_object() {
    keys_.pop_back();
    return Base::end_object();
  }
  bool start_array(size_t count) {
    Enter();
    return Base::start_array(count);
  }
  bool end_array() {
    keys_.pop_back();
    return Base::end_array();
  }

  bool key(std::string& name) {
    if (!keys_.back().insert(name).second) {
      // The lexer stands behind the key's closing quote.
      auto start = std::lower_bound(string_starts_.begin(), string_starts_.end(), *bytes_read_);
      Throw(ErrorCode::kInvalidArgument, "{}: duplicate key \"{}\"",
            Place(text_, *std::prev(start), source_), name);
    }
    return Base::key(name);
  }

  template <typename Exception>
  bool parse_error(size_t position, const std::string&, const Exception& error) {
    std::string_view what = error.what();
    // "[json.exception.x] parse error at line 1, column 2: syntax error ..." -> "syntax error ..."
    size_t skip = what.find(": ");
    bool placed = what.find("parse error at") != what.npos && skip != what.npos;
    what.remove_prefix(placed ? skip + 2 : std::min(what.find("] ") + 2, what.size()));
    Throw(ErrorCode::kInvalidArgument, "{}: not JSON: {}",
          Place(text_, position == 0 ? 0 : position - 1, source_), what);
  }

 private:
  void Enter() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxDepth) return;
    Throw(ErrorCode::kInvalidArgument, "{}: nested deeper than {} levels",
          Place(text_, *bytes_read_ - 1, source_), kMaxDepth);
  }

  std::string_view text_;
  const std::string& source_;
  const std::vector<size_t>& string_starts_;
  const size_t* bytes_read_;
  std::vector<std::set<std::string>> keys_;  // One set per open object or array.
};

// The keys of a JSON pointer, one after another. Throws kInvalidArgument if it is malformed.
class PointerKeys {
 public:
  explicit PointerKeys(const std::string& pointer) : pointer_(pointer), rest_(pointer) {
    if (!rest_.empty() && rest_[0] != '/') Malformed();
  }

  bool Done() const { return rest_.empty(); }
  // The next key, unescaped; valid until the next call. REQUIRES: !Done().
  const std::string& Next() {
    rest_.remove_prefix(1);
    const std::string_view raw = rest_.substr(0, rest_.find('/'));
    rest_.remove_prefix(raw.size());
    key_.clear();
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '~') {
        key_ += raw[i];
        continue;
      }
      if (++i == raw.size() || (raw[i] != '0' && raw[i] != '1')) Malformed();
      key_ += raw[i] == '0' ? '~' : '/';
    }
    return key_;
  }

 private:
  [[noreturn]] void Malformed() const {
    Throw(ErrorCode::kInvalidArgument, "\"{}\" is no JSON pointer; expected the form /key/key",
          pointer_);
  }

  const std::string& pointer_;
  std::string_view rest_;
  std::string key_;
};

// The element of an array that a pointer's key names, or nullptr.
const Json* ElementAt(const Json& array, const std::string& key) {
  size_t index = 0;
  auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  bool whole = error == std::errc() && end == key.data() + key.size();
  bool canonical = key == "0" || !key.starts_with('0');
  return whole && canonical && index < array.size() ? &array[index] : nullptr;
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
  return ParseTolerantJson(ReadFile(path), path);
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
  Json* node = &object;
  for (PointerKeys keys(pointer); !keys.Done();) {
    const std::string& key = keys.Next();
    if (node->is_null()) *node = Json::object();  // null is "not given".
    if (!node->is_object()) {
      Throw(ErrorCode::kInvalidArgument, "cannot set {}: there is {} above /{}, expected an object",
            pointer, JsonTypeName(*node), key);
    }
    node = &(*node)[key];
  }
  *node = value;
}

const Json* FindAtPointer(const Json& object, const std::string& pointer) {
  const Json* node = &object;
  for (PointerKeys keys(pointer); !keys.Done();) {
    const std::string& key = keys.Next();
    if (node->is_array()) {
      node = ElementAt(*node, key);
    } else {
      auto found = node->find(key);  // end() also if the node is no object.
      node = found == node->end() ? nullptr : &*found;
    }
    if (node == nullptr) return nullptr;
  }
  return node;
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
