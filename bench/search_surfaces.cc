// The laws of the simulated machines.
#include "bench/search_surfaces.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "engine/config/batch.h"
#include "engine/config/settings.h"
#include "engine/worker/step_window.h"
#include "proto/trial.h"

namespace dsat {

struct SimulatedSurface::Config {
  int stage = 0;
  double reduce = 0, gather = 0;
  bool overlap = false, scatter = true, contiguous = true;
  double size = 1, steps = 1;
  double host_optimizer = 0;  // The part of the optimizer states in host memory.
  bool host_params = false;
  bool checkpoints = false;
  std::string knob = "";  // The value of the user's own.
};

SimulatedSurface::SimulatedSurface(const Family& family, uint64_t seed)
    : family_(family), seed_(seed) {}

namespace {

// The user's own knob, whose values act differently at each stage.
constexpr char kKnob[] = "/arguments/--kernels";
constexpr char kCheckpoints[] = "/dsat/trainer/gradient_checkpointing";
// A configuration fits if a launch does that is fragmented this much.
constexpr double kUsual = 0.5;

}  // namespace

void SetSearch(const Family& family, const std::string& method, int64_t seed,
               ExperimentSpec& spec) {
  spec.method = method;
  spec.options.random_seed = seed;
  spec.options.space = family.space;
  spec.options.metric = "throughput";
  spec.options.zero_stages = {0, 1, 2, 3};
  if (family.pipeline > 1) spec.options.zero_stages = {0, 1};  // As DeepSpeed's.
  spec.options.max_trials = 64;
}

ExperimentSpec SimulatedSurface::Spec(const std::string& method, int64_t seed) const {
  ExperimentSpec spec;
  spec.name = family_.name;
  SetSearch(family_, method, seed, spec);
  spec.entrypoint = {family_.exact ? "builtin" : "train.py"};
  spec.slots_per_trial = family_.ranks;
  const int stage = family_.params * 16 > family_.memory_gb * 1e9 ? 3 : 1;
  spec.ds_config = {{"train_micro_batch_size_per_gpu", 1},
                    {"gradient_accumulation_steps", family_.accumulation},
                    {"bf16", {{"enabled", true}}},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
                    {"zero_optimization", {{"stage", stage}}}};
  if (family_.pipeline > 1) {
    spec.ds_config["zero_optimization"]["stage"] = 1;
    spec.ds_config["pipeline"]["stages"] = family_.pipeline;
  }
  if (family_.fixed_batch)
    spec.options.train_batch_size = family_.accumulation * family_.ranks / family_.pipeline;
  if (family_.knob_effect > 0) {
    spec.search_space[kKnob] = {"eager", "fused", "compiled"};
    spec.ds_config["arguments"]["--kernels"] = "eager";
  }
  return spec;
}

ModelProfile SimulatedSurface::Profile() const {
  const Family& f = family_;
  ModelProfile profile;
  profile.num_params = profile.trainable_num_params = static_cast<int64_t>(f.params);
  profile.activation_bytes_per_sample = static_cast<int64_t>(f.sample_gb * 1e9 * f.profile_error);
  profile.device_memory_bytes = static_cast<int64_t>(f.memory_gb * 1e9);
  if (f.exact) {  // A script's profile has no speeds.
    profile.matmul_flops_per_s = static_cast<int64_t>(f.matmul_flops_per_s);
    profile.forward_flops_per_sample =
        static_cast<int64_t>(f.sample_ms / 1e3 * f.matmul_flops_per_s * 0.5 / 3);
    profile.copy_bytes_per_s = static_cast<int64_t>(f.memory_bytes_per_s);
  }
  if (f.may_checkpoint) profile.trainer["gradient_checkpointing"] = false;
  if (!f.runs_dry) return profile;
  const int64_t submitted = Spec("auto", 0).ds_config["zero_optimization"]["stage"];
  profile.activation_bytes_per_sample = static_cast<int64_t>(f.sample_gb * 1e9);
  profile.dry_places = {RunDry(submitted)};
  for (int64_t stage = 0; stage < 4; ++stage) {
    if (stage != submitted) profile.dry_places.push_back(RunDry(stage));
  }
  return profile;
}

// All tensors but an unknown rest, the FLOPs and bytes of operators at the speed of a data sheet,
// and the collectives.
DryPlace SimulatedSurface::RunDry(int64_t stage) const {
  const Family& f = family_;
  Json ds_config = Spec("auto", 0).ds_config;
  SetAtPointer(ds_config, kStageKey, stage);
  Config c = Read(ds_config);
  const Rng common(seed_, 0, "dry run");
  Rng machine = common, own(seed_, 1 + static_cast<uint64_t>(stage), "dry run");
  const double uncounted_gb = f.memory_gb * 0.02 * machine.Uniform();
  const double speed = std::exp(0.6 * machine.Normal());
  const double fixed = std::exp(0.7 * machine.Normal()), moved = std::exp(0.5 * machine.Normal());
  const auto need = [&](double size) {
    c.size = size;
    return 1e9 * (NeedGb(c, false) - uncounted_gb);
  };
  DryPlace place{.stage = stage};
  const double slope = need(2) - need(1);
  place.lines = {{need(1) - slope, slope}};
  const double error = std::exp(0.05 * own.Normal());
  place.passes_ms = {speed * error * fixed * f.micro_batch_ms, speed * error * f.sample_ms};
  const double ranks = static_cast<double>(f.ranks);
  place.update_ms =
      speed * moved * (1 + f.params * 30 / f.memory_bytes_per_s * 1e3 / (stage >= 1 ? ranks : 1));
  if (f.ranks == 1) return place;
  const double sent = 2 * f.params * (ranks - 1) / ranks;
  const double buckets = std::max(std::ceil(f.params / c.reduce), 1.0);
  place.passes_sent = {buckets, (stage == 0 || !c.scatter ? 2 : 1) * sent};
  if (stage == 3) place.passes_sent = {buckets + 2.0 * f.layers, 3 * sent};
  if (stage == 1 || stage == 2)
    place.update_sent = {std::max(std::ceil(f.params / c.gather), 1.0), sent};
  return place;
}

namespace {

double OffloadedOptimizer(const engine::Settings& settings) {
  if (settings.stage() == 0) return 0;
  if (settings.Text("/zero_optimization/offload_optimizer/device") == "none") return 0;
  return settings.stage() < 3 ? 1 : settings.Number("/zero_optimization/offload_optimizer/ratio");
}

}  // namespace

SimulatedSurface::Config SimulatedSurface::Read(const Json& config) const {
  const engine::Settings settings(config, "ds_config");
  return {.stage = settings.stage(),
          .reduce = settings.Number("/zero_optimization/reduce_bucket_size"),
          .gather = settings.Number("/zero_optimization/allgather_bucket_size"),
          .overlap = settings.Is("/zero_optimization/overlap_comm"),
          .scatter = settings.Is("/zero_optimization/reduce_scatter"),
          .contiguous = settings.Is("/zero_optimization/contiguous_gradients"),
          .size = settings.Number("/train_micro_batch_size_per_gpu"),
          .steps = settings.Number("/gradient_accumulation_steps"),
          .host_optimizer = OffloadedOptimizer(settings),
          .host_params = settings.stage() == 3 &&
                         settings.Text("/zero_optimization/offload_param/device") != "none",
          .checkpoints = config.value(Json::json_pointer(kCheckpoints), false),
          .knob = config.value(Json::json_pointer(kKnob), "")};
}

double SimulatedSurface::Hash(const Config& c, const char* purpose) const {
  uint64_t stream = static_cast<uint64_t>(c.stage);
  const bool alone = family_.ranks == family_.pipeline;
  const double gather = alone || c.stage % 3 == 0 ? 0 : c.gather;  // Has no effect there.
  for (const double value : {alone ? 0 : c.reduce, gather, c.size, c.overlap ? 1.0 : 0.0,
                             c.scatter ? 1.0 : 0.0, c.contiguous ? 1.0 : 0.0, c.steps})
    stream = stream * 1000003 + static_cast<uint64_t>(value);
  stream += static_cast<uint64_t>(1e9 * c.host_optimizer) + (c.host_params ? 7 : 0) +
            (c.checkpoints ? 11 : 0);
  if (!c.knob.empty()) stream += StableHash(c.knob);
  return Rng(seed_, stream, purpose).Normal();
}

double SimulatedSurface::NeedGb(const Config& c, bool with_jitter) const {
  const Family& f = family_;
  const double params = f.params / 1e9, ranks = static_cast<double>(f.ranks / f.pipeline);
  double need = 2 * params / (c.stage >= 2 ? ranks : 1) +
                12 * params / (c.stage >= 1 ? ranks : 1) * (1 - c.host_optimizer);
  if (!c.host_params) need += 2 * params / (c.stage == 3 ? ranks : 1);
  if (ranks > 1) {
    // The whole bucket is allocated, however small the model is.
    const double most = f.exact || f.caps_buckets ? f.params : 1e18;
    need += 2 * std::min(c.reduce, most) / 1e9 * (c.overlap && c.stage < 3 ? 2 : 1) *
            (c.contiguous ? 1 : 0.5);
    if (c.stage == 1 || c.stage == 2) need += 2 * std::min(c.gather, f.params) / 1e9;
    if (c.stage == 3) need += 2 * params * 3 / f.layers;
  }
  // Two sizes of a dry run tell those of all others (bench/script_memory.py).
  const bool is_line = f.exact || f.runs_dry;
  need += f.sample_gb * (is_line ? c.size : std::pow(c.size, 1.03)) *
          (c.checkpoints ? f.checkpointed : 1);
  if (!f.exact) need += f.workspace_gb;
  if (with_jitter && !f.exact) need += f.memory_gb * 0.01 * std::abs(Hash(c, "fragmentation"));
  return need;
}

// `fragmented` is a launch's part of the most that fragmentation takes.
bool SimulatedSurface::Fits(const Config& c, double fragmented) const {
  const Family& f = family_;
  return NeedGb(c, true) * (1 + fragmented * f.launch_fragmentation) <=
         f.memory_gb * (1 - f.hidden_gap);
}

SimulatedSurface::Times SimulatedSurface::TimesOf(const Config& c) const {
  const Family& f = family_;
  const double ranks = static_cast<double>(f.ranks / f.pipeline), share = (ranks - 1) / ranks;
  double efficiency =
      1 - f.small_penalty * (f.is_hyperbolic ? f.saturation / (f.saturation + c.size)
                                             : std::exp(-c.size / f.saturation));
  efficiency /= 1 + f.large_penalty * std::max(std::log2(c.size / f.large_from), 0.0);
  const auto whole = static_cast<int64_t>(c.size);
  double shape = whole % 8 == 0 ? 0 : whole % 4 == 0 ? 0.4 : whole % 2 == 0 ? 0.7 : 1;
  shape = c.size < 8 ? 0.3 * shape : shape;
  double compute = f.micro_batch_ms + f.sample_ms * c.size / efficiency;
  compute *= 1 + f.ripple * shape * std::min(1.0, 24 / c.size + 0.3);
  if (f.wave > 0) compute *= 1 + f.wave_share * (std::ceil(c.size / f.wave) * f.wave / c.size - 1);
  if (Rng(seed_, static_cast<uint64_t>(whole), "cliff").Uniform() < f.cliff_share)
    compute *= 1 + f.cliff;
  const double full = NeedGb(c, false) / f.memory_gb;
  compute *= 1 + 0.6 * std::max(full - 0.92, 0.0);
  if (!c.contiguous) compute *= 1.006;
  if (c.checkpoints) compute *= 1 + f.recomputed;
  const auto collective = [&](double bytes, double calls) {
    return bytes / f.link_gb_s / 1e6 + calls * f.call_us * std::log2(ranks + 1) / 1e3;
  };
  Times times;
  double backward = 0.64 * compute, forward = 0.36 * compute;
  // The first and the last micro-batch leave pipeline stages idle.
  const double micro_steps = c.steps + f.pipeline - 1;
  times.update = 1 + f.params * 30 / f.memory_bytes_per_s * 1e3 / (c.stage >= 1 ? ranks : 1);
  const double to_host_ms = f.params / ranks / f.host_bytes_per_s * 1e3;  // For a byte each.
  times.update += 16 * c.host_optimizer * to_host_ms;
  forward += c.host_params ? 2 * to_host_ms : 0;
  backward += c.host_params ? 2 * to_host_ms : 0;
  if (ranks > 1) {
    const double volume = c.stage == 0 || !c.scatter ? 2 : 1;
    const double buckets = std::max(std::ceil(f.params / c.reduce), 1.0);
    double reduce = collective(2 * f.params * volume * share, buckets);
    reduce *= 1 + 0.02 * std::max(std::log10(std::min(c.reduce, f.params) / 1e8), 0.0);
    double exposed = reduce;
    if (c.overlap) {
      // The first bucket is full after its share of the pass; the last one ends after the pass.
      exposed = std::max(reduce - backward * (1 - 1 / buckets) * 0.85, reduce / buckets);
      backward *= 1 + f.contention;
    }
    if (c.stage == 3) {
      const double layer = f.gather_factor * collective(2 * f.params / f.layers * share, 1);
      const double hidden = 0.7 * compute / f.layers;
      forward += layer + (f.layers - 1) * std::max(layer - hidden * 0.36, 0.0);
      backward += layer + (f.layers - 1) * std::max(layer - hidden * 0.64, 0.0);
    }
    times.backward = c.stage >= 2 ? c.steps * exposed : exposed;
    if (c.stage == 1 || c.stage == 2)
      times.update +=
          collective(2 * f.params * share, std::max(std::ceil(f.params / c.gather), 1.0));
  }
  times.forward += micro_steps * forward;
  times.backward += micro_steps * backward;
  return times;
}

double SimulatedSurface::SmoothStepMsOf(const Config& c) const {
  double log = 0;
  if (!c.knob.empty() && c.knob != "eager")
    log = family_.knob_effect * Hash({.stage = c.stage, .knob = c.knob}, "knob");
  return TimesOf(c).all() * std::exp(log);
}

double SimulatedSurface::StepMsOf(const Config& c) const {
  const Config shape{.size = c.size};
  return SmoothStepMsOf(c) * std::exp(family_.size_roughness * Hash(shape, "kernels") +
                                      family_.config_roughness * Hash(c, "roughness"));
}

double SimulatedSurface::LaunchNoiseOf(const Config& c) const {
  const double place = Hash({.stage = c.stage, .size = 0}, "place");
  return family_.launch_noise * std::exp(family_.place_noise * place);
}

double SimulatedSurface::PeakBytes(const Json& config) const {
  return NeedGb(Read(config), true) * 1e9;
}

double SimulatedSurface::SampleMs(const Json& config) const {
  const Config c = Read(config);
  if (!Fits(c, kUsual)) return std::numeric_limits<double>::infinity();
  return StepMsOf(c) / (c.size * c.steps);
}

double SimulatedSurface::BestSampleMs(const SearchSpace& space, const ExperimentSpec& spec) const {
  double best = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : Candidates(space, spec))
    best = std::min(best, candidate.sample_ms);
  return best;
}

std::vector<SimulatedSurface::Candidate> SimulatedSurface::Candidates(
    const SearchSpace& space, const ExperimentSpec& spec) const {
  std::vector<Candidate> candidates;
  for (const StageSpace& stage : space.stages) {
    Json json = spec.ds_config;
    SetAtPointer(json, "/zero_optimization/stage", stage.stage);
    for (const auto& [pointer, value] : stage.settings)
      SetAtPointer(json, pointer, value);
    std::vector<Config> configs = {Read(json)};
    for (const Knob& knob : stage.knobs) {
      const std::string name = knob.pointer.substr(knob.pointer.rfind('/') + 1);
      if (!knob.effects.empty() && name != "ratio") continue;  // Changes nothing here.
      std::vector<Config> more;
      for (Config config : configs) {
        for (const Json& value : knob.values) {
          if (name == "ratio") config.host_optimizer = value;
          if (name == "reduce_bucket_size") config.reduce = value;
          if (name == "allgather_bucket_size") config.gather = value;
          if (name == "overlap_comm") config.overlap = value;
          if (name == "reduce_scatter") config.scatter = value;
          if (name == "contiguous_gradients") config.contiguous = value;
          if (knob.pointer == kKnob) config.knob = value;
          more.push_back(config);
        }
      }
      configs = more;
    }
    for (Config config : configs) {
      const double batch = static_cast<double>(family_.accumulation);
      for (config.size = 1; config.size <= 1024; ++config.size) {
        if (NeedGb(config, false) > family_.memory_gb) break;
        if (!Fits(config, kUsual)) continue;
        if (family_.fixed_batch && std::fmod(batch, config.size) != 0) continue;
        if (family_.fixed_batch) config.steps = batch / config.size;
        const double samples = config.size * config.steps;
        candidates.push_back({.smooth_ms = SmoothStepMsOf(config) / samples,
                              .sample_ms = StepMsOf(config) / samples,
                              .size = config.size,
                              .launch_noise = LaunchNoiseOf(config)});
      }
    }
  }
  return candidates;
}

void SimulatedSurface::Run(Trial& trial, double started_s, int64_t launch) const {
  const Family& f = family_;
  const Config c = Read(trial.ds_config);
  const double step_ms = StepMsOf(c);
  Rng rng(seed_, static_cast<uint64_t>(launch), "launch");
  double run_s = f.launch_s * std::exp(0.1 * rng.Normal());
  trial.times.started_s = started_s;
  Rng more(seed_, static_cast<uint64_t>(launch), "drawn");
  if (!Fits(c, more.Uniform())) {
    trial.state = TrialState::kInfeasible;
    trial.reason = "out of memory";
    trial.times.ended_s = started_s + run_s;
    return;
  }
  double deviation = LaunchNoiseOf(c) * rng.Normal();
  if (f.has_heavy_tails) {  // Student's distribution with 3 degrees of freedom, the same deviation.
    double squares = 0;
    for (int i = 0; i < 3; ++i)
      squares += std::pow(more.Normal(), 2);
    const double most = f.launch_noise;
    deviation = std::clamp(deviation / std::sqrt(squares), -3 * most, 12 * most);
  }
  double slow = std::exp(deviation + f.drift * started_s / 3600);
  if (rng.Uniform() < f.outliers) slow *= 1.1 + 0.2 * rng.Uniform();
  if (more.Uniform() < f.second_kind) slow *= f.second_slow;
  // Episodes of five minutes.
  if (Rng(seed_, static_cast<uint64_t>(started_s / 300), "throttle").Uniform() < f.throttled)
    slow *= 1.2;
  // As many steps as the engine measures, or dsat's hook in a script.
  constexpr int kFirst = 3;
  std::vector<double> steps_ms(kFirst, slow * step_ms);
  engine::StepWindow window({.first = kFirst, .least = f.exact ? 3 : 2});
  for (const double ms : steps_ms)
    window.Add(ms);
  do {
    steps_ms.push_back(slow * step_ms * std::exp(f.noise * rng.Normal()));
  } while (window.Add(steps_ms.back()));
  const Metric counted = Summarize({steps_ms.begin() + window.first(), steps_ms.end()});
  const double measured_ms = counted.value;
  const auto metric = [&](double value) {
    return Metric{
        .value = value, .spread = value * counted.spread / measured_ms, .samples = counted.samples};
  };
  const Times times = TimesOf(c);
  Measurement measurement;
  const double samples = c.size * c.steps * static_cast<double>(f.ranks / f.pipeline);
  measurement["latency"] = metric(measured_ms);
  measurement["throughput"] = metric(samples / measured_ms * 1e3);
  measurement["FLOPS_per_gpu"] = metric(samples / measured_ms * 1e9);
  for (const auto& [name, part] :
       {std::pair("forward", times.forward), std::pair("backward", times.backward),
        std::pair("step", times.update)})
    measurement[name] = metric(measured_ms * part / times.all());
  if (f.reports_peak) measurement["peak_bytes"] = {.value = NeedGb(c, true) * 1e9, .samples = 1};
  trial.points = {{.point = ConfigPoint(trial), .measurement = measurement}};
  trial.state = TrialState::kSucceeded;
  trial.times.ended_s =
      started_s + run_s + std::accumulate(steps_ms.begin(), steps_ms.end(), 0.0) / 1e3;
}

namespace {

// The bytes are exact; the times are those of the plan, in which nothing saturates.
class SurfacePredictor : public Predictor {
 public:
  explicit SurfacePredictor(const Surface& surface) : surface_(surface) {}

  Estimate Predict(const Json& ds_config) const override {
    const Family& f = surface_.family();
    const engine::Settings settings(ds_config, "ds_config");
    const double ranks = static_cast<double>(f.ranks);
    Estimate predicted;
    predicted.exact = true;
    predicted.device = {.state_bytes = 0,
                        .peak_bytes = static_cast<int64_t>(surface_.PeakBytes(ds_config)),
                        .limit_bytes = static_cast<int64_t>(f.memory_gb * 1e9)};
    predicted.compute_ms = 1.3 * f.sample_ms * settings.Number("/train_micro_batch_size_per_gpu");
    predicted.update_ms =
        f.params * 28e3 / f.memory_bytes_per_s / (settings.stage() >= 1 ? ranks : 1);
    return predicted;
  }

  int64_t LargestMicroBatch(const Json& ds_config) const override {
    int64_t size = 0;
    Json config = ds_config;
    do {
      config["train_micro_batch_size_per_gpu"] = size + 1;
    } while (Predict(config).fits() && ++size < 4096);
    return size;
  }

 private:
  const Surface& surface_;
};

}  // namespace

std::unique_ptr<Predictor> SimulatedSurface::MakeSurfacePredictor(
    const ExperimentSpec& spec) const {
  if (family_.exact) return std::make_unique<SurfacePredictor>(*this);
  return MakeFormulaPredictor(spec, Profile());
}

}  // namespace dsat
