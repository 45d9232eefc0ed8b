// The losses of a user's script, step by step.
#ifndef DSAT_SEARCHER_SCRIPTS_SCRIPT_LOSSES_H_
#define DSAT_SEARCHER_SCRIPTS_SCRIPT_LOSSES_H_

#include <string>
#include <vector>

#include "searcher/scripts/hook_report.h"

namespace dsat {

// Whether a rank has made its engine, and not all ranks have written their last report, which they
// do at their end.
bool AreReportsMissing(const std::vector<HookReport>& reports);

// The means over the ranks that know their losses (of a pipeline, those of the last stage), of the
// steps that all of them have; empty unless all ranks with an engine have ended, because the mean
// over some of them would be another number.
std::vector<double> MeanLosses(const std::vector<HookReport>& reports);

// The number that the first group of `pattern` matches in each line of a log; NaN if the match is
// not a number. Lines that are very long are skipped. REQUIRES: the pattern is a valid one with a
// group (ValidateOptions).
std::vector<double> LossesInLog(const std::string& path, const std::string& pattern);

}  // namespace dsat

#endif  // DSAT_SEARCHER_SCRIPTS_SCRIPT_LOSSES_H_
