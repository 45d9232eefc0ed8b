// Splits text into pieces by a pattern of a tokenizer.json.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace dsat::engine {

// Thread-safe.
class TextSplitter {
 public:
  enum class Keep { kAll, kMatches, kRest };

  // A pattern with the meaning that Oniguruma, which `tokenizers` uses, gives it. `what` is its
  // file and JSON pointer. Throws kUnimplemented for syntax that Oniguruma and PCRE2 read
  // differently, kInvalidArgument for what is no pattern or matches the empty string.
  static TextSplitter OfRegex(const std::string& pattern, Keep keep, const std::string& what);
  // A string that is searched for as it is.
  static TextSplitter OfString(const std::string& text, Keep keep, const std::string& what);

  // Calls on_piece for the parts of `text` that match and those between them, none of them empty,
  // as far as they are kept. REQUIRES: `text` is UTF-8. Throws kResourceExhausted if PCRE2 gives
  // up.
  void Split(std::string_view text,
             const std::function<void(std::string_view piece)>& on_piece) const;

 private:
  struct Code;
  TextSplitter(std::shared_ptr<const Code> code, Keep keep, std::string what);

  std::shared_ptr<const Code> code_;
  Keep keep_;
  std::string what_;
};

}  // namespace dsat::engine
