// Reads the files of DeepSpeed's autotuning hooks, of any version, in dsat's units.
//
//   DeepSpeed        names               times  throughput       FLOPS_per_gpu   "latency"
//   0.5.7 - 0.6.1    forward, backward   ms     / 1000           FLOP per ms     a step's
//   0.6.2 - 0.8.0    forward, backward   us     / 1000           FLOP per us     a micro-step's
//   0.8.1 - 0.10.2   either              us     samples/s        FLOP per s      a micro-step's
//   0.10.3 -         fwd, bwd            us     samples/s        FLOP per s      a step's
//
// In every version latency * throughput / 1e6 is the train batch size, in the first two a
// thousandth of it. Where latency is a micro-step's, throughput and FLOPS are too large by the
// accumulation count.
#include "searcher/scripts/deepspeed_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "proto/summarize.h"
#include "searcher/processes/line_stamper.h"

namespace dsat {
namespace {

constexpr int64_t kTrimmedFrom = 6;
constexpr int64_t kMinActivationBytes = 1 << 20;
constexpr double kBatchTolerance = 0.005;
constexpr double kMostOfModelInfo = 1e17;  // What ProfileFromJson() accepts.

bool Near(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::abs(b);
}

// The numbers in the file's units.
struct RawMetrics {
  double forward = 0, backward = 0, step = 0, latency = 0, throughput = 0, flops = 0;
  double sum() const { return forward + backward + step; }
};

// "step is -1; expected a number >= 0".
std::string Problem(const Json& file, const char* key, std::string_view expected) {
  const auto found = file.find(key);
  return found == file.end() ? fmt::format("\"{}\" is missing", key)
                             : fmt::format("{} is {}; expected {}", key, found->dump(), expected);
}

// The name of a key, which older versions wrote as `old_key`.
const char* KeyIn(const Json& file, const char* key, const char* old_key) {
  return file.contains(old_key) && !file.contains(key) ? old_key : key;
}

std::optional<RawMetrics> ReadRaw(const Json& file) {
  if (!ProblemOfMetrics(file).empty()) return std::nullopt;
  const auto number = [&](const char* key) { return FiniteNumber(file, key).value_or(0); };
  RawMetrics raw;
  raw.forward = number(KeyIn(file, "fwd", "forward"));
  raw.backward = number(KeyIn(file, "bwd", "backward"));
  raw.step = number("step");
  raw.latency = FiniteNumber(file, "latency").value_or(raw.sum());
  raw.throughput = number("throughput");
  raw.flops = std::max(0.0, number("FLOPS_per_gpu"));
  return raw;
}

struct TimedStep {
  std::optional<StepLine> line;  // The last step ends in the hook and prints nothing.
  double latency_ms = 0;
};

std::vector<TimedStep> StepsOf(const CountedSteps& counted, const std::vector<StepLine>& lines,
                               const std::set<int64_t>& partial) {
  std::vector<TimedStep> steps;
  for (size_t i = 0; i < counted.latencies_ms.size(); ++i) {
    const int64_t k = counted.first + static_cast<int64_t>(i);
    if (partial.contains(k)) continue;
    TimedStep& step = steps.emplace_back();
    step.latency_ms = counted.latencies_ms[i];
    if (k < std::ssize(lines)) step.line = lines[static_cast<size_t>(k)];
  }
  return steps;
}

// The full steps after the profiled one, between the arrivals of two lines.
std::vector<TimedStep> UsableSteps(const std::vector<StepLine>& lines, int64_t start, int64_t end,
                                   const std::set<int64_t>& partial) {
  std::vector<TimedStep> steps;
  const int64_t last = std::min(end, static_cast<int64_t>(lines.size()));
  for (int64_t k = start + 1; k < last; ++k) {
    const auto ns = static_cast<double>(lines[k].time_ns - lines[k - 1].time_ns);
    if (ns > 0 && !partial.contains(k)) steps.push_back({lines[k], ns / 1e6});
  }
  return steps;
}

template <typename Get>
Metric SummarizeSteps(const std::vector<TimedStep>& steps, const Get& get) {
  std::vector<double> values;
  for (const TimedStep& step : steps)
    values.push_back(get(step));
  return Summarize(std::move(values));
}

Measurement FromFile(const HookMetrics& metrics, int64_t train_batch_size) {
  const auto once = [](double value) { return Metric{.value = value, .spread = 0, .samples = 1}; };
  Measurement result = {
      {"latency", once(metrics.latency_ms)},
      {"throughput", once(static_cast<double>(train_batch_size) * 1e3 / metrics.latency_ms)},
      {"forward", once(metrics.forward_ms)},
      {"backward", once(metrics.backward_ms)},
      {"step", once(metrics.step_ms)}};
  result["FLOPS_per_gpu"] = once(metrics.flops_per_gpu);
  return result;
}

// The parts of a step come from the file if none has printed them.
Measurement FromSteps(const HookMetrics& metrics, const std::vector<TimedStep>& steps,
                      int64_t train_batch_size) {
  const double samples_ms = static_cast<double>(train_batch_size) * 1e3;
  const double step_flops = metrics.flops_per_gpu * metrics.latency_ms;
  Measurement result = FromFile(metrics, train_batch_size);
  result["latency"] = SummarizeSteps(steps, [](const TimedStep& s) { return s.latency_ms; });
  result["throughput"] =
      SummarizeSteps(steps, [&](const TimedStep& s) { return samples_ms / s.latency_ms; });
  std::vector<TimedStep> printed = steps;
  std::erase_if(printed, [](const TimedStep& s) { return !s.line; });
  if (!printed.empty()) {
    result["forward"] =
        SummarizeSteps(printed, [](const TimedStep& s) { return s.line->forward_ms; });
    result["backward"] =
        SummarizeSteps(printed, [](const TimedStep& s) { return s.line->backward_ms; });
    result["step"] = SummarizeSteps(printed, [](const TimedStep& s) { return s.line->step_ms; });
  }
  result["FLOPS_per_gpu"] =
      SummarizeSteps(steps, [&](const TimedStep& s) { return step_flops / s.latency_ms; });
  return result;
}

}  // namespace

std::optional<double> FiniteNumber(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const double value = *found;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

int64_t WholePart(double number) {
  return number > 0 ? static_cast<int64_t>(std::min(number, 0x1p62)) : 0;
}

std::optional<StepLine> ParseStepLine(std::string_view line) {
  const size_t marker = line.find(kStepLineMarker);
  if (marker == std::string_view::npos) return std::nullopt;
  std::optional<double> forward, backward, step;
  std::string_view rest = line.substr(marker + sizeof(kStepLineMarker) - 1);
  while (!rest.empty()) {  // " name: value |"
    std::string_view field = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(rest.size(), field.size() + 1));
    field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
    const size_t colon = field.find(": ");
    if (colon == std::string_view::npos) continue;
    const std::string_view name = field.substr(0, colon);
    double value = 0;
    const char* const end = field.data() + field.size();
    if (std::from_chars(field.data() + colon + 2, end, value).ec != std::errc()) continue;
    if (name == "fwd" || name == "forward") forward = value;
    if (name == "bwd" || name == "backward") backward = value;
    if (name == "step") step = value;
  }
  for (const std::optional<double>& time : {forward, backward, step}) {
    if (!time || !std::isfinite(*time) || *time < 0) return std::nullopt;
  }
  return StepLine{*forward, *backward, *step, 0};
}

int64_t CountStepLines(std::string_view log) {
  int64_t count = 0;
  for (size_t end; (end = log.find('\n')) != std::string_view::npos; log.remove_prefix(end + 1)) {
    if (end <= kMaxStampedLineBytes && ParseStepLine(log.substr(0, end))) ++count;
  }
  return count;
}

std::string ProblemOfMetrics(const Json& file) {
  double sum = 0;
  for (const char* key : {KeyIn(file, "fwd", "forward"), KeyIn(file, "bwd", "backward"), "step"}) {
    const double time = FiniteNumber(file, key).value_or(-1);
    if (time < 0) return Problem(file, key, "a number >= 0");
    sum += time;
  }
  if (sum == 0) return Problem(file, "step", "a number > 0 where the other times are 0");
  if (FiniteNumber(file, "throughput").value_or(0) <= 0)
    return Problem(file, "throughput", "a number > 0");
  const double latency = FiniteNumber(file, "latency").value_or(sum);
  return latency > 0 ? "" : Problem(file, "latency", "a number > 0");
}

std::optional<HookMetrics> NormalizeMetrics(const Json& file, int64_t accumulation_steps,
                                            int64_t train_batch_size,
                                            std::optional<double> logged_ms) {
  const std::optional<RawMetrics> raw = ReadRaw(file);
  if (!raw) return std::nullopt;
  const auto accumulation = static_cast<double>(accumulation_steps);
  const auto expected_batch = static_cast<double>(train_batch_size);
  const double product = raw->throughput * raw->latency / 1e6;
  const bool thousandth = file.contains("forward") && Near(product * 1e3, expected_batch, 0.01);
  // The ratio to the printed time: 1 if the unit is right, else 1000 or 1/1000.
  const double ratio = logged_ms.value_or(0) / raw->sum();
  const bool in_ms = thousandth && ratio > 0.03;

  const double scale = in_ms ? 1 : accumulation / 1e3;  // To ms per optimizer step.
  HookMetrics metrics;
  metrics.forward_ms = raw->forward * scale;
  metrics.backward_ms = raw->backward * scale;
  metrics.step_ms = raw->step * scale;
  metrics.latency_ms = raw->sum() * scale;
  metrics.train_batch_size = thousandth ? product * 1e3 : product;
  metrics.flops_per_gpu = raw->flops * (in_ms ? 1e3 : thousandth ? 1e6 : 1);
  const bool latency_of_micro_step = Near(raw->latency, raw->sum(), 0.01);
  if (!in_ms && latency_of_micro_step) metrics.flops_per_gpu /= accumulation;
  return metrics;
}

bool UsedBatchSize(const HookMetrics& metrics, int64_t train_batch_size) {
  return Near(metrics.train_batch_size, static_cast<double>(train_batch_size), kBatchTolerance);
}

Measurement MeasurementOf(const HookMetrics& metrics, const std::vector<StepLine>& lines,
                          int64_t start, int64_t end, int64_t accumulation_steps,
                          int64_t train_batch_size, const std::set<int64_t>& partial_steps,
                          const CountedSteps& counted) {
  const std::vector<TimedStep> timed = StepsOf(counted, lines, partial_steps);
  const std::vector<TimedStep> steps =
      timed.empty() ? UsableSteps(lines, start, end, partial_steps) : timed;
  const bool is_biased = accumulation_steps >= kTrimmedFrom || partial_steps.contains(end);
  const size_t enough = is_biased || !timed.empty() ? 1 : 2;
  Measurement result = steps.size() >= enough ? FromSteps(metrics, steps, train_batch_size)
                                              : FromFile(metrics, train_batch_size);
  // 0 stands for what was not measured.
  std::erase_if(result, [](const auto& entry) { return entry.second.value <= 0; });
  return result;
}

std::optional<double> MaxMemAllocated(std::string_view log) {
  constexpr std::string_view kKey = "MaxMemAllocated=";
  std::optional<double> peak;
  for (size_t at = log.find(kKey); at != std::string_view::npos; at = log.find(kKey, at + 1)) {
    const std::string_view text = log.substr(at + kKey.size());
    double gib = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), gib);
    const std::string_view unit = text.substr(static_cast<size_t>(result.ptr - text.data()));
    if (result.ec != std::errc() || !unit.starts_with("GB") || gib <= 0) continue;
    peak = std::max(peak.value_or(0), gib * 0x1p30);
  }
  return peak;
}

std::string ProblemOfModelInfo(const Json& file) {
  const auto number = [&](const char* key) { return FiniteNumber(file, key); };
  for (const char* key : {"num_params", "trainable_num_params"}) {
    const double value = number(key).value_or(0);
    if (value < 1 || value > kMostOfModelInfo) return Problem(file, key, "a number from 1 to 1e17");
  }
  if (*number("trainable_num_params") > *number("num_params")) {
    return Problem(file, "trainable_num_params",
                   fmt::format("at most num_params, which is {}", file["num_params"].dump()));
  }
  if (number("activation_mem_per_gpu").value_or(HUGE_VAL) > kMostOfModelInfo)
    return Problem(file, "activation_mem_per_gpu", "a number of at most 1e17");
  const bool fits = number("gpu_mem").value_or(0) <= kMostOfModelInfo;
  return fits ? "" : Problem(file, "gpu_mem", "a number of at most 1e17");
}

std::optional<ModelProfile> NormalizeModelInfo(const Json& file, int64_t micro_batch_size) {
  if (!ProblemOfModelInfo(file).empty()) return std::nullopt;
  const auto number = [&](const char* key) {
    return WholePart(FiniteNumber(file, key).value_or(0));
  };
  ModelProfile profile;
  profile.num_params = number("num_params");
  profile.trainable_num_params = number("trainable_num_params");
  profile.activation_bytes_per_sample =
      std::max(kMinActivationBytes,
               number("activation_mem_per_gpu") / std::max<int64_t>(1, micro_batch_size));
  profile.device_memory_bytes = number("gpu_mem");
  return profile;
}

}  // namespace dsat
