// Says in words what a trial, a measurement and a profile are.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "cli/output/output.h"

namespace dsat::cli {
namespace {

// Says what is predicted of a stage, and of its places with activation checkpointing or offload.
std::string DescribeStage(const SearchSpace& space, int stage) {
  std::vector<const StageSpace*> places;
  for (const StageSpace& place : space.stages) {
    if (place.stage == stage) places.push_back(&place);
  }
  if (places.empty()) return "";
  const auto num_on = [](const StageSpace* place) {
    return std::ranges::count_if(place->settings, [](const auto& setting) {
      return setting.second != false && setting.second != 0 && setting.second != "none";
    });
  };
  const StageSpace& plain = **std::ranges::min_element(places, {}, num_on);
  const char* about = space.exact ? "" : "about ";
  std::string text = fmt::format("\nstage {}: ", stage);
  if (plain.state_bytes > 0)
    text += fmt::format("{} of model states and buffers, ", HumanBytes(plain.state_bytes));
  text += plain.approx_max_micro_batch > 0
              ? fmt::format("micro-batches up to {}{}", about, plain.approx_max_micro_batch)
              : "predicted not to fit with the submitted keys";
  if (places.size() == 1) return text;
  int64_t most = 0;
  for (const StageSpace* place : places)
    most = std::max(most, place->approx_max_micro_batch);
  if (most == 0) return text + ", also with checkpointing or offload";
  return text +
         fmt::format("; with checkpointing or offload ({}) up to {}{}",
                     places.size() == 2 ? "one place" : fmt::format("{} places", places.size() - 1),
                     about, most);
}

}  // namespace

std::string DescribeConfig(const Trial& trial, const std::string& metric) {
  return fmt::format("stage {}, micro-batch {}", ZeroStage(trial.ds_config),
                     BestOrConfigPoint(trial, metric).micro_batch_size);
}

std::string DescribeTrial(const Trial& trial, const std::string& metric) {
  if (trial.kind == TrialKind::kProfile) return "profile";
  if (trial.kind == TrialKind::kSubmitted) return "as submitted";
  if (trial.kind == TrialKind::kReference)
    return fmt::format("as submitted, batch {}", trial.ds_config.value("train_batch_size", 0));
  if (trial.kind == TrialKind::kSoak) return fmt::format("soaks trial {}", *trial.confirms);
  if (trial.kind == TrialKind::kLarger)
    return fmt::format("trial {} with batch {}", *trial.confirms,
                       trial.ds_config.value("train_batch_size", 0));
  if (trial.confirms) return fmt::format("confirms trial {}", *trial.confirms);
  return DescribeConfig(trial, metric);
}

std::string DescribeMetric(const std::string& metric, double value) {
  if (metric == "peak_bytes") return HumanBytes(static_cast<int64_t>(value));
  if (metric == "FLOPS_per_gpu") {
    if (value >= 1e12) return fmt::format("{:.2f} TFLOP/s", value / 1e12);
    if (value < 1e9) return fmt::format("{:.1f} MFLOP/s", value / 1e6);
    return fmt::format("{:.1f} GFLOP/s", value / 1e9);
  }
  if (MetricUnit(metric) == "ms" && value < 10) return fmt::format("{:.2f} ms", value);
  return fmt::format("{:.1f} {}", value, MetricUnit(metric));
}

std::string DescribeProfile(const Search& search) {
  const ModelProfile& profile = *search.profile();
  std::string text = fmt::format(
      "model: {:.2f} M parameters, {:.2f} M trainable; device memory {} per rank; "
      "activations {} per sample",
      static_cast<double>(profile.num_params) / 1e6,
      static_cast<double>(profile.trainable_num_params) / 1e6,
      HumanBytes(profile.device_memory_bytes), HumanBytes(profile.activation_bytes_per_sample));
  if (!profile.dry_places.empty()) text += ", by a dry run";
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  if (profile.matmul_flops_per_s > 0 && profile.copy_bytes_per_s > 0) {
    const auto flops = static_cast<double>(profile.matmul_flops_per_s);
    text +=
        fmt::format("\nspeed of a rank: {} in matrix multiplication, {:.1f} GB/s copied",
                    DescribeMetric("FLOPS_per_gpu", flops), gigabytes(profile.copy_bytes_per_s));
    const Json* bf16 = FindAtPointer(search.spec().ds_config, "/bf16/enabled");
    const bool in_bf16 = bf16 != nullptr && *bf16 == true && profile.device == "cpu";
    if (in_bf16 && search.spec().machine.value("multiplies_bf16", true) == false)
      text += " (bf16 in f32: the processor has no bf16 instructions)";
    if (profile.to_device_bytes_per_s > 0) {
      text += fmt::format(", {:.1f} GB/s to the device, {:.1f} GB/s from it",
                          gigabytes(profile.to_device_bytes_per_s),
                          gigabytes(profile.to_host_bytes_per_s));
    }
  }
  if (profile.micro_batch_1_peak_bytes > 0) {
    text += fmt::format("\npeak memory of a rank: {} at micro-batch 1",
                        HumanBytes(profile.micro_batch_1_peak_bytes));
    if (profile.micro_batch_2_peak_bytes > 0)
      text += fmt::format(", {} at 2", HumanBytes(profile.micro_batch_2_peak_bytes));
  }
  for (const int stage : search.spec().options.zero_stages)
    text += DescribeStage(*search.space(), stage);
  return text;
}

std::string DescribeLeftOut(const Search& search) {
  const size_t left_out = search.space()->left_out.size();
  if (left_out == 0) return "";
  return fmt::format("\nleft out: {} (dsat space and dsat show --json say why)", left_out);
}

Factor RatioOfSpeeds(const Center& one, const Center& other, int64_t rounds) {
  Factor ratio{.value = std::exp(one.mean - other.mean)};
  if (one.dof <= 0) return ratio;
  const bool has_error = other.dof > 0;
  const double others = has_error ? other.variance : one.variance * static_cast<double>(rounds);
  const double variance = one.variance + others;
  double dof = static_cast<double>(one.dof);
  if (has_error && variance > 0) {
    dof = variance * variance /
          (one.variance * one.variance / dof + others * others / static_cast<double>(other.dof));
  }
  const double half = StudentQuantile(0.975, std::max<int64_t>(std::llround(std::floor(dof)), 1)) *
                      std::sqrt(variance);
  ratio.low = ratio.value * std::exp(-half);
  ratio.high = ratio.value * std::exp(half);
  return ratio;
}

}  // namespace dsat::cli
