// Says in lines what the verdict of a search is.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <ranges>
#include <utility>

#include "base/files.h"
#include "base/table.h"
#include "cli/output/output.h"
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

// "submitted", with the sizes of its trial where these are others.
std::string BaseText(const Search& search) {
  const Json was = SubmittedConfig(search.spec()), is = search.BestConfigOf(*search.Submitted());
  const auto size_of = [](const Json& config, const char* key) { return config.at(key).dump(); };
  std::string sizes;
  for (const char* key : {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    if (size_of(was, key) != size_of(is, key))
      sizes += fmt::format("{}{} {}", sizes.empty() ? " with " : " and ", key, size_of(is, key));
  }
  return "submitted" + sizes;
}

// Why the submitted configuration is the pick, without a factor.
std::string WhyNoOther(const Search& search, const Verdict& verdict) {
  if (!verdict.left_out.empty()) return "the faster configurations dropped out";
  if (const Trial* failed = FailedLikeAllOthers(search)) {
    return fmt::format("no other configuration could be measured; trial {} failed: {}", failed->id,
                       Printable(failed->reason));
  }
  const std::optional<TrialId> submitted = search.Submitted();
  const std::string& metric = search.spec().options.metric;
  const double own = submitted ? SpeedOf(search.trials().at(*submitted), metric).value_or(0) : 0;
  std::pair<double, TrialId> fastest{0, 0};
  for (const auto& [id, trial] : search.trials()) {
    if (trial.kind == TrialKind::kSearch && trial.state == TrialState::kSucceeded)
      fastest = std::max(fastest, {SpeedOf(trial, metric).value_or(0), id});
  }
  if (fastest.first <= 0) return "no other configuration was measured";
  if (own <= 0 || fastest.first <= own) return "no other configuration was measured to be faster";
  return fmt::format("trial {} was once {:.2f} times as fast, by chance according to {}",
                     fastest.second, fastest.first / own, search.spec().method);
}

// Why nothing compares the pick with the submitted configuration.
std::string WhyNoFactor(const Search& search) {
  if (!search.SubmittedMisfit().empty())
    return "the submitted one does not fit: " + Printable(search.SubmittedMisfit());
  const auto& submitted = search.Submitted();
  const TrialState state =
      submitted ? search.trials().at(*submitted).state : TrialState::kSucceeded;
  if (state == TrialState::kInfeasible || state == TrialState::kFailed) {
    return fmt::format("the submitted one (trial {}) {}: {}", *submitted,
                       state == TrialState::kFailed ? "failed" : "does not fit",
                       Printable(search.trials().at(*submitted).reason));
  }
  return submitted && search.Dropped().contains(*submitted) ? "the submitted one dropped out"
                                                            : "the submitted one was not measured";
}

std::string RoundsText(int64_t rounds) {
  return rounds == 1 ? "one round" : fmt::format("{} rounds", rounds);
}

// "faster with probability 97 %"; nothing is certain.
std::string ProbabilityText(const Factor& factor) {
  return fmt::format("faster with probability {:.0f} %",
                     std::clamp(std::floor(100 * factor.faster), 1.0, 99.0));
}

// Describes the best other configuration where the submitted one is the answer.
std::string BestOtherText(const Verdict& verdict) {
  const Factor& factor = *verdict.factor;
  if (factor.rounds == 0) {
    const bool is_faster = factor.value >= 1;
    return fmt::format("the best other one was measured {}{:.2f} times as fast{}",
                       is_faster ? "up to " : "", factor.value,
                       is_faster ? ", which is within the noise of launches" : "");
  }
  return fmt::format("the best other one is {:.2f} times as fast{} in {}, {}", factor.value,
                     IntervalText(factor), RoundsText(factor.rounds), ProbabilityText(factor));
}

// The configurations that dropped out of the confirmation or the soak, "" if none did.
std::string LeftOutText(const Verdict& verdict) {
  const auto text_of = [](const auto& entry) {
    return fmt::format("trial {} dropped out ({})", entry.first, Printable(entry.second));
  };
  return fmt::format("{}", fmt::join(verdict.left_out | std::views::transform(text_of), "; "));
}

// "; what changed is semantic (communication_data_type)".
std::string ClassText(const LossCheck& check) {
  if (!check.changes) return "";
  const std::string keys =
      fmt::format("{}", fmt::join(check.semantic_keys | std::views::transform(ShortName), ", "));
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
  if (!verdict.no_soak.empty()) return "not run: " + Printable(verdict.no_soak);
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

// Says what a larger batch than the one that is kept would bring, for the user to decide.
std::string LargerBatchText(const Search& search, const Verdict& verdict) {
  constexpr double kWorthALine = 1.05;
  if (!verdict.larger_batch || verdict.larger_batch->factor < kWorthALine) return "";
  return fmt::format(
      "{:.1f} times that at a global batch of {} instead of {} (--train-batch-size any)",
      verdict.larger_batch->factor, verdict.larger_batch->train_batch_size,
      GlobalBatch(search.BestConfigOf(*verdict.pick)));
}

// The search has ended by itself.
bool IsOver(const Search& search) {
  return search.Finished() && search.EndReason().empty();
}

int64_t NumTried(const Search& search) {
  return std::ranges::count_if(search.trials(),
                               [](const auto& entry) { return !RunsAgain(entry.second.kind); });
}

// Says how much better other configurations may be.
std::string OthersText(const Search& search, const Verdict& verdict) {
  if (!verdict.others) return "";
  constexpr double kMostTold = 3;  // More says nothing.
  const SearchOptions& options = search.spec().options;
  std::string text = "how fast other configurations are is not known yet";
  if (verdict.others->at_most < kMostTold) {
    text = fmt::format("no other configuration is expected to be more than {:.1f} % faster (95 %)",
                       100 * (verdict.others->at_most - 1));
  }
  if (verdict.others->at_most > Method::kNearBest && IsOver(search)) {
    if (NumTried(search) >= options.max_trials) {
      text += " (--max-trials N searches longer)";
    } else if (!options.auto_method.run_steps) {
      text += " (--run-steps N searches longer for a longer training)";
    }
  }
  return text;
}

std::string CertaintyText(const Search& search, const Verdict& verdict) {
  const bool searched = std::ranges::any_of(
      search.trials(), [](const auto& entry) { return entry.second.kind == TrialKind::kSearch; });
  if (!searched && IsOver(search) && NumTried(search) < search.spec().options.max_trials) {
    return "nothing was compared: no other configuration of the space is legal and predicted to "
           "fit (dsat space shows it)";
  }
  std::string text = OthersText(search, verdict);
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
  std::string text = "cost " + DeviceTime(verdict.device_seconds);
  if (verdict.repaid_after_steps)
    text +=
        fmt::format(", repaid after {} steps of the submitted batch", *verdict.repaid_after_steps);
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

// The confirmed speed counts, not the measurement that the trial was chosen by.
std::string PickText(const Search& search, const Verdict& verdict) {
  const Trial& trial = search.trials().at(*verdict.pick);
  const std::string& metric = search.spec().options.metric;
  const double measured = MetricValue(trial, metric).value_or(0);
  const double change =
      verdict.speed.value_or(1) / SpeedOf(trial, metric).value_or(verdict.speed.value_or(1));
  const double value = SmallerIsBetter(metric) ? measured / change : measured * change;
  return fmt::format("trial {}, {}, {}", trial.id, DescribeConfig(trial, metric),
                     DescribeMetric(metric, value));
}

// The pick as a difference to the submitted configuration, with the stage and the sizes first.
std::string ChangesText(const Search& search, const Verdict& verdict) {
  constexpr size_t kMostChanges = 4;
  constexpr std::array kFirst = {"stage", "train_micro_batch_size_per_gpu",
                                 "gradient_accumulation_steps", "train_batch_size"};
  const Json was = SubmittedConfig(search.spec()), is = search.BestConfigOf(*verdict.pick);
  std::vector<KeyChange> changes = ChangesOf(was, is);
  std::ranges::stable_sort(changes, {}, [&](const KeyChange& change) {
    return std::ranges::find(kFirst, change.name) - kFirst.begin();
  });
  const size_t more = changes.size() - std::min(changes.size(), kMostChanges);
  changes.resize(changes.size() - more);
  for (KeyChange& change : changes) {
    if (change.name == kFirst[1]) change.name = "micro-batch";
  }
  const bool other_batch = GlobalBatch(was) != GlobalBatch(is);
  return Describe(changes) + (more > 0 ? fmt::format(" and {} more", more) : "") +
         (other_batch ? " (--train-batch-size keep fixes it)" : "");
}

// How the pick trains and how much memory it leaves, in few words.
std::string ShortTrainingText(const Search& search, const Verdict& verdict) {
  std::string text;
  if (verdict.pick != search.Submitted()) {
    switch (verdict.losses.result) {
      case LossCheck::Result::kAlike:
        text = "trains like the submitted configuration";
        break;
      case LossCheck::Result::kDiffers:
        text = "does not train like the submitted configuration";
        break;
      case LossCheck::Result::kNotChecked:
        if (!verdict.losses.why.empty())
          text = "its losses were not compared: " + verdict.losses.why;
    }
  }
  if (verdict.free_bytes) {
    text += fmt::format("{}{} of {} stay free", text.empty() ? "" : "; ",
                        HumanBytes(*verdict.free_bytes),
                        HumanBytes(search.profile()->device_memory_bytes));
  }
  return text;
}

// The part before details: "bound by compute".
std::string FirstPart(const std::string& text) {
  return text.substr(0, std::min(text.find(" ("), text.find(';')));
}

// Whether more rounds may decide what these have not.
bool IsOpen(const Search& search, const Verdict& verdict) {
  return search.spec().candidate.is_null() && verdict.factor && !verdict.factor->is_gain() &&
         (verdict.factor->rounds < 2 || verdict.factor->high >= 1);
}

// Lists the weaknesses of the answer, the most important first.
std::vector<std::string> Notes(const Search& search, const Verdict& verdict, ExperimentId id) {
  std::vector<std::string> notes;
  const auto add = [&notes](std::string note) {
    if (!note.empty()) notes.push_back(std::move(note));
  };
  constexpr double kBusy = 0.1;
  const std::string busy =
      verdict.other_load > kBusy
          ? fmt::format("the machine was busy ({:.0f} %)", 100 * verdict.other_load)
          : "";
  if (IsOpen(search, verdict)) {
    add(fmt::format("{}{}dsat resume {} --confirm {} would settle it", busy,
                    busy.empty() ? "" : "; ", id, std::max<int64_t>(9, 2 * verdict.num_rounds)));
  } else if (!busy.empty() && verdict.factor && verdict.factor->has_interval()) {
    add(fmt::format("{}; the interval is {:.0f} % wide", busy,
                    100 * (verdict.factor->high / verdict.factor->low - 1)));
  } else {
    add(busy);
  }
  if (verdict.two_kinds) add("launches of the submitted configuration run at two speeds");
  if (verdict.soak_speed)
    add(fmt::format("its longer run had {:.2f} times the speed of the others",
                    *verdict.soak_speed));
  add(LeftOutText(verdict));
  if (!verdict.no_confirmation.empty()) add("not confirmed: " + Printable(verdict.no_confirmation));
  if (!verdict.no_soak.empty()) add("not run for longer: " + Printable(verdict.no_soak));
  return notes;
}

}  // namespace

std::string IntervalText(const Factor& factor) {
  if (!factor.has_interval()) return "";
  constexpr double kMost = 100;
  const std::string low =
      factor.low < 1 / kMost ? "less than 0.01" : fmt::format("{:.2f}", factor.low);
  const std::string high =
      factor.high > kMost ? "more than 100" : fmt::format("{:.2f}", factor.high);
  return fmt::format(" ({} to {})", low, high);
}

Json SubmittedConfig(const ExperimentSpec& spec) {
  return engine::ConfigForTrial(spec.ds_config, {}, spec.slots_per_trial);
}

std::string Headline(const Search& search, const Verdict& verdict) {
  if (verdict.nothing_better) {
    const std::string keep = "keep the submitted configuration: ";
    if (!verdict.factor) return keep + WhyNoOther(search, verdict);
    constexpr double kLikely = 0.75;
    const bool is_likely = verdict.factor->rounds > 0 && verdict.factor->faster > kLikely;
    return keep + (is_likely ? "no gain is certain enough" : "no gain worth having was found");
  }
  if (!verdict.factor) return fmt::format("trial {} runs; {}", *verdict.pick, WhyNoFactor(search));
  const Factor& factor = *verdict.factor;
  const std::string& metric = search.spec().options.metric;
  const std::string times = fmt::format(
      "{}{:.2f} times as fast as {}{}", factor.rounds == 0 ? "up to " : "", factor.value,
      BaseText(search), SmallerIsBetter(metric) ? fmt::format(" by {}", metric) : "");
  if (factor.rounds == 0) return times + ", not confirmed";
  if (!factor.is_gain()) return times + IntervalText(factor) + ", " + ProbabilityText(factor);
  return fmt::format("{}{}, proven in {}", times, IntervalText(factor), RoundsText(factor.rounds));
}

std::vector<std::string> AnswerSentences(const Search& search, const Verdict& verdict,
                                         ExperimentId id) {
  if (!verdict.pick) return {};
  const std::string certainty = CertaintyText(search, verdict), bound = FirstPart(verdict.bound);
  std::vector<std::string> sentences = {
      Headline(search, verdict),
      verdict.nothing_better && verdict.factor ? BestOtherText(verdict) : "",
      ChangesText(search, verdict),
      LargerBatchText(search, verdict),
      ShortTrainingText(search, verdict),
      certainty + (certainty.empty() || bound.empty() ? "" : "; ") + bound,
      CostText(verdict)};
  std::erase(sentences, "");
  std::vector<std::string> notes = Notes(search, verdict, id);
  // How to settle an open question belongs to the question.
  if (IsOpen(search, verdict)) {
    sentences.insert(sentences.begin() + (verdict.nothing_better ? 2 : 1), notes.front());
    notes.erase(notes.begin());
  }
  std::ranges::move(notes, std::back_inserter(sentences));
  return sentences;
}

std::string ShortAnswer(const Search& search, const Verdict& verdict, ExperimentId id,
                        const std::vector<std::string>& next) {
  constexpr size_t kIndent = 2, kColumns = 80;
  std::vector<std::string> lines, last = next;
  if (!next.empty()) {
    last.front().insert(0, "next: ");
    last = WrapWords(last, "   ", kColumns, 3 * kIndent);
  }
  for (const std::string& sentence : AnswerSentences(search, verdict, id)) {
    const size_t indent = lines.empty() ? 0 : kIndent;
    std::vector<std::string> more = WrapText(sentence, kColumns - indent, kIndent);
    for (std::string& line : more)
      line.insert(0, indent, ' ');
    if (lines.size() + more.size() + last.size() > kMostSummaryLines) continue;
    lines.insert(lines.end(), more.begin(), more.end());
  }
  lines.insert(lines.end(), last.begin(), last.end());
  std::string text;
  for (const std::string& line : lines)
    text += line + "\n";
  return text;
}

std::vector<AnswerLine> AnswerLines(const Search& search, const Verdict& verdict) {
  if (!verdict.pick) return {};
  std::vector<AnswerLine> lines = {{"best", PickText(search, verdict)},
                                   {"finalists", LeftOutText(verdict)},
                                   {"training", TrainingText(search, verdict)},
                                   {"soak", SoakText(search, verdict)},
                                   {"batch", BatchText(search, verdict)},
                                   {"larger batch", LargerBatchText(search, verdict)},
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
