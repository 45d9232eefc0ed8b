// Regular expressions by RE2. Whatever the pattern is, a match takes a time that is linear in the
// length of the text, and no stack that grows with it.
#pragma once

#include <re2/re2.h>

#include <string_view>

namespace dsat {

// Returns `text` as RE2's own type of view, which a std::string_view does not convert to in every
// version of RE2.
inline re2::StringPiece Piece(std::string_view text) {
  return {text.data(), text.size()};
}

// A byte is a character, so that text in any encoding is searched. An error in a pattern is not
// printed: RE2::ok() and RE2::error() report it.
inline RE2::Options RegexOptions(bool ignores_case = false) {
  RE2::Options options(RE2::Quiet);
  options.set_encoding(RE2::Options::EncodingLatin1);
  options.set_case_sensitive(!ignores_case);
  return options;
}

}  // namespace dsat
