// Byte-pair encoding: the model of a tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"

namespace dsat::engine {

// The bytes that a token of GPT-2's alphabet stands for, in which each byte is a printable
// character (Radford et al. 2019: "Ġ" is the space); nullopt if it has other characters.
std::optional<std::string> BytesOfToken(std::string_view token);

// Merges the bytes of a piece by rank (Sennrich et al. 2016). Thread-safe.
class BytePairs {
 public:
  // `what` is the file and the JSON pointer of the block "model". Throws kUnimplemented for what
  // is not byte-level BPE, kInvalidArgument for a defective vocabulary or merge.
  BytePairs(const Json& model, const std::string& what);

  // Appends the tokens of a piece of text.
  void Encode(std::string_view piece, std::vector<int32_t>& tokens) const;
  // The vocabulary: each token as the file writes it, and its number.
  const std::vector<std::pair<std::string, int32_t>>& vocab() const { return vocab_; }

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t token = 0;
  };

  void ReadVocab(const Json& vocab, const std::string& what);
  void ReadMerges(const Json& merges, const std::string& what);
  const Merge* FindMerge(int32_t left, int32_t right) const;

  std::vector<std::pair<std::string, int32_t>> vocab_;
  std::unordered_map<std::string, int32_t> tokens_;  // By bytes.
  std::unordered_map<uint64_t, Merge> merges_;       // By both tokens.
  std::array<int32_t, 256> byte_tokens_{};
  bool ignore_merges_ = false;
};

}  // namespace dsat::engine
