// Device memory is not host memory: trainings on a device whose memory the host cannot see give the
// bits that they give on the CPU. Whole suites run on it, too (CMakeLists.txt).
#include "tests/engine/backend/guarded_device.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "engine/backend/stream.h"
#include "tests/engine/runtime/expect_predicted.h"
#include "tests/engine/runtime/training.h"
#include "tests/temp_folder.h"

namespace dsat::engine {
namespace {

namespace fs = std::filesystem;

TEST(GuardedDeviceTest, TheHostCannotLookAtDeviceMemory) {
  const auto device = MakeGuardedDevice();
  TierMemory memory(*device, 0, 0);
  const Buffer buffer = memory.device().Allocate(64, "test");
  float value = 3;
  memory.kernels().stream().Upload(buffer.data(), &value, sizeof(value));
  EXPECT_DEATH(*static_cast<volatile float*>(buffer.data()) = 1, "");
  memory.kernels().Run(op::Scale{buffer.AsTensor(DType::kF32).Slice(0, 1), 2});
  memory.kernels().stream().Download(&value, buffer.data(), sizeof(value));
  EXPECT_EQ(value, 6);
}

TEST(GuardedDeviceTest, KernelsRefuseHostMemory) {
  const auto device = MakeGuardedDevice();
  TierMemory memory(*device, 0, 0);
  const Buffer buffer = memory.device().Allocate(64, "test");
  std::vector<float> host(16);
  const Tensor on_host = {host.data(), 16, DType::kF32};
  EXPECT_DEATH(memory.kernels().Run(op::Fill{on_host, 0}), "not in device memory");
  EXPECT_DEATH(memory.kernels().Run(op::Cast{buffer.AsTensor(DType::kF32), on_host}),
               "operand 1, 64 bytes, is not in device memory");
  EXPECT_DEATH(memory.kernels().stream().CopyToDevice(on_host, buffer.AsTensor(DType::kF32)),
               "64 bytes");
}

TEST(GuardedDeviceTest, CommunicationMemoryIsTheDevices) {
  RunRanks(2, [](ProcessGroup& group) {
    TestDevice device(MakeGuardedDevice(), group);
    ProcessGroup& own = device.group();
    Kernels& kernels = device.memory().kernels();
    const CommBuffer buffer = own.Allocate(2 * 16);
    const Tensor all = {buffer.data, 8, DType::kF32};
    kernels.Run(op::Fill{all, static_cast<float>(group.rank() + 1)});
    own.AllReduce(buffer, DType::kF32, 4);
    std::vector<float> sums(8);
    kernels.stream().Download(sums.data(), buffer.data, 32);
    EXPECT_EQ(sums, std::vector<float>(8, 3));
    // To and from either memory.
    float number = 7;
    if (group.rank() == 0) {
      own.Send(&number, sizeof(number), 1);
      own.Send(buffer.data, sizeof(number), 1);
    } else {
      own.Recv(&number, sizeof(number), 0);
      EXPECT_EQ(number, 7);
      kernels.Run(op::Fill{all, 0});
      own.Recv(buffer.data, sizeof(number), 0);
      kernels.stream().Download(sums.data(), buffer.data, 8);
      EXPECT_EQ(sums[0], 3);
      EXPECT_EQ(sums[1], 0);
    }
    kernels.Run(op::Fill{all.Slice(0, 4), static_cast<float>(group.rank())});
    own.Exchange(buffer.data, all.Slice(4, 4).data, 16, 1 - group.rank());
    own.Exchange(&number, sums.data(), sizeof(number), 1 - group.rank());
    EXPECT_EQ(sums[0], 7);
    kernels.stream().Download(sums.data(), buffer.data, 32);
    EXPECT_EQ(sums[0], static_cast<float>(group.rank()));
    EXPECT_EQ(sums[7], static_cast<float>(1 - group.rank()));
  });
}

struct Case {
  const char* name;
  Model (*model)();
  int world_size;
  std::function<void(DsConfig&)> apply;
};

void Offload(DsConfig& c, Tier tier) {
  c.zero.offload_optimizer.tier = tier;
  c.zero.offload_optimizer.nvme_path = testing::TempDir();
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  int stage = 0;  // Every one, with another model each.
  for (const auto& model : {TinyGpt2, TinyLlama, TinyMlp, TinyResnet})
    cases.push_back({"stage", model, 2, [stage = stage++](DsConfig& c) { c.zero.stage = stage; }});
  cases.push_back({"clipping", TinyGpt2, 2, [](DsConfig& c) { c.gradient_clipping = 0.1; }});
  cases.push_back({"lamb", TinyGpt2, 2, [](DsConfig& c) {
                     c.optimizer.type = "lamb";
                     c.zero.stage = 2;
                   }});
  cases.push_back({"1-bit Adam", TinyGpt2, 2, [](DsConfig& c) {
                     c.optimizer.type = "onebitadam";
                     c.optimizer.freeze_step = 1;
                   }});
  cases.push_back({"fp16", TinyGpt2, 2, [](DsConfig& c) {
                     c.fp16 = {.enabled = true, .initial_scale_power = 30, .hysteresis = 1};
                     c.zero.stage = 2;
                   }});
  for (const Tier tier : {Tier::kHost, Tier::kNvme}) {
    cases.push_back({"offload", TinyGpt2, 2, [=](DsConfig& c) {
                       c.bf16 = true;
                       c.zero.stage = 3;
                       Offload(c, tier);
                       c.zero.offload_param.tier = tier;
                       c.zero.offload_param.nvme_path = testing::TempDir();
                       c.zero.overlap_comm = true;
                     }});
  }
  cases.push_back({"checkpoints in host memory", TinyGpt2, 1, [](DsConfig& c) {
                     c.activation = {.checkpoint_interval = 1, .checkpoints_on_host = true};
                   }});
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    cases.push_back({"pipeline, tied embeddings", TinyGpt2, 4, [=](DsConfig& c) {
                       c.pipeline.num_stages = 2;
                       c.zero.stage = 1;
                       Offload(c, tier);
                     }});
  }
  return cases;
}

TEST(GuardedDeviceTest, TrainingsGiveTheCpusBitsAndWhatWasPredicted) {
  const auto train = [](const char* device, const Model& model, const DsConfig& config, int size) {
    setenv("DSAT_TEST_DEVICE", device, 1);
    return Train(model, config, size, 3);
  };
  for (const Case& c : Cases()) {
    const Model model = c.model();
    SCOPED_TRACE(fmt::format("{}, {}, {} layers", c.name, model.description, model.layers.size()));
    DsConfig config = TinyConfig(0, c.world_size, 1);
    c.apply(config);
    config.batch.accumulation_steps = 3;
    config.batch.micro_batch_size = 12 / 3 / (c.world_size / config.pipeline.num_stages);
    const auto expected = train("cpu", model, config, c.world_size);
    const auto runs = train("guarded", model, config, c.world_size);
    for (size_t rank = 0; rank < runs.size(); ++rank) {
      EXPECT_EQ(runs[rank].params, expected[rank].params);
      EXPECT_EQ(runs[rank].steps.back().loss, expected[rank].steps.back().loss);
    }
    ExpectPredicted(model, config, runs);
  }
}

// An embedding of 2 MB comes to the host in parts.
TEST(GuardedDeviceTest, StateThatIsShownInPartsIsSavedAndLoadedWhole) {
  const Model model = MakeModel(
      {{"type", "mlp"}, {"context", 2}, {"embedding", 2048}, {"hidden", {8}}, {"vocab_size", 256}},
      "/model");
  const auto data = OpenDataset({{"type", "synthetic"}, {"seq_len", kSeqLen}, {"vocab_size", 256}},
                                "", 3, "/data");
  const TempFolder folder;
  RunRanks(1, [&](ProcessGroup& group) {
    DsConfig config = TinyConfig(0, 1, 1);
    TestDevice cpu(MakeTestDevice("cpu"), group), guarded(MakeGuardedDevice(), group);
    Engine expected(cpu.For(model, data.get(), kSeqLen), config, 7);
    Engine engine(guarded.For(model, data.get(), kSeqLen), config, 7);
    EXPECT_EQ(engine.TrainBatch().loss, expected.TrainBatch().loss);
    engine.SaveCheckpoint(folder.path());
    engine.Save16BitModel(folder.path(), "guarded.safetensors");
    expected.Save16BitModel(folder.path(), "cpu.safetensors");
    const double next = expected.TrainBatch().loss;
    EXPECT_EQ(engine.TrainBatch().loss, next);
    engine.LoadCheckpoint(folder.path());
    EXPECT_EQ(engine.TrainBatch().loss, next);
    const std::vector<int32_t> prompt = {1, 2, 3, 4};
    const Batch batch = {.B = 2, .T = 2, .tokens = prompt.data()};
    EXPECT_EQ(engine.Predict(batch), expected.Predict(batch));
    EXPECT_EQ(engine.Evaluate(*data, 2), expected.Evaluate(*data, 2));
  });
  EXPECT_EQ(ReadFile(folder / "guarded.safetensors"), ReadFile(folder / "cpu.safetensors"));
}

}  // namespace
}  // namespace dsat::engine
