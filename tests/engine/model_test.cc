// What models are made of: sizes, names, memory, and the model block of an experiment file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/model/models.h"
#include "tests/engine/model_runner.h"

namespace dsat::engine {
namespace {

using testing::HasSubstr;

int64_t NumParams(const Json& json) {
  int64_t sum = 0;
  const Model model = MakeModel(json, "/model");
  for (const auto& layer : model.layers) {
    for (const ParamSpec& param : layer->params())
      sum += param.NumElems();
  }
  return sum;
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

TEST(ModelTest, KeysOverrideThePreset) {
  const Model model = MakeModel(
      {{"type", "gpt2"}, {"preset", "350M"}, {"n_layer", 2}, {"vocab_size", 256}}, "/model");
  EXPECT_EQ(model.layers.size(), 4U);
  EXPECT_EQ(model.vocab_size, 256);
  EXPECT_EQ(model.max_seq_len, 1024);
  EXPECT_EQ(model.description, "gpt2 2 layers, 1024 wide, 16 heads, 26.5 M parameters");
}

TEST(ModelTest, MlpHasTheSizeOfItsLayers) {
  const Json json = {
      {"type", "mlp"}, {"context", 4}, {"embedding", 8}, {"hidden", {20, 30}}, {"vocab_size", 100}};
  EXPECT_EQ(NumParams(json), 100 * 8 + (32 * 20 + 20) + (20 * 30 + 30) + (30 * 100 + 100));
  EXPECT_EQ(MakeModel(json, "").description, "mlp 2 hidden layers, context 4, 5.2 k parameters");
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
  try {
    (void)MakeModel(json, "/model");
    FAIL() << json;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(ModelBlockTest, MistakesAreNamed) {
  ExpectRefused("gpt2", "/model is a string; expected an object");
  ExpectRefused(Json::object(), "/model/type is missing");
  ExpectRefused({{"type", "gpt3"}}, "/model/type is \"gpt3\"; did you mean \"gpt2\"?");
  ExpectRefused({{"type", 7}}, "/model/type is 7; expected one of gpt2, mlp");
  ExpectRefused({{"type", "gpt2"}, {"n_layers", 6}},
                "/model/n_layers: unknown key; did you mean \"n_layer\"?");
  ExpectRefused({{"type", "mlp"}, {"n_embd", 6}}, "/model/n_embd: unknown key");
  ExpectRefused({{"type", "gpt2"}, {"preset", "125M"}},
                "/model/preset is \"125M\"; did you mean "
                "\"124M\"?");
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
}

// ---- Memory. ----

const Json kSmallGpt2 = {{"type", "gpt2"}, {"n_layer", 3},      {"n_embd", 32},
                         {"n_head", 4},    {"n_positions", 16}, {"vocab_size", 100}};
const Json kSmallMlp = {{"type", "mlp"}, {"context", 5}, {"hidden", {48, 40}}, {"vocab_size", 100}};

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
                         testing::Combine(testing::Values(kSmallGpt2, kSmallMlp),
                                          testing::Values(DType::kF32, DType::kBF16)));

TEST_P(ModelMemoryTest, BackwardFreesAllThatForwardKept) {
  ModelRunner runner = Runner(Arena::Kind::kReal);
  const int64_t start_bytes = runner.arena().live_bytes();
  const TokenBatch batch(3, 16, 100);
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
  const TokenBatch batch(3, 15, 100);  // Sizes that the arena has to round up.
  EXPECT_EQ(counting.arena().live_bytes(), real.arena().live_bytes());
  real.Forward(batch.view());
  counting.Forward({.B = 3, .T = 15});
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

TEST(ModelKeptTest, Gpt2KeepsWhatItsHeaderSays) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ModelRunner runner(MakeModel(kSmallGpt2, "/model"), Arena::Kind::kCounting,
                       MakeCountingKernels(1), dtype, 0);
    runner.Forward({.B = 2, .T = 16});
    const int64_t e = BytesPerElem(dtype);
    const int64_t num_tokens = 2 * 16;
    EXPECT_EQ(SavedBytes(runner.saved().front()), 0);
    EXPECT_EQ(SavedBytes(runner.saved()[1]), num_tokens * (e * 9 * 32 + 4 * (4 + 4)));
    EXPECT_EQ(SavedBytes(runner.saved().back()), num_tokens * (e * 100 + 8));
    EXPECT_EQ(runner.inputs()[2].bytes(), num_tokens * e * 32);
  }
}

TEST(ModelKeptTest, MlpKeepsWhatItsHeaderSays) {
  ModelRunner runner(MakeModel(kSmallMlp, "/model"), Arena::Kind::kCounting, MakeCountingKernels(1),
                     DType::kBF16, 0);
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
