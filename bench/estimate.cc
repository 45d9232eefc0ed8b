// Compares predictions with measurements: trains a small GPT-2 on threads of this machine with
// several stages, offloads and checkpointing, and predicts the same with engine/runtime/predict.h.
// It first measures the speeds of the machine. The exit code is 0 if all peaks are equal.
//
//   bench_estimate [RANKS (default: 2)] [FOLDER for the nvme tier (default: /tmp)]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/table.h"
#include "engine/backend/optimizer_kernels.h"
#include "engine/config/ds_config.h"
#include "engine/data/dataset.h"
#include "engine/model/models.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/predict.h"
#include "engine/runtime/resources.h"
#include "tests/engine/runtime/run_ranks.h"

namespace dsat::engine {
namespace {

constexpr int64_t kSeqLen = 128;
constexpr int64_t kMicroBatch = 8;
constexpr int64_t kVocabSize = 2048;
constexpr int kSteps = 8;
constexpr std::chrono::milliseconds kTimeout{120'000};

double SecondsOf(const std::function<void()>& work) {
  work();  // Allocates memory and generates kernels.
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

Model BenchModel() {
  return MakeModel({{"type", "gpt2"},
                    {"n_layer", 6},
                    {"n_embd", 128},
                    {"n_head", 4},
                    {"n_positions", kSeqLen},
                    {"vocab_size", kVocabSize}},
                   "/model");
}

// FLOP/s of a whole forward and backward pass of the same model on one rank, where the update takes
// little time.
double ProbeFlops(const Model& model, const Dataset& data) {
  const auto kernels = MakeCpuKernels(1);
  const auto groups = MakeThreadGroups(1, kTimeout);
  Arena device("device memory", Arena::Kind::kReal, 0), host("host memory", Arena::Kind::kReal, 0);
  DsConfig config;
  config.batch = {
      .train_batch_size = kMicroBatch, .micro_batch_size = kMicroBatch, .accumulation_steps = 1};
  Engine engine({model, *groups[0], {device, host, *kernels, *kernels}, &data, kSeqLen}, config, 1);
  double best = 0;
  for (int i = 0; i < kSteps; ++i) {
    const StepResult step = engine.TrainBatch();
    best = std::max(best,
                    static_cast<double>(step.flops) / (step.forward_ms + step.backward_ms) * 1e3);
  }
  return best;
}

struct Probe {
  std::vector<float> source, target;
  explicit Probe(int64_t elems) : source(elems, 1.0F), target(elems, 2.0F) {}
  int64_t num_elems() const { return static_cast<int64_t>(source.size()); }
  Tensor From() { return {source.data(), num_elems(), DType::kF32}; }
  Tensor To() { return {target.data(), num_elems(), DType::kF32}; }
};

// Bytes/s of a copy, where each byte counts once.
double ProbeCopies() {
  Probe probe(8 << 20);
  const auto kernels = MakeCpuKernels(1);
  return static_cast<double>(probe.From().bytes()) / SecondsOf([&] {
           kernels->Run(op::Cast{probe.To(), probe.From()});
         });
}

// Bytes/s of an f32 Adam update, which reads and writes 28 bytes per element.
double ProbeUpdates() {
  Probe values(4 << 20), moments(4 << 20);
  const auto kernels = MakeCpuKernels(1);
  const AdamArgs args = {.param = values.To(),
                         .master = values.To(),
                         .grad = values.From(),
                         .m = moments.From(),
                         .v = moments.To(),
                         .lr = 1e-3F};
  return 28.0 * static_cast<double>(values.num_elems()) /
         SecondsOf([&] { kernels->Run(op::AdamStep{args}); });
}

// Bytes/s that a rank sends in an all-reduce; 0 for one rank.
double ProbeLink(int size) {
  if (size == 1) return 0;
  auto groups = MakeThreadGroups(size, kTimeout);
  constexpr int64_t kBytes = 8 << 20;
  double seconds = 0;
  RunThreads(size, [&](int rank) {
    const CommBuffer buffer = groups[static_cast<size_t>(rank)]->Allocate(kBytes);
    const double mine = SecondsOf([&] {
      groups[static_cast<size_t>(rank)]->AllReduce(buffer, DType::kF32, kBytes / 4 / size);
    });
    if (rank == 0) seconds = mine;
  });
  return 2.0 * (size - 1) / size * kBytes / seconds;
}

// Measures writing and reading 64 MiB.
void ProbeDisk(const std::string& folder, Speeds& speeds) {
  constexpr int64_t kBytes = 64 << 20;
  std::vector<char> memory(kBytes + kAioAlignment, 'x');
  void* data = AlignForAio(memory.data());
  const auto file = AsyncFile::Create(folder, kBytes, {});
  speeds.write_bytes = kBytes / SecondsOf([&] { file->Wait(file->WriteAsync(0, data, kBytes)); });
  speeds.read_bytes = kBytes / SecondsOf([&] { file->Wait(file->ReadAsync(0, data, kBytes)); });
}

// The mean over `size` ranks that all measure at the same time: the speed while all ranks work.
double Together(int size, const std::function<double()>& probe) {
  std::vector<double> results(static_cast<size_t>(size));
  RunThreads(size, [&](int rank) { results[static_cast<size_t>(rank)] = probe(); });
  return std::accumulate(results.begin(), results.end(), 0.0) / size;
}

Speeds ProbeAll(const Model& model, const Dataset& data, int size, const std::string& folder) {
  Speeds speeds;
  ProbeDisk(folder, speeds);  // First, because the folder may be unfit.
  speeds.flops = Together(size, [&] { return ProbeFlops(model, data); });
  speeds.copy_bytes = Together(size, ProbeCopies);
  speeds.device_bytes = speeds.host_bytes = Together(size, ProbeUpdates);
  speeds.link_bytes = ProbeLink(size);
  speeds.call_seconds = 20e-6;
  return speeds;
}

// The peaks of the last step and the time of the fastest step on rank 0.
struct Measured {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  double best_ms = 1e9;
};

Measured Train(const Model& model, const DsConfig& config, int size, const Dataset& data) {
  auto groups = MakeThreadGroups(size, kTimeout);
  Measured measured;
  RunThreads(size, [&](int rank) {
    const auto kernels = MakeCpuKernels(1);
    Arena device("device memory", Arena::Kind::kReal, 0);
    Arena host("host memory", Arena::Kind::kReal, 0);
    ProcessGroup& group = *groups[static_cast<size_t>(rank)];
    Engine engine({model, group, {device, host, *kernels, *kernels}, &data, kSeqLen}, config, 1);
    for (int i = 0; i < kSteps; ++i) {
      device.ResetPeak();
      host.ResetPeak();
      const double ms = engine.TrainBatch().latency_ms;
      if (rank == 0) measured.best_ms = std::min(measured.best_ms, ms);
    }
    if (rank != 0) return;
    measured.device_bytes = device.peak_bytes();
    measured.host_bytes = host.peak_bytes();
  });
  return measured;
}

struct Case {
  const char* name;
  Json zero;
  int64_t checkpoint_interval = 0;
};

std::vector<Case> Cases(const std::string& folder) {
  const Json on_host = {{"device", "cpu"}};
  const Json on_disk = {{"device", "nvme"}, {"nvme_path", folder}};
  return {{"stage 0", {{"stage", 0}}},
          {"stage 0, checkpoints", {{"stage", 0}}, 1},
          {"stage 1", {{"stage", 1}}},
          {"stage 2", {{"stage", 2}}},
          {"stage 2, overlap", {{"stage", 2}, {"overlap_comm", true}}},
          {"stage 2, optimizer on host", {{"stage", 2}, {"offload_optimizer", on_host}}},
          {"stage 2, optimizer on disk", {{"stage", 2}, {"offload_optimizer", on_disk}}},
          {"stage 3", {{"stage", 3}}},
          {"stage 3, all on host",
           {{"stage", 3}, {"offload_optimizer", on_host}, {"offload_param", on_host}}},
          {"stage 3, all on disk, checkpoints",
           {{"stage", 3}, {"offload_optimizer", on_disk}, {"offload_param", on_disk}},
           1}};
}

int Run(int size, const std::string& folder) {
  const Model model = BenchModel();
  const auto data = OpenDataset(
      {{"type", "synthetic"}, {"seq_len", kSeqLen}, {"vocab_size", kVocabSize}}, "", 3, "/data");
  const Speeds speeds = ProbeAll(model, *data, size, folder);
  fmt::print(
      "{}, {} ranks; measured: {:.1f} GFLOP/s, GB/s: copies {:.1f}, updates {:.1f}, link {:.1f}, "
      "disk read {:.2f}, written {:.2f}\n\n",
      model.description, size, speeds.flops / 1e9, speeds.copy_bytes / 1e9, speeds.host_bytes / 1e9,
      speeds.link_bytes / 1e9, speeds.read_bytes / 1e9, speeds.write_bytes / 1e9);
  std::vector<std::vector<std::string>> rows;
  bool equal = true;
  for (const Case& each : Cases(folder)) {
    const Json json = {
        {"train_micro_batch_size_per_gpu", kMicroBatch},
        {"zero_optimization", each.zero},
        {"pipeline", {{"activation_checkpoint_interval", each.checkpoint_interval}}}};
    const DsConfig config = ParseDsConfig(json, each.name, size, nullptr);
    const Prediction predicted = Predict(model, config, kSeqLen, 0, size, 1, speeds);
    const Measured measured = Train(model, config, size, *data);
    equal = equal && predicted.peak_bytes == measured.device_bytes &&
            predicted.host_peak_bytes == measured.host_bytes;
    rows.push_back({each.name, std::to_string(predicted.peak_bytes),
                    std::to_string(measured.device_bytes),
                    std::to_string(predicted.host_peak_bytes), std::to_string(measured.host_bytes),
                    fmt::format("{:.1f}", predicted.step_time.total_ms()),
                    fmt::format("{:.1f}", measured.best_ms),
                    fmt::format("{:.2f}", predicted.step_time.total_ms() / measured.best_ms)});
  }
  fmt::print("{}\npeaks {}\n",
             FormatTable({"settings", "device predicted", "measured", "host predicted", "measured",
                          "ms predicted", "measured", "ratio"},
                         rows),
             equal ? "are equal to the byte" : "DIFFER");
  return equal ? 0 : 1;
}

}  // namespace
}  // namespace dsat::engine

int main(int argc, char** argv) {
  const std::string ranks = argc > 1 ? argv[1] : "2";
  if (ranks == "--help") {
    fmt::print(
        "usage: bench_estimate [RANKS] [FOLDER]\n"
        "Compares predictions with measurements of a small GPT-2 on the processor.\n"
        "  RANKS   1 to 16, each a thread (default: 2)\n"
        "  FOLDER  where states are offloaded to disk (default: /tmp)\n");
    return 0;
  }
  const int size = std::atoi(ranks.c_str());
  if (argc > 3 || std::to_string(size) != ranks || size < 1 || size > 16) {
    fmt::print(stderr, "bench_estimate: {}: expected 1 to 16 ranks, then a folder\n",
               argc > 3 ? argv[3] : ranks);
    return 2;
  }
  try {
    return dsat::engine::Run(size, argc > 2 ? argv[2] : "/tmp");
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_estimate: {}\n", error.what());
    return 1;
  }
}
