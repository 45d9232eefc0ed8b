// Files as one sequence of tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/text_codec.h"

namespace dsat::engine {

// A token that is no target, such as one of a prompt, is stored as its complement, ~token.
inline int32_t TokenOf(int32_t stored) {
  return std::max(stored, ~stored);
}

// Thread-safe.
struct TokenSource {
  int64_t size = 0;  // Tokens in all.
  int64_t vocab_size = 0;
  const char* unit = "tokens";  // The name of a token, in the plural; or "bytes of text".
  // Copies tokens [begin, begin + count) as stored. Throws kInvalidArgument naming a token beyond
  // the vocabulary. REQUIRES: the range lies within `size`.
  std::function<void(int64_t begin, int64_t count, int32_t* out)> copy = {};
};

// The bytes of the files. Throws as MappedText.
TokenSource OpenBytes(const std::vector<std::string>& files);

// Little-endian tokens: without a header, as nanoGPT's prepare.py writes them; or behind llm.c's
// header of 256 32-bit numbers (magic number 20240520, version 1: 16 bits; 20240801, version 7: 32
// bits). token_bytes, 2 or 4, is required of every file; 0: the header's, and without one 4 if
// vocab_size exceeds 65536, else 2. vocab_size 0: 50257 for 16 bits, 128256 for 32. Throws as
// MappedText, kInvalidArgument naming a file that is neither.
TokenSource OpenTokenFiles(const std::vector<std::string>& files, int64_t vocab_size,
                           int64_t token_bytes);

// The documents of the files, one after the other, each with codec.end_of_text() behind it: the
// texts at `text_key` of JSON Lines, or else those at "completion" behind those at "prompt", whose
// tokens are no targets (TokenOf); or whole files if it is "". Empty texts are left out. Tokens
// of a tokenizer are kept in a file of the folder $XDG_CACHE_HOME/dsat (~/.cache/dsat), so that
// they are computed once, and again with a warning if the file's checksum says that it was altered;
// a new file replaces those that no run has read for 30 days. Throws as MappedText, and
// kInvalidArgument naming the file and line of a line that is not such a document.
TokenSource OpenDocuments(const std::vector<std::string>& files, const TextCodec& codec,
                          const std::string& text_key);

}  // namespace dsat::engine
