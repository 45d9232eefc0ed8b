// UTF-8 and Unicode's normalization forms, as a tokenizer.json asks for them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsat::engine {

// Thread-safe.
class TextNormalizer {
 public:
  // "NFC", "NFD", "NFKC" or "NFKD"; nullopt for another name.
  static std::optional<TextNormalizer> OfName(std::string_view name);

  // The normalized text. REQUIRES: `text` is UTF-8.
  std::string Normalize(std::string_view text) const;

 private:
  explicit TextNormalizer(int options) : options_(options) {}

  int options_;
};

// Throws kInvalidArgument naming the line and the first byte of what is not UTF-8.
void CheckUtf8(std::string_view text);

}  // namespace dsat::engine
