// The files of an attempt with the user's command.
#include "searcher/scripts/attempt_files.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "base/files.h"
#include "searcher/processes/line_stamper.h"

namespace dsat {
namespace {

// The size of the end of a log that is searched for the cause of a failure.
constexpr int64_t kLogEndBytes = 256 * 1024;
// The size of its beginning that is searched for DeepSpeed's dump of its config.
constexpr int64_t kLogBeginBytes = 1024 * 1024;

Json ReadUnfinishedJson(const std::string& path) {
  return Json::parse(ReadOrEmpty(path), nullptr, /*allow_exceptions=*/false);
}

std::string ReadBegin(const std::string& path, int64_t max_bytes) {
  std::ifstream file(path);
  std::string text(static_cast<size_t>(max_bytes), '\0');
  file.read(text.data(), max_bytes);
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

AttemptFiles::AttemptFiles(const LaunchRequest& request, std::string logs_of)
    : dir(std::filesystem::absolute(request.dir).lexically_normal()),
      logs(std::move(logs_of)),
      config(dir / "ds_config.json"),
      metrics(dir / "metrics.json"),
      model_info(dir / "model_info.json") {}

std::string AttemptFiles::hook(int64_t rank) const {
  return dir / fmt::format("hook-rank{}.json", rank);
}

std::string AttemptFiles::log(int64_t number) const {
  return dir / fmt::format("{}{}.log", logs, number);
}

Json AttemptFiles::ReadMetrics() const {
  return ReadUnfinishedJson(metrics);
}

Json AttemptFiles::ReadModelInfo() const {
  return ReadUnfinishedJson(model_info);
}

std::vector<StepLine> AttemptFiles::ReadStepLines() const {
  std::vector<StepLine> lines;
  for (const StampedLine& stamped : ReadStamps(StampsPath(log(0)))) {
    std::optional<StepLine> line = ParseStepLine(stamped.line);
    if (!line) continue;
    line->time_ns = stamped.time_ns;
    lines.push_back(*line);
  }
  return lines;
}

std::vector<HookReport> AttemptFiles::ReadReports(int64_t num_ranks) const {
  std::vector<HookReport> reports;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    auto report = ReadHookReport(ReadOrEmpty(hook(rank)));
    if (!report && rank == 0) return {};
    reports.push_back(std::move(report).value_or(HookReport{}));
  }
  return reports;
}

std::optional<RanConfig> AttemptFiles::ReadRan() const {
  const std::vector<HookReport> reports = ReadReports(1);
  if (!reports.empty() && !reports[0].ran.settings.empty()) return reports[0].ran;
  return ReadConfigDump(ReadBegin(log(0), kLogBeginBytes));
}

std::string AttemptFiles::ReadLogEnd(int64_t number) const {
  return ReadEnd(log(number), kLogEndBytes);
}

}  // namespace dsat
