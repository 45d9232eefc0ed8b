// Every prior and threshold of auto, with its unit and its source:
//   [bench]  It was chosen by hand, by comparing runs of bench/search_quality on its fourteen
//            families of simulated machines, or on drawn machines of seeds below 100,000;
//            docs/dev/benchmarks.md has the figures that were kept.
//   [script] It comes from measured scripts (docs/dev/benchmarks.md).
//   [guess]  It is a judgement: nothing was compared. Most of these are wide or matter little.
// Units: "log" is the natural logarithm of a time or of a factor on it; a share is one of a step's
// time, or of the device's memory; a sample is the time in which a device computes one sample.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dsat {

struct AutoPriors {
  struct Normal {
    double mean = 0, sd = 0;
  };

  // The terms of a step's time, as logs of factors unless a comment says otherwise. The sources are
  // [guess], or [bench] without figures that were kept, unless a comment says otherwise.
  struct Times {
    Normal scale = {0, 1}, parts_scale = {0, 1};  // The objective, and its measured parts.
    // The micro-batch at half of the efficiency takes so many ms, within a range of samples; log of
    // samples if no speed is known. Then how fast the efficiency grows.
    double overhead_ms = 2, least_overhead = 0.1, most_overhead = 20;
    double overhead = 0, overhead_sd = 1.7;
    Normal curve = {0, 0.3};
    // The speed of a link, bytes/ms; log of samples to send all parameters if no speed is known;
    // and the standard deviations by what is known.
    double link_bytes_per_ms = 3e7, link = -0.7;
    double link_sd_of_forecast = 0.8, link_sd_of_guess = 1.2, link_sd_unknown = 1.5;
    // The latency of a collective, ms; log of samples if no speed is known.
    double call_ms = 0.05, call = -6, call_sd = 1.3;
    // Shares of the backward pass that hide reductions, and of a micro-batch that hide gathering.
    double hidden_share = 0.6, hidden_sd = 0.4, prefetch_share = 0.6, prefetch_sd = 0.4;
    Normal gather = {0, 0.3};  // Gathering at stage 3.
    // The bytes of a parameter that the update moves; log of samples if no speed is known.
    double update_bytes_per_param = 28, update = -1.2, update_sd = 1;
    // The rest of a step, ms, within a range of samples; log of samples if no speed is known.
    double step_ms = 2, least_step = 0.02, most_step = 5, step = -2.3, step_sd = 1.3;
    Normal pressure = {0.01, 0.03};  // The slowdown of computing in full memory, a share.
    Normal forward_share = {0, 0.2};
    Normal traffic = {0, 0.25}, stage = {0, 0.02};  // For each stage.
    Normal script_stage3 = {0.15, 0.15};            // [script] Without the engine's own plan.
    Normal trend = {0, 0.04};                       // [bench] For each doubling of the size.
    Normal uneven_size = {0.005, 0.015};            // Each of sizes that 2, 4 or 8 do not divide.
    Normal scattered = {0.005, 0.01};
    Normal contention = {0.02, 0.05};  // [bench] Overlap hurts as often as it helps.
    Normal recompute = {0, 0.3}, move = {0, 0.7};
    Normal others = {1, 0.5};        // A factor on predicted effects.
    double matmul_efficiency = 0.5;  // A share of the measured speed.
    double num_units = 30;           // The collectives in which stage 3 gathers all parameters.
    double offload_samples = 8;      // [script] Samples of all ranks that offloading takes.
    double recomputed = 1.0 / 3;     // [guess] The forward pass, if a script's model recomputes it.
    // From this share of memory on it is nearly full. The pressure is the excess in units of the
    // width, up to a limit; the slowdown is a factor of at least this.
    double nearly_full = 0.9, full_width = 0.1, most_pressure = 1.5, least_slowdown = 0.5;
    double softness = 0.1;  // Exposed communication is smoothed over this part of all of it.
  };
  Times times;

  // The needs of configurations, as shares of the device's memory. The factors are those of the
  // states at each stage (4), buffers, activations, a constant, other predicted effects, what the
  // device cannot give beyond the peaks that trials report, and the part of the activations that
  // stays although checkpointing was predicted to save it.
  struct Memory {
    using Factors = std::array<double, 10>;
    // [guess] The engine's exact forecasts.
    Factors mean = {1, 1, 1, 1, 1, 1, 0, 1, 0, 0};
    Factors exact_sd = {0.002, 0.002, 0.002, 0.002, 0.3, 0.01, 0.003, 0.2, 0, 0};
    double exact_noise = 0.002;
    // [script] Bytes of all tensors by a dry run, but on a GPU by the CPU's operators; reported
    // peaks have the allocator's rounding on top, and the need what formula_mean has.
    Factors tracked_mean = {1, 1, 1, 1, 1, 1, 0.005, 1, 0.07, 0};
    Factors tracked_sd = {0.02, 0.02, 0.02, 0.04, 0.3, 0.05, 0.01, 0.5, 0.045, 0.05};
    double tracked_noise = 0.008;
    // [bench] Formulas leave out temporary buffers and fragmentation, and reported peaks the
    // context, collectives and the allocator's reserve. How many gathered layers are live at the
    // peak of stage 3 is less certain than the states of other stages (pcie-comm-bound); buffers
    // are from room-for-two. [script] What checkpointing saves depends on the model: with a large
    // vocabulary, its logits stay.
    Factors formula_mean = {1, 1, 1, 1, 1, 1.15, 0.03, 1, 0.07, 0.1};
    Factors formula_sd = {0.06, 0.06, 0.06, 0.15, 0.35, 0.35, 0.02, 0.7, 0.045, 0.3};
    double formula_noise = 0.008;
    // [guess] Only the largest size that fits is known, and its shares of states and activations;
    // its least value in samples stands for none.
    Factors unknown_sd = {0.5, 0.5, 0.5, 0.5, 0, 0.35, 0.05, 0, 0, 0};
    double unknown_noise = 0.03;
    double unknown_state = 0.1, unknown_activations = 0.85, unknown_least_size = 0.7;
    // [guess] The distances of a need from the limit at which a misfit is impossible or surprising,
    // in standard deviations; surprising ones, from the second in a row on, widen the belief.
    double impossible = 4, surprising = 0.7, widen = 3;
    // [guess] Samples are drawn wider by this factor; so many deviations from the limit need none.
    double proposal_width = 1.2, certain = 3.0902323061678132;
  };
  Memory memory;

  // The Gaussian process for the errors of the model of time, and the noise, all of them logs.
  struct Residual {
    // [bench] The most probable scales, with standard deviations of their own logs: of what varies
    // smoothly, the roughness of sizes and of configurations, knobs, launches and a drift over the
    // search, which may be 0. Values up to `most_sds` deviations away are tried.
    Normal residual = {0.025, 0.9}, size = {0.01, 0.8}, config = {0.007, 0.8};
    Normal wide = {0.0015, 1.3}, own = {0.05, 1.2}, launch = {0.015, 1.2}, drift = {0.03, 1};
    int most_sds = 2;
    double place_launches = 8;  // [guess] The launches that the mean noise counts for at a place.
    // [bench] The correlations of two configurations of one place, one stage, or neither: in all
    // differences, and by size alone; the factor of a switch.
    std::array<double, 3> by_all = {0.4, 0.28, 0.16}, by_size = {0.5, 0.4, 0.3};
    double switched = 0.6;
    // [bench] The weights of squared differences of log2(size), in both, and of log10(bucket).
    double size_in_all = 0.22, size_alone = 0.35, reduce_bucket = 0.78, allgather_bucket = 0.35;
    double other_stage = 0.5;  // [bench] The part of a knob's effect that holds at other stages.
    double part_sd = 0.1;      // [guess] Measured parts overlap and are simplified.
    double far_sd = 0.1;       // [bench] The part of being slower than the best that is noise.
    double own_variance = 0.25, usual_variance = 0.75;  // [bench] A launch's own, and the mean.
    // [bench] The share of launches that are slowed down, and by how much; [guess] the least
    // weight.
    double slowed = 0.03, slowed_by = 0.3, least_weight = 0.03;
    // [guess] The measurements that are needed to tell slow launches, and a drift.
    int64_t least_to_weigh = 5, least_to_drift = 6;
    double trend_sd = 0.2;  // [guess] A reported drift over the search.
    // [guess] The power of the processors' time that others leave with which speed grows.
    double load_sd = 1;
    double profile_sd = 0.15;  // [guess] The profile has few steps, and the first ones.
    double single_sd = 0.015, least_sd = 0.002;  // [guess] One step, and any median; shares.
    double most_parts_error = 0.35;  // [guess] Parts of another whole would mislead; a share.
    double launch_s = 20;            // [guess] The seconds of a launch before one was measured.
  };
  Residual residual;

  struct Decisions {
    double least_gain = 3e-5;          // [bench] A smaller expected gain ends the search; a share.
    double training_per_search = 300;  // [bench] The factor by which an unknown training is longer.
    // [bench] Expected gains are so many times what launches turn out to gain.
    double overrated = 2;
    int64_t least_launches = 8;  // [script] With fewer the model may be sure and wrong.
    // [bench] A misfit counts like the loss of this share of a step, and this part more for each
    // trial that runs; for a part of it if nothing else is worth a launch. Configurations that fit
    // less probably than `possible`, after a dry run than `likely`, are not looked at.
    double misfit_loss = 0.03, may_wait = 0.25, at_the_edge = 0.1, possible = 0.01, likely = 0.5;
    // [bench] Knobs that most likely change nothing wait until others gain less than this share.
    double settled = 1e-3;
    double first_fits = 0.9;  // [guess] This probability is enough before anything was measured.
    // [guess] Failures without a success that end the search; points of a launch; launches of a
    // configuration; failures in a row of a measured one; finalists.
    int64_t most_failures = 16, most_points = 8, most_launches_of_one = 16;
    int64_t most_failures_of_one = 2;
    size_t most_finalists = 3;
    // [guess] A decision takes time with the cube of the measurements: beyond so many, those of an
    // earlier search make room, and then those of slow configurations.
    size_t most_observations = 80;
    // [guess] The candidates of a decision: in each group, the best over all, in the groups of all
    // places, and the best measurements whose neighbors are added.
    size_t per_group = 2, overall = 300, most_of_groups = 2500, with_neighbors = 3;
    // The bound of the others: points and draws [guess], and by how much more than the believed
    // deviations draws vary, because the scales are not certain [bench].
    size_t sampled_points = 160;
    int num_samples = 256;
    double errors = 1.4;
    // [guess] By so many deviations a threat, and a pair of a stage and a switch or a user's value
    // that was never launched, may be better than believed.
    double threat_sds = 1.5, plausible_sds = 2.5;
    // [guess] A larger batch than the one that is kept is worth a launch if the time of a sample is
    // expected to fall by this log; so many times as large at most; this part of the log is enough.
    double larger_batch = 0.1, enough_of_it = 0.9;
    int64_t most_times_batch = 16;
    double equal = 0.003;  // [guess] Below this deviation two are equally fast; a log.
    // [guess] A trial is given up below the best by so many deviations of launches, and this log.
    double give_up_sds = 4, give_up = 0.02;
  };
  Decisions decisions;

  // The evidence of an earlier search. [bench] With --warm-start.
  struct Transfer {
    size_t most_observations = 24;
    int64_t probation = 16;  // The two searches are compared up to so many own measurements.
    // An earlier search is dropped if the measurements are less probable with it than without it by
    // this log. One of the same model and machine says much, and has to make the first two
    // configurations twice as probable.
    double contradicted = -2, supported = 0.7;
    int64_t first = 2;
    // The same and another machine or model: the speed as a whole, log; the correlation between
    // what the models miss; and the factor on the standard deviations of memory factors.
    double same_speed_sd = 0.12, other_speed_sd = 1;
    double same_correlation = 0.95, other_correlation = 0.5;
    double same_widen = 2, other_widen = 4;
    // The standard deviations of terms, logs: for another model, and for each log of its size; for
    // another machine; and the part of them for terms that depend less on either.
    double other_model_sd = 0.3, per_size_sd = 0.2, other_machine_sd = 0.7, robust = 0.3;
    double flops_tolerance = 0.01;  // Models whose FLOPs differ by a smaller share may be the same.
  };
  Transfer transfer;
};

inline constexpr AutoPriors kAutoPriors;
inline constexpr const AutoPriors::Times& kAutoTimes = kAutoPriors.times;
inline constexpr const AutoPriors::Memory& kAutoMemory = kAutoPriors.memory;
inline constexpr const AutoPriors::Residual& kAutoResidual = kAutoPriors.residual;
inline constexpr const AutoPriors::Decisions& kAutoDecisions = kAutoPriors.decisions;
inline constexpr const AutoPriors::Transfer& kAutoTransfer = kAutoPriors.transfer;

}  // namespace dsat
