// Starts the supervisors of an attempt, exchanges messages with them and merges their reports.
#include "searcher/processes/supervised_process.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace dsat {
namespace {

constexpr int kTailLines = 50;

std::map<std::string, std::string> ContentsOf(const std::vector<RankCommand>& ranks) {
  std::map<std::string, std::string> contents;
  for (const RankCommand& rank : ranks) {
    for (const std::string& path : rank.files)
      if (!contents.contains(path)) contents[path] = ReadFile(path);
  }
  return contents;
}

}  // namespace

SupervisedProcess::SupervisedProcess() : news_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!news_) ThrowErrno("epoll_create1", errno);
}

void SupervisedProcess::Hear(Part& part) {
  part.process.Receive();
  try {
    while (const std::optional<Json> message = part.process.Next()) {
      if (message->contains("rank_failed")) OnFailure(part);
      if (const auto last = message->find("report"); last != message->end())
        OnReport(part, SuperviseReportFromJson(*last));
    }
  } catch (const Error&) {
    part.process.Refuse("it sent a message that no supervisor sends; expected the same dsat there");
  }
  if (!part.process.ended()) return;
  const int exit_code = part.process.Collect();
  epoll_ctl(news_.get(), EPOLL_CTL_DEL, part.process.fd(), nullptr);
  if (part.report) return;
  SuperviseReport lost;
  lost.exit.first_failed_rank = 0;
  lost.exit.exit_code = exit_code;
  lost.exit.log_tail = part.process.WhyNoReport();
  lost.exit.lost_host = part.host;
  OnReport(part, std::move(lost));
}

// The ranks on other hosts need not run on.
void SupervisedProcess::OnFailure(const Part& part) {
  if (first_failed_ != nullptr) return;
  first_failed_ = &part;
  for (Part& other : parts_) {
    if (&other != &part && !other.report) other.process.Send({{"sibling_failed", true}});
  }
}

void SupervisedProcess::OnReport(Part& part, SuperviseReport ended) {
  if (ended.exit.first_failed_rank >= 0) OnFailure(part);
  std::string& words = ended.exit.log_tail;
  if (!words.empty()) words = part.process.Prefix() + words;
  if (ended.exit.not_started) ended.exit.lost_host = part.host;
  // Other paths than those of the logs of its ranks are not the host's to write.
  for (const int rank : part.ranks) {
    const std::string& path = log_paths_[static_cast<size_t>(rank)];
    const auto log = ended.logs.find(path);
    std::error_code error;
    if (log == ended.logs.end() || std::filesystem::exists(path, error)) continue;
    try {
      // In place of a symbolic link, which leads elsewhere.
      WriteFileAtomic(path, log->second, /*waits_for_disk=*/false);
    } catch (const Error&) {  // Nowhere to write it, such as on a full disk.
    }
  }
  part.report = std::move(ended);
}

// The host of the rank that failed first, or of one that crashed; null if none failed.
const SupervisedProcess::Part* SupervisedProcess::Cause() const {
  const auto crashed = [](const Part& part) {
    return part.report->exit.first_failed_rank >= 0 && Crashed(part.report->exit.exit_code);
  };
  if (first_failed_ == nullptr || crashed(*first_failed_)) return first_failed_;
  const auto cause = std::ranges::find_if(parts_, crashed);
  return cause == parts_.end() ? first_failed_ : &*cause;
}

ExitReport SupervisedProcess::Merged() const {
  ExitReport all;
  if (const Part* const cause = Cause(); cause != nullptr) {
    const auto last = std::ssize(cause->ranks) - 1;
    const auto rank = std::clamp<int64_t>(cause->report->exit.first_failed_rank, 0, last);
    all.first_failed_rank = cause->ranks[static_cast<size_t>(rank)];
  }
  all.exit_codes.assign(log_paths_.size(), -1);
  const size_t told = static_cast<size_t>(std::max(all.first_failed_rank, 0));
  std::string words;  // The error of the supervisor of the rank whose log is shown.
  for (const Part& part : parts_) {
    const ExitReport& exit = part.report->exit;
    all.killed_by_us |= exit.killed_by_us;
    all.oom_kills += exit.oom_kills;
    for (size_t i = 0; i < part.ranks.size() && i < exit.exit_codes.size(); ++i)
      all.exit_codes[static_cast<size_t>(part.ranks[i])] = exit.exit_codes[i];
    if (std::ranges::find(part.ranks, static_cast<int>(told)) == part.ranks.end()) continue;
    all.exit_code = exit.exit_code;
    all.lost_host = exit.lost_host;
    words = exit.log_tail;
  }
  if (std::ranges::count(all.exit_codes, -1) > 0) all.exit_codes.clear();
  all.log_tail = TailLines(log_paths_[told], kTailLines);
  if (words.empty()) return all;
  const bool line_is_open = !all.log_tail.empty() && all.log_tail.back() != '\n';
  all.log_tail += (line_is_open ? "\n" : "") + words;
  return all;
}

SupervisedProcess SupervisedProcess::Start(const std::string& dsat_binary,
                                           const std::vector<RankCommand>& ranks,
                                           const std::string& work_dir, const GraceTimes& grace,
                                           const std::vector<LaunchHost>& hosts) {
  DSAT_CHECK(!ranks.empty());
  std::map<int64_t, SuperviseOrder> orders;
  std::map<int64_t, std::vector<int>> numbers;
  SupervisedProcess process;
  process.frozen_ = grace.frozen;
  for (const RankCommand& rank : ranks) {
    SuperviseOrder& order =
        orders.try_emplace(rank.host, SuperviseOrder{{}, work_dir, grace}).first->second;
    numbers[rank.host].push_back(static_cast<int>(process.log_paths_.size()));
    order.ranks.push_back(rank);
    process.log_paths_.push_back(rank.log_path);
  }
  process.parts_.reserve(orders.size());
  for (auto& [index, order] : orders) {
    const LaunchHost& host = hosts.at(static_cast<size_t>(index));
    order.remote = !host.reach.empty();
    if (order.remote) order.files = ContentsOf(order.ranks);
    Part& part = process.parts_.emplace_back(
        Part{HostProcess(host, dsat_binary), order.remote ? index : -1, numbers[index]});
    epoll_event event = {.events = EPOLLIN, .data = {}};
    if (epoll_ctl(process.news_.get(), EPOLL_CTL_ADD, part.process.fd(), &event) != 0)
      ThrowErrno("epoll_ctl", errno);
    // If the supervisor has already ended, Poll reports it.
    part.process.Send(ToJson(order));
  }
  return process;
}

std::optional<ExitReport> SupervisedProcess::Poll() {
  if (report_) return report_;
  for (Part& part : parts_) {
    if (part.process.ended()) continue;
    part.process.SayAlive();
    Hear(part);
  }
  if (std::ranges::all_of(parts_, [](const Part& part) { return part.process.ended(); }))
    report_ = Merged();
  return report_;
}

void SupervisedProcess::Stop(std::chrono::milliseconds grace) {
  for (Part& part : parts_)
    if (!part.process.ended()) part.process.Stop(grace, frozen_);
}

}  // namespace dsat
