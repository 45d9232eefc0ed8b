// A surface of recorded launches.
#include "bench/recorded_surface.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/files.h"
#include "base/rng.h"
#include "engine/config/batch.h"
#include "profiler/effective_key.h"

namespace dsat {

RecordedSurface::RecordedSurface(const Family& family, uint64_t seed)
    : family_(family), seed_(seed) {
  const Json file = ReadJsonFile(std::string(DSAT_SOURCE_DIR) + "/" + family.recording);
  spec_ = ExperimentSpecFromJson(file.at("experiment"));
  profile_ = ProfileFromJson(file.at("profile"), family.recording);
  family_.ranks = static_cast<int>(spec_.slots_per_trial);
  family_.params = static_cast<double>(profile_.num_params);
  family_.memory_gb = static_cast<double>(profile_.device_memory_bytes) / 1e9;
  family_.exact = true;
  for (const Json& row : file.at("launches")) {
    const Assignment assignment = {{"/zero_optimization/stage", row.at(0)},
                                   {"/train_micro_batch_size_per_gpu", row.at(1)},
                                   {"/zero_optimization/reduce_bucket_size", row.at(2)},
                                   {"/zero_optimization/overlap_comm", row.at(3)}};
    Launches& launches = launches_[KeyOf(
        engine::ConfigForTrial(spec_.ds_config, assignment, spec_.slots_per_trial))];
    launches.samples = row.at(1);
    launches.all.push_back(
        {row.at(4), row.at(5), row.at(6), row.at(7), row.at(8), row.at(9), row.at(10)});
  }
}

std::string RecordedSurface::KeyOf(const Json& config) const {
  return EffectiveKey(config, spec_, profile_.num_params);
}

const RecordedSurface::Launches* RecordedSurface::Find(const Json& config) const {
  const auto found = launches_.find(KeyOf(config));
  return found == launches_.end() ? nullptr : &found->second;
}

ExperimentSpec RecordedSurface::Spec(const std::string& method, int64_t seed) const {
  ExperimentSpec spec = spec_;
  SetSearch(family_, method, seed, spec);
  return spec;
}

std::unique_ptr<Predictor> RecordedSurface::MakeSurfacePredictor(const ExperimentSpec& spec) const {
  return MakePredictor(spec, profile_);
}

double RecordedSurface::Launches::SampleMs() const {
  double sum = 0;
  for (const Recorded& launch : all)
    sum += std::log(launch.latency_ms);
  return std::exp(sum / static_cast<double>(all.size())) / samples;
}

double RecordedSurface::SampleMs(const Json& config) const {
  const Launches* launches = Find(config);
  return launches ? launches->SampleMs() : std::numeric_limits<double>::infinity();
}

double RecordedSurface::PeakBytes(const Json& config) const {
  const Launches* launches = Find(config);
  return launches ? launches->all[0].peak_bytes : std::numeric_limits<double>::infinity();
}

double RecordedSurface::BestSampleMs(const SearchSpace&, const ExperimentSpec&) const {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [key, launches] : launches_)
    best = std::min(best, launches.SampleMs());
  return best;
}

void RecordedSurface::Run(Trial& trial, double started_s, int64_t launch) const {
  trial.times.started_s = started_s;
  const Launches* launches = Find(trial.ds_config);
  if (launches == nullptr) {
    trial.state = TrialState::kInfeasible;
    trial.reason = "not recorded";
    trial.times.ended_s = started_s + 1;
    return;
  }
  Rng rng(seed_, static_cast<uint64_t>(launch), "launch");
  const Recorded& recorded = launches->all[rng.Below(launches->all.size())];
  const double share = recorded.spread_ms / recorded.latency_ms;
  const auto metric = [&](double value) {
    return Metric{.value = value, .spread = value * share, .samples = 20};
  };
  const double samples = launches->samples * static_cast<double>(family_.ranks);
  const double per_s = samples / recorded.latency_ms * 1e3;
  Measurement measurement;
  measurement["latency"] = metric(recorded.latency_ms);
  measurement["throughput"] = metric(per_s);
  measurement["FLOPS_per_gpu"] = metric(per_s * 1e6);
  measurement["forward"] = metric(recorded.forward_ms);
  measurement["backward"] = metric(recorded.backward_ms);
  measurement["step"] = metric(recorded.update_ms);
  measurement["peak_bytes"] = {.value = recorded.peak_bytes, .samples = 1};
  trial.points = {{.point = ConfigPoint(trial), .measurement = measurement}};
  trial.state = TrialState::kSucceeded;
  trial.times.ended_s = started_s + recorded.seconds;
}

std::unique_ptr<Surface> MakeSurface(const Family& family, uint64_t seed) {
  if (!family.recording.empty()) return std::make_unique<RecordedSurface>(family, seed);
  return std::make_unique<SimulatedSurface>(family, seed);
}

}  // namespace dsat
