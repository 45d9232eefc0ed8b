// Writes the page of a report.
#include "cli/report/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/version.h"
#include "cli/output/output.h"
#include "searcher/results.h"

namespace dsat::cli {
namespace {

void DrawHead(const std::string& title, int64_t refresh_s, Markup& page) {
  const std::string policy = fmt::format(
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; "
      "form-action 'none'",
      kScriptHash);
  page.Open("head").Empty("meta", {{"charset", "utf-8"}});
  page.Empty("meta", {{"http-equiv", "Content-Security-Policy"}, {"content", policy}});
  if (refresh_s > 0)
    page.Empty("meta", {{"http-equiv", "refresh"}, {"content", std::to_string(refresh_s)}});
  page.Empty("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}});
  page.Empty("meta", {{"name", "color-scheme"}, {"content", "light dark"}});
  page.Empty("meta", {{"name", "generator"}, {"content", fmt::format("dsat {}", kVersion)}});
  page.Element("title", title);
  page.Open("style").Raw(kStyleSheet).Close().Close();
}

void DrawHeader(const Report& report, Markup& page) {
  const std::string end = report.row.reason.empty() ? "" : ": " + Clipped(report.row.reason);
  const std::string host = report.spec.machine.value("host", std::string());
  page.Open("header").Element("p", "dsat report", {{"class", "brand"}});
  page.Element("h1", Clipped(report.spec.name));
  page.Open("p", {{"class", "facts"}});
  page.Element("span", fmt::format("experiment {}", report.row.id));
  page.Element("span", report.state + end, {{"class", "state " + report.state}});
  page.Element("span", "method " + report.spec.method);
  page.Element("span", Counted(report.row.num_trials, "trial"));
  page.Element("span", report.row.created_at.substr(0, 10));
  if (!host.empty()) page.Element("span", host);
  page.Close();
  page.Open("nav", {{"aria-label", "Parts of the page"}});
  for (const auto& [id, name] : {std::pair{"answer", "Answer"},
                                 {"plots", "Plots"},
                                 {"trials", "Trials"},
                                 {"about", "About"}})
    page.Element("a", name, {{"href", fmt::format("#{}", id)}});
  page.Close().Close();
}

// Splits a line of the answer into its first part and the details after it. A list of numbers stays
// whole.
std::pair<std::string, std::string> Split(const std::string& text) {
  size_t at = text.size();
  for (const char* end : {"; ", ": ", " ("})
    at = std::min(at, text.find(end));
  for (size_t comma = text.find(", "); comma < at; comma = text.find(", ", comma + 1)) {
    const char next = comma + 2 < text.size() ? text[comma + 2] : ' ';
    if (next < '0' || next > '9') at = comma;
  }
  return {text.substr(0, at), text.substr(at)};
}

// The answer in short, with the factor in large figures.
void DrawHero(const Report& report, Markup& page) {
  const Verdict& verdict = report.verdict;
  page.Open("div", {{"class", "hero"}});
  if (verdict.certainty != Certainty::kNone) {
    page.Open("p", {{"class", "factor"}})
        .Text(fmt::format("{}{:.2f}", verdict.num_rounds > 0 ? "" : "\u2264 ",
                          verdict.factor->value));
    page.Element("span", "\u00d7").Close();
  } else if (verdict.pick == report.search->Submitted()) {
    page.Element("p", "Keep", {{"class", "factor"}});
  }
  page.Open("div");
  const char* tag = "h2";
  for (const std::string& sentence : AnswerSentences(*report.search, verdict, report.row.id))
    page.Element(std::exchange(tag, "p"), Clipped(sentence));
  page.Close().Close();
}

void DrawChanges(const Report& report, Markup& page) {
  const Trial& pick = report.search->trials().at(*report.verdict.pick);
  const std::vector<KeyChange> changes =
      ChangesOf(SubmittedConfig(report.spec), report.ConfigOf(pick));
  if (changes.empty()) return;
  DrawDifferences("What the pick changes", {"setting", "submitted", "pick"}, DifferencesOf(changes),
                  page);
}

void DrawCommand(const Report& report, Markup& page) {
  const TrialId pick = *report.verdict.pick;
  const Json config = ConfigToKeep(*report.search, pick);
  std::string command =
      ProductionCommand(report.spec, config, report.out_dir, ByHook(*report.search, pick));
  if (!report.has_results) {
    command = fmt::format("dsat best {} --db {} --out {}\n{}", report.row.id, ShellWord(report.db),
                          ShellWord(report.out_dir), command);
  }
  page.Element("h3", "Train with it").Element("pre", command, {{"tabindex", "0"}});
  page.Open("details").Element("summary", "ds_config.json of the pick");
  page.Element("pre", config.dump(2), {{"id", "ds-config"}, {"tabindex", "0"}}).Close();
}

void DrawAnswer(const Report& report, Markup& page) {
  page.Open("section", {{"id", "answer"}, {"aria-label", "Answer"}});
  if (!report.verdict.pick) {
    page.Element("h2", report.row.state == ExperimentState::kActive ? "There is no answer yet"
                                                                    : "There is no answer");
    page.Element("p", report.search == nullptr ? report.why_no_search
                      : report.trials.empty()  ? "No trial has been launched."
                                               : "No trial has measured a configuration.");
    page.Close();
    return;
  }
  if (report.row.state == ExperimentState::kActive)
    page.Element("p", "This is the best answer so far; the search has not ended.",
                 {{"class", "notice"}});
  DrawHero(report, page);
  page.Open("dl", {{"class", "cards"}});
  for (const AnswerLine& line : AnswerLines(*report.search, report.verdict)) {
    const auto [lead, rest] = Split(line.text);
    page.Open("div").Element("dt", line.name);
    page.Open("dd").Element("strong", Clipped(lead)).Text(Clipped(rest)).Close().Close();
  }
  page.Close();
  DrawChanges(report, page);
  DrawCommand(report, page);
  page.Close();
}

void DrawPlots(const Report& report, Markup& page) {
  const Plots plots = MakePlots(report);
  page.Open("section", {{"id", "plots"}, {"aria-label", "Plots"}});
  page.Element("h2", "Plots");
  page.Open("div", {{"class", "plots"}});
  for (const Plot& plot : plots.shown)
    DrawFigure(plot, page);
  page.Close();
  if (!plots.missing.empty()) {
    page.Element("h3", "Not shown").Open("ul", {{"class", "missing"}});
    for (const auto& [what, why] : plots.missing)
      page.Element("li", fmt::format("{}: {}", what, why));
    page.Close();
  }
  page.Close();
}

void DrawTable(const Report& report, Markup& page) {
  page.Open("section", {{"id", "trials"}, {"aria-label", "Trials"}});
  page.Element("h2", "Trials");
  if (report.num_left_out > 0) {
    page.Element("p",
                 fmt::format("{} further trials are left out here and in the plots, so that the "
                             "file stays small; dsat export {} lists all of them.",
                             report.num_left_out, report.row.id),
                 {{"class", "notice"}});
  }
  if (report.search != nullptr && report.search->NumRefused() > 0) {
    page.Element("p", fmt::format("not launched: {} configurations that are predicted not to fit",
                                  report.search->NumRefused()));
  }
  DrawTrials(report, page);
  page.Close();
}

std::string PlainText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", value.is_array() ? "" : key + " ",
                        PlainText(item));
  }
  return text;
}

void DrawAbout(const Report& report, Markup& page) {
  page.Open("section", {{"id", "about"}, {"aria-label", "Machine and search"}});
  page.Element("h2", "Machine and search");
  page.Open("dl", {{"class", "about"}});
  for (const auto& [name, text] : FactsOf(report)) {
    if (text.empty()) continue;
    const bool is_wide = text.find('\n') != text.npos;
    page.Open("div", {{"class", is_wide ? "wide" : "fact"}});
    page.Element("dt", name).Element("dd", Clipped(text)).Close();
  }
  page.Close();
  Json options = ToJson(report.spec.options);
  options.erase("prior");  // The trials of another experiment.
  for (const auto& [name, json] : {std::pair{"options of the search", std::move(options)},
                                   {"submitted ds_config", report.spec.ds_config}}) {
    page.Open("details").Element("summary", name);
    page.Element("pre", json.dump(2), {{"tabindex", "0"}}).Close();
  }
  page.Close();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> FactsOf(const Report& report) {
  const ExperimentSpec& spec = report.spec;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"experiment", fmt::format("{} in {}", report.row.id, report.db)},
      {"created (UTC)", report.row.created_at},
      {"ended (UTC)", report.row.ended_at.empty() ? "not yet" : report.row.ended_at},
      {"method", spec.method},
      {"metric", spec.options.metric},
      {"random seed", std::to_string(spec.options.random_seed)},
      {"command", fmt::format("{}", fmt::join(spec.entrypoint, " "))},
      {"experiment file", spec.config_path},
      {"base folder", spec.model_dir},
      {"submitted ds_config",
       spec.ds_config_path.empty() ? "in the experiment file" : spec.ds_config_path},
      {"ranks of a trial", std::to_string(spec.slots_per_trial)},
      {"device", spec.device}};
  if (spec.device_memory_bytes > 0)
    facts.emplace_back("device memory of a rank", HumanBytes(spec.device_memory_bytes));
  if (spec.host_memory_bytes > 0)
    facts.emplace_back("host memory of a rank", HumanBytes(spec.host_memory_bytes));
  for (const auto& [name, value] : spec.machine.items()) {
    if (name != "dsat" && name != "packages" && !value.is_null())
      facts.emplace_back(name, PlainText(value));
  }
  const Json versions = VersionsOf(spec);
  for (const auto& [name, version] : versions.items())
    facts.emplace_back(name + " version", PlainText(version));
  if (report.search != nullptr && report.search->profile())
    facts.emplace_back("profile", DescribeProfile(*report.search));
  return facts;
}

void DrawDifferences(const std::string& heading, const Difference& titles,
                     const std::vector<Difference>& rows, Markup& page) {
  page.Element("h3", heading);
  if (rows.empty()) {
    page.Element("p", "Nothing.");
    return;
  }
  page.Open("div", {{"class", "scroll"}}).Open("table", {{"class", "changes"}});
  page.Open("thead").Open("tr");
  for (const std::string& title : titles)
    page.Element("th", title, {{"scope", "col"}});
  page.Close().Close().Open("tbody");
  for (const Difference& row : rows) {
    page.Open("tr").Element("th", row[0], {{"scope", "row"}});
    page.Element("td", Clipped(row[1])).Element("td", Clipped(row[2])).Close();
  }
  page.Close().Close().Close();
}

std::vector<Difference> DifferencesOf(const std::vector<KeyChange>& changes) {
  std::vector<Difference> rows;
  for (const KeyChange& change : changes)
    rows.push_back({change.name, change.was.empty() ? "(default)" : change.was, change.is});
  return rows;
}

std::string FramedPage(const std::string& title, const Report& report, int64_t refresh_s,
                       const std::function<void(Markup&)>& draw) {
  Markup page;
  page.Raw("<!DOCTYPE html>\n");
  page.Open("html", {{"xmlns", "http://www.w3.org/1999/xhtml"}, {"lang", "en"}});
  DrawHead(title, refresh_s, page);
  page.Open("body");
  draw(page);
  page.Element("footer",
               fmt::format("Made by dsat {} at {} from {}.", kVersion, report.made_at, report.db));
  page.Open("script").Raw(kScript).Close();
  page.Close().Close().Raw("\n");
  DSAT_CHECK(page.text().starts_with(kPageBegin));
  return page.text();
}

std::string ReportPage(const Report& report) {
  const std::string title =
      fmt::format("{}: dsat experiment {}", Clipped(report.spec.name), report.row.id);
  return FramedPage(title, report, report.refresh_s, [&](Markup& page) {
    DrawHeader(report, page);
    page.Open("main");
    DrawAnswer(report, page);
    DrawPlots(report, page);
    DrawTable(report, page);
    DrawAbout(report, page);
    page.Close();
  });
}

}  // namespace dsat::cli
