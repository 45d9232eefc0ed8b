// The formulas behind the interface, and which of the two answers an experiment gets.
#include "profiler/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "engine/backend/kernels.h"
#include "engine/config/settings.h"
#include "profiler/memory_model.h"
#include "profiler/planner.h"
#include "proto/search_policy.h"

namespace dsat {
namespace {

int64_t IntAt(const Json& config, const char* pointer, int64_t otherwise) {
  const Json* value = FindAtPointer(config, pointer);
  return value == nullptr ? otherwise : WholeNumber(*value).value_or(otherwise);
}

// How fast offloaded states are updated where the profile does not say how fast copies are: between
// a PCIe 3.0 x16 link, 16 GB/s, and a rank's share of memory on a host with few channels. A search
// corrects it by what it measures.
constexpr double kOffloadBytesPerS = 1e10;

// Copies between device and host, by the slower direction, in bytes/s; 0 if they were not measured.
double MeasuredCopies(const ModelProfile& profile) {
  if (profile.device == "cpu") return static_cast<double>(profile.copy_bytes_per_s);
  return static_cast<double>(std::min(profile.to_host_bytes_per_s, profile.to_device_bytes_per_s));
}

// With the peaks of a dry run, formulas say how a configuration differs from the nearest of these.
class FormulaPredictor : public Predictor {
 public:
  FormulaPredictor(const ModelProfile& profile, const ExperimentSpec& spec, MemoryLaw law)
      : profile_(profile),
        submitted_(spec.ds_config),
        world_size_(spec.slots_per_trial),
        law_(law),
        has_peaks_(law == MemoryLaw::kDeepSpeed && !profile.peaks.empty()),
        // A limit below the size of a process counts tensors only.
        process_bytes_(profile.process_bytes < profile.device_memory_bytes ? profile.process_bytes
                                                                           : 0) {}

  Estimate Predict(const Json& ds_config) const override {
    const StageMemory memory = ModelOf(ds_config).ForStage(ZeroStage(ds_config));
    Estimate predicted;
    predicted.device = {
        .state_bytes = memory.fixed_bytes(),
        .peak_bytes = PeakOf(ds_config),
        .limit_bytes = profile_.device_memory_bytes,
    };
    const double copies = MeasuredCopies(profile_);
    predicted.update_ms = 1e3 * static_cast<double>(memory.offloaded_bytes) /
                          (copies > 0 ? copies : kOffloadBytesPerS);
    if (!has_peaks_) return predicted;
    const PeakLines& nearest = NearestTo(ds_config);
    const int64_t micro_batch = IntAt(ds_config, kMicroBatchKey, 1);
    Json ran = submitted_;
    SetAtPointer(ran, kStageKey, nearest.stage);
    SetAtPointer(ran, kOptimizerDevice, nearest.offloads_optimizer ? "cpu" : "none");
    SetAtPointer(ran, kParamDevice, nearest.offloads_params ? "cpu" : "none");
    SetAtPointer(ran, kMicroBatchKey, micro_batch);
    double peak = 0;
    for (const std::vector<double>& line : nearest.lines)
      peak = std::max(peak, line[0] + line[1] * static_cast<double>(micro_batch));
    predicted.device.peak_bytes += static_cast<int64_t>(peak) + process_bytes_ - PeakOf(ran);
    // A process grows by up to twice its tensors, because the allocator keeps pages.
    predicted.tracked = process_bytes_ == 0;
    return predicted;
  }

  int64_t LargestMicroBatch(const Json& ds_config) const override {
    if (!has_peaks_) return ModelOf(ds_config).ApproxMaxMicroBatch(ZeroStage(ds_config));
    Json config = ds_config;
    return LargestMicroBatchThat([&](int64_t micro_batch) {
      SetAtPointer(config, kMicroBatchKey, micro_batch);
      return Predict(config).fits();
    });
  }

 private:
  static constexpr char kOptimizerDevice[] = "/zero_optimization/offload_optimizer/device";
  static constexpr char kParamDevice[] = "/zero_optimization/offload_param/device";

  MemoryModel ModelOf(const Json& ds_config) const {
    return {profile_, ds_config, world_size_, law_};
  }

  // By the formulas alone.
  int64_t PeakOf(const Json& ds_config) const {
    const StageMemory memory = ModelOf(ds_config).ForStage(ZeroStage(ds_config));
    return memory.fixed_bytes() +
           IntAt(ds_config, kMicroBatchKey, 1) * memory.activation_bytes_per_sample;
  }

  // The first of those that agree in most, the stage first.
  const PeakLines& NearestTo(const Json& ds_config) const {
    const engine::Settings settings(ds_config, "ds_config");
    const auto offloads = [&](const char* device) { return settings.Text(device) != "none"; };
    const auto likeness = [&](const PeakLines& peak) {
      return 4 * (peak.stage == settings.stage()) +
             2 * (peak.offloads_optimizer == offloads(kOptimizerDevice)) +
             (peak.offloads_params == offloads(kParamDevice));
    };
    return *std::ranges::max_element(profile_.peaks, {}, likeness);
  }

  ModelProfile profile_;
  Json submitted_;  // It ran dry, at the stages and with the offload of the peaks.
  int64_t world_size_;
  MemoryLaw law_;
  bool has_peaks_;
  int64_t process_bytes_;
};

// The machine that the profile was measured on, as the trials share it.
engine::Cluster ClusterOfTrials(const ExperimentSpec& spec, const ModelProfile& profile) {
  const engine::Cluster cpu = engine::ClusterOf("cpu");
  engine::Cluster cluster;
  if (profile.device == "cpu") cluster = cpu;
  cluster.device = profile.device;
  cluster.num_ranks = cluster.ranks_per_node = spec.slots_per_trial;
  cluster.num_threads = static_cast<int>(profile.num_threads);
  const auto kernels = engine::MakeCountingKernels(/*num_threads=*/1, cluster.kind());
  cluster.device_memory_bytes = profile.device_memory_bytes + kernels->WorkspaceBytes();
  cluster.rank_host_memory_bytes = spec.host_memory_bytes;
  cluster.flops_16bit = cluster.flops_f32 = static_cast<double>(profile.matmul_flops_per_s);
  // The rate of a GPU counts what is read and what is written, that of a CPU what is copied, as
  // those of engine::ClusterOf do.
  const int moves_per_copy = profile.device == "cpu" ? 1 : 2;
  cluster.device_bytes = moves_per_copy * static_cast<double>(profile.copy_bytes_per_s);
  if (const double copies = MeasuredCopies(profile); copies > 0) {
    cluster.copy_bytes = copies;
    // Host memory carried the copies of all ranks at once; an optimizer there gets as much.
    cluster.host_bytes = copies * static_cast<double>(cluster.num_ranks);
  }
  const Json disk = spec.machine.value("disk", Json::object());
  cluster.disk_read_bytes = disk.value("read_bytes_per_s", cpu.disk_read_bytes);
  cluster.disk_write_bytes = disk.value("write_bytes_per_s", cpu.disk_write_bytes);
  return cluster;
}

}  // namespace

std::string Estimate::Misfit() const {
  std::string text;
  const auto add = [&](const char* what, const TierNeed& need) {
    if (need.fits()) return;
    text += fmt::format("{}{} needs {} of {}", text.empty() ? "It does not fit: " : "; ", what,
                        HumanBytes(need.peak_bytes), HumanBytes(need.limit_bytes));
  };
  add("a device", device);
  add("a node's host memory", host);
  if (host.fits()) add("a rank's host memory", rank_host);
  add("a node's disk", disk);
  return text;
}

std::unique_ptr<Predictor> MakeFormulaPredictor(const ExperimentSpec& spec,
                                                const ModelProfile& profile) {
  const MemoryLaw law = PolicyOf(spec.options).published_memory ? MemoryLaw::kPublished
                        : IsBuiltin(spec)                       ? MemoryLaw::kBuiltin
                                                                : MemoryLaw::kDeepSpeed;
  return std::make_unique<FormulaPredictor>(profile, spec, law);
}

std::unique_ptr<Predictor> MakePredictor(const ExperimentSpec& spec, const ModelProfile& profile) {
  const bool measured_here = IsBuiltin(spec) && !spec.profile && !profile.device.empty();
  if (!measured_here || PolicyOf(spec.options).published_memory)
    return MakeFormulaPredictor(spec, profile);
  const PlannerInputs inputs = {
      .model = spec.hyperparameters.value("model", Json::object()),
      .model_what = spec.config_path + ": /hyperparameters/model",
      .base_dir = spec.model_dir,
      .data = spec.hyperparameters.value("data", Json::object()),
      .ds_config_source = "ds_config",
  };
  return std::make_unique<Planner>(MakePlanner(inputs, ClusterOfTrials(spec, profile)));
}

int64_t LargestMicroBatchThat(const std::function<bool(int64_t)>& fits) {
  constexpr int64_t kMost = 65536;
  if (!fits(1)) return 0;
  int64_t low = 1;
  while (low < kMost && fits(2 * low))
    low *= 2;
  int64_t high = 2 * low;  // Does not fit, or is more than is looked at.
  while (low < kMost && high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

std::string WhyInfeasible(const Predictor& predictor, const Json& ds_config) {
  try {
    const Estimate predicted = predictor.Predict(ds_config);
    return predicted.exact ? predicted.Misfit() : "";
  } catch (const Error& error) {
    if (!IsRefusal(error)) throw;
    return error.what();
  }
}

bool IsRefusal(const Error& error) {
  return error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnimplemented;
}

}  // namespace dsat
