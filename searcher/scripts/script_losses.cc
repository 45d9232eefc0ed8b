// The losses of a user's script, from the reports of the Python helper or from its output.
#include "searcher/scripts/script_losses.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>

#include "base/regex.h"

namespace dsat {
namespace {

constexpr size_t kMaxLineBytes = 8192;  // A longer line of a log is skipped.

}  // namespace

bool AreReportsMissing(const std::vector<HookReport>& reports) {
  return std::ranges::any_of(reports, &HookReport::config_applied) &&
         !std::ranges::all_of(reports, &HookReport::has_ended);
}

std::vector<double> MeanLosses(const std::vector<HookReport>& reports) {
  std::vector<double> means;
  const auto is_running = [](const HookReport& report) {
    return report.config_applied && !report.has_ended;
  };
  if (std::ranges::any_of(reports, is_running)) return means;
  double num_ranks = 0;
  for (const HookReport& report : reports) {
    if (report.losses.empty()) continue;
    if (num_ranks++ == 0) means = report.losses;
    means.resize(std::min(means.size(), report.losses.size()));
    for (size_t i = 0; i < means.size(); ++i)
      means[i] += (report.losses[i] - means[i]) / num_ranks;
  }
  return means;
}

std::vector<double> LossesInLog(const std::string& path, const std::string& pattern) {
  const RE2 regex(pattern, RegexOptions());
  std::ifstream log(path);
  std::vector<double> losses;
  std::string line(kMaxLineBytes + 1, '\0');
  while (log.getline(line.data(), static_cast<std::streamsize>(line.size())) || log.gcount() > 0) {
    if (log.fail()) {  // The line is longer, such as that of a progress bar.
      log.clear();
      log.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
      continue;
    }
    const auto size = static_cast<size_t>(log.gcount()) - (log.eof() ? 0 : 1);
    std::string text;
    if (!RE2::PartialMatch(Piece({line.data(), size}), regex, &text)) continue;
    double loss = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), loss);
    losses.push_back(read.ec == std::errc() ? loss : std::numeric_limits<double>::quiet_NaN());
  }
  return losses;
}

}  // namespace dsat
