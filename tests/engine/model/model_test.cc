// Tests the parts of models: sizes, names, memory, and the model block of an experiment file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/model/models.h"
#include "engine/model/transformer.h"
#include "tests/base/error_code.h"
#include "tests/engine/model/model_runner.h"

namespace dsat::engine {
namespace {

using testing::HasSubstr;

int64_t NumParams(const Json& json) {
  return NumParams(MakeModel(json, "/model"));
}

TEST(ModelTest, PresetsHaveThePublishedSizes) {
  const auto num_params = [](const char* preset) {
    return NumParams({{"type", "gpt2"}, {"preset", preset}});
  };
  EXPECT_EQ(num_params("124M"), 124'439'808);
  EXPECT_EQ(num_params("gpt2"), 124'439'808);
  EXPECT_EQ(num_params("350M"), 354'823'168);
  EXPECT_EQ(num_params("gpt2-medium"), 354'823'168);
  EXPECT_EQ(num_params("774M"), 774'030'080);
  EXPECT_EQ(num_params("gpt2-large"), 774'030'080);
  EXPECT_EQ(num_params("1558M"), 1'557'611'200);
  EXPECT_EQ(num_params("gpt2-xl"), 1'557'611'200);
  EXPECT_EQ(NumParams({{"type", "gpt2"}}), 124'439'808);
}

// The embeddings add some 154,000 x width parameters.
TEST(ModelTest, ASizeIsAGptOfAboutSoManyParameters) {
  for (const auto& [size, params] : std::map<std::string, double>{
           {"100M", 1e8}, {"1.5B", 1.5e9}, {"7b", 7e9}, {"4e10", 4e10}, {"2T", 2e12}}) {
    const Model model = MakeModel({{"type", "gpt2"}, {"preset", size}}, "/model");
    const double embeddings = static_cast<double>(NumParams(*model.layers[0]));
    EXPECT_NEAR(static_cast<double>(NumParams(model)) - embeddings, params, 0.06 * params) << size;
    EXPECT_EQ(model.head_channels, 128);
  }
  for (const char* size : {"0", "-7B", "7Q", "7BB", "1K", "1e15", "nanB"})
    EXPECT_THROW(NumParams({{"type", "gpt2"}, {"preset", size}}), Error) << size;
}

TEST(ModelTest, KeysOverrideThePreset) {
  const Model model = MakeModel(
      {{"type", "gpt2"}, {"preset", "350M"}, {"n_layer", 2}, {"vocab_size", 256}}, "/model");
  EXPECT_EQ(model.layers.size(), 4U);
  EXPECT_EQ(model.vocab_size, 256);
  EXPECT_EQ(model.max_seq_len, 1024);
  EXPECT_EQ(model.description, "gpt2 2 layers, 1024 wide, 16 heads, 26.5 M parameters");
}

TEST(ModelTest, EmbeddingsGrowToWholeCacheLinesOfLogitsWhereThatIsCheap) {
  const std::map<int64_t, int64_t> vocab_padding = {{2, 0},      {61, 0},    {64, 0},    {127, 1},
                                                    {1000, 0},   {6336, 0},  {6337, 63}, {32000, 0},
                                                    {50257, 47}, {128256, 0}};
  for (const auto& [vocabulary, expected] : vocab_padding)
    EXPECT_EQ(VocabPadding(vocabulary), expected) << vocabulary;
}

TEST(ModelTest, MlpHasTheSizeOfItsLayers) {
  const Json json = {
      {"type", "mlp"}, {"context", 4}, {"embedding", 8}, {"hidden", {20, 30}}, {"vocab_size", 100}};
  EXPECT_EQ(NumParams(json), 100 * 8 + (32 * 20 + 20) + (20 * 30 + 30) + (30 * 100 + 100));
  EXPECT_EQ(MakeModel(json, "").description, "mlp 2 hidden layers, context 4, 5.2 k parameters");
}

TEST(ModelTest, LlamaHasThePublishedSizes) {
  const Json llama7b = {{"type", "llama"}};
  EXPECT_EQ(NumParams(llama7b), 6'738'415'616);
  const Json llama32_1b = {{"type", "llama"},          {"vocab_size", 128256},
                           {"hidden_size", 2048},      {"intermediate_size", 8192},
                           {"num_hidden_layers", 16},  {"num_attention_heads", 32},
                           {"num_key_value_heads", 8}, {"tie_word_embeddings", true}};
  EXPECT_EQ(NumParams(llama32_1b), 1'235'814'400);
  EXPECT_EQ(MakeModel(llama32_1b, "").description,
            "llama 16 layers, 2048 wide, 32 heads, 8 of keys, 1.2 B parameters");
}

TEST(ModelTest, ResnetHasTheSizeOfItsLayers) {
  // He et al. 2016, table 6: 0.27 M; the two projections make the difference.
  const Model model = MakeModel({{"type", "resnet"}, {"preset", "resnet20"}}, "/model");
  const int64_t stem = 3 * 9 * 16 + 2 * 16;
  const auto block = [](int64_t in, int64_t out) {
    return (in + out) * out * 9 + 4 * out + (in == out ? 0 : in * out + 2 * out);
  };
  EXPECT_EQ(NumParams(model), stem + 3 * block(16, 16) + block(16, 32) + 2 * block(32, 32) +
                                  block(32, 64) + 2 * block(64, 64) + 64 * 10 + 10);
  EXPECT_EQ(model.layers.size(), 11U);
  EXPECT_EQ(model.image, (ImageShape{32, 32, 3}));
  EXPECT_EQ(model.max_seq_len, 1);
  EXPECT_EQ(model.description, "resnet 20 layers, 16 wide, images 32 x 32 x 3, 272.5 k parameters");
}

TEST(ModelTest, ParametersAreNamedAsInHuggingFace) {
  const Model model =
      MakeModel({{"type", "gpt2"}, {"n_layer", 1}, {"n_embd", 8}, {"n_head", 2}}, "");
  std::vector<std::string> names;
  for (const auto& layer : model.layers) {
    for (const ParamSpec& param : layer->params())
      names.push_back(param.name);
  }
  EXPECT_THAT(names, testing::ElementsAre(
                         "wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias",
                         "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight",
                         "h.0.attn.c_proj.bias", "h.0.ln_2.weight", "h.0.ln_2.bias",
                         "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight",
                         "h.0.mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"));
}

TEST(ModelTest, WeightsOntoTheResidualStreamStartSmaller) {
  const Model model = MakeModel({{"type", "gpt2"}, {"n_layer", 8}}, "");
  for (const ParamSpec& param : model.layers[3]->params()) {
    if (param.shape.size() == 1) continue;
    const bool onto_stream = param.name.ends_with("c_proj.weight");
    EXPECT_FLOAT_EQ(param.stddev, onto_stream ? 0.02F / 4 : 0.02F) << param.name;
  }
}

// ---- The model block. ----

void ExpectRefused(const Json& json, const std::string& message) {
  EXPECT_THAT(RefusalOf([&] { (void)MakeModel(json, "/model"); }), HasSubstr(message));
}

TEST(ModelBlockTest, MistakesAreNamed) {
  ExpectRefused("gpt2", "/model is a string; expected an object");
  ExpectRefused(Json::object(), "/model/type is missing");
  ExpectRefused({{"type", "gpt3"}}, "/model/type is \"gpt3\"; did you mean \"gpt2\"?");
  ExpectRefused({{"type", 7}}, "/model/type is 7; expected one of gpt2, llama, mlp, resnet");
  ExpectRefused({{"type", "gpt2"}, {"n_layers", 6}},
                "/model/n_layers: unknown key; did you mean \"n_layer\"?");
  ExpectRefused({{"type", "mlp"}, {"n_embd", 6}}, "/model/n_embd: unknown key");
  ExpectRefused({{"type", "gpt2"}, {"preset", "124N"}},
                "/model/preset is \"124N\"; expected a number of parameters from 1M to 100T, such "
                "as 7B, or one of 124M");
  ExpectRefused({{"type", "gpt2"}, {"n_embd", 100}, {"n_head", 12}},
                "/model/n_head is 12; expected a divisor of n_embd, which is 100");
  ExpectRefused({{"type", "gpt2"}, {"n_layer", 0}},
                "/model/n_layer is 0; expected a whole number in [1, 4096]");
  ExpectRefused({{"type", "gpt2"}, {"n_layer", 1.5}}, "/model/n_layer is 1.5");
  ExpectRefused({{"type", "gpt2"}, {"vocab_size", "256"}}, "/model/vocab_size is \"256\"");
  ExpectRefused({{"type", "gpt2"}, {"n_positions", nullptr}}, "/model/n_positions is null");
  ExpectRefused({{"type", "mlp"}, {"hidden", Json::array()}},
                "/model/hidden is []; expected a list of widths");
  ExpectRefused({{"type", "mlp"}, {"hidden", 512}}, "/model/hidden is 512; expected a list");
  ExpectRefused({{"type", "mlp"}, {"hidden", {512, -1}}}, "/model/hidden/1 is -1");
  ExpectRefused({{"type", "mlp"}, {"context", 0}}, "/model/context is 0");
  ExpectRefused({{"type", "resnet"}, {"depth", 21}}, "/model/depth is 21; expected 6 n + 2");
  ExpectRefused({{"type", "resnet"}, {"preset", "resnet50"}}, "/model/preset is \"resnet50\"");
  ExpectRefused({{"type", "resnet"}, {"groups", 5}}, "/model/groups is 5; expected a divisor");
  ExpectRefused({{"type", "llama"}, {"hidden_act", "gelu"}},
                "/model/hidden_act is \"gelu\"; the built-in engine's model has \"silu\"");
  ExpectRefused({{"type", "llama"}, {"num_attention_heads", 12}, {"num_key_value_heads", 12}},
                "/model/num_attention_heads is 12; expected one that divides hidden_size, 4096");
  ExpectRefused({{"type", "llama"}, {"num_key_value_heads", 5}},
                "/model/num_key_value_heads is 5; expected a divisor of num_attention_heads");
  ExpectRefused({{"type", "llama"}, {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}},
                "/model/rope_scaling/rope_type is \"yarn\"; expected one of default, llama3");
  ExpectRefused({{"type", "llama"}, {"rope_scaling", {{"rope_type", "llama3"}}}},
                "/model/rope_scaling/factor is missing");
  ExpectRefused({{"type", "llama"}, {"rms_norm_eps", "1e-5"}},
                "/model/rms_norm_eps is \"1e-5\"; expected a number in [0, 1]");
}

// ---- Frozen layers. ----

const Json kFreezable = {{"type", "gpt2"}, {"n_layer", 2},     {"n_embd", 8},
                         {"n_head", 2},    {"n_positions", 4}, {"vocab_size", 10}};

Json Freeze(const Json& patterns) {
  Json json = kFreezable;
  json["frozen"] = patterns;
  return json;
}

TEST(FrozenTest, PatternsFreezeWholeLayers) {
  const Model model = MakeModel(Freeze({"w?e.*", "h.0.*"}), "/model");
  EXPECT_EQ(model.frozen, (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(NumParams(model), NumParams(kFreezable));
  EXPECT_EQ(NumTrainableParams(model), NumParams(model) - (10 * 8 + 4 * 8) -
                                           (2 * 16 + 8 * 24 + 24 + 64 + 8 + 256 + 32 + 256 + 8));
  EXPECT_THAT(model.description, HasSubstr("888 trained"));
  EXPECT_EQ(NumTrainableParams(MakeModel(kFreezable, "")), NumParams(kFreezable));
}

TEST(FrozenTest, MistakesAreNamed) {
  ExpectRefused(Freeze({"h.0.*", "h.7.*"}),
                "/model/frozen/1 is \"h.7.*\"; no parameter has such a name; they are called "
                "wte.weight, ..., ln_f.bias");
  ExpectRefused(
      Freeze(Json::array({"wte*"})),
      "/model/frozen is [\"wte*\"]; it freezes a part of layer embedding, which is frozen "
      "as a whole or not at all; add wpe.weight, or freeze none of it");
  ExpectRefused(Freeze(Json::array({"*"})), "/model/frozen is [\"*\"]; every layer is frozen");
  ExpectRefused(Freeze("h.0.*"), "/model/frozen is \"h.0.*\"; expected a list");
  ExpectRefused(Freeze(Json::array({7})), "/model/frozen/0 is 7; no parameter");
}

// ---- Memory. ----

const Json kSmallGpt2 = {{"type", "gpt2"}, {"n_layer", 3},      {"n_embd", 32},
                         {"n_head", 4},    {"n_positions", 16}, {"vocab_size", 100}};
const Json kSmallMlp = {{"type", "mlp"}, {"context", 5}, {"hidden", {48, 40}}, {"vocab_size", 100}};
const Json kSmallLlama = {{"type", "llama"},
                          {"num_hidden_layers", 2},
                          {"hidden_size", 32},
                          {"intermediate_size", 80},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"max_position_embeddings", 16},
                          {"vocab_size", 100}};
const Json kSmallResnet = {{"type", "resnet"}, {"depth", 8}, {"width", 8}, {"image_size", 9}};

class ModelMemoryTest : public testing::TestWithParam<std::tuple<Json, DType>> {
 protected:
  static ModelRunner Runner(Arena::Kind kind) {
    const auto& [json, dtype] = GetParam();
    return ModelRunner(MakeModel(json, "/model"), kind,
                       kind == Arena::Kind::kReal ? MakeCpuKernels(1) : MakeCountingKernels(1),
                       dtype, 0.1);
  }
};
INSTANTIATE_TEST_SUITE_P(All, ModelMemoryTest,
                         testing::Combine(testing::Values(kSmallGpt2, kSmallMlp, kSmallLlama,
                                                          kSmallResnet),
                                          testing::Values(DType::kF32, DType::kBF16)));

TEST_P(ModelMemoryTest, BackwardFreesAllThatForwardKept) {
  ModelRunner runner = Runner(Arena::Kind::kReal);
  const int64_t start_bytes = runner.arena().live_bytes();
  const RandomBatch batch(runner.model(), 3, 16);
  for (int step = 0; step < 2; ++step) {
    runner.Forward(batch.view());
    EXPECT_GT(runner.arena().live_bytes(), start_bytes);
    runner.Backward();
    EXPECT_EQ(runner.arena().live_bytes(), start_bytes);
  }
}

TEST_P(ModelMemoryTest, CountingRunAllocatesTheSameBytesAndFlops) {
  ModelRunner real = Runner(Arena::Kind::kReal);
  ModelRunner counting = Runner(Arena::Kind::kCounting);
  const RandomBatch batch(real.model(), 3, 15);  // Sizes that the arena has to round up.
  EXPECT_EQ(counting.arena().live_bytes(), real.arena().live_bytes());
  real.Forward(batch.view());
  counting.Forward({.B = batch.B, .T = batch.T});
  EXPECT_EQ(counting.arena().live_bytes(), real.arena().live_bytes());
  EXPECT_EQ(counting.arena().peak_bytes(), real.arena().peak_bytes());
  EXPECT_EQ(counting.kernels().flops(), real.kernels().flops());
  real.Backward();
  counting.Backward();
  EXPECT_EQ(counting.arena().live_bytes(), real.arena().live_bytes());
  EXPECT_EQ(counting.arena().peak_bytes(), real.arena().peak_bytes());
  EXPECT_EQ(counting.kernels().flops(), real.kernels().flops());
}

int64_t SavedBytes(const Saved& saved) {
  int64_t sum = 0;
  for (const Buffer& buffer : saved)
    sum += buffer.bytes();
  return sum;
}

ModelRunner CountingRunner(const Json& json, DType dtype) {
  return ModelRunner(MakeModel(json, "/model"), Arena::Kind::kCounting, MakeCountingKernels(1),
                     dtype, 0);
}

TEST(ModelKeptTest, Gpt2KeepsWhatItsHeaderSays) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ModelRunner runner = CountingRunner(kSmallGpt2, dtype);
    runner.Forward({.B = 2, .T = 16});
    const int64_t e = BytesPerElem(dtype);
    const int64_t num_tokens = 2 * 16;
    EXPECT_EQ(SavedBytes(runner.saved().front()), 0);
    EXPECT_EQ(SavedBytes(runner.saved()[1]), num_tokens * (e * 9 * 32 + 4 * (4 + 4)));
    EXPECT_EQ(SavedBytes(runner.saved().back()), num_tokens * (e * 100 + 8));
    EXPECT_EQ(runner.inputs()[2].bytes(), num_tokens * e * 32);
    runner.set_keeps_outputs(true);
    runner.Forward({.B = 2, .T = 16});
    EXPECT_EQ(SavedBytes(runner.saved()[1]), num_tokens * (e * (9 + 2 + 4) * 32 + 4 * (4 + 4)));
    EXPECT_EQ(SavedBytes(runner.saved().back()), num_tokens * (e * (100 + 32) + 8));
  }
}

TEST(ModelKeptTest, LogitsHaveAColumnForEveryRowOfThePaddedVocabulary) {
  Json json = kSmallGpt2;
  json["vocab_size"] = 127;
  ModelRunner runner = CountingRunner(json, DType::kBF16);
  runner.Forward({.B = 2, .T = 16});
  EXPECT_EQ(SavedBytes(runner.saved().back()), 32 * (2 * 128 + 8));
}

TEST(ModelKeptTest, LlamaKeepsWhatItsHeaderSays) {
  ModelRunner runner = CountingRunner(kSmallLlama, DType::kBF16);
  runner.Forward({.B = 2, .T = 16});
  const int64_t K = 2 * 32 / 4;
  EXPECT_EQ(SavedBytes(runner.saved()[1]), 32 * (2 * (3 * 32 + 2 * K + 2 * 80) + 4 * (2 + 4)));
  EXPECT_EQ(SavedBytes(runner.saved().back()), 32 * (2 * 100 + 4));
  runner.set_keeps_outputs(true);
  runner.Forward({.B = 2, .T = 16});
  EXPECT_EQ(SavedBytes(runner.saved()[1]), 32 * (2 * (5 * 32 + 2 * K + 3 * 80) + 4 * (2 + 4)));
}

TEST(ModelKeptTest, ResnetKeepsWhatItsHeaderSays) {
  Json json = kSmallResnet;
  json["image_size"] = 16;
  ModelRunner runner = CountingRunner(json, DType::kBF16);
  runner.Forward({.B = 4, .T = 1});
  EXPECT_EQ(SavedBytes(runner.saved()[0]), 4 * (2 * 256 * 8 + 8 * 8));
  EXPECT_EQ(SavedBytes(runner.saved()[1]), 4 * (2 * 2 * 256 * 8 + 16 * 8));
  EXPECT_EQ(SavedBytes(runner.saved()[2]), 4 * (2 * 3 * 64 * 16 + 24 * 8));
}

TEST(ModelKeptTest, MlpKeepsWhatItsHeaderSays) {
  ModelRunner runner = CountingRunner(kSmallMlp, DType::kBF16);
  runner.Forward({.B = 2, .T = 16});
  EXPECT_EQ(SavedBytes(runner.saved()[0]), 0);
  EXPECT_EQ(SavedBytes(runner.saved()[1]), 32 * 2 * 48);
  EXPECT_EQ(SavedBytes(runner.saved()[3]), 32 * 2 * 100);
}

TEST(ModelKeptTest, OutOfMemoryNamesTheUse) {
  Arena arena("device memory", Arena::Kind::kCounting, 1000);
  const auto kernels = MakeCountingKernels(1);
  const Model model = MakeModel(kSmallGpt2, "/model");
  const Batch batch{.B = 1, .T = 16};
  Saved saved;
  const std::vector<Tensor> params(2);
  const LayerContext ctx{.kernels = *kernels,
                         .arena = arena,
                         .dtype = DType::kF32,
                         .batch = batch,
                         .params = params,
                         .grads = {}};
  try {
    (void)model.layers[0]->Forward(ctx, {}, saved);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("embedding output"));
  }
  EXPECT_EQ(arena.live_bytes(), 0);
}

}  // namespace
}  // namespace dsat::engine
