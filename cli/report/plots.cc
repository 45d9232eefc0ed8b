// Makes the plots of a report from its trials.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/files.h"
#include "cli/output/output.h"
#include "cli/report/page.h"
#include "profiler/predictor.h"
#include "searcher/search/loss_check.h"

namespace dsat::cli {
namespace {

constexpr size_t kMostRows = 40;  // Rows of the time line.
constexpr size_t kMostLossPlots = 3;
constexpr size_t kMostLosses = 400;  // Losses of a curve.
constexpr size_t kMostPredictions = 500;
constexpr int kNumStages = 4;

std::string StageColor(int stage) {
  return fmt::format("s{}", std::clamp(stage, 0, kNumStages - 1));
}

// A series for each ZeRO stage, with the color and the shape of the stage.
std::vector<Series> StageSeries() {
  std::vector<Series> series;
  series.reserve(kNumStages);
  for (int stage = 0; stage < kNumStages; ++stage) {
    series.push_back({.name = fmt::format("stage {}", stage),
                      .color = StageColor(stage),
                      .shape = static_cast<Shape>(stage)});
  }
  return series;
}

Series& OfStage(std::vector<Series>& series, const Json& ds_config) {
  return series[static_cast<size_t>(std::clamp(ZeroStage(ds_config), 0, kNumStages - 1))];
}

// The legend names what is drawn.
void DropEmpty(std::vector<Series>& series) {
  std::erase_if(series, [](const Series& s) { return s.marks.empty(); });
}

bool IsOfSearch(const Trial& trial) {
  return trial.kind == TrialKind::kSearch || trial.kind == TrialKind::kSubmitted;
}

// The circle around the marks of the pick and of the submitted configuration.
std::string HaloOf(const Report& report, TrialId id) {
  if (report.IsPick(id)) return "picked";
  return report.search != nullptr && report.search->Submitted() == id ? "base" : "";
}

constexpr char kHalos[] =
    "A circle is around the pick, a dashed one around the submitted configuration.";

// The metric that speeds are plotted by: throughput if it was measured, else the searched metric.
std::string SpeedMetric(const Report& report) {
  const bool is_known = std::ranges::any_of(report.trials, [&](const auto& entry) {
    return MetricOf(report, entry.second, "throughput") != nullptr;
  });
  return is_known ? "throughput" : report.spec.options.metric;
}

std::string LabelOf(const std::string& metric, const ShownUnit& unit) {
  const std::string name = metric == "peak_bytes" ? "peak device memory of a rank" : metric;
  return fmt::format("{}, {}", name, unit.name);
}

// Trials without a measurement, by how they ended.
std::vector<Series> EndSeries(const Report& report, const std::string& metric) {
  const std::array<std::pair<TrialState, Shape>, 4> looks = {
      {{TrialState::kInfeasible, Shape::kCross},
       {TrialState::kFailed, Shape::kDown},
       {TrialState::kStopped, Shape::kDash},
       {TrialState::kRunning, Shape::kRing}}};
  std::vector<Series> all;
  for (const auto& [state, shape] : looks) {
    Series& series = all.emplace_back(
        Series{.name = ToString(state), .color = "end-state", .shape = shape, .is_below = true});
    for (const auto& [id, trial] : report.trials) {
      if (trial.state != state || MetricOf(report, trial, metric) != nullptr) continue;
      series.marks.push_back({.x = static_cast<double>(id), .title = report.TitleOf(trial)});
    }
  }
  return all;
}

// The best configuration so far, after each trial.
Series BestSoFar(const Report& report, const std::string& metric, const ShownUnit& unit) {
  Series best{.name = "best so far",
              .color = "best",
              .has_marks = false,
              .has_line = true,
              .is_stepped = true};
  double value = kNoValue;
  for (const auto& [id, trial] : report.trials) {
    const Metric* measured = IsOfSearch(trial) ? MetricOf(report, trial, metric) : nullptr;
    if (measured != nullptr && trial.state == TrialState::kSucceeded) {
      const double is = measured->value / unit.scale;
      if (std::isnan(value)) value = is;
      value = SmallerIsBetter(metric) ? std::min(value, is) : std::max(value, is);
    }
    if (!std::isnan(value)) best.marks.push_back({.x = static_cast<double>(id), .y = value});
  }
  return best;
}

Plot OrderPlot(const Report& report) {
  const std::string metric = SpeedMetric(report);
  const ShownUnit unit = UnitFor(report, metric);
  Plot plot{
      .id = "plot-order",
      .title = "Every trial in order of launch",
      .caption = fmt::format("Bars are standard errors. {} Trials without a measurement are below "
                             "the plot.",
                             kHalos),
      .x = {.label = "trial", .whole_only = true},
      .y = {.label = LabelOf(metric, unit), .has_zero = true}};
  std::vector<Series> stages = StageSeries();
  for (const auto& [id, trial] : report.trials) {
    const Metric* measured = MetricOf(report, trial, metric);
    if (measured == nullptr) continue;
    OfStage(stages, trial.ds_config)
        .marks.push_back({.x = static_cast<double>(id),
                          .y = measured->value / unit.scale,
                          .error = StandardError(*measured) / unit.scale,
                          .halo = HaloOf(report, id),
                          .title = report.TitleOf(trial)});
  }
  const auto again = std::ranges::find_if(
      report.trials, [](const auto& entry) { return RunsAgain(entry.second.kind); });
  if (again != report.trials.end())
    plot.at_x = {{static_cast<double>(again->first) - 0.5, "measured again"}};
  plot.series = {BestSoFar(report, metric, unit)};
  std::ranges::move(stages, std::back_inserter(plot.series));
  std::ranges::move(EndSeries(report, metric), std::back_inserter(plot.series));
  DropEmpty(plot.series);
  return plot;
}

// A metric against the micro-batch size.
Plot BatchPlot(const Report& report, const std::string& metric, const std::string& id,
               const std::string& title) {
  const ShownUnit unit = UnitFor(report, metric);
  Plot plot{.id = id,
            .title = title,
            .caption = fmt::format("Every point that the search has measured. {}", kHalos),
            .x = {.label = "micro-batch size per rank", .is_log = true},
            .y = {.label = LabelOf(metric, unit), .has_zero = true},
            .series = StageSeries()};
  for (const auto& [trial_id, trial] : report.trials) {
    if (!IsOfSearch(trial) || trial.state != TrialState::kSucceeded) continue;
    const PointResult* best = BestPoint(trial, report.spec.options.metric);
    for (const PointResult& point : trial.points) {
      const auto measured = point.measurement.find(metric);
      if (measured == point.measurement.end()) continue;
      OfStage(plot.series, trial.ds_config)
          .marks.push_back({.x = static_cast<double>(point.point.micro_batch_size),
                            .y = measured->second.value / unit.scale,
                            .halo = &point == best ? HaloOf(report, trial_id) : "",
                            .title = report.TitleOf(trial)});
    }
  }
  DropEmpty(plot.series);
  if (metric == "peak_bytes" && report.search != nullptr && report.search->profile() &&
      report.search->profile()->device_memory_bytes > 0) {
    plot.at_y = {{static_cast<double>(report.search->profile()->device_memory_bytes) / unit.scale,
                  "memory of the device"}};
  }
  return plot;
}

// A plot of measured against predicted values.
Plot PredictionPlot(const std::string& id, const std::string& title, const std::string& unit) {
  return {.id = id,
          .title = title,
          .caption =
              "On the dashed line both are equal; above it, more was measured than was predicted.",
          .x = {.label = "predicted, " + unit},
          .y = {.label = "measured, " + unit},
          .series = StageSeries(),
          .has_diagonal = true};
}

// Adds a trial to such a plot if it has both values.
void AddPrediction(const Report& report, const Trial& trial, const Json& config, double predicted,
                   const std::string& metric, double scale, Plot& plot) {
  const Metric* measured = MetricOf(report, trial, metric);
  if (measured == nullptr || predicted <= 0) return;
  OfStage(plot.series, config)
      .marks.push_back({.x = predicted / scale,
                        .y = measured->value / scale,
                        .halo = HaloOf(report, trial.id),
                        .title = fmt::format("{}; predicted {}", report.TitleOf(trial),
                                             DescribeMetric(metric, predicted))});
}

Plot ConfirmPlot(const Report& report, const Confirmation& confirmation) {
  const std::vector<TrialId> arms = confirmation.Arms();
  const std::optional<TrialId> submitted = report.search->Submitted();
  const bool has_submitted = submitted && std::ranges::find(arms, *submitted) != arms.end();
  const TrialId base = has_submitted ? *submitted : *report.verdict.pick;
  const std::string base_name =
      has_submitted ? "the submitted configuration" : fmt::format("trial {}", base);
  Plot plot{.id = "plot-confirm",
            .title = "Confirmation",
            .caption = fmt::format("How many times as fast as {} each finalist was in each of {} "
                                   "rounds, with the mean and its 95 % interval.",
                                   base_name, confirmation.NumRounds()),
            .x = {.label = "times as fast as " + base_name},
            .y = {.is_rows = true}};
  Series rounds{.name = "a round", .color = "soft", .shape = Shape::kRing};
  Series means{.name = "mean and interval", .color = "best", .shape = Shape::kDiamond};
  double row = 0;
  for (const TrialId arm : arms) {
    const std::map<int64_t, double> factors = confirmation.LogFactors(arm, base);
    if (arm == base || factors.empty()) continue;
    const Trial& trial = report.search->trials().at(arm);
    const Factor factor = confirmation.Compare(arm, base);
    const std::string interval =
        factor.has_interval() ? fmt::format(" ({:.2f} to {:.2f})", factor.low, factor.high) : "";
    plot.row_labels.push_back({row, fmt::format("trial {}, {}: {:.2f}{}", arm,
                                                DescribeConfig(trial, report.spec.options.metric),
                                                factor.value, interval)});
    for (const auto& [round, log_factor] : factors) {
      const double in_round = std::exp(log_factor);
      rounds.marks.push_back(
          {.x = in_round,
           .y = row,
           .title = fmt::format("trial {}, round {}: {:.3f}", arm, round, in_round)});
    }
    means.marks.push_back({.x = factor.value,
                           .y = row,
                           .x_low = factor.has_interval() ? factor.low : kNoValue,
                           .x_high = factor.has_interval() ? factor.high : kNoValue,
                           .halo = HaloOf(report, arm),
                           .title = plot.row_labels.back().text});
    ++row;
  }
  // Far from all marks the line would leave them little room.
  const auto is_near = [](const Mark& mark) { return mark.x < 2; };
  if (std::ranges::any_of(means.marks, is_near)) plot.at_x = {{1, "equally fast"}};
  plot.series = {std::move(rounds), std::move(means)};
  return plot;
}

// Losses by step; at most kMostLosses of them, evenly.
std::vector<Mark> LossMarks(const LossCurve& losses) {
  const size_t stride = losses.size() / kMostLosses + 1;
  std::vector<Mark> marks;
  for (size_t i = 0; i < losses.size(); i += stride)
    marks.push_back({.x = static_cast<double>(i + 1), .y = losses[i]});
  return marks;
}

// The losses of a run of the pick, or of a configuration that dropped out, beside those of the
// submitted configuration.
Plot LossPlot(const Report& report, const Trial& run) {
  const std::string& metric = report.spec.options.metric;
  const TrialId of = run.confirms.value_or(run.id);
  std::string caption = report.IsPick(of) ? Describe(report.verdict.losses) : run.reason;
  if (caption.empty()) caption = "losses that were not compared";
  Plot plot{.id = fmt::format("plot-loss-{}", run.id),
            .title = fmt::format("Training losses of trial {}", of),
            .caption = Printable(caption) + ".",
            .x = {.label = "optimizer step", .whole_only = true},
            .y = {.label = "loss, nats per token"}};
  Series submitted{.name = "runs of the submitted configuration",
                   .color = "soft",
                   .shape = Shape::kRing,
                   .has_line = true};
  for (const Trial* trial : SubmittedRuns(*report.search, GlobalBatch(run.ds_config))) {
    std::vector<Mark> marks = LossMarks(LossesOf(*trial, metric));
    for (Mark& mark : marks)
      mark.title = fmt::format("trial {}, step {:.0f}: {:.6g}", trial->id, mark.x, mark.y);
    if (!submitted.marks.empty()) submitted.marks.push_back({.x = kNoValue});  // A new line.
    std::ranges::move(marks, std::back_inserter(submitted.marks));
  }
  plot.series = {std::move(submitted),
                 {.name = fmt::format("trial {}{}", of,
                                      run.confirms ? fmt::format(", run as trial {}", run.id) : ""),
                  .color = "best",
                  .marks = LossMarks(LossesOf(run, metric)),
                  .has_marks = false,
                  .has_line = true}};
  DropEmpty(plot.series);
  return plot;
}

void AddLossPlots(const Report& report, Plots& plots) {
  std::vector<const Trial*> runs;
  for (const auto& [id, trial] : report.trials) {
    if (trial.kind == TrialKind::kSoak) runs.push_back(&trial);
  }
  if (runs.empty() && report.verdict.pick && report.verdict.pick != report.search->Submitted())
    runs.push_back(&report.search->trials().at(*report.verdict.pick));
  std::ranges::reverse(runs);  // The run of the pick is the last one.
  std::erase_if(runs, [&](const Trial* trial) {
    return LossesOf(*trial, report.spec.options.metric).empty();
  });
  if (runs.empty()) plots.missing.emplace_back("Training losses", "no run of the pick has any");
  runs.resize(std::min(runs.size(), kMostLossPlots));
  for (const Trial* run : runs)
    plots.shown.push_back(LossPlot(report, *run));
}

// A row of the time line that is free from `from` on.
size_t FreeRow(std::vector<double>& busy_until, const Span& span) {
  size_t row = 0;
  while (row < busy_until.size() && busy_until[row] > span.from + 1e-6)
    ++row;
  if (row == busy_until.size()) busy_until.push_back(0);
  busy_until[row] = span.to;
  return row;
}

Plot TimePlot(const Report& report) {
  double last = 0;
  std::vector<std::pair<Span, TrialId>> spans;
  for (const auto& [id, span] : report.spans) {
    last = std::max(last, span.to);
    spans.emplace_back(span, id);
  }
  std::ranges::stable_sort(spans, {}, [](const auto& entry) { return entry.first.from; });
  const ShownUnit unit = last < 300     ? ShownUnit{"seconds", 1}
                         : last < 18000 ? ShownUnit{"minutes", 60}
                                        : ShownUnit{"hours", 3600};
  const int64_t slots = report.spec.slots_per_trial;
  Plot plot{.id = "plot-timeline",
            .title = "Time line",
            .caption = fmt::format("When each trial ran; a row is {}. Trials without a "
                                   "measurement are hollow. Colors are those of the ZeRO stages.",
                                   Counted(slots, "slot")),
            .x = {.label = unit.name + " of the search", .has_zero = true},
            .y = {.is_rows = true}};
  std::vector<double> busy_until;
  for (const auto& [span, id] : spans) {
    const Trial& trial = report.trials.at(id);
    const size_t row = FreeRow(busy_until, span);
    if (row >= kMostRows) continue;
    plot.bars.push_back(
        {.from = span.from / unit.scale,
         .to = span.to / unit.scale,
         .row = static_cast<double>(row),
         .color = StageColor(ZeroStage(trial.ds_config)) +
                  (trial.state == TrialState::kSucceeded ? " fill" : " hollow"),
         .label = std::to_string(id),
         .title = fmt::format("{} ({:.1f} s)", report.TitleOf(trial), span.to - span.from)});
  }
  if (busy_until.size() > kMostRows)
    plot.caption += fmt::format(" {} further rows are left out.", busy_until.size() - kMostRows);
  return plot;
}

void AddPredictions(const Report& report, Plots& plots) {
  const std::string name = "Predictions and measurements";
  if (!report.search->profile()) {
    plots.missing.emplace_back(name, "there is no profile of the model");
    return;
  }
  const ShownUnit unit = UnitFor(report, "peak_bytes");
  Plot memory = PredictionPlot("plot-memory", "Predicted and measured peak memory", unit.name);
  Plot time = PredictionPlot("plot-time", "Predicted and measured time of a step", "ms");
  try {
    const std::unique_ptr<Predictor> predictor =
        MakePredictor(report.spec, *report.search->profile());
    size_t num = 0;
    for (const auto& [id, trial] : report.trials) {
      if (!IsOfSearch(trial) || trial.state != TrialState::kSucceeded) continue;
      if (++num > kMostPredictions) break;
      const Json config = report.ConfigOf(trial);
      RefusalOf([&, &trial = trial] {
        const Estimate predicted = predictor->Predict(config);
        AddPrediction(report, trial, config, static_cast<double>(predicted.device.peak_bytes),
                      "peak_bytes", unit.scale, memory);
        AddPrediction(report, trial, config, predicted.step_ms, "latency", 1, time);
      });
    }
  } catch (const Error& error) {  // Nothing can be predicted here.
    plots.missing.emplace_back(name, Printable(error.what()));
    return;
  }
  for (Plot* plot : {&memory, &time}) {
    DropEmpty(plot->series);
    if (plot->series.empty()) {
      plots.missing.emplace_back(plot->title, "nothing is predicted or measured");
    } else {
      plots.shown.push_back(std::move(*plot));
    }
  }
}

}  // namespace

Plots MakePlots(const Report& report) {
  Plots plots;
  if (report.trials.empty()) return plots;
  plots.shown.push_back(OrderPlot(report));
  const Confirmation* confirmation =
      report.search == nullptr ? nullptr : report.search->confirmation();
  if (confirmation != nullptr && confirmation->Arms().size() > 1 && confirmation->NumRounds() > 0) {
    plots.shown.push_back(ConfirmPlot(report, *confirmation));
  } else {
    plots.missing.emplace_back("Confirmation", "no round of two configurations is complete");
  }
  const std::string metric = SpeedMetric(report);
  plots.shown.push_back(BatchPlot(report, metric, "plot-batch", "Speed by micro-batch size"));
  plots.shown.push_back(
      BatchPlot(report, "peak_bytes", "plot-peak", "Peak memory by micro-batch size"));
  for (auto plot = plots.shown.begin(); plot != plots.shown.end();) {
    const bool is_empty = plot->series.empty();
    if (is_empty) plots.missing.emplace_back(plot->title, "nothing was measured");
    plot = is_empty ? plots.shown.erase(plot) : plot + 1;
  }
  if (report.search != nullptr) {
    AddPredictions(report, plots);
    AddLossPlots(report, plots);
  }
  if (report.spans.empty()) {
    plots.missing.emplace_back("Time line", "no trial has ended");
  } else {
    plots.shown.push_back(TimePlot(report));
  }
  return plots;
}

}  // namespace dsat::cli
