// A config.json of Hugging Face.
#include "base/error.h"
#include "base/json.h"
#include "engine/model/models.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The text of the file.
void HuggingFaceConfig(std::string_view input) {
  const std::string path = WriteInput("config.json", input);
  try {
    engine::MakeModel({{"type", "gpt2"}, {"config", path}}, "/model");
  } catch (const Error&) {  // It is of a Llama.
  }
  engine::MakeModel({{"type", "llama"}, {"config", path}}, "/model");
}

}  // namespace dsat::fuzz
