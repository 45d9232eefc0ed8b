// The page of a report: one file that a browser shows without network.
#ifndef DSAT_CLI_REPORT_PAGE_H_
#define DSAT_CLI_REPORT_PAGE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/report/markup.h"
#include "cli/report/report.h"
#include "cli/report/svg_plot.h"

namespace dsat::cli {

// The beginning of every page.
inline constexpr std::string_view kPageBegin = "<!DOCTYPE html>\n<html xmlns=";

// HTML that is also XML. All of it can be read without scripts; the one script sorts the table, and
// the page's own policy lets no other run.
std::string ReportPage(const Report& report);

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

#endif  // DSAT_CLI_REPORT_PAGE_H_
