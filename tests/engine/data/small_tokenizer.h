// A tokenizer.json with one merge, for tests.
#pragma once

#include <string>

#include "base/json.h"

namespace dsat::engine {

// The bytes as GPT-2's alphabet writes them; "ab" is token 256, and the added tokens follow.
inline Json SmallTokenizer() {
  Json vocab;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool own = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int code = own ? byte : next++;
    const std::string name = code < 128 ? std::string(1, static_cast<char>(code))
                                        : std::string{static_cast<char>(0xC0 | code >> 6),
                                                      static_cast<char>(0x80 | (code & 0x3F))};
    vocab[name] = byte;
  }
  vocab["ab"] = 256;
  const auto added = [](int id, const char* content) {
    return Json{{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  };
  return {{"added_tokens", {added(257, "<|begin|>"), added(258, "<|endoftext|>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}}};
}

}  // namespace dsat::engine
