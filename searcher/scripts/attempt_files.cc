// The files of an attempt with the user's command.
#include "searcher/scripts/attempt_files.h"

#include <fmt/format.h>

#include <utility>

#include "base/files.h"

namespace dsat {
namespace {

// The size of the end of a log that is searched for the cause of a failure.
constexpr int64_t kLogEndBytes = 256 * 1024;

}  // namespace

AttemptFiles::AttemptFiles(const LaunchRequest& request, std::string logs_of)
    : dir(std::filesystem::absolute(request.dir).lexically_normal()),
      logs(std::move(logs_of)),
      config(dir / "ds_config.json") {}

std::string AttemptFiles::hook(int64_t rank) const {
  return dir / fmt::format("hook-rank{}.json", rank);
}

std::string AttemptFiles::log(int64_t number) const {
  return dir / fmt::format("{}{}.log", logs, number);
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

std::string AttemptFiles::ReadLogEnd(int64_t number) const {
  return ReadEnd(log(number), kLogEndBytes);
}

}  // namespace dsat
