// Escapes text and keeps elements balanced.
#include "cli/report/markup.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/files.h"

namespace dsat::cli {

std::string Escaped(std::string_view text) {
  // U+FFFE and U+FFFF are the only ones of UTF-8 that XML does not allow besides controls.
  constexpr std::string_view kNotXml[] = {"\xEF\xBF\xBE", "\xEF\xBF\xBF"};
  // Characters that have a form of their own in the document, or stay though they are controls.
  using Kept = std::pair<char, const char*>;
  constexpr Kept kKept[] = {{'&', "&amp;"},  {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"},
                            {'\'', "&#39;"}, {'\n', "\n"},  {'\t', "\t"}};
  const std::string valid = ValidUtf8(std::string(text));
  const std::string_view whole = valid;
  std::string out;
  out.reserve(valid.size());
  for (size_t i = 0; i < valid.size(); ++i) {
    const std::string_view rest = whole.substr(i);
    const auto* const kept = std::ranges::find(kKept, valid[i], &Kept::first);
    if (kept != std::end(kKept)) {
      out += kept->second;
    } else if (rest.starts_with(kNotXml[0]) || rest.starts_with(kNotXml[1])) {
      out += "\xEF\xBF\xBD";
      i += 2;
    } else {
      out += Printable(rest.substr(0, 1));
    }
  }
  return out;
}

void Markup::Begin(const char* name, const Attributes& attributes) {
  text_ += '<';
  text_ += name;
  for (const auto& [attribute, value] : attributes) {
    text_ += ' ';
    text_ += attribute;
    text_ += "=\"" + Escaped(value) + '"';
  }
}

Markup& Markup::Open(const char* name, const Attributes& attributes) {
  Begin(name, attributes);
  text_ += '>';
  open_.push_back(name);
  return *this;
}

Markup& Markup::Close() {
  DSAT_CHECK(!open_.empty(), "no element is open");
  text_ += "</";
  text_ += open_.back();
  text_ += ">";
  open_.pop_back();
  return *this;
}

Markup& Markup::Text(std::string_view text) {
  text_ += Escaped(text);
  return *this;
}

Markup& Markup::Element(const char* name, std::string_view text, const Attributes& attributes) {
  return Open(name, attributes).Text(text).Close();
}

Markup& Markup::Empty(const char* name, const Attributes& attributes) {
  Begin(name, attributes);
  text_ += "/>";
  return *this;
}

Markup& Markup::Raw(std::string_view text) {
  text_ += text;
  return *this;
}

const std::string& Markup::text() const {
  DSAT_CHECK(open_.empty(), "<{}> is not closed", open_.back());
  return text_;
}

}  // namespace dsat::cli
