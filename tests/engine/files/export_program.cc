// Writes files of tensors into a folder for export_test.py, which says what must be in them.
#include <fmt/core.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "engine/core/elements.h"
#include "engine/files/collate.h"
#include "engine/files/safetensors.h"
#include "tests/engine/runtime/training.h"

namespace dsat::engine {
namespace {

const std::vector<TensorSpec> kSpecs = {{"a.weight", DType::kF32, {3, 5}},
                                        {"b.bias", DType::kBF16, {7}},
                                        {"c", DType::kF16, {2, 3, 4}},
                                        {"nothing", DType::kF32, {0, 4}},
                                        {"größe", DType::kF32, {}}};

// Element i is i * 37 % 200 - 100, exact in every type.
void WriteFormula(SafetensorsWriter& out) {
  for (const TensorSpec& spec : kSpecs) {
    std::vector<float> values(static_cast<size_t>(spec.NumElems()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 37 % 200) - 100);
    std::vector<float> room(values.size() + 1);
    const Tensor tensor{room.data(), spec.NumElems(), spec.dtype};
    ConvertElems(tensor, {values.data(), spec.NumElems(), DType::kF32});
    const int64_t half = spec.NumElems() / 2;  // In two pieces.
    out.Write(tensor.Slice(0, half));
    out.Write(tensor.Slice(half, spec.NumElems() - half));
  }
  out.Commit();
}

// A bf16 GPT-2 of two steps, as it trains and collated to every type.
void WriteModel(const std::string& dir) {
  const Model model = TinyGpt2();
  DsConfig config = TinyConfig(3, 2, 1);
  config.bf16 = true;
  config.zero.gather_16bit_weights_on_model_save = true;
  OnEngines(model, config, 2, [&](Engine& engine, ProcessGroup&) {
    engine.TrainBatch();
    engine.TrainBatch();
    engine.SaveCheckpoint(dir + "/checkpoint");
    engine.Save16BitModel(dir);
  });
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    Collate({.dir = dir + "/checkpoint",
             .out = fmt::format("{}/{}.safetensors", dir, dtype),
             .dtype = dtype},
            [](int64_t, int64_t) {});
  }
}

// An f32 model as a folder that Hugging Face's from_pretrained takes, and the loss that the engine
// has on the samples of its next step.
void WriteHuggingFace(const std::string& dir, const Model& model, const Json& config_json) {
  MakeWritableFolder(dir);
  const auto data = Synthetic();
  Json step;
  DsConfig config = TinyConfig(0, 1, 1);
  config.optimizer.lr = 0.01;
  OnEngines(model, config, 1, [&](Engine& engine, ProcessGroup&) {
    for (int i = 0; i < 5; ++i)
      engine.TrainBatch();
    engine.SaveCheckpoint(dir + "/f32");
    step["loss"] = engine.TrainBatch().loss;
  });
  for (int64_t i = 5 * 12; i < 6 * 12; ++i) {
    std::vector<int32_t> tokens(kSeqLen), targets(kSeqLen);
    data->Sample(i, kSeqLen, tokens.data(), targets.data());
    step["tokens"].push_back(tokens);
    step["targets"].push_back(targets);
  }
  WriteJsonFile(dir + "/step.json", step);
  WriteJsonFile(dir + "/config.json", config_json);
  Collate({.dir = dir + "/f32", .out = dir + "/model.safetensors"}, [](int64_t, int64_t) {});
}

void WriteAll(const std::string& dir) {
  SafetensorsWriter plain(dir + "/plain.safetensors", {{"format", "pt"}}, kSpecs);
  WriteFormula(plain);
  WriteModel(dir);
  WriteHuggingFace(dir + "/gpt2", TinyGpt2(),
                   {{"model_type", "gpt2"},
                    {"n_layer", 2},
                    {"n_embd", 24},
                    {"n_head", 2},
                    {"n_positions", 16},
                    {"vocab_size", 127},
                    {"attn_implementation", "eager"}});
  Json llama = TinyLlamaBlock();
  llama.erase("type");
  llama.update({{"model_type", "llama"},
                {"hidden_act", "silu"},
                {"rms_norm_eps", 1e-6},
                {"rope_theta", 10000.0},
                {"tie_word_embeddings", false},
                {"attn_implementation", "eager"}});
  WriteHuggingFace(dir + "/llama", TinyLlama(), llama);
}

}  // namespace
}  // namespace dsat::engine

int main(int, char** argv) {
  dsat::engine::WriteAll(argv[1]);
}
