// The C++ of docs/dev/engine.md, compiled and run: what stands there stands here, line by line.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/files.h"
#include "engine/runtime/initialize.h"
#include "engine/runtime/rank_environment.h"
#include "tests/engine/runtime/training.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

Model MyModel() {
  return TinyGpt2();
}

// Half the mean of the squares of the logits, and its gradient.
double OwnLoss(const std::vector<float>& logits) {
  double sum = 0;
  for (const float x : logits)
    sum += static_cast<double>(x) * static_cast<double>(x) / 2;
  return sum / static_cast<double>(logits.size());
}
std::vector<float> Gradient(std::vector<float> logits) {
  for (float& x : logits)
    x /= static_cast<float>(logits.size());
  return logits;
}

// "Using it".
void UseAnEngine(const Resources& resources, const DsConfig& config, const Batch& batch,
                 const Dataset& data, const std::string& dir) {
  constexpr uint64_t seed = 7;
  constexpr int64_t num_batches = 1;
  // clang-format off
  auto engine = Engine(resources, config, seed);           // model, memory, ranks; ParseDsConfig
  StepResult step = engine.TrainBatch();                    // one optimizer step over the data set

  double loss = engine.Forward(batch);                      // or with batches of your own,
  engine.Backward();                                        // for every micro-batch
  bool last = engine.IsGradientAccumulationBoundary();      // the last before an update?
  if (auto updated = engine.Step()) loss = updated->loss;   // the mean of the whole step

  auto logits = engine.ForwardLogits(batch);                // or with a loss of your own,
  engine.Backward(Gradient(logits), OwnLoss(logits));       // and its gradient by the logits
  engine.Step();

  double validation = engine.Evaluate(data, num_batches);   // no training
  logits = engine.Logits(batch);                            // of all positions, as ForwardLogits
  EXPECT_EQ(std::ssize(logits), batch.B * batch.T * 127);
  logits = engine.Predict(batch);                           // of the last position of each row
  engine.set_lr(0.5 * engine.lr());                         // without a scheduler in the config
  engine.SaveCheckpoint(dir, "", {{"epoch", 3}});           // collective, like all of the above
  Json client_state = engine.LoadCheckpoint(dir);           // {"epoch": 3}
  bool saved = engine.Save16BitModel(dir, "model.safetensors");
  // clang-format on
  EXPECT_NEAR(step.loss, std::log(127), 0.3);
  EXPECT_LT(loss, step.loss + 0.3);
  EXPECT_TRUE(last);
  EXPECT_NEAR(validation, std::log(127), 0.3);
  EXPECT_EQ(std::ssize(logits), batch.B * 127);
  EXPECT_EQ(engine.lr(), 0.5e-3);
  EXPECT_EQ(client_state, (Json{{"epoch", 3}}));
  EXPECT_TRUE(saved);
  EXPECT_TRUE(std::filesystem::exists(dir + "/model.safetensors"));
}

class EngineDocsTest : public testing::Test {
 protected:
  EngineDocsTest() : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder_.path());
  }
  ~EngineDocsTest() override { std::filesystem::current_path(before_); }

  const std::filesystem::path before_;
  const TempFolder folder_;
};

TEST_F(EngineDocsTest, AnEngineIsUsedAsItIsWritten) {
  const Model model = MyModel();
  const auto data = Synthetic();
  RunRanks(1, [&](ProcessGroup& group) {
    TestDevice device(group);
    TierMemory& memory = device.memory();
    const DsConfig config = TinyConfig(0, 1, 1);
    BatchLoader loader(data.get(), memory.device(), memory.kernels(), config.batch, kSeqLen, 0, 1);
    const Batch batch = loader.Load(0, 0);
    UseAnEngine(device.For(model, data.get(), kSeqLen), config, batch, *data,
                folder_ / "checkpoints");
  });
}

TEST_F(EngineDocsTest, AnEngineIsInitializedAsItIsWritten) {
  std::ofstream("ds_config.json") << R"({"train_batch_size": 4})";
  const Json text = {{"type", "synthetic"}, {"seq_len", kSeqLen}, {"vocab_size", 61}};
  constexpr uint64_t seed = 7;
  constexpr int num_threads = 1;
  // clang-format off
  auto world = JoinGroup(ReadRankEnvironment());          // RANK, WORLD_SIZE, ...; else one
  auto training = Initialize(*world, {.model = MyModel(),
                                      .config = ConfigFromFile("ds_config.json"),
                                      .device = MakeCpuDevice(num_threads),
                                      .dataset = OpenDataset(text, "", seed, "text")});
  Engine& engine = training->engine();
  // clang-format on
  EXPECT_NEAR(engine.TrainBatch().loss, std::log(127), 0.3);
}

// The lines of the docs' C++, in their order, without indentation.
std::vector<std::string> DocumentedLines() {
  std::vector<std::string> lines;
  std::istringstream docs(ReadFile(DSAT_SOURCE_DIR "/docs/dev/engine.md"));
  bool inside = false;
  for (std::string line; std::getline(docs, line);) {
    if (line.starts_with("```")) {
      inside = line == "```cpp";
    } else if (const size_t begin = line.find_first_not_of(' '); inside && begin != line.npos) {
      lines.push_back(line.substr(begin));
    }
  }
  return lines;
}

TEST(EngineDocsTextTest, TheDocsSayWhatIsRunHere) {
  const std::string here = ReadFile(DSAT_SOURCE_DIR "/tests/engine/runtime/engine_docs_test.cc");
  const std::vector<std::string> lines = DocumentedLines();
  EXPECT_GE(lines.size(), 15u);
  size_t at = 0;
  for (const std::string& line : lines) {
    at = here.find(line, at);
    ASSERT_NE(at, here.npos) << line;
  }
}

}  // namespace
}  // namespace dsat::engine
