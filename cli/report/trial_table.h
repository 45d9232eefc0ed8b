// The table of all trials of a report.
#ifndef DSAT_CLI_REPORT_TRIAL_TABLE_H_
#define DSAT_CLI_REPORT_TRIAL_TABLE_H_

#include "cli/report/markup.h"
#include "cli/report/report.h"

namespace dsat::cli {

// A row for each trial, with the id "trial-<number>". Cells of numbers have them as `data-value`,
// in the unit of `dsat show --json`, by which the page's script sorts.
void DrawTrials(const Report& report, Markup& page);

// `text`, or the beginning of a long one and how much is missing.
std::string Clipped(const std::string& text);

}  // namespace dsat::cli

#endif  // DSAT_CLI_REPORT_TRIAL_TABLE_H_
