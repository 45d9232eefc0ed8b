// Patterns by PCRE2. The only file that includes it.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/data/text_splitter.h"

#include <pcre2.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace dsat::engine {
namespace {

// Unicode's White_Space, which is Oniguruma's \s. PCRE2's also has U+180E.
constexpr const char* kSpaces =
    R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Rewrites a pattern of Oniguruma (Ruby's syntax, Unicode) for PCRE2 (UTF, UCP), and refuses what
// the two do not both know with the same meaning.
class Translator {
 public:
  Translator(const std::string& pattern, const std::string& what)
      : pattern_(pattern), what_(what) {}

  std::string Run() {
    while (pos_ < pattern_.size())
      Step();
    return out_;
  }

 private:
  [[noreturn]] void Refuse(size_t count) const {
    Throw(ErrorCode::kUnimplemented,
          "{} is \"{}\": dsat does not know \"{}\" in it; tokenize the data with the package "
          "tokenizers and train on the files of tokens (\"type\": \"tokens\")",
          what_, Printable(pattern_), Printable(pattern_.substr(pos_, count)));
  }

  char At(size_t offset) const {
    return pos_ + offset < pattern_.size() ? pattern_[pos_ + offset] : '\0';
  }

  void Copy(size_t count) {
    out_ += pattern_.substr(pos_, count);
    pos_ += count;
  }

  void Step() {
    const char c = At(0);
    if (c == '\\') return Escape();
    if (in_class_) {
      if (c == '[' || (c == '&' && At(1) == '&')) Refuse(2);
      if (c == ']') in_class_ = false;
      return Copy(1);
    }
    if (c == '[') {
      const size_t begin = At(1) == '^' ? 2 : 1;
      if (At(begin) == ']') Refuse(begin + 1);
      in_class_ = true;
      return Copy(begin);
    }
    if (c == '(') return Group();
    if (c == '^' || c == '$' || c == ']') Refuse(1);
    // In Ruby's syntax these repeat a repetition, or have no lower bound.
    if ((c == '}' && (At(1) == '+' || At(1) == '?')) || (c == '{' && At(1) == ',')) Refuse(2);
    Copy(1);
  }

  void Escape() {
    const char c = At(1);
    if (c == 's') {
      out_ += in_class_ ? kSpaces : fmt::format("[{}]", kSpaces);
    } else if (c == 'S' && !in_class_) {
      out_ += fmt::format("[^{}]", kSpaces);
    } else if (c == 'd') {
      out_ += R"(\p{Nd})";
    } else if (c == 'p' || c == 'P') {
      return Property();
    } else if (c == 'r' || c == 'n' || c == 't' || std::ispunct(static_cast<unsigned char>(c))) {
      return Copy(2);
    } else {
      Refuse(2);
    }
    pos_ += 2;
  }

  // General categories; scripts and others have two definitions.
  void Property() {
    const size_t end = pattern_.find('}', pos_);
    const size_t length = end == pattern_.npos ? 3 : end + 1 - pos_;
    const size_t name = At(3) == '^' ? 4 : 3;
    const bool is_category = At(2) == '{' && end != pattern_.npos &&
                             (length == name + 2 || length == name + 3) &&
                             std::isupper(static_cast<unsigned char>(At(name)));
    if (!is_category) Refuse(length);
    Copy(length);
  }

  void Group() {
    if (At(1) == '*') Refuse(2);
    if (At(1) != '?') return Copy(1);
    if (At(2) == ':' || At(2) == '=' || At(2) == '!') return Copy(3);
    if (At(2) == 'i' && At(3) == ':') return Copy(4);
    Refuse(4);
  }

  const std::string& pattern_;
  const std::string& what_;
  std::string out_;
  size_t pos_ = 0;
  bool in_class_ = false;
};

std::string MessageOf(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct TextSplitter::Code {
  Code(const std::string& pattern, uint32_t options, const std::string& shown,
       const std::string& what)
      : code(nullptr, pcre2_code_free) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
        pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options,
                             &error, &offset, context.get()));
    if (code == nullptr) {
      Throw(ErrorCode::kInvalidArgument, "{} is \"{}\", which is no pattern: {}", what,
            Printable(shown), MessageOf(error));
    }
    uint32_t matches_empty = 0;
    pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) {
      Throw(ErrorCode::kInvalidArgument,
            "{} is \"{}\", which matches the empty string; expected a pattern of at least one "
            "character",
            what, Printable(shown));
    }
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // Without it, matching is only slower.
  }

  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code;
};

TextSplitter::TextSplitter(std::shared_ptr<const Code> code, Keep keep, std::string what)
    : code_(std::move(code)), keep_(keep), what_(std::move(what)) {}

TextSplitter TextSplitter::OfRegex(const std::string& pattern, Keep keep, const std::string& what) {
  const std::string translated = Translator(pattern, what).Run();
  return {std::make_shared<const Code>(translated, PCRE2_UTF | PCRE2_UCP, pattern, what), keep,
          what};
}

TextSplitter TextSplitter::OfString(const std::string& text, Keep keep, const std::string& what) {
  return {std::make_shared<const Code>(text, PCRE2_UTF | PCRE2_LITERAL, text, what), keep, what};
}

void TextSplitter::Split(std::string_view text,
                         const std::function<void(std::string_view piece)>& on_piece) const {
  const auto add = [&](size_t begin, size_t end, bool kept) {
    if (kept && begin < end) on_piece(text.substr(begin, end - begin));
  };
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  size_t at = 0;
  while (at < text.size()) {
    const auto search = [&](uint32_t options) {
      return pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                         at, PCRE2_NO_UTF_CHECK | options, match.get(), nullptr);
    };
    int found = search(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = search(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) Throw(ErrorCode::kResourceExhausted, "{}: {}", what_, MessageOf(found));
    add(at, range[0], keep_ != Keep::kMatches);
    add(range[0], range[1], keep_ != Keep::kRest);
    at = range[1];
  }
  add(at, text.size(), keep_ != Keep::kMatches);
}

}  // namespace dsat::engine
