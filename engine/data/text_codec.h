// The tokens of text: those of a tokenizer, or bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/data/tokenizer.h"

namespace dsat::engine {

// Thread-safe.
class TextCodec {
 public:
  // The codec of a data block (docs/models.md): its "tokenizer", or bytes if it is text without
  // one; nullptr if its data are neither. Throws as the Tokenizer, and kInvalidArgument naming
  // "end_of_text" if it is not a token that the tokenizer has.
  static std::unique_ptr<TextCodec> Open(const Json& data, const std::string& base_dir,
                                         const std::string& what);

  // The path of the tokenizer; "" for bytes.
  const std::string& tokenizer_path() const { return tokenizer_path_; }
  int64_t vocab_size() const { return tokenizer_ ? tokenizer_->vocab_size() : 256; }
  // The token that ends a document: that of a tokenizer, or the byte 0.
  int32_t end_of_text() const { return end_of_text_; }
  // The tokens of a document. Throws as the Tokenizer.
  std::vector<int32_t> Encode(std::string_view text) const;
  // The tokens of a text that is to be continued.
  std::vector<int32_t> EncodePrompt(std::string_view text) const;
  // The bytes of tokens, which may end within a character. Without a tokenizer, tokens from 256 on,
  // which a model with a larger vocabulary may draw, become "\\u{N}".
  std::string Decode(std::span<const int32_t> tokens) const;

 private:
  std::string tokenizer_path_;
  std::optional<Tokenizer> tokenizer_;
  int32_t end_of_text_ = 0;
};

}  // namespace dsat::engine
