// The formulas behind the interface, and which of the two answers an experiment gets.
#include "profiler/predictor.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/files.h"
#include "engine/backend/kernels.h"
#include "engine/config/batch.h"
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

// The collectives of a script: of Gloo between the processes of a host, as bench/script_time.py
// finds it, or of NCCL over the link of the profile; if this is unknown, over PCIe.
struct LinkSpeed {
  double bytes_per_s, call_s;
};
LinkSpeed LinkOf(const ModelProfile& profile) {
  if (profile.device == "cpu") return {1e9, 5e-4};
  return {profile.link_bytes_per_s > 0 ? static_cast<double>(profile.link_bytes_per_s) : 2e10,
          2e-5};
}

// After a dry run, formulas say how a configuration differs from the nearest place that ran.
class FormulaPredictor : public Predictor {
 public:
  FormulaPredictor(const ModelProfile& profile, const ExperimentSpec& spec, MemoryLaw law)
      : profile_(profile),
        submitted_(spec.ds_config),
        world_size_(spec.slots_per_trial),
        law_(law),
        ran_dry_(law == MemoryLaw::kDeepSpeed && !profile.dry_places.empty()),
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
    if (!ran_dry_) return predicted;
    const DryPlace& nearest = NearestTo(ds_config);
    const int64_t micro_batch = IntAt(ds_config, kMicroBatchKey, 1);
    Json ran = submitted_;
    SetAtPointer(ran, kStageKey, nearest.stage);
    SetAtPointer(ran, kOptimizerDevice, nearest.offloads_optimizer ? "cpu" : "none");
    SetAtPointer(ran, kParamDevice, nearest.offloads_params ? "cpu" : "none");
    SetAtPointer(ran, kMicroBatchKey, micro_batch);
    if (nearest.switched) SetAtPointer(ran, kCheckpointing, Checkpoints(true));
    double peak = 0;
    for (const std::vector<double>& line : nearest.lines)
      peak = std::max(peak, line[0] + line[1] * static_cast<double>(micro_batch));
    predicted.device.peak_bytes += static_cast<int64_t>(peak) + process_bytes_ - PeakOf(ran);
    AddTimes(nearest, ds_config, predicted);
    // A process grows by up to twice its tensors, because the allocator keeps pages.
    predicted.tracked = process_bytes_ == 0;
    return predicted;
  }

  int64_t LargestMicroBatch(const Json& ds_config) const override {
    if (!ran_dry_) return ModelOf(ds_config).ApproxMaxMicroBatch(ZeroStage(ds_config));
    Json config = ds_config;
    return LargestMicroBatchThat([&](int64_t micro_batch) {
      SetAtPointer(config, kMicroBatchKey, micro_batch);
      return Predict(config).fits();
    });
  }

 private:
  static constexpr char kOptimizerDevice[] = "/zero_optimization/offload_optimizer/device";
  static constexpr char kCheckpointing[] = "/dsat/trainer/gradient_checkpointing";
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

  // The submitted checkpointing of the script's trainer or, if `switched`, the opposite.
  Json Checkpoints(bool switched) const {
    const Json submitted = profile_.trainer.value("gradient_checkpointing", Json());
    return submitted.is_boolean() && switched ? Json(!submitted.get<bool>()) : submitted;
  }

  // The first of those that agree in most: activations before the stage, and this before offload.
  const DryPlace& NearestTo(const Json& ds_config) const {
    const engine::Settings settings(ds_config, "ds_config");
    const auto offloads = [&](const char* device) { return settings.Text(device) != "none"; };
    const Json* checkpoints = FindAtPointer(ds_config, kCheckpointing);
    const auto likeness = [&](const DryPlace& place) {
      return 8 * (checkpoints == nullptr ? !place.switched
                                         : *checkpoints == Checkpoints(place.switched)) +
             4 * (place.stage == settings.stage()) +
             2 * (place.offloads_optimizer == offloads(kOptimizerDevice)) +
             (place.offloads_params == offloads(kParamDevice));
    };
    return *std::ranges::max_element(profile_.dry_places, {}, likeness);
  }

  // Adds the times of a step by what ran dry.
  void AddTimes(const DryPlace& ran, const Json& ds_config, Estimate& predicted) const {
    const engine::Settings settings(ds_config, "ds_config");
    const auto accumulation = static_cast<double>(IntAt(ds_config, kAccumulationKey, 1));
    const auto micro_batch = static_cast<double>(IntAt(ds_config, kMicroBatchKey, 1));
    predicted.compute_ms = accumulation * (ran.passes_ms[0] + ran.passes_ms[1] * micro_batch);
    if (predicted.compute_ms <= 0) return;
    predicted.update_ms += ran.update_ms;  // On the host it is no faster.
    const double passes = settings.stage() >= 2 ? accumulation : 1;
    const double calls = passes * ran.passes_sent[0] + ran.update_sent[0];
    const double bytes = passes * ran.passes_sent[1] + ran.update_sent[1];
    const LinkSpeed link = LinkOf(profile_);
    predicted.link_ms = 1e3 * (calls * link.call_s + bytes / link.bytes_per_s);
    // The backward pass hides all but a part of it.
    const double hidden =
        settings.Is("/zero_optimization/overlap_comm") ? predicted.compute_ms / 2 : 0;
    predicted.step_ms = predicted.compute_ms + predicted.update_ms +
                        std::max(predicted.link_ms - hidden, predicted.link_ms / 10);
  }

  ModelProfile profile_;
  Json submitted_;  // It ran dry, at the dry places.
  int64_t world_size_;
  MemoryLaw law_;
  bool ran_dry_;
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
  if (profile.link_bytes_per_s > 0)
    cluster.link_bytes = static_cast<double>(profile.link_bytes_per_s);
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
  const bool knows_device = IsBuiltin(spec) && !profile.device.empty();
  if (!knows_device || PolicyOf(spec.options).published_memory)
    return MakeFormulaPredictor(spec, profile);
  auto planner =
      std::make_unique<Planner>(MakePlanner(PlannerInputsOf(spec), ClusterOfTrials(spec, profile)));
  planner->Calibrate(spec.ds_config, profile.timings);
  return planner;
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
  std::string misfit;
  const std::string refusal = RefusalOf([&] {
    const Estimate predicted = predictor.Predict(ds_config);
    if (predicted.exact) misfit = predicted.Misfit();
  });
  return refusal.empty() ? misfit : refusal;
}

std::string RefusalOf(const std::function<void()>& predict) {
  try {
    predict();
    return "";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnimplemented)
      throw;
    return error.what();
  }
}

}  // namespace dsat
