// The numbers that models compute: gradients against finite differences of the whole model, and
// what must not change them. model_torch_test.py compares their logits and losses.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/model/models.h"
#include "engine/model/transformer.h"
#include "tests/engine/backend/relative_distance.h"
#include "tests/engine/model/model_runner.h"

namespace dsat::engine {
namespace {

const Json kTinyGpt2 = {{"type", "gpt2"}, {"n_layer", 2},     {"n_embd", 8},
                        {"n_head", 2},    {"n_positions", 6}, {"vocab_size", 11}};
const Json kTinyMlp = {
    {"type", "mlp"}, {"context", 3}, {"embedding", 4}, {"hidden", {10, 7}}, {"vocab_size", 11}};
const Json kTinyLlama = {{"type", "llama"},
                         {"num_hidden_layers", 2},
                         {"hidden_size", 16},
                         {"intermediate_size", 10},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"max_position_embeddings", 6},
                         {"tie_word_embeddings", true},
                         {"vocab_size", 11}};
const Json kTinyResnet = {{"type", "resnet"}, {"depth", 8},    {"width", 4},   {"groups", 2},
                          {"image_size", 6},  {"channels", 2}, {"classes", 11}};

ModelRunner MakeRunner(const Json& json, DType dtype, double extra_stddev = 0.1) {
  return ModelRunner(MakeModel(json, "/model"), Arena::Kind::kReal, MakeCpuKernels(1), dtype,
                     extra_stddev);
}

// With one row of vocabulary padding after the embedding.
Json With127Tokens(Json json) {
  json["vocab_size"] = 127;
  return json;
}

std::vector<float> FiniteDifferences(ModelRunner& runner, Tensor param, const RandomBatch& batch,
                                     float step) {
  std::vector<float> gradient;
  for (int64_t i = 0; i < param.num_elems; ++i) {
    float& value = param.f32()[i];
    const float start = value;
    value = start + step;
    const double above = runner.Loss(batch.view());
    value = start - step;
    const double below = runner.Loss(batch.view());
    value = start;
    gradient.push_back(static_cast<float>((above - below) / (2.0 * step)));
  }
  return gradient;
}

void CheckGradients(const Json& json, float step, double tolerance) {
  ModelRunner runner = MakeRunner(json, DType::kF32, 0.3);
  const RandomBatch batch(runner.model(), 2, 5);
  runner.Forward(batch.view());
  runner.Backward();
  for (size_t layer = 0; layer < runner.model().layers.size(); ++layer) {
    const auto& specs = runner.model().layers[layer]->params();
    for (size_t i = 0; i < specs.size(); ++i) {
      const std::vector<float> expected =
          FiniteDifferences(runner, runner.param(layer, i), batch, step);
      EXPECT_LT(RelativeDistance(runner.Values(runner.grad(layer, i)), expected), tolerance)
          << specs[i].name;
    }
  }
}

TEST(ModelNumbersTest, Gpt2GradientsAreFiniteDifferences) {
  CheckGradients(kTinyGpt2, 5e-3F, 2e-3);
}

TEST(ModelNumbersTest, LlamaGradientsAreFiniteDifferences) {
  CheckGradients(kTinyLlama, 5e-3F, 2e-3);
  Json untied = kTinyLlama;
  untied["tie_word_embeddings"] = false;
  untied["num_hidden_layers"] = 1;
  CheckGradients(untied, 5e-3F, 2e-3);
}

// Whatever lies there: a product with it is left out, or multiplied by 0.
TEST(ModelNumbersTest, PaddingOfTheVocabularyChangesNothing) {
  Json untied = With127Tokens(kTinyLlama);
  untied["tie_word_embeddings"] = false;
  for (const Json& json : {With127Tokens(kTinyGpt2), With127Tokens(kTinyLlama), untied}) {
    ModelRunner zeros = MakeRunner(json, DType::kF32, 0.3);
    ModelRunner numbers = MakeRunner(json, DType::kF32, 0.3);
    const size_t last = zeros.model().layers.size() - 1;
    const size_t layer = json == untied ? last : 0, i = json == untied ? 1 : 0;
    const ParamSpec& embedding = zeros.model().layers[layer]->params()[i];
    ASSERT_EQ(embedding.vocab_padding, 1) << embedding.name;
    const int64_t num_padding = embedding.StoredElems() - embedding.NumElems();
    ASSERT_EQ(num_padding, embedding.shape[1]);
    const auto padding = [&](Tensor t) { return t.Slice(embedding.NumElems(), num_padding); };
    numbers.kernels().Run(op::Fill{padding(numbers.param(layer, i)), 1000});
    const RandomBatch batch(zeros.model(), 2, 5);
    EXPECT_EQ(zeros.Forward(batch.view()), numbers.Forward(batch.view()));
    zeros.Backward();
    numbers.Backward();
    for (size_t l = 0; l <= last; ++l) {
      for (size_t p = 0; p < zeros.model().layers[l]->params().size(); ++p)
        EXPECT_EQ(zeros.Values(zeros.grad(l, p)), numbers.Values(numbers.grad(l, p)));
    }
    for (const float gradient : numbers.Values(padding(numbers.grad(layer, i))))
      EXPECT_EQ(gradient, 0);
  }
}

TEST(ModelNumbersTest, MlpGradientsAreFiniteDifferences) {
  CheckGradients(kTinyMlp, 1e-3F, 2e-3);
}

// The loss has a corner wherever a ReLU's input changes its sign, and there are many.
TEST(ModelNumbersTest, ResnetGradientsAreFiniteDifferences) {
  CheckGradients(kTinyResnet, 1e-3F, 2e-2);
}

class ModelTypeTest : public testing::TestWithParam<Json> {};
INSTANTIATE_TEST_SUITE_P(Types, ModelTypeTest,
                         testing::Values(kTinyGpt2, kTinyLlama, kTinyMlp, kTinyResnet),
                         [](const auto& info) {
                           return info.param.at("type").template get<std::string>();
                         });

TEST_P(ModelTypeTest, GradientsAddUpOverMicroBatchesAndScale) {
  ModelRunner once = MakeRunner(GetParam(), DType::kF32);
  const RandomBatch batch(once.model(), 2, 5);
  once.Forward(batch.view());
  once.Backward();
  ModelRunner four_times = MakeRunner(GetParam(), DType::kF32);
  for (int i = 0; i < 4; ++i) {
    four_times.Forward(batch.view(), 0.25F);
    four_times.Backward();
  }
  for (size_t layer = 0; layer < once.model().layers.size(); ++layer) {
    for (size_t i = 0; i < once.model().layers[layer]->params().size(); ++i) {
      EXPECT_LT(RelativeDistance(four_times.Values(four_times.grad(layer, i)),
                                 once.Values(once.grad(layer, i))),
                1e-5);
    }
  }
}

TEST_P(ModelTypeTest, Bf16IsCloseToF32) {
  Json json = GetParam();
  // ReLU cuts many units of a network this deep the other way; in a wider one they average out.
  const bool deep = json["type"] == "resnet";
  if (deep) json.update({{"width", 32}, {"image_size", 16}});
  ModelRunner exact = MakeRunner(json, DType::kF32);
  const RandomBatch batch(exact.model(), deep ? 64 : 4, 5);
  ModelRunner rounded = MakeRunner(json, DType::kBF16);
  const double loss = exact.Forward(batch.view());
  EXPECT_NEAR(rounded.Forward(batch.view()), loss, 0.01 * loss);
  exact.Backward();
  rounded.Backward();
  // 8 bits of mantissa in weights and activations, and a few units that ReLU cuts the other way.
  for (size_t layer = 0; layer < exact.model().layers.size(); ++layer) {
    const auto& specs = exact.model().layers[layer]->params();
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_LT(RelativeDistance(rounded.Values(rounded.grad(layer, i)),
                                 exact.Values(exact.grad(layer, i))),
                deep ? 0.2 : 0.1)
          << specs[i].name;
    }
  }
}

TEST_P(ModelTypeTest, FirstLossIsTheLogarithmOfTheClasses) {
  Json json = GetParam();
  json[json["type"] == "resnet" ? "classes" : "vocab_size"] = 256;
  if (json["type"] == "gpt2") json["n_embd"] = 64;
  ModelRunner runner = MakeRunner(json, DType::kF32, 0);
  EXPECT_NEAR(runner.Loss(RandomBatch(runner.model(), 16, 6).view()), std::log(256.0), 0.1);
}

TEST_P(ModelTypeTest, ShorterSequencesThanThePositionsWork) {
  ModelRunner runner = MakeRunner(GetParam(), DType::kF32);
  const RandomBatch batch(runner.model(), 1, 1);
  EXPECT_TRUE(std::isfinite(runner.Forward(batch.view())));
  runner.Backward();
}

// The loss of a last token changes with its target as the predicted logits do.
TEST_P(ModelTypeTest, PredictedLogitsAreThoseOfTheLoss) {
  ModelRunner runner = MakeRunner(GetParam(), DType::kF32, 0.3);
  const RandomBatch batch(runner.model(), 3, 5);
  const std::vector<float> logits = runner.Predict(batch.view());
  EXPECT_TRUE(runner.predict_kept_nothing());
  const auto classes = static_cast<size_t>(runner.model().vocab_size);
  for (size_t b = 0; b < 3; ++b) {
    RandomBatch changed = batch;
    int32_t& target = changed.targets[(b + 1) * static_cast<size_t>(batch.T) - 1];
    target = 0;
    const double loss_of_0 = runner.Loss(changed.view());
    for (size_t c = 1; c < classes; ++c) {
      target = static_cast<int32_t>(c);
      const double difference =
          (runner.Loss(changed.view()) - loss_of_0) * 3.0 * static_cast<double>(batch.T);
      EXPECT_NEAR(difference, logits[b * classes] - logits[b * classes + c], 1e-3);
    }
  }
}

// Freezing a layer takes its gradients away, and work, and changes no other's.
TEST_P(ModelTypeTest, FrozenLayersLeaveTheOthersGradientsAlone) {
  ModelRunner all = MakeRunner(GetParam(), DType::kF32, 0.3);
  const RandomBatch batch(all.model(), 2, 5);
  all.Forward(batch.view());
  all.Backward();
  const size_t num_layers = all.model().layers.size();
  for (size_t frozen = 0; frozen < num_layers; ++frozen) {
    Model model = MakeModel(GetParam(), "/model");
    model.frozen.assign(num_layers, false);
    model.frozen[frozen] = true;
    ModelRunner some(std::move(model), Arena::Kind::kReal, MakeCpuKernels(1), DType::kF32, 0.3);
    some.Forward(batch.view());
    some.Backward();
    const bool is_block = frozen > 0 && frozen + 1 < num_layers;
    if (is_block) {
      EXPECT_LT(some.kernels().flops(), all.kernels().flops());
    }
    for (size_t layer = 0; layer < num_layers; ++layer) {
      for (size_t i = 0; i < all.model().layers[layer]->params().size(); ++i) {
        if (layer == frozen) {
          EXPECT_EQ(some.grad(layer, i).num_elems, 0);
        } else {
          EXPECT_EQ(some.Values(some.grad(layer, i)), all.Values(all.grad(layer, i)));
        }
      }
    }
  }
}

TEST(ModelNumbersTest, RotaryFrequenciesAreStretchedAsInLlama3) {
  // factor 8, wavelengths above 8192 / 1 are stretched, those below 8192 / 4 are not.
  const RopeScaling scaling{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_positions = 8192};
  const auto plain = RotaryFrequencies(128, 500000, {});
  const auto scaled = RotaryFrequencies(128, 500000, scaling);
  ASSERT_EQ(scaled.size(), 64U);
  for (size_t i = 0; i < 64; ++i) {
    const double frequency = std::pow(500000.0, -2.0 * static_cast<double>(i) / 128);
    EXPECT_NEAR(plain[i], frequency, 1e-6 * frequency);
    const double wavelength = 2 * M_PI / frequency;
    double expected = frequency;
    if (wavelength > 8192) {
      expected = frequency / 8;
    } else if (wavelength > 2048) {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * frequency / 8 + smooth * frequency;
    }
    EXPECT_NEAR(scaled[i], expected, 1e-6 * expected);
  }
}

}  // namespace
}  // namespace dsat::engine
