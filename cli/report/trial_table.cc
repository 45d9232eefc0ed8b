// Draws the table of all trials.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cli/output/output.h"
#include "cli/report/page.h"
#include "searcher/search/config_change.h"

namespace dsat::cli {
namespace {

// A metric that has a column because a trial has measured it.
struct MetricColumn {
  std::string metric;
  std::string title;
  ShownUnit unit;
};

// The metrics that trials have measured: first those by which configurations are compared.
std::vector<MetricColumn> MetricColumns(const Report& report) {
  const std::string& searched = report.spec.options.metric;
  std::vector<std::string> metrics = {searched};
  for (const char* name : {"throughput", "latency", "peak_bytes", "forward", "backward", "step",
                           "tokens_per_second", "loss"}) {
    if (name != searched) metrics.emplace_back(name);
  }
  std::vector<MetricColumn> columns;
  for (const std::string& metric : metrics) {
    const bool is_measured = std::ranges::any_of(report.trials, [&](const auto& entry) {
      return MetricOf(report, entry.second, metric) != nullptr;
    });
    if (!is_measured && metric != searched) continue;
    const std::string title = metric == "peak_bytes" ? "peak memory" : metric;
    columns.push_back({metric, title, UnitFor(report, metric)});
  }
  return columns;
}

// The decimals in which a number is shown: enough to compare, few enough to read.
int Decimals(double value) {
  const double size = std::abs(value);
  return size >= 1000 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 4;
}

void DrawMetric(const Report& report, const Trial& trial, const MetricColumn& column,
                Markup& page) {
  const Metric* metric = MetricOf(report, trial, column.metric);
  if (metric == nullptr) {
    page.Element("td", "", {{"class", "number"}});
    return;
  }
  page.Open("td", {{"class", "number"}, {"data-value", fmt::format("{}", metric->value)}});
  const double value = metric->value / column.unit.scale;
  page.Text(fmt::format("{:.{}f}", value, Decimals(value)));
  const double error = StandardError(*metric) / column.unit.scale;
  if (std::isfinite(error) && error > 0)
    page.Element("small", fmt::format(" \u00b1 {:.{}f}", error, Decimals(value)));
  page.Close();
}

// True if the key has a column of its own.
bool HasColumn(const KeyChange& change) {
  return change.name == "stage" || change.name == "train_batch_size" ||
         change.name == "train_micro_batch_size_per_gpu" ||
         change.name == "gradient_accumulation_steps";
}

// The keys that trials change in the submitted configuration, besides the columns.
class OtherChanges {
 public:
  explicit OtherChanges(const Report& report)
      : report_(report), submitted_(SubmittedConfig(report.spec)) {
    bool is_first = true;
    for (const auto& [id, trial] : report.trials) {
      if (trial.kind != TrialKind::kSearch) continue;
      const std::vector<KeyChange> changes = AllOf(trial);
      if (std::exchange(is_first, false)) common_ = changes;
      std::erase_if(common_,
                    [&](const KeyChange& c) { return std::ranges::count(changes, c) == 0; });
    }
  }

  // The changes that every searched trial makes.
  std::string common() const { return Describe(common_); }
  // The changes that this trial makes, without the common ones.
  std::string Of(const Trial& trial) const {
    std::vector<KeyChange> changes = AllOf(trial);
    if (trial.kind == TrialKind::kSearch)
      std::erase_if(changes,
                    [&](const KeyChange& c) { return std::ranges::count(common_, c) > 0; });
    return Describe(changes);
  }

 private:
  std::vector<KeyChange> AllOf(const Trial& trial) const {
    std::vector<KeyChange> changes = ChangesOf(submitted_, report_.ConfigOf(trial));
    std::erase_if(changes, HasColumn);
    return changes;
  }

  const Report& report_;
  Json submitted_;
  std::vector<KeyChange> common_;
};

void DrawTrial(const Report& report, const Trial& trial, const OtherChanges& changes,
               const std::vector<MetricColumn>& columns, Markup& page) {
  const std::string state = ToString(trial.state), number = std::to_string(trial.id);
  const std::string stage = std::to_string(ZeroStage(trial.ds_config));
  page.Open("tr", {{"id", "trial-" + number},
                   {"class", report.IsPick(trial.id) ? state + " pick" : state}});
  page.Element("th", number, {{"scope", "row"}, {"data-value", number}});
  page.Open("td").Element("span", state, {{"class", "state " + state}}).Close();
  std::string kind = ToString(trial.kind);
  if (trial.confirms) kind += fmt::format(" of {}", *trial.confirms);
  page.Element("td", report.IsPick(trial.id) ? kind + ", the pick" : kind);
  page.Element("td", stage, {{"class", "number"}, {"data-value", stage}});
  const Point point = BestOrConfigPoint(trial, report.spec.options.metric);
  const std::string size = std::to_string(point.micro_batch_size);
  page.Open("td", {{"class", "number"}, {"data-value", size}}).Text(size);
  if (point.accumulation_steps != 1)
    page.Element("small", fmt::format(" \u00d7 {}", point.accumulation_steps));
  page.Close();
  page.Open("td", {{"class", "config"}});
  const bool is_again = trial.kind == TrialKind::kConfirm || trial.kind == TrialKind::kSoak;
  page.Text(is_again                              ? fmt::format("as trial {}", *trial.confirms)
            : trial.kind == TrialKind::kSubmitted ? "as submitted"
                                                  : Clipped(changes.Of(trial)));
  if (!trial.reason.empty())
    page.Element("p", state + ": " + Clipped(trial.reason), {{"class", "reason"}});
  page.Close();
  for (const MetricColumn& column : columns)
    DrawMetric(report, trial, column, page);
  page.Close();
}

}  // namespace

std::string Clipped(const std::string& text) {
  if (text.size() <= kMostCharacters) return text;
  return fmt::format("{} ... ({} further bytes are left out)", text.substr(0, kMostCharacters),
                     text.size() - kMostCharacters);
}

void DrawTrials(const Report& report, Markup& page) {
  const std::vector<MetricColumn> columns = MetricColumns(report);
  const OtherChanges changes(report);
  if (!changes.common().empty())
    page.Element("p", "in every searched trial: " + Clipped(changes.common()));
  page.Open("div", {{"class", "scroll"},
                    {"role", "region"},
                    {"tabindex", "0"},
                    {"aria-label", "Table of all trials"}});
  page.Open("table", {{"id", "all-trials"}}).Open("thead").Open("tr");
  for (const char* title : {"trial", "state", "kind", "stage"})
    page.Element("th", title, {{"scope", "col"}});
  page.Open("th", {{"scope", "col"}}).Text("micro-batch ");
  page.Element("small", "\u00d7 accumulation").Close();
  page.Open("th", {{"scope", "col"}, {"class", "config"}}).Text("other changes ");
  page.Element("small", "to the submitted configuration, and why it ended").Close();
  for (const MetricColumn& column : columns) {
    page.Open("th", {{"scope", "col"}, {"data-metric", column.metric}}).Text(column.title + " ");
    page.Element("small", column.unit.name).Close();
  }
  page.Close().Close().Open("tbody");
  for (const auto& [id, trial] : report.trials)
    DrawTrial(report, trial, changes, columns, page);
  page.Close().Close().Close();
}

}  // namespace dsat::cli
