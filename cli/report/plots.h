// The plots of a report.
#ifndef DSAT_CLI_REPORT_PLOTS_H_
#define DSAT_CLI_REPORT_PLOTS_H_

#include <string>
#include <utility>
#include <vector>

#include "cli/report/report.h"
#include "cli/report/svg_plot.h"

namespace dsat::cli {

struct Plots {
  std::vector<Plot> shown;
  // Each plot that is missing, and why: {"Confirmation", "no round is complete"}.
  std::vector<std::pair<std::string, std::string>> missing;
};

// Every trial in order, the confirmation, throughput and peak memory against the micro-batch,
// predictions against measurements, the losses of the pick, and the time line.
Plots MakePlots(const Report& report);

}  // namespace dsat::cli

#endif  // DSAT_CLI_REPORT_PLOTS_H_
