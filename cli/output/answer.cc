// Says in lines what the verdict of a search is.
#include "cli/output/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/files.h"
#include "cli/output/describe.h"
#include "engine/config/batch.h"
#include "methods/method.h"
#include "searcher/search/config_change.h"

namespace dsat::cli {
namespace {

// "3.2 device-minutes", "410 device-seconds".
std::string DeviceTime(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} device-seconds", seconds);
  if (seconds < 7200) return fmt::format("{:.1f} device-minutes", seconds / 60);
  return fmt::format("{:.1f} device-hours", seconds / 3600);
}

// Says which configuration factors compare with: the submitted one, whose trial may have other
// sizes.
std::string BaseText(const Search& search) {
  const Json was = SubmittedConfig(search.spec()), is = search.BestConfigOf(*search.Submitted());
  const auto size_of = [](const Json& config, const char* key) { return config.at(key).dump(); };
  std::string sizes;
  for (const char* key : {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    if (size_of(was, key) != size_of(is, key))
      sizes += fmt::format("{}{} {}", sizes.empty() ? " with " : " and ", key, size_of(is, key));
  }
  return "the submitted configuration" + sizes;
}

// Why the submitted configuration is the pick, without a factor.
std::string WhyNoOther(const Search& search, const Verdict& verdict) {
  const std::optional<TrialId> submitted = search.Submitted();
  if (!verdict.left_out.empty()) return "none, the faster configurations dropped out";
  if (const Trial* failed = FailedLikeAllOthers(search)) {
    return fmt::format("none, no other configuration could be measured; trial {} failed: {}",
                       failed->id, Printable(failed->reason));
  }
  const std::string& metric = search.spec().options.metric;
  const double own = submitted ? SpeedOf(search.trials().at(*submitted), metric).value_or(0) : 0;
  std::pair<double, TrialId> fastest{0, 0};
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind == TrialKind::kSearch && trial.state == TrialState::kSucceeded)
      fastest = std::max(fastest, {SpeedOf(trial, metric).value_or(0), id});
  }
  if (own <= 0 || fastest.first <= own)
    return "none, no other configuration was measured to be faster";
  return fmt::format("none, trial {} was once {:.2f} times as fast, by chance according to {}",
                     fastest.second, fastest.first / own, search.spec().method);
}

// How the pick compares with the submitted configuration.
std::string FactorText(const Search& search, const Verdict& verdict) {
  if (!search.SubmittedMisfit().empty()) {
    return "none, the submitted configuration does not fit: " + Printable(search.SubmittedMisfit());
  }
  if (!verdict.factor) {
    if (verdict.nothing_better) return WhyNoOther(search, verdict);
    const auto& submitted = search.Submitted();
    const TrialState state =
        submitted ? search.trials().at(*submitted).state : TrialState::kSucceeded;
    if (state == TrialState::kInfeasible || state == TrialState::kFailed) {
      return fmt::format("none, the submitted configuration (trial {}) {}: {}", *submitted,
                         state == TrialState::kFailed ? "failed" : "does not fit",
                         Printable(search.trials().at(*submitted).reason));
    }
    return submitted && search.Dropped().contains(*submitted)
               ? "none, the submitted configuration dropped out"
               : "none, the submitted configuration was not measured";
  }
  const std::string how =
      verdict.num_rounds > 0
          ? fmt::format("measured again in {} alternating round{}", verdict.num_rounds,
                        verdict.num_rounds == 1 ? ", which has no interval" : "s")
          : "not confirmed: the best of many noisy measurements is partly luck";
  if (verdict.nothing_better && verdict.num_rounds > 0) {
    return fmt::format(
        "nothing better was found; the best other configuration is {:.2f} times as fast{}, {}{}",
        verdict.factor->value, IntervalText(*verdict.factor), how,
        verdict.factor->high > kWorthMore ? "; more rounds (--confirm) would narrow the interval"
                                          : "");
  }
  const std::string& metric = search.spec().options.metric;
  const std::string times = TimesText(*verdict.factor);
  if (SmallerIsBetter(metric)) {
    return fmt::format("the {} of {} is {} as long{}, {}", metric, BaseText(search), times,
                       IntervalText(*verdict.factor), how);
  }
  return fmt::format("{} the samples/s of {}{}, {}", times, BaseText(search),
                     IntervalText(*verdict.factor), how);
}

// The configurations that dropped out of the confirmation or the soak, "" if none did.
std::string LeftOutText(const Verdict& verdict) {
  std::string text;
  for (const auto& [trial, reason] : verdict.left_out)
    text += fmt::format("{}trial {} dropped out ({})", text.empty() ? "" : "; ", trial,
                        Printable(reason));
  return text;
}

// "; what changed is semantic (communication_data_type)".
std::string ClassText(const LossCheck& check) {
  if (!check.changes) return "";
  std::string keys;
  for (const std::string& pointer : check.semantic_keys)
    keys += (keys.empty() ? "" : ", ") + ShortName(pointer);
  return fmt::format("; the changes affect {}{}", ToString(*check.changes),
                     keys.empty() ? "" : fmt::format(" ({})", Printable(keys)));
}

// Whether the pick trains like the submitted configuration, "" if it is that one or nothing is
// compared and nothing else learned.
std::string TrainingText(const Search& search, const Verdict& verdict) {
  const LossCheck& check = verdict.losses;
  if (verdict.pick == search.Submitted()) return "";
  if (!search.spec().options.check_losses) {
    return check.semantic_keys.empty()
               ? ""
               : "not checked against the submitted configuration: nothing was confirmed" +
                     ClassText(check);
  }
  if (check.result == LossCheck::Result::kNotChecked) {
    return fmt::format(
        "not checked against the submitted configuration: {}{}{}", check.why,
        check.why == kNoLosses
            ? "; report them with the Python helper (docs/python.md) or pass --loss-pattern"
            : "",
        ClassText(check));
  }
  return fmt::format("{} the submitted configuration: {}, measured against {} of its runs{}{}",
                     check.result == LossCheck::Result::kAlike ? "like" : "not like",
                     Describe(check), check.num_runs,
                     check.only_learning ? "; only what is learned was compared" : "",
                     ClassText(check));
}

// Whether an alternative trains like the submitted configuration, "" if it is that one.
std::string AlternativeTrainingText(const Search& search, const Alternative& alternative) {
  if (alternative.trial == search.Submitted()) return "";
  const LossCheck& check = alternative.losses;
  const std::string changed = check.semantic_keys.empty() ? "" : ClassText(check);
  if (check.result == LossCheck::Result::kAlike)
    return fmt::format(", trains alike ({}{})", Describe(check), changed);
  return fmt::format(", its losses were not checked{}{}{}", check.why.empty() ? "" : ": ",
                     check.why, changed);
}

// Says what the soak has shown.
std::string SoakText(const Search& search, const Verdict& verdict) {
  if (!verdict.no_soak.empty()) {
    return fmt::format("{}, because the search has ended ({})",
                       verdict.soak ? fmt::format("only {} steps, to compare losses",
                                                  search.trials().at(*verdict.soak).steps)
                                    : "not run",
                       Printable(verdict.no_soak));
  }
  if (!verdict.soak || search.spec().options.soak_steps == 0) return "";
  const Trial& soak = search.trials().at(*verdict.soak);
  if (soak.state != TrialState::kSucceeded) {
    return fmt::format("trial {} {}{}{}", soak.id, ToString(soak.state),
                       soak.reason.empty() ? "" : ": ", Printable(soak.reason));
  }
  const std::string& metric = search.spec().options.metric;
  std::string text = fmt::format("trial {} ran {} steps", soak.id, soak.steps);
  if (ValueAtBest(soak, metric, "checkpoint_ms")) {
    text += " and saved checkpoints";
  } else if (IsBuiltin(search.spec())) {
    text += " and saved no checkpoint, because its hosts share no output folder";
  }
  if (const auto peak = ValueAtBest(soak, metric, "peak_bytes"))
    text += fmt::format(", peak {} on a rank", HumanBytes(static_cast<int64_t>(*peak)));
  if (const auto host = ValueAtBest(soak, metric, "host_bytes"))
    text += fmt::format(", {} of host memory", HumanBytes(static_cast<int64_t>(*host)));
  if (const auto flushes = ValueAtBest(soak, metric, "alloc_retries"); flushes && *flushes > 0)
    text += fmt::format(", {:.0f} flushes of the allocator's cache", *flushes);
  return text;
}

// Says what follows if the global batch is not the submitted one.
std::string BatchText(const Search& search, const Verdict& verdict) {
  if (!search.Submitted()) return "";
  const int64_t was = GlobalBatch(SubmittedConfig(search.spec()));
  const int64_t is = GlobalBatch(search.BestConfigOf(*verdict.pick));
  if (was == is) return "";
  return fmt::format(
      "train_batch_size is {} instead of {}; a learning rate belongs to a batch size: adapt it, or "
      "search with --train-batch-size keep",
      is, was);
}

std::string CertaintyText(const Search& search, const Verdict& verdict) {
  const SearchOptions& options = search.spec().options;
  const auto num_tried = std::ranges::count_if(
      search.trials(), [](const auto& entry) { return !RunsAgain(entry.second.kind); });
  const bool searched = std::ranges::any_of(
      search.trials(), [](const auto& entry) { return entry.second.kind == TrialKind::kSearch; });
  const bool is_over = search.Finished() && search.EndReason().empty();
  if (!searched && is_over && num_tried < options.max_trials) {
    return "nothing was compared: no other configuration of the space is legal and predicted to "
           "fit (dsat space shows it)";
  }
  std::string text;
  if (verdict.others) {
    text += fmt::format("no other configuration is expected to be more than {:.1f} % faster (95 %)",
                        100 * (verdict.others->at_most - 1));
    if (verdict.others->at_most > Method::kNearBest && is_over) {
      if (num_tried >= options.max_trials) {
        text += " (--max-trials N searches longer)";
      } else if (!options.auto_method.run_steps) {
        text += " (--run-steps N searches longer for a longer training)";
      }
    }
  }
  if (!verdict.ties.empty()) {
    text += fmt::format("{}trial{} {} cannot be told from it", text.empty() ? "" : "; ",
                        verdict.ties.size() == 1 ? "" : "s", fmt::join(verdict.ties, ", "));
  }
  return text;
}

std::string DriftText(const Verdict& verdict) {
  if (!verdict.drift) return "";
  const MachineDrift& drift = *verdict.drift;
  const double percent = 100 * std::abs(drift.change);
  // A rate says little if it continues what was seen for much longer than that.
  const std::string pace = drift.hours < 0.25
                               ? fmt::format("in {:.1f} minutes", 60 * drift.hours)
                               : fmt::format("{:.1f} % per hour", percent / drift.hours);
  return fmt::format(
      "the machine became {:.1f} % {} during the search (standard error {:.1f} %), {}", percent,
      drift.change > 0 ? "slower" : "faster", 100 * drift.error, pace);
}

std::string CostText(const Verdict& verdict) {
  if (verdict.device_seconds <= 0) return "";
  std::string text = DeviceTime(verdict.device_seconds);
  if (verdict.repaid_after_steps)
    text += fmt::format(", repaid after {} training steps of the submitted batch size",
                        *verdict.repaid_after_steps);
  return text;
}

std::string MemoryText(const Search& search, const Verdict& verdict) {
  std::string text;
  if (verdict.free_bytes) {
    text = fmt::format("{} of {} stay free on a rank", HumanBytes(*verdict.free_bytes),
                       HumanBytes(search.profile()->device_memory_bytes));
  }
  std::string names;
  for (size_t i = 0; i < verdict.alternatives.size(); ++i) {
    const Alternative& other = verdict.alternatives[i];
    names += (names.empty() ? "" : " and ") + other.name;
    const bool has_next = i + 1 < verdict.alternatives.size();
    if (has_next && verdict.alternatives[i + 1].trial == other.trial) continue;
    text += fmt::format(
        "{}{} alternative: trial {}, {}{}", text.empty() ? "" : "; ", std::exchange(names, ""),
        other.trial, DescribeConfig(search.trials().at(other.trial), search.spec().options.metric),
        AlternativeTrainingText(search, other));
  }
  return text;
}

// The pick as a difference to the submitted configuration.
std::string BestText(const Search& search, const Verdict& verdict) {
  const Trial& trial = search.trials().at(*verdict.pick);
  const std::string& metric = search.spec().options.metric;
  const std::string change =
      DescribeChange(SubmittedConfig(search.spec()), search.BestConfigOf(trial.id));
  // The confirmed speed counts, not the measurement that the trial was chosen by.
  const double measured = MetricValue(trial, metric).value_or(0);
  const double change_of_speed =
      verdict.speed.value_or(1) / SpeedOf(trial, metric).value_or(verdict.speed.value_or(1));
  const double value =
      SmallerIsBetter(metric) ? measured / change_of_speed : measured * change_of_speed;
  return fmt::format("trial {}, {}, {}; {}", trial.id, DescribeConfig(trial, metric),
                     DescribeMetric(metric, value),
                     change.empty() ? "this is the submitted configuration" : "changes " + change);
}

}  // namespace

std::string TimesText(const Factor& factor) {
  return factor.is_gain() && factor.is_vague() ? fmt::format("at least {:.2f} times", factor.low)
                                               : fmt::format("{:.2f} times", factor.value);
}

std::string IntervalText(const Factor& factor) {
  if (!factor.has_interval()) return "";
  constexpr double kMost = 100;
  const std::string low =
      factor.low < 1 / kMost ? "less than 0.01" : fmt::format("{:.2f}", factor.low);
  const std::string high =
      factor.high > kMost ? "more than 100" : fmt::format("{:.2f}", factor.high);
  return fmt::format(" (95 % interval {} to {})", low, high);
}

Json SubmittedConfig(const ExperimentSpec& spec) {
  return engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial);
}

std::vector<AnswerLine> AnswerLines(const Search& search, const Verdict& verdict) {
  if (!verdict.pick) return {};
  std::vector<AnswerLine> lines = {{"best", BestText(search, verdict)},
                                   {"factor", FactorText(search, verdict)},
                                   {"finalists", LeftOutText(verdict)},
                                   {"training", TrainingText(search, verdict)},
                                   {"soak", SoakText(search, verdict)},
                                   {"batch", BatchText(search, verdict)},
                                   {"certainty", CertaintyText(search, verdict)},
                                   {"cost", CostText(verdict)},
                                   {"memory", MemoryText(search, verdict)},
                                   {"drift", DriftText(verdict)},
                                   {"warm start", verdict.warm_start},
                                   {"why", verdict.bound}};
  std::erase_if(lines, [](const AnswerLine& line) { return line.text.empty(); });
  return lines;
}

}  // namespace dsat::cli
