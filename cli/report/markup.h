// Builds a document that is HTML and, for strict parsers, XML.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsat::cli {

// `text` as the content of an element or of an attribute in double quotes: &, <, > and quotes are
// written as references, control characters as Printable does (new lines and tabs stay), and what
// is not valid UTF-8, or not a character of XML 1.0, as U+FFFD.
std::string Escaped(std::string_view text);

// A document that grows at its end. Texts and values of attributes are escaped here and nowhere
// else, and every element that is opened is closed. Names of elements and attributes are literals.
class Markup {
 public:
  using Attributes = std::vector<std::pair<const char*, std::string>>;

  // <name ...>
  Markup& Open(const char* name, const Attributes& attributes = {});
  // </name> of the innermost open element.
  Markup& Close();
  Markup& Text(std::string_view text);
  // <name ...>text</name>
  Markup& Element(const char* name, std::string_view text, const Attributes& attributes = {});
  // <name ... />; of HTML only for elements that have no content, such as meta.
  Markup& Empty(const char* name, const Attributes& attributes);
  // Text of ours that is not escaped: style sheets and scripts without "<" and "&".
  Markup& Raw(std::string_view text);

  // REQUIRES: every element is closed.
  const std::string& text() const;

 private:
  void Begin(const char* name, const Attributes& attributes);

  std::string text_;
  std::vector<const char*> open_;
};

}  // namespace dsat::cli
