// GPT-2 as a shape of the transformer.
#include "engine/model/gpt2.h"

#include <cmath>
#include <utility>

#include "engine/model/transformer.h"

namespace dsat::engine {
namespace {

using Init = ParamSpec::Init;

constexpr float kStddev = 0.02F;

std::unique_ptr<Layer> MakeBlock(const Gpt2Shape& shape, int64_t index) {
  const int64_t C = shape.n_embd;
  const float residual_stddev = kStddev / std::sqrt(2.0F * static_cast<float>(shape.n_layer));
  const std::string name = fmt::format("h.{}", index);
  ParamSpecs params;
  const auto add = [&](const char* suffix, std::vector<int64_t> dims, Init init, float stddev = 0) {
    params.push_back({fmt::format("{}.{}", name, suffix), std::move(dims), init, stddev});
  };
  add("ln_1.weight", {C}, Init::kOne);
  add("ln_1.bias", {C}, Init::kZero);
  add("attn.c_attn.weight", {C, 3 * C}, Init::kNormal, kStddev);
  add("attn.c_attn.bias", {3 * C}, Init::kZero);
  add("attn.c_proj.weight", {C, C}, Init::kNormal, residual_stddev);
  add("attn.c_proj.bias", {C}, Init::kZero);
  add("ln_2.weight", {C}, Init::kOne);
  add("ln_2.bias", {C}, Init::kZero);
  add("mlp.c_fc.weight", {C, 4 * C}, Init::kNormal, kStddev);
  add("mlp.c_fc.bias", {4 * C}, Init::kZero);
  add("mlp.c_proj.weight", {4 * C, C}, Init::kNormal, residual_stddev);
  add("mlp.c_proj.bias", {C}, Init::kZero);
  BlockShape block{.C = C, .H = shape.n_head, .G = shape.n_head, .F = 4 * C};
  block.norm = {Norm::Kind::kLayerNorm, C};
  return MakeTransformerBlock(name, block, std::move(params));
}

}  // namespace

Model MakeGpt2(const Gpt2Shape& shape) {
  const int64_t C = shape.n_embd;
  Model model;
  model.vocab_size = shape.vocab_size;
  model.max_seq_len = shape.n_positions;
  model.head_channels = C / shape.n_head;
  ParamSpec wte = {"wte.weight", {shape.vocab_size, C}, Init::kNormal, kStddev};
  wte.vocab_padding = VocabPadding(shape.vocab_size);
  model.layers.push_back(MakeTokenEmbedding(
      {std::move(wte), {"wpe.weight", {shape.n_positions, C}, Init::kNormal, kStddev}}));
  for (int64_t index = 0; index < shape.n_layer; ++index)
    model.layers.push_back(MakeBlock(shape, index));
  model.layers.push_back(
      MakeLanguageHead({Norm::Kind::kLayerNorm, C}, shape.vocab_size, /*tied=*/true,
                       {{"ln_f.weight", {C}, Init::kOne}, {"ln_f.bias", {C}, Init::kZero}}));
  return model;
}

}  // namespace dsat::engine
