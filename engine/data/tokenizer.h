// Text to tokens and back, as a Hugging Face tokenizer.json describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "engine/data/text_normalizer.h"
#include "engine/data/text_splitter.h"

namespace dsat::engine {

// Byte-level BPE as GPT-2, Llama 3 and Qwen 2 have it. Gives the tokens of the package
// `tokenizers`, except for characters that are newer than its or PCRE2's Unicode tables.
// Thread-safe.
class Tokenizer {
 public:
  // Reads a tokenizer.json. Throws kUnimplemented naming file, key and value of what dsat does not
  // know, kInvalidArgument for a defective file, and as ReadFile.
  explicit Tokenizer(const std::string& path);

  // The largest number of a token, and 1.
  int64_t vocab_size() const { return static_cast<int64_t>(contents_.size()); }
  // The tokens of a text, with those that the file's post-processor adds. Throws kInvalidArgument
  // naming the line of the first byte that is not UTF-8.
  std::vector<int32_t> Encode(std::string_view text) const;
  // The same without those that are added at the end: a text that is to be continued.
  std::vector<int32_t> EncodeBeginning(std::string_view text) const;
  // The bytes of some tokens, which may end within a character. Numbers without a token have none.
  std::string Decode(std::span<const int32_t> tokens) const;
  // The number of an added token, such as "<|endoftext|>"; nullopt if there is none.
  std::optional<int32_t> AddedToken(const std::string& content) const;

 private:
  class BytePairs;  // The model: byte-level BPE.
  // One element of the pre-tokenizer.
  struct Step {
    std::optional<TextSplitter> splitter;
    bool add_prefix_space = false;
  };
  struct Added {
    std::string content;
    int32_t token = 0;
  };
  // The added tokens that begin with a byte, longest first.
  using AddedByByte = std::unordered_map<char, std::vector<Added>>;

  void ReadNormalizer(const Json& block, const std::string& what);
  std::string Normalize(std::string_view text) const;
  void ReadPreTokenizer(const Json& block, const std::string& what);
  void ReadPostProcessor(const Json& block, const std::string& what);
  void ReadAddedTokens(const Json& tokens, const std::string& what);
  void SetContent(int32_t token, const std::string& content);
  // Appends the numbers of added tokens, and calls on_text for the text between them.
  template <typename OnText>
  static void EncodeAdded(const AddedByByte& added, std::string_view text,
                          std::vector<int32_t>& tokens, const OnText& on_text);
  // Appends the tokens of a text from a step of the pre-tokenizer on.
  void EncodeFrom(size_t step, std::string_view text, std::vector<int32_t>& tokens) const;

  std::vector<TextNormalizer> normalizers_;  // One after the other.
  std::vector<Step> steps_;
  std::shared_ptr<const BytePairs> model_;
  AddedByByte added_, added_normalized_;  // The former are looked for first.
  std::unordered_map<std::string, int32_t> added_tokens_;
  std::vector<int32_t> begin_, end_;   // The tokens around every text.
  std::vector<std::string> contents_;  // The bytes of each token.
};

}  // namespace dsat::engine
