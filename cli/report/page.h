// The page of a report: one file that a browser shows without network.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/report/markup.h"
#include "cli/report/report.h"
#include "cli/report/svg_plot.h"
#include "searcher/search/config_change.h"

namespace dsat::cli {

// The beginning of every page.
inline constexpr std::string_view kPageBegin = "<!DOCTYPE html>\n<html xmlns=";

// HTML that is also XML. All of it can be read without scripts; the one script sorts the table, and
// the page's own policy lets no other run.
std::string ReportPage(const Report& report);
// The same for two experiments: both answers, and what differs between them.
std::string ComparisonPage(const Report& before, const Report& after);

// A page with the style sheet, the script and a footer; `draw` draws the rest. Browsers load it
// again every `refresh_s` seconds; 0 = never.
std::string FramedPage(const std::string& title, const Report& report, int64_t refresh_s,
                       const std::function<void(Markup&)>& draw);
// A name, and what two configurations or experiments have of it.
using Difference = std::array<std::string, 3>;
// A heading with a table of differences, whose columns have these titles.
void DrawDifferences(const std::string& heading, const Difference& titles,
                     const std::vector<Difference>& rows, Markup& page);
std::vector<Difference> DifferencesOf(const std::vector<KeyChange>& changes);
// The facts on a search's machine, software and options: name and text.
std::vector<std::pair<std::string, std::string>> FactsOf(const Report& report);

// The parts of the page, each in a file of its own.

// The style sheet, and the script that sorts the table of trials by the column whose header is
// clicked. They have no "<" and "&", which an XML parser would read as markup.
extern const char kStyleSheet[];
extern const char kScript[];
// The SHA-256 of kScript, in Base64: the only script that the page's policy lets run.
extern const char kScriptHash[];

struct Plots {
  std::vector<Plot> shown;
  // Each plot that is missing, and why: {"Confirmation", "no round is complete"}.
  std::vector<std::pair<std::string, std::string>> missing;
};
// Every trial in order, the confirmation, throughput and peak memory against the micro-batch,
// predictions against measurements, the losses of the pick, and the time line.
Plots MakePlots(const Report& report);

// A row for each trial, with the id "trial-<number>". Cells of numbers have them as `data-value`,
// in the unit of `dsat show --json`, by which the page's script sorts.
void DrawTrials(const Report& report, Markup& page);

// `text`, or the beginning of a long one and how much is missing.
std::string Clipped(const std::string& text);

}  // namespace dsat::cli
