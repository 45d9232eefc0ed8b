// The page of a report: one file that a browser shows without network.
#ifndef DSAT_CLI_REPORT_PAGE_H_
#define DSAT_CLI_REPORT_PAGE_H_

#include <string>
#include <string_view>

#include "cli/report/report.h"

namespace dsat::cli {

// The beginning of every page.
inline constexpr std::string_view kPageBegin = "<!DOCTYPE html>\n<html xmlns=";

// HTML that is also XML. All of it can be read without scripts; the one script sorts the table, and
// the page's own policy lets no other run.
std::string ReportPage(const Report& report);

}  // namespace dsat::cli

#endif  // DSAT_CLI_REPORT_PAGE_H_
