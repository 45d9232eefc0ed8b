// A tokenizer.json of Hugging Face's `tokenizers`.
#include "engine/data/tokenizer.h"

#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The file; a text that is encoded and decoded.
void TokenizerFile(std::string_view input) {
  const auto parts = Parts(input, 2);
  const engine::Tokenizer tokenizer(WriteInput("tokenizer.json", parts[0]));
  tokenizer.Decode(tokenizer.Encode(parts[1]));
  tokenizer.Decode(tokenizer.EncodeBeginning(parts[1]));
}

}  // namespace dsat::fuzz
