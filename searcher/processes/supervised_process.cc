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
#include "searcher/processes/host_process.h"
#include "searcher/processes/supervise_wire.h"

namespace dsat {
namespace {

constexpr int kTailLines = 50;

// The ranks of one host.
struct Part {
  HostProcess process;
  int64_t host;            // An index of the hosts; -1: this machine.
  std::vector<int> ranks;  // The ranks that the supervisor numbers 0, 1, ...
  std::optional<SuperviseReport> report = {};
};

std::map<std::string, std::string> ContentsOf(const std::vector<RankCommand>& ranks) {
  std::map<std::string, std::string> contents;
  for (const RankCommand& rank : ranks) {
    for (const std::string& path : rank.files)
      if (!contents.contains(path)) contents[path] = ReadFile(path);
  }
  return contents;
}

}  // namespace

struct SupervisedProcess::Impl {
  Impl() : news(epoll_create1(EPOLL_CLOEXEC)) {
    if (!news) ThrowErrno("epoll_create1", errno);
  }

  void Start(const std::string& dsat_binary, const LaunchHost& host, int64_t index,
             SuperviseOrder order, std::vector<int> rank_numbers);
  void Hear(Part& part);
  void OnReport(Part& part, SuperviseReport report);
  void OnFailure(const Part& part);
  const Part* Cause() const;
  SuperviseReport Lost(Part& part) const;
  ExitReport Merged() const;

  UniqueFd news;  // An epoll descriptor of the connections.
  std::vector<Part> parts;
  std::vector<std::string> log_paths;  // By rank.
  std::chrono::milliseconds frozen{0};
  const Part* first_failed = nullptr;  // The host whose rank is known to have failed first.
  std::optional<ExitReport> report;
};

void SupervisedProcess::Impl::Start(const std::string& dsat_binary, const LaunchHost& host,
                                    int64_t index, SuperviseOrder order,
                                    std::vector<int> rank_numbers) {
  Part& part = parts.emplace_back(
      Part{HostProcess(host, dsat_binary), order.remote ? index : -1, std::move(rank_numbers)});
  epoll_event event = {.events = EPOLLIN, .data = {}};
  if (epoll_ctl(news.get(), EPOLL_CTL_ADD, part.process.fd(), &event) != 0)
    ThrowErrno("epoll_ctl", errno);
  // If the supervisor has already ended, Poll reports it.
  part.process.Send(ToJson(order));
}

void SupervisedProcess::Impl::Hear(Part& part) {
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
  part.process.Collect();
  epoll_ctl(news.get(), EPOLL_CTL_DEL, part.process.fd(), nullptr);
  if (!part.report) OnReport(part, Lost(part));
}

// The ranks on other hosts need not run on.
void SupervisedProcess::Impl::OnFailure(const Part& part) {
  if (first_failed != nullptr) return;
  first_failed = &part;
  for (Part& other : parts) {
    if (&other != &part && !other.report) other.process.Send({{"sibling_failed", true}});
  }
}

void SupervisedProcess::Impl::OnReport(Part& part, SuperviseReport ended) {
  if (ended.exit.first_failed_rank >= 0) OnFailure(part);
  std::string& words = ended.exit.log_tail;
  if (!words.empty()) words = part.process.Prefix() + words;
  if (ended.exit.not_started) ended.exit.lost_host = part.host;
  // Other paths than those of the logs of its ranks are not the host's to write.
  for (const int rank : part.ranks) {
    const std::string& path = log_paths[static_cast<size_t>(rank)];
    const auto log = ended.logs.find(path);
    std::error_code error;
    if (log == ended.logs.end() || std::filesystem::exists(path, error)) continue;
    try {
      WriteFileAtomic(path, log->second);  // In place of a symbolic link, which leads elsewhere.
    } catch (const Error&) {               // Nowhere to write it, such as on a full disk.
    }
  }
  part.report = std::move(ended);
}

SuperviseReport SupervisedProcess::Impl::Lost(Part& part) const {
  SuperviseReport lost;
  lost.exit.first_failed_rank = 0;
  lost.exit.exit_code = part.process.Collect();
  lost.exit.log_tail = part.process.WhyNoReport();
  lost.exit.lost_host = part.host;
  return lost;
}

// The host of the rank that failed first, or of one that crashed; null if none failed.
const Part* SupervisedProcess::Impl::Cause() const {
  const auto crashed = [](const Part& part) {
    return part.report->exit.first_failed_rank >= 0 && Crashed(part.report->exit.exit_code);
  };
  if (first_failed == nullptr || crashed(*first_failed)) return first_failed;
  const auto cause = std::find_if(parts.begin(), parts.end(), crashed);
  return cause == parts.end() ? first_failed : &*cause;
}

ExitReport SupervisedProcess::Impl::Merged() const {
  ExitReport all;
  if (const Part* const cause = Cause(); cause != nullptr) {
    const auto last = std::ssize(cause->ranks) - 1;
    const auto rank = std::clamp<int64_t>(cause->report->exit.first_failed_rank, 0, last);
    all.first_failed_rank = cause->ranks[static_cast<size_t>(rank)];
  }
  all.exit_codes.assign(log_paths.size(), -1);
  const size_t told = static_cast<size_t>(std::max(all.first_failed_rank, 0));
  std::string words;  // The error of the supervisor of the rank whose log is shown.
  for (const Part& part : parts) {
    const ExitReport& exit = part.report->exit;
    all.killed_by_us |= exit.killed_by_us;
    all.oom_kills += exit.oom_kills;
    all.elapsed = std::max(all.elapsed, exit.elapsed);
    for (size_t i = 0; i < part.ranks.size() && i < exit.exit_codes.size(); ++i)
      all.exit_codes[static_cast<size_t>(part.ranks[i])] = exit.exit_codes[i];
    if (std::find(part.ranks.begin(), part.ranks.end(), static_cast<int>(told)) == part.ranks.end())
      continue;
    all.exit_code = exit.exit_code;
    all.lost_host = exit.lost_host;
    words = exit.log_tail;
  }
  if (std::count(all.exit_codes.begin(), all.exit_codes.end(), -1) > 0) all.exit_codes.clear();
  all.log_tail = TailLines(log_paths[told], kTailLines);
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
  auto impl = std::make_unique<Impl>();
  impl->frozen = grace.frozen;
  for (const RankCommand& rank : ranks) {
    SuperviseOrder& order =
        orders.try_emplace(rank.host, SuperviseOrder{{}, work_dir, grace}).first->second;
    numbers[rank.host].push_back(static_cast<int>(impl->log_paths.size()));
    order.ranks.push_back(rank);
    impl->log_paths.push_back(rank.log_path);
  }
  impl->parts.reserve(orders.size());
  for (auto& [index, order] : orders) {
    const LaunchHost& host = hosts.at(static_cast<size_t>(index));
    order.remote = !host.reach.empty();
    if (order.remote) order.files = ContentsOf(order.ranks);
    impl->Start(dsat_binary, host, index, std::move(order), numbers[index]);
  }
  return SupervisedProcess(std::move(impl));
}

SupervisedProcess::SupervisedProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SupervisedProcess::SupervisedProcess(SupervisedProcess&&) noexcept = default;
SupervisedProcess& SupervisedProcess::operator=(SupervisedProcess&&) noexcept = default;
SupervisedProcess::~SupervisedProcess() = default;

int SupervisedProcess::fd() const {
  return impl_->news.get();
}

std::optional<ExitReport> SupervisedProcess::Poll() {
  if (impl_->report) return impl_->report;
  for (Part& part : impl_->parts) {
    if (part.process.ended()) continue;
    part.process.SayAlive();
    impl_->Hear(part);
  }
  const auto ended = [](const Part& part) { return part.process.ended(); };
  if (std::all_of(impl_->parts.begin(), impl_->parts.end(), ended)) impl_->report = impl_->Merged();
  return impl_->report;
}

void SupervisedProcess::Stop(std::chrono::milliseconds grace) {
  for (Part& part : impl_->parts)
    if (!part.process.ended()) part.process.Stop(grace, impl_->frozen);
}

}  // namespace dsat
