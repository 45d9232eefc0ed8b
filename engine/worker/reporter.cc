// A rank's reports.
#include "engine/worker/reporter.h"

#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace dsat::engine {

Reporter::Reporter(const TrialTask& task, const std::string& key, int rank) : rank_(rank) {
  if (task.report_address.empty()) return;
  client_ =
      TrialClient::Connect(task.report_address, key, {task.experiment, task.trial, task.attempt});
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void Reporter::Progress(int64_t step) {
  if (!client_) return;
  const std::lock_guard lock(mutex_);
  newest_ = step;
  changed_.notify_all();
}

void Reporter::Begins(int64_t step, const std::vector<std::string>& warnings) {
  if (!client_) return;
  try {
    client_->Progress(rank_, step, /*begins=*/true, warnings);
  } catch (const Error& e) {
    Log(LogLevel::kWarn, "cannot report the begin", {{"error", e.what()}});
  }
}

void Reporter::Run(const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kInterval{100};
  constexpr std::chrono::milliseconds kBeat{250};
  std::unique_lock lock(mutex_);
  for (int64_t step = 0;;) {
    changed_.wait_for(lock, stop, kBeat, [this] { return newest_.has_value(); });
    const bool works = alive_.exchange(false) || Clock::now() < long_work_until_.load();
    if (newest_) {
      step = *std::exchange(newest_, std::nullopt);
    } else if (stop.stop_requested()) {
      return;  // The last progress has gone out.
    } else if (!works) {
      continue;
    }
    lock.unlock();
    if (Send(step)) stop_requested_ = true;
    lock.lock();
    changed_.wait_for(lock, stop, kInterval, [] { return false; });
  }
}

// True if the runner says stop.
bool Reporter::Send(int64_t step) {
  try {
    return client_->Progress(rank_, step);
  } catch (const Error& e) {
    if (!std::exchange(unreachable_, true)) {
      Log(LogLevel::kWarn, "cannot report progress", {{"error", e.what()}});
    }
    return false;
  }
}

std::optional<Point> Reporter::Measured(const PointResult& result,
                                        const std::optional<ModelProfile>& profile) {
  if (client_) return client_->Measured(result, profile);
  Json line = {{"micro_batch_size", result.point.micro_batch_size},
               {"accumulation_steps", result.point.accumulation_steps},
               {"measurement", ToJson(result.measurement)},
               {"losses", result.losses},
               {"rank_peak_bytes", result.rank_peak_bytes}};
  if (profile) line["profile"] = ToJson(*profile);
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
  return std::nullopt;
}

void Reporter::Infeasible(const std::string& reason) {
  Log(LogLevel::kError, "infeasible", {{"rank", rank_}, {"reason", reason}});
  if (!client_) return;
  try {
    client_->Infeasible(rank_, reason);
  } catch (const Error& e) {
    Log(LogLevel::kError, "cannot report", {{"error", e.what()}});
  }
}

}  // namespace dsat::engine
