// Draws the page that compares two experiments.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/output/output.h"
#include "cli/report/page.h"
#include "searcher/search/config_change.h"

namespace dsat::cli {
namespace {

using Texts = std::vector<std::pair<std::string, std::string>>;

// The rows of two lists of names and texts, in the order of the first list. `skip_same` leaves out
// those whose texts are equal.
std::vector<Difference> Join(const Texts& before, const Texts& after, bool skip_same) {
  std::vector<Difference> rows;
  for (const auto& [name, text] : before)
    rows.push_back({name, text, ""});
  for (const auto& [name, text] : after) {
    const auto same = std::ranges::find(rows, name, [](const Difference& row) { return row[0]; });
    if (same != rows.end()) {
      (*same)[2] = text;
    } else {
      rows.push_back({name, "", text});
    }
  }
  if (skip_same) std::erase_if(rows, [](const Difference& row) { return row[1] == row[2]; });
  return rows;
}

// The answer with its details.
Texts AnswerOf(const Report& report) {
  Texts texts = {{"state", report.state}, {"trials", std::to_string(report.row.num_trials)}};
  if (!report.verdict.pick) return texts;
  const Verdict& verdict = report.verdict;
  const std::string& metric = report.spec.options.metric;
  texts.emplace_back("answer", Headline(*report.search, verdict));
  texts.emplace_back("pick", DescribeConfig(report.trials.at(*verdict.pick), metric));
  texts.emplace_back("speed of the pick", SmallerIsBetter(metric)
                                              ? fmt::format("{:.4g} per ms", *verdict.speed)
                                              : DescribeMetric("throughput", *verdict.speed));
  for (AnswerLine& line : AnswerLines(*report.search, verdict))
    texts.emplace_back(std::move(line.name), std::move(line.text));
  return texts;
}

// How the speeds of the two picks compare, as a heading.
void DrawHero(const Report& before, const Report& after, Markup& page) {
  const auto& was = before.verdict.log_speed;
  const auto& is = after.verdict.log_speed;
  if (!was || !is || before.spec.options.metric != after.spec.options.metric) {
    page.Element("h2", "The speeds of the two picks cannot be compared");
    page.Element("p", "Both need a confirmed pick by the same metric.");
    return;
  }
  const Factor ratio = RatioOfSpeeds(*is, *was, after.verdict.num_rounds);
  const bool is_alike = ratio.has_interval() && ratio.low <= 1 && ratio.high >= 1;
  page.Open("div", {{"class", "hero"}});
  if (!is_alike) {
    page.Open("p", {{"class", "factor"}}).Text(fmt::format("{:.2f}", ratio.value));
    page.Element("span", "\u00d7").Close();
  }
  page.Open("div");
  page.Element("h2", fmt::format("The pick of experiment {} is {:.2f} times as fast as that of "
                                 "experiment {}{}",
                                 after.row.id, ratio.value, before.row.id, IntervalText(ratio)));
  if (is_alike) page.Element("p", "The rounds cannot tell the two apart.");
  page.Close().Close();
}

Json PickOf(const Report& report) {
  return report.ConfigOf(report.trials.at(*report.verdict.pick));
}

}  // namespace

std::string ComparisonPage(const Report& before, const Report& after) {
  const Difference titles = {"", fmt::format("experiment {}", before.row.id),
                             fmt::format("experiment {}", after.row.id)};
  const std::string both = titles[1] + " and " + titles[2];
  return FramedPage(Clipped(after.spec.name) + ": dsat " + both, after, 0, [&](Markup& page) {
    page.Open("header").Element("p", "dsat report", {{"class", "brand"}});
    page.Element("h1", Clipped(after.spec.name));
    page.Element("p", both, {{"class", "facts"}}).Close();
    page.Open("main", {{"class", "comparison"}});
    page.Open("section", {{"id", "answer"}, {"aria-label", "Answers"}});
    DrawHero(before, after, page);
    DrawDifferences("Answers", titles, Join(AnswerOf(before), AnswerOf(after), false), page);
    if (before.verdict.pick && after.verdict.pick)
      DrawDifferences("What differs between the picks", titles,
                      DifferencesOf(ChangesOf(PickOf(before), PickOf(after))), page);
    DrawDifferences(
        "What differs between the submitted configurations", titles,
        DifferencesOf(ChangesOf(SubmittedConfig(before.spec), SubmittedConfig(after.spec))), page);
    std::vector<Difference> facts = Join(FactsOf(before), FactsOf(after), true);
    std::erase_if(facts, [](const Difference& row) {
      return row[0] == "experiment" || row[0] == "profile" || row[0].ends_with("(UTC)");
    });
    DrawDifferences("What differs between machines, versions and options", titles, facts, page);
    page.Close().Close();
  });
}

}  // namespace dsat::cli
