// The table of families of simulated machines, and the machines that are drawn.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/rng.h"
#include "bench/search_surfaces.h"

namespace dsat {

const std::vector<Family>& Families() {
  static const std::vector<Family> kFamilies = {
      {.name = "nvlink-350m", .saturation = 3, .memory_gb = 40, .sample_gb = 0.9},
      {.name = "cnn-v100",
       .ranks = 4,
       .params = 60e6,
       .layers = 60,
       .sample_ms = 1.2,
       .saturation = 20,
       .micro_batch_ms = 12,
       .ripple = 0.06,
       .link_gb_s = 60,
       .memory_bytes_per_s = 8e11,
       .memory_gb = 16,
       .sample_gb = 0.11},
      {.name = "two-nodes-6.7b",
       .ranks = 16,
       .params = 6.7e9,
       .layers = 32,
       .sample_ms = 220,
       .saturation = 1,
       .link_gb_s = 20,
       .memory_bytes_per_s = 1.5e12,
       .memory_gb = 40,
       .sample_gb = 2.1,
       .launch_s = 60,
       .accumulation = 4},
      {.name = "small-size-best",
       .ranks = 2,
       .params = 120e6,
       .layers = 12,
       .sample_ms = 6,
       .saturation = 1.2,
       .micro_batch_ms = 1,
       .large_penalty = 0.06,
       .large_from = 6,
       .link_gb_s = 120,
       .memory_gb = 24,
       .sample_gb = 0.35},
      {.name = "one-gpu-builtin",
       .ranks = 1,
       .params = 350e6,
       .sample_ms = 9,
       .saturation = 3,
       .memory_gb = 24,
       .sample_gb = 0.6,
       .profile_error = 1,
       .launch_s = 3,
       .exact = true},
      {.name = "wrong-by-2x",
       .ranks = 4,
       .params = 1.3e9,
       .sample_ms = 40,
       .saturation = 8,
       .micro_batch_ms = 20,
       .link_gb_s = 12,
       .memory_gb = 32,
       .sample_gb = 0.5,
       .profile_error = 0.5,
       .gather_factor = 2,
       .reports_peak = false},
      {.name = "room-for-two",
       .ranks = 2,
       .params = 1.3e9,
       .sample_ms = 60,
       .saturation = 3,
       .link_gb_s = 20,
       .memory_gb = 14.8,
       .sample_gb = 1.3,
       .reports_peak = false},
      {.name = "busy-two-gpus",
       .ranks = 2,
       .params = 700e6,
       .sample_ms = 25,
       .link_gb_s = 60,
       .memory_gb = 32,
       .sample_gb = 0.9,
       .noise = 0.03,
       .launch_noise = 0.025,
       .outliers = 0.05,
       .drift = 0.01},
      {.name = "pcie-comm-bound",
       .held_out = true,
       .ranks = 8,
       .params = 770e6,
       .layers = 36,
       .sample_ms = 18,
       .saturation = 2,
       .link_gb_s = 6,
       .call_us = 80,
       .memory_gb = 24,
       .sample_gb = 0.7},
      {.name = "big-gpu-plateau",
       .held_out = true,
       .ranks = 8,
       .params = 1.5e9,
       .layers = 48,
       .sample_ms = 14,
       .saturation = 6,
       .link_gb_s = 400,
       .memory_bytes_per_s = 4e12,
       .memory_gb = 139,
       .sample_gb = 1.1},
      {.name = "stage-3-best",
       .held_out = true,
       .ranks = 8,
       .params = 2.7e9,
       .layers = 32,
       .sample_ms = 60,
       .saturation = 6,
       .micro_batch_ms = 30,
       .link_gb_s = 200,
       .memory_gb = 24,
       .sample_gb = 0.8,
       .gather_factor = 0.5},
      {.name = "heavy-noise",
       .held_out = true,
       .ranks = 4,
       .params = 350e6,
       .sample_ms = 12,
       .link_gb_s = 30,
       .memory_gb = 24,
       .sample_gb = 0.6,
       .noise = 0.05,
       .launch_noise = 0.03,
       .outliers = 0.05,
       .drift = 0.02},
      {.name = "tiny-feasible-set",
       .held_out = true,
       .ranks = 4,
       .params = 2.7e9,
       .layers = 32,
       .sample_ms = 90,
       .saturation = 2,
       .link_gb_s = 25,
       .memory_gb = 16,
       .sample_gb = 1.6,
       .reports_peak = false},
      {.name = "four-ranks-builtin",
       .held_out = true,
       .ranks = 4,
       .params = 120e6,
       .layers = 12,
       .sample_ms = 30,
       .saturation = 2,
       .micro_batch_ms = 8,
       .link_gb_s = 5,
       .memory_bytes_per_s = 2e10,
       .memory_gb = 8,
       .sample_gb = 0.25,
       .profile_error = 1,
       .launch_noise = 0.015,
       .launch_s = 2,
       .exact = true},
      {.name = "recorded-cpu", .held_out = true, .recording = "bench/recorded_surface.json"},
  };
  return kFamilies;
}

namespace {

// The draws of one machine. Each law has its own, so that a new one changes no other.
struct Draws {
  uint64_t seed;

  Rng Of(const char* law) const { return {seed, 0, law}; }
  double Uniform(const char* law, double least, double most) const {
    return least + (most - least) * Of(law).Uniform();
  }
  double LogUniform(const char* law, double least, double most) const {
    return least * std::pow(most / least, Of(law).Uniform());
  }
  bool Chance(const char* law, double probability) const { return Of(law).Uniform() < probability; }
  // Uniform with this probability, else 0.
  double Sometimes(const char* law, double probability, double least, double most) const {
    Rng rng = Of(law);
    const bool is_there = rng.Uniform() < probability;
    const double value = least + (most - least) * rng.Uniform();
    return is_there ? value : 0;
  }
};

void DrawRanks(const Draws& draws, Family& f) {
  f.exact = draws.Chance("engine", 0.15);
  if (!f.exact && draws.Chance("pipeline", 0.1)) f.pipeline = draws.Chance("stages", 0.5) ? 2 : 4;
  f.ranks = f.pipeline << draws.Of("ranks").Below(f.exact ? 4 : f.pipeline > 1 ? 7 : 10);
  f.fixed_batch = f.pipeline > 1 || draws.Chance("batch", 0.3);
  f.accumulation = f.fixed_batch                       ? 4 << draws.Of("samples").Below(6)
                   : draws.Chance("accumulation", 0.3) ? 4
                                                       : 1;
}

// A tenth to two thirds of the memory is for states at the highest stage, and the rest has room for
// 2 to 200 samples. Returns that number.
double DrawMemory(const Draws& draws, Family& f) {
  const double ranks = static_cast<double>(f.ranks) / f.pipeline;
  constexpr std::array kSizesGb = {8, 16, 24, 40, 80, 141};
  f.memory_gb = kSizesGb[draws.Of("memory").Below(kSizesGb.size())];
  const double state_gb = f.memory_gb * draws.LogUniform("state", 0.1, 0.6);
  const double bytes_per_param = f.pipeline > 1 ? 4 + 12 / ranks : 1.5 + 16 / ranks;
  f.params = std::clamp(1e9 * state_gb / bytes_per_param, 2e7, 2e10);
  f.layers = static_cast<int>(draws.LogUniform("layers", 8, 96));
  const double room = draws.LogUniform("room", 2, 200);
  f.workspace_gb = f.memory_gb * draws.Uniform("workspace", 0, 0.06);
  f.sample_gb = (f.memory_gb - state_gb - f.workspace_gb) / room;
  f.caps_buckets = draws.Chance("buckets", 0.5);
  f.reports_peak = draws.Chance("peak", 0.8);
  if (f.exact) {
    f.profile_error = 1;
    return room;
  }
  f.profile_error = draws.LogUniform("profile", 0.5, 2);
  f.hidden_gap = draws.Uniform("gap", 0, 0.15);
  f.launch_fragmentation = draws.Sometimes("fragmentation", 0.5, 0, 0.05);
  f.may_checkpoint = draws.Chance("checkpoints", 0.5);
  f.checkpointed = draws.LogUniform("checkpointed", 0.08, 0.9);
  f.recomputed = draws.Uniform("recomputed", 0.2, 0.5);
  return room;
}

void DrawTimes(const Draws& draws, double room, Family& f) {
  f.sample_ms = draws.LogUniform("sample", 0.5, 300);
  f.micro_batch_ms = f.sample_ms * draws.LogUniform("micro-batch", 0.02, 4);
  f.saturation = room * draws.LogUniform("saturation", 0.01, 1);
  f.small_penalty = draws.Uniform("small", 0.2, 0.9);
  f.is_hyperbolic = draws.Chance("curve", 0.5);
  f.large_penalty = draws.Sometimes("large", 0.2, 0.01, 0.08);
  f.large_from = room * draws.LogUniform("large from", 0.1, 1);
  f.ripple = draws.Sometimes("ripple", 0.7, 0, 0.08);
  f.wave = draws.Sometimes("wave", 0.3, 2, 24);
  f.wave_share = draws.Uniform("wave share", 0.05, 0.3);
  f.cliff_share = draws.Sometimes("cliffs", 0.15, 0.1, 0.3);
  f.cliff = draws.Uniform("cliff", 0.05, 0.15);
  f.size_roughness = draws.LogUniform("size roughness", 0.003, 0.04);
  f.config_roughness = draws.LogUniform("roughness", 0.002, 0.03);
  // Sending the gradients takes 1 to 200 % of computing with half of the memory.
  const double compute_ms = f.sample_ms * std::max(room / 2, 1.0);
  f.link_gb_s = 2 * f.params / 1e6 / compute_ms / draws.LogUniform("link", 0.01, 2);
  f.call_us = draws.LogUniform("call", 5, 300);
  f.contention = 0.01 + draws.Sometimes("contention", 0.4, 0, 0.2);
  f.gather_factor = draws.LogUniform("gather", 0.5, 2);
  f.memory_bytes_per_s = draws.LogUniform("update", 2e10, 4e12);
  f.knob_effect = draws.Sometimes("knob", 0.3, 0.03, 0.3);
}

void DrawLaunches(const Draws& draws, Family& f) {
  f.launch_s = draws.LogUniform("launch", 2, 90);
  f.launch_noise = draws.LogUniform("launch noise", 0.003, 0.2);
  f.noise = draws.LogUniform("step noise", 0.003, 0.05);
  f.place_noise = draws.Sometimes("places", 0.3, 0.3, 0.8);
  f.has_heavy_tails = draws.Chance("tails", 0.3);
  f.outliers = draws.Sometimes("outliers", 0.5, 0, 0.08);
  f.drift = draws.Sometimes("drift", 0.3, -0.03, 0.03);
  f.throttled = draws.Sometimes("throttling", 0.2, 0.05, 0.3);
  f.second_kind = draws.Sometimes("second kind", 0.1, 0.05, 0.3);
  f.second_slow = draws.Uniform("second", 1.15, 1.65);
}

}  // namespace

Family DrawnFamily(uint64_t seed) {
  const Draws draws{seed};
  Family f{.name = "drawn", .drawn = true};
  DrawRanks(draws, f);
  DrawTimes(draws, DrawMemory(draws, f), f);
  DrawLaunches(draws, f);
  return f;
}

}  // namespace dsat
