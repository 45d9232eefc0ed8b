// A file of tensors, and as the weights of a model.
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/files/safetensors.h"
#include "engine/model/models.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {

// The header as JSON, in front of which its size is written; the bytes after it; the index of
// shards, which names model.safetensors.
void SafetensorsFile(std::string_view input) {
  const auto parts = Parts(input, 3);
  const std::string content = SafetensorsBytes(parts[0], parts[1]);
  // An input without parts is the whole file.
  const std::string path =
      WriteInput("model.safetensors", parts[1].empty() ? input : std::string_view(content));
  const Json model = {{"type", "gpt2"}, {"n_layer", 1},     {"n_embd", 2},
                      {"n_head", 1},    {"n_positions", 2}, {"vocab_size", 3}};
  Json with_weights = model;
  with_weights["weights"] = WriteInput("model.safetensors.index.json", parts[2]);
  try {
    engine::MakeModel(with_weights, "/model");
  } catch (const Error&) {
  }
  try {
    with_weights["weights"] = path;
    engine::MakeModel(with_weights, "/model");
  } catch (const Error&) {
  }
  const engine::SafetensorsFile file(path);
  for (const auto& [name, entry] : file.entries()) {
    std::vector<char> data(
        static_cast<size_t>(entry.num_elems * engine::BytesPerElem(entry.dtype)));
    file.Read(entry, 0, {data.data(), entry.num_elems, entry.dtype});
    try {
      file.BeginOf(name);
    } catch (const Error&) {
    }
  }
}

}  // namespace dsat::fuzz
