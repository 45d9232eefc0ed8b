// The engine on counting resources, one rank of each pipeline stage, and searches over its answers.
#include "profiler/planner.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "engine/config/strategies.h"
#include "engine/data/dataset.h"
#include "engine/model/models.h"
#include "engine/plan/build_plan.h"
#include "engine/runtime/state/unit_state.h"
#include "proto/experiment.h"

namespace dsat {

using engine::Cluster;
using engine::ConfigForTrial;
using engine::DsConfig;
using engine::Model;
using engine::ParseDsConfig;
using engine::Prediction;
using engine::Strategy;

namespace {

// Predicting for P ranks takes time in proportion to P.
constexpr int64_t kMostRanks = 1024;
constexpr int64_t kMostTimesRanks = 4;
constexpr char kCheckpointInterval[] = "/pipeline/activation_checkpoint_interval";
constexpr char kCheckpointsOnHost[] = "/activation_checkpointing/cpu_checkpointing";

void SumUp(const Cluster& cluster, PlannerEstimate& e) {
  // Sums over the ranks of each node; the most of any.
  const auto node = [&](int64_t Prediction::*bytes) {
    const int64_t ranks_of_stage = cluster.num_ranks / e.num_stages;
    int64_t most = 0;
    for (int64_t begin = 0; begin < cluster.num_ranks; begin += cluster.ranks_per_node) {
      const int64_t end = std::min(begin + cluster.ranks_per_node, cluster.num_ranks);
      int64_t sum = 0;
      for (int64_t rank = begin; rank < end; ++rank)
        sum += e.ranks[static_cast<size_t>(rank / ranks_of_stage)].*bytes;
      most = std::max(most, sum);
    }
    return most;
  };
  for (const Prediction& rank : e.ranks) {
    e.device.state_bytes = std::max(e.device.state_bytes, rank.state_bytes);
    e.device.peak_bytes = std::max(e.device.peak_bytes, rank.run_peak_bytes);
    e.rank_host.state_bytes = std::max(e.rank_host.state_bytes, rank.host_state_bytes);
    e.rank_host.peak_bytes = std::max(e.rank_host.peak_bytes, rank.run_host_peak_bytes);
    if (rank.step_time.total_ms() > e.time.total_ms()) e.time = rank.step_time;
  }
  e.device.limit_bytes = cluster.device_memory_bytes;
  e.rank_host.limit_bytes = cluster.rank_host_memory_bytes;
  e.host = {node(&Prediction::host_state_bytes), node(&Prediction::run_host_peak_bytes),
            cluster.NodeHostMemoryBytes()};
  e.disk = {node(&Prediction::disk_bytes), node(&Prediction::disk_bytes), cluster.disk_bytes};
  e.exact = true;
  e.step_ms = e.time.total_ms();
  e.compute_ms = e.time.compute_ms;
  e.update_ms = e.time.update_ms + e.time.copy_ms + e.time.disk_ms;
  e.link_ms = e.time.link_busy_ms;
  if (e.time.total_ms() > 0)
    e.samples_per_s = static_cast<double>(e.batch.train_batch_size) / e.time.total_ms() * 1e3;
}

bool GivesTotal(const Json& ds_config) {
  const auto total = ds_config.find("train_batch_size");
  return total != ds_config.end() && total->is_number();
}

Json With(Json ds_config, const char* pointer, const Json& value) {
  ds_config[Json::json_pointer(pointer)] = value;
  return ds_config;
}

// `base` with the strategy, and its name. Slices on disk need buffers that hold a layer's: where
// the config does not say how large, they are made large enough.
std::pair<std::string, Json> VariantOf(const Json& base, const Strategy& strategy,
                                       const Model& model, int64_t num_ranks) {
  Json config = engine::WithStrategy(base, strategy);
  std::string name = strategy.name;
  const char* buffer_size = "/zero_optimization/offload_param/buffer_size";
  if (std::string_view(strategy.param_device) != "nvme" ||
      FindAtPointer(config, buffer_size) != nullptr)
    return {name, config};
  int64_t most = 0;
  for (const engine::PlanUnit& unit : engine::PlanUnitsOf(model, static_cast<int>(num_ranks)))
    most = std::max(most, unit.num_elems / num_ranks);
  if (most > engine::OffloadParamConfig().buffer_size) {
    config = With(std::move(config), buffer_size, most);
    name += fmt::format(" with buffer_size {}", most);
  }
  return {name, config};
}

}  // namespace

Planner::Planner(Model model, int64_t seq_len, const Cluster& cluster, std::string source)
    : model_(std::move(model)), seq_len_(seq_len), cluster_(cluster), source_(std::move(source)) {}

void Planner::Calibrate(const Json& ds_config, const std::vector<std::vector<double>>& timings) {
  std::vector<Timed> timed;
  std::vector<double> update_times;
  for (const std::vector<double>& timing : timings) {
    const auto size = static_cast<int64_t>(timing[0]);
    const engine::StepTime time =
        Of(ConfigForTrial(ds_config, {{kMicroBatchKey, size}, {kAccumulationKey, 1}},
                          cluster_.num_ranks))
            .time;
    // Waiting is no part of computing.
    const auto computed = [](double measured_ms, double waits_ms) {
      return std::max(measured_ms - waits_ms, measured_ms / 2);
    };
    if (time.compute_ms <= 0 || time.update_ms <= 0) return;
    timed.push_back(
        {timing[0], time.compute_ms, computed(timing[1], time.passes_ms - time.compute_ms)});
    const double waits_ms = time.total_ms() - time.passes_ms - time.update_ms;
    update_times.push_back(computed(timing[2], waits_ms) / time.update_ms);
  }
  if (timed.empty()) return;
  timed_ = std::move(timed);
  update_times_ = Summarize(update_times).value;
}

// How many times as long computing takes as the speeds say.
double Planner::ComputeTimes(int64_t micro_batch_size) const {
  if (timed_.empty()) return 1;
  if (timed_.size() == 1) return timed_[0].measured_ms / timed_[0].predicted_ms;
  const auto size = static_cast<double>(micro_batch_size);
  size_t above = 1;
  while (above + 1 < timed_.size() && timed_[above].micro_batch_size < size)
    ++above;
  const Timed &a = timed_[above - 1], &b = timed_[above];
  const auto per_sample = [&](double Timed::*ms) {
    return (b.*ms - a.*ms) / (b.micro_batch_size - a.micro_batch_size);
  };
  const double more = size - b.micro_batch_size;
  double slope = per_sample(&Timed::measured_ms);
  // A device that waits for its kernels needs no longer for a larger micro-batch, up to its limit.
  if (more > 0) slope = std::max(slope, cluster_.efficiency * per_sample(&Timed::predicted_ms));
  return (b.measured_ms + more * slope) /
         (b.predicted_ms + more * per_sample(&Timed::predicted_ms));
}

PlannerEstimate Planner::OnCluster(const Json& ds_config, const Cluster& cluster,
                                   std::vector<std::string>* warnings) const {
  const DsConfig config = ParseDsConfig(ds_config, source_, cluster.num_ranks, warnings);
  const auto size = static_cast<int>(cluster.num_ranks);
  PlannerEstimate estimate;
  estimate.batch = config.batch;
  estimate.num_stages = config.pipeline.num_stages;
  engine::Speeds speeds = cluster.SpeedsFor(config.dtype());
  speeds.compute_times = ComputeTimes(config.batch.micro_batch_size);
  speeds.update_times = update_times_;
  for (int stage = 0; stage < config.pipeline.num_stages; ++stage) {
    const int rank = stage * (size / config.pipeline.num_stages);
    estimate.ranks.push_back(engine::Predict(model_, config, seq_len_, rank, size,
                                             cluster.num_threads, speeds, cluster.kind()));
  }
  SumUp(cluster, estimate);
  return estimate;
}

int64_t Planner::LargestMicroBatch(const Json& ds_config) const {
  return LargestMicroBatchThat([&](int64_t micro_batch) {
    return Of(ConfigForTrial(ds_config, {{kMicroBatchKey, micro_batch}}, cluster_.num_ranks))
        .fits();
  });
}

std::vector<Variant> Planner::Variants(const Json& ds_config) const {
  const Json base = ConfigForTrial(ds_config, {}, cluster_.num_ranks);
  std::vector<Variant> variants;
  for (const Strategy& strategy : engine::Strategies()) {
    Variant& variant = variants.emplace_back();
    const auto [name, config] = VariantOf(base, strategy, model_, cluster_.num_ranks);
    variant.name = name;
    variant.refused = RefusalOf([&, &config = config] {
      variant.estimate = Of(config);
      variant.largest_micro_batch = LargestMicroBatch(config);
    });
  }
  return variants;
}

std::vector<Change> Planner::NearestChanges(const Json& ds_config) const {
  std::vector<Change> changes;
  for (const auto find :
       {&Planner::ChangeOfMicroBatch, &Planner::ChangeOfSettings, &Planner::ChangeOfRanks}) {
    if (std::optional<Change> change = (this->*find)(ds_config))
      changes.push_back(*std::move(change));
  }
  return changes;
}

// A global batch that is given stays.
std::optional<Change> Planner::ChangeOfMicroBatch(const Json& ds_config) const {
  int64_t micro_batch = LargestMicroBatch(ds_config);
  if (micro_batch == 0) return std::nullopt;
  std::map<std::string, Json> changes = {{kMicroBatchKey, micro_batch}};
  std::string what = fmt::format("{} {}", kMicroBatchKey, micro_batch);
  if (GivesTotal(ds_config)) {
    const engine::BatchSizes batch =
        engine::ResolveBatchSizes(ds_config, source_, cluster_.num_ranks);
    const int64_t samples = batch.micro_batch_size * batch.accumulation_steps;
    micro_batch = LargestDivisor(samples, micro_batch);
    changes = {{kMicroBatchKey, micro_batch}, {kAccumulationKey, samples / micro_batch}};
    what = fmt::format("{} {} and {} {}", kMicroBatchKey, micro_batch, kAccumulationKey,
                       samples / micro_batch);
  }
  return Change{what, Of(ConfigForTrial(ds_config, changes, cluster_.num_ranks))};
}

std::optional<Change> Planner::ChangeOfSettings(const Json& ds_config) const {
  const Json base = ConfigForTrial(ds_config, {}, cluster_.num_ranks);
  const int64_t stage = ParseDsConfig(base, source_, cluster_.num_ranks, nullptr).zero.stage;
  const auto attempt = [&](const std::string& what, const Json& config) {
    std::optional<Change> change;
    RefusalOf([&] {
      PlannerEstimate estimate = Of(config);
      if (estimate.fits()) change = {what, std::move(estimate)};
    });
    return change;
  };
  // Each alone, then with activation checkpoints, then with these in host memory.
  const auto attempts = [&](const std::string& name, const Json& config) -> std::optional<Change> {
    const std::string prefix = name.empty() ? "" : name + " and ";
    if (auto change = attempt(name, config)) return change;
    if (auto change = attempt(fmt::format("{}{} 1", prefix, kCheckpointInterval),
                              With(config, kCheckpointInterval, 1)))
      return change;
    return attempt(fmt::format("{}{} true", prefix, kCheckpointsOnHost),
                   With(config, kCheckpointsOnHost, true));
  };
  if (auto change = attempts("", base)) return change;
  for (const Strategy& strategy : engine::Strategies()) {
    if (strategy.stage < stage) continue;
    const auto [name, config] = VariantOf(base, strategy, model_, cluster_.num_ranks);
    if (auto change = attempts(name, config)) return change;
  }
  return std::nullopt;
}

std::optional<Change> Planner::ChangeOfRanks(const Json& ds_config) const {
  Json config = ConfigForTrial(ds_config, {}, cluster_.num_ranks);
  config.erase("train_batch_size");  // The micro-batch stays.
  Cluster cluster = cluster_;
  const int64_t most = std::max(kMostRanks, kMostTimesRanks * cluster.num_ranks);
  while (2 * cluster.num_ranks <= most) {
    cluster.num_ranks *= 2;
    PlannerEstimate estimate = OnCluster(config, cluster, nullptr);
    if (estimate.fits()) {
      std::string what = fmt::format("{} ranks", cluster.num_ranks);
      if (GivesTotal(ds_config))
        what += fmt::format(" with /train_batch_size {}", estimate.batch.train_batch_size);
      return Change{what, std::move(estimate)};
    }
  }
  return std::nullopt;
}

PlannerInputs PlannerInputsOf(const ExperimentSpec& spec) {
  return {.model = spec.hyperparameters.value("model", Json::object()),
          .model_what = spec.config_path + ": /hyperparameters/model",
          .base_dir = spec.model_dir,
          .data = spec.hyperparameters.value("data", Json::object()),
          .ds_config_source = "ds_config"};
}

Planner MakePlanner(const PlannerInputs& inputs, const Cluster& cluster) {
  Model model = engine::MakeModel(inputs.model, inputs.model_what, inputs.base_dir);
  int64_t seq_len = inputs.seq_len;
  if (seq_len == 0) {
    const Json data = inputs.data.is_object() ? inputs.data : Json::object();
    seq_len = engine::SeqLen(data, model.max_seq_len, "/hyperparameters/data");
  } else if (seq_len > model.max_seq_len) {
    Throw(ErrorCode::kInvalidArgument, "--seq-len: {}; expected at most {}, the model's longest",
          seq_len, model.max_seq_len);
  }
  return {std::move(model), seq_len, cluster, inputs.ds_config_source};
}

Json SpeedsOfDryRun(const engine::Cluster& cluster, const Json& ds_config) {
  const bool is_half = engine::Settings(ds_config, "ds_config").IsHalf();
  const engine::Speeds speeds =
      cluster.SpeedsFor(is_half ? engine::DType::kBF16 : engine::DType::kF32);
  return {speeds.flops, speeds.device_bytes};
}

void PutOn(const engine::Cluster& cluster, ModelProfile& profile) {
  const engine::Speeds speeds = cluster.SpeedsFor(engine::DType::kF32);
  profile.device = cluster.kind() == engine::DeviceKind::kCpu ? "cpu" : "cuda";
  profile.device_memory_bytes = cluster.device_memory_bytes;
  profile.link_bytes_per_s = static_cast<int64_t>(speeds.link_bytes);
  profile.to_device_bytes_per_s = profile.to_host_bytes_per_s =
      static_cast<int64_t>(speeds.copy_bytes);
  // Copies read and write.
  profile.copy_bytes_per_s = static_cast<int64_t>(speeds.device_bytes / 2);
}

ModelProfile ProfileByDataSheet(const ExperimentSpec& spec, const engine::Cluster& cluster) {
  const Planner planner = MakePlanner(PlannerInputsOf(spec), cluster);
  const PlannerEstimate estimate =
      planner.Of(engine::ConfigForTrial(spec.ds_config, {{kMicroBatchKey, 1}}, cluster.num_ranks));
  const double samples = static_cast<double>(estimate.batch.accumulation_steps);
  ModelProfile profile;
  profile.num_params = profile.trainable_num_params = engine::NumParams(planner.model());
  for (const engine::Prediction& rank : estimate.ranks) {
    profile.activation_bytes_per_sample =
        std::max(profile.activation_bytes_per_sample, rank.activation_bytes_per_sample);
    profile.forward_flops_per_sample +=
        static_cast<int64_t>(static_cast<double>(rank.forward_flops) / samples);
  }
  PutOn(cluster, profile);
  profile.num_threads = cluster.num_threads;
  const bool is_half = engine::Settings(spec.ds_config, "ds_config").IsHalf();
  profile.matmul_flops_per_s =
      static_cast<int64_t>(is_half ? cluster.flops_16bit : cluster.flops_f32);
  return profile;
}

}  // namespace dsat
