// Prints what a model makes of a batch, for model_torch_test.py, which computes the same with
// PyTorch: model_torch_test CASE.json, {"model": {...}, "tokens": [[...]] or "images": N}. Relative
// paths start at the file's folder. One line per result: its name, then its numbers.
#include <fmt/core.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/model/models.h"
#include "tests/engine/model/model_runner.h"

namespace dsat::engine {
namespace {

// Element i of input `seed`, in [-1, 1). The script has the same line.
float Value(uint32_t seed, uint32_t i) {
  const uint32_t mixed = i * 2654435761U + seed * 97U * 40503U;
  return static_cast<float>(static_cast<double>(mixed) / 2147483648.0 - 1.0);
}

void Print(const std::string& name, const std::vector<float>& values) {
  fmt::print("{}", name);
  for (const float x : values)
    fmt::print(" {:.9g}", x);
  fmt::print("\n");
}

// The k-th parameter becomes input k + 1, times 0.3; norms' weights are around 1.
void SetByFormula(ModelRunner& runner) {
  uint32_t seed = 0;
  for (size_t layer = 0; layer < runner.model().layers.size(); ++layer) {
    const auto& specs = runner.model().layers[layer]->params();
    for (size_t i = 0; i < specs.size(); ++i) {
      ++seed;
      const float center = specs[i].init == ParamSpec::Init::kOne ? 1.0F : 0.0F;
      for (int64_t e = 0; e < specs[i].NumElems(); ++e) {
        runner.param(layer, i).f32()[e] = center + 0.3F * Value(seed, static_cast<uint32_t>(e));
      }
    }
  }
}

RandomBatch BatchFrom(const Json& json, const Model& model) {
  if (json.contains("images")) {
    RandomBatch batch(model, json.at("images"), 1);
    for (size_t i = 0; i < batch.pixels.size(); ++i)
      batch.pixels[i] = Value(1000, static_cast<uint32_t>(i));
    for (size_t i = 0; i < batch.targets.size(); ++i)
      batch.targets[i] = static_cast<int32_t>(i * 3 % static_cast<size_t>(model.vocab_size));
    return batch;
  }
  const auto rows = json.at("tokens").get<std::vector<std::vector<int32_t>>>();
  const auto T = static_cast<int64_t>(rows.front().size()) - 1;
  RandomBatch batch(static_cast<int64_t>(rows.size()), T, model.vocab_size);
  batch.tokens.clear();
  batch.targets.clear();
  for (const auto& row : rows) {
    batch.tokens.insert(batch.tokens.end(), row.begin(), row.end() - 1);
    batch.targets.insert(batch.targets.end(), row.begin() + 1, row.end());
  }
  return batch;
}

void Run(const std::string& path) {
  const Json json = ReadJsonFile(path);
  Model model =
      MakeModel(json.at("model"), "/model", std::filesystem::path(path).parent_path().string());
  const bool by_formula = model.weights == nullptr;
  ModelRunner runner(std::move(model), Arena::Kind::kReal, MakeCpuKernels(2), DType::kF32, 0);
  if (by_formula) SetByFormula(runner);
  const RandomBatch batch = BatchFrom(json, runner.model());
  Print("logits", runner.Predict(batch.view()));
  Print("loss", {static_cast<float>(runner.Forward(batch.view()))});
  runner.Backward();
  for (size_t layer = 0; layer < runner.model().layers.size(); ++layer) {
    const auto& specs = runner.model().layers[layer]->params();
    for (size_t i = 0; i < specs.size(); ++i)
      Print(specs[i].name, runner.Values(runner.grad(layer, i).Slice(0, specs[i].NumElems())));
  }
}

}  // namespace
}  // namespace dsat::engine

int main(int, char** argv) {
  dsat::engine::Run(argv[1]);
}
