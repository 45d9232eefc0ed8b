// Escapes text and keeps elements balanced.
#include "cli/report/markup.h"

#include "base/error.h"
#include "base/files.h"

namespace dsat::cli {

std::string Escaped(std::string_view text) {
  // U+FFFE and U+FFFF are the only ones of UTF-8 that XML does not allow besides controls.
  constexpr std::string_view kNotXml[] = {"\xEF\xBF\xBE", "\xEF\xBF\xBF"};
  const std::string valid = ValidUtf8(std::string(text));
  const std::string_view whole = valid;
  std::string out;
  out.reserve(valid.size());
  for (size_t i = 0; i < valid.size(); ++i) {
    const std::string_view rest = whole.substr(i);
    switch (valid[i]) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\n':
      case '\t':
        out += valid[i];
        break;
      default:
        if (rest.starts_with(kNotXml[0]) || rest.starts_with(kNotXml[1])) {
          out += "\xEF\xBF\xBD";
          i += 2;
        } else {
          out += Printable(rest.substr(0, 1));
        }
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
