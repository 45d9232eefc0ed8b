// Shows the progress of a search.
#include "cli/progress.h"

#include <fmt/format.h>

#include "base/files.h"

namespace dsat::cli {
namespace {

int64_t CountState(const Search& search, TrialState state) {
  int64_t count = 0;
  for (const auto& [id, trial] : search.trials())
    count += trial.state == state ? 1 : 0;
  return count;
}

// What a trial tries.
std::string DescribeTrial(const Trial& trial, const std::string& metric) {
  if (trial.kind == TrialKind::kProfile) return "profile";
  if (trial.kind == TrialKind::kSubmitted) return "as submitted";
  if (trial.kind == TrialKind::kReference)
    return fmt::format("as submitted, batch {}", trial.ds_config.value("train_batch_size", 0));
  if (trial.kind == TrialKind::kSoak) return fmt::format("soaks trial {}", *trial.confirms);
  if (trial.confirms) return fmt::format("confirms trial {}", *trial.confirms);
  return DescribeConfig(trial, metric);
}

std::string EndOfTrial(const Trial& trial, const std::string& metric) {
  std::string line = fmt::format("trial {:>3}  {:<24}  {:<10}", trial.id,
                                 DescribeTrial(trial, metric), ToString(trial.state));
  const auto value = MetricValue(trial, metric);
  if (value) line += "  " + DescribeMetric(metric, *value);
  if (value && metric != "throughput") {
    if (const auto throughput = ValueAtBest(trial, metric, "throughput"))
      line += "  " + DescribeMetric("throughput", *throughput);
  }
  if (const auto peak = ValueAtBest(trial, metric, "peak_bytes"))
    line += "  peak " + HumanBytes(static_cast<int64_t>(*peak));
  if (!trial.reason.empty()) line += "  " + Printable(trial.reason);
  return line;
}

}  // namespace

void Say(std::FILE* out, const std::string& text) {
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

std::string DescribeConfig(const Trial& trial, const std::string& metric) {
  const Json* stage = FindAtPointer(trial.ds_config, "/zero_optimization/stage");
  return fmt::format("stage {}, micro-batch {}", stage == nullptr ? "0" : stage->dump(),
                     BestOrConfigPoint(trial, metric).micro_batch_size);
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

// What is predicted of a stage, and of its places with activation checkpointing or offload.
static std::string DescribeStage(const SearchSpace& space, int stage) {
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
              : "predicted not to fit";
  if (places.size() == 1) return text;
  int64_t most = 0;
  for (const StageSpace* place : places)
    most = std::max(most, place->approx_max_micro_batch);
  return text + fmt::format("; with checkpointing or offload (in {} ways) up to {}{}",
                            places.size() - 1, about, most);
}

std::string DescribeProfile(const Experiment& experiment) {
  const ModelProfile& profile = *experiment.search().profile();
  std::string text = fmt::format(
      "model: {:.2f} M parameters, {:.2f} M trainable; device memory {} per rank; "
      "activations {} per sample",
      static_cast<double>(profile.num_params) / 1e6,
      static_cast<double>(profile.trainable_num_params) / 1e6,
      HumanBytes(profile.device_memory_bytes), HumanBytes(profile.activation_bytes_per_sample));
  const auto gigabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  if (profile.matmul_flops_per_s > 0 && profile.copy_bytes_per_s > 0) {
    const auto flops = static_cast<double>(profile.matmul_flops_per_s);
    text +=
        fmt::format("\nspeed of a rank: {} in matrix multiplication, {:.1f} GB/s copied",
                    DescribeMetric("FLOPS_per_gpu", flops), gigabytes(profile.copy_bytes_per_s));
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
  const SearchSpace& space = *experiment.search().space();
  for (const int stage : experiment.search().spec().options.zero_stages)
    text += DescribeStage(space, stage);
  if (!space.left_out.empty())
    text += fmt::format("\nleft out: {} (space.left_out of dsat show --json has the reasons)",
                        space.left_out.size());
  return text;
}

void ProgressDisplay::PrintLine(const std::string& line) {
  status_.Clear();
  Say(stderr, line + "\n");  // May be several lines.
}

void ProgressDisplay::DrawStatus(const Experiment& experiment) {
  if (!status_.live()) return;
  const Search& search = experiment.search();
  const SearchOptions& options = search.spec().options;
  const auto ended = static_cast<int64_t>(search.trials().size() - search.Running().size());
  std::vector<std::string> parts = {fmt::format("{}/{} trials", ended, options.max_trials)};
  for (const TrialId id : search.Running()) {
    const auto step = steps_.find(id);
    parts.push_back(
        fmt::format(", {}{}: {}{}", parts.size() == 1 ? "running " : "", id,
                    DescribeTrial(search.trials().at(id), options.metric),
                    step == steps_.end() ? "" : fmt::format(", step {}", step->second)));
  }
  if (const auto best = search.Best()) {
    parts.push_back(
        ", best " +
        DescribeMetric(options.metric, *MetricValue(search.trials().at(*best), options.metric)));
  }
  if (ended_ > 0) {
    const double left = SecondsLeft(started_, ended_, ended_ + options.max_trials - ended);
    parts.push_back(fmt::format(", at most {} left", DescribeDuration(left)));
  }
  const int64_t infeasible = CountState(search, TrialState::kInfeasible);
  if (infeasible > 0) parts.push_back(fmt::format(", {} infeasible", infeasible));
  status_.Draw(parts);
}

void ProgressDisplay::OnEvent(const Experiment& experiment, const RunnerEvent& event) {
  const auto& trials = experiment.search().trials();
  switch (event.kind) {
    case RunnerEvent::Kind::kTrialStarted:
      steps_.erase(event.trial);
      if (!status_.live() && event.attempt > 0)
        PrintLine(fmt::format("trial {:>3}  attempt {}", event.trial, event.attempt + 1));
      break;
    case RunnerEvent::Kind::kTrialProgress:
      steps_[event.trial] = event.step;
      break;
    case RunnerEvent::Kind::kTrialEnded:
      ++ended_;
      steps_.erase(event.trial);
      PrintLine(EndOfTrial(trials.at(event.trial), experiment.search().spec().options.metric));
      break;
    case RunnerEvent::Kind::kProfiled:
      PrintLine(DescribeProfile(experiment));
      break;
    case RunnerEvent::Kind::kNote:
      PrintLine(Printable(event.text));
      break;
  }
  DrawStatus(experiment);
}

}  // namespace dsat::cli
