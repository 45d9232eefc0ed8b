// Patterns by PCRE2. The only file that includes it.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/data/text_splitter.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/regex.h"

namespace dsat::engine {
namespace {

// Unicode's White_Space, which is Oniguruma's \s. PCRE2's also has U+180E.
constexpr const char* kSpaces =
    R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// A token of a pattern of Oniguruma (Ruby's syntax, Unicode), within a character class or outside,
// and what it is for PCRE2 (UTF, UCP): unknown, the same, or `other`.
struct Rule {
  enum Place { kInClass, kOutside, kAnywhere };
  enum Fate { kRefused, kSame, kOther };
  Rule(Place where, const std::string& regex, Fate what, std::string put = "")
      : place(where),
        token("(?s)(" + regex + ")", RegexOptions()),
        fate(what),
        other(std::move(put)) {}
  Place place;
  RE2 token;
  Fate fate;
  std::string other;
};

// Rewrites a pattern, and refuses what the two do not both know with the same meaning.
std::string Translated(const std::string& pattern, const std::string& what) {
  static const Rule kRules[] = {
      {Rule::kInClass, R"(\\s)", Rule::kOther, kSpaces},
      {Rule::kInClass, R"(\\S|\[.?|&&)", Rule::kRefused},
      {Rule::kOutside, R"(\\s)", Rule::kOther, fmt::format("[{}]", kSpaces)},
      {Rule::kOutside, R"(\\S)", Rule::kOther, fmt::format("[^{}]", kSpaces)},
      {Rule::kOutside, R"(\[\^?\]|[\^$\]])", Rule::kRefused},
      {Rule::kOutside, R"(\[\^?|\(\?(:|=|!|i:))", Rule::kSame},
      {Rule::kOutside, R"(\(\*|\(\?.{0,2})", Rule::kRefused},
      // In Ruby's syntax these repeat a repetition, or have no lower bound.
      {Rule::kOutside, R"(\}[+?]|\{,)", Rule::kRefused},
      {Rule::kAnywhere, R"(\\d)", Rule::kOther, R"(\p{Nd})"},
      // General categories; scripts and others have two definitions.
      {Rule::kAnywhere, R"(\\[pP]\{\^?[A-Z][^}]?\}|\\[rnt[:punct:]])", Rule::kSame},
      {Rule::kAnywhere, R"(\\[pP][^}]*\}|\\[pP].?|\\.?)", Rule::kRefused},
      {Rule::kAnywhere, ".", Rule::kSame},
  };
  std::string out, text;
  bool in_class = false;
  for (re2::StringPiece rest(pattern); !rest.empty();) {
    const Rule& rule = *std::ranges::find_if(kRules, [&](const Rule& one) {
      return one.place != (in_class ? Rule::kOutside : Rule::kInClass) &&
             RE2::Consume(&rest, one.token, &text);
    });
    if (rule.fate == Rule::kRefused) {
      Throw(ErrorCode::kUnimplemented,
            "{} is \"{}\": dsat does not know \"{}\" in it; tokenize the data with the package "
            "tokenizers and train on the files of tokens (\"type\": \"tokens\")",
            what, Printable(pattern), Printable(text));
    }
    out += rule.fate == Rule::kSame ? text : rule.other;
    if (text.front() == '[') in_class = true;
    if (text == "]") in_class = false;
  }
  return out;
}

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
  return {
      std::make_shared<const Code>(Translated(pattern, what), PCRE2_UTF | PCRE2_UCP, pattern, what),
      keep, what};
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
