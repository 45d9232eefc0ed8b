// One launch of one trial.
#include "searcher/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "searcher/hosts/slots.h"
#include "searcher/scripts/command_target.h"

namespace dsat {
namespace {

namespace fs = std::filesystem;

// From the last measurement to the exit, unless the limit for hanging is less.
constexpr std::chrono::milliseconds kExitGrace{30'000};
constexpr std::chrono::seconds kKillGrace{2};  // From SIGTERM to SIGKILL.

// Between two looks at the clock that come several times a second.
constexpr std::chrono::seconds kLongPause{2};

// A runner that was killed leaves the file that it was writing in the folder of an earlier attempt.
void RemoveUnfinishedFiles(const std::string& attempt_dir) {
  std::error_code error;  // A file that stays harms nobody.
  const fs::path trial_dir = fs::absolute(attempt_dir).parent_path();
  std::vector<fs::path> left;
  for (auto it = fs::recursive_directory_iterator(trial_dir, error); it != fs::end(it);
       it.increment(error)) {
    if (it.depth() > 0) it.disable_recursion_pending();  // Deeper files are the script's.
    if (it->path().filename().string().find(".tmp.") != std::string::npos)
      left.push_back(it->path());
  }
  for (const fs::path& path : left)
    fs::remove(path, error);
}

double Seconds(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::chrono::seconds PauseAfter(int64_t num_failed) {
  constexpr int64_t kMostDoublings = 5;
  return std::chrono::seconds{int64_t{1}
                              << std::min(std::max<int64_t>(num_failed, 1) - 1, kMostDoublings)};
}

Attempt::Attempt(const std::string& dsat_binary, LaunchTarget* target, const LaunchRequest& request,
                 const AttemptLimits& limits, const std::optional<SlurmJobs>& jobs)
    : dsat_binary_(dsat_binary), target_(target), request_(request), limits_(limits) {
  if (!jobs) {
    Launch();
    return;
  }
  const std::string name = request.full_run
                               ? "dsat-train"
                               : fmt::format("dsat-{}-trial-{}", request.experiment, request.trial);
  // The same for each attempt of a trial, and of a training.
  const fs::path dir = fs::absolute(request.dir);
  job_ = std::make_unique<SlurmJob>(*jobs, name, dsat_binary,
                                    (request.full_run ? dir : dir.parent_path()) / "slurm");
}

void Attempt::Launch() {
  if (request_.attempt > 0 && !request_.full_run) RemoveUnfinishedFiles(request_.dir);
  process_.emplace(SupervisedProcess::Start(dsat_binary_, target_->Prepare(request_),
                                            fs::absolute(request_.dir), GraceTimes{},
                                            request_.hosts));
  last_sign_ = started_ = Clock::now();
}

// Launches the attempt when Slurm has given it nodes. That it gives none is an outcome.
void Attempt::AwaitJob() {
  if (exit_) return;
  std::optional<std::vector<LaunchHost>> nodes;
  try {
    nodes = job_->Poll();
  } catch (const Error& error) {
    no_job_ = error.what();
    exit_ = ExitReport{};
  }
  if (!nodes) return;
  request_.hosts = std::move(*nodes);
  request_.slots = FindSlots(request_.hosts, {}, job_->slots_per_trial());
  Launch();
}

std::string Attempt::NewsOfJob() {
  if (told_job_ || !job_ || !(job_->queued() || (job_->taken_up() && started()))) return "";
  told_job_ = true;
  if (!job_->queued())
    return fmt::format("runs in job {} of Slurm, which was kept for it", job_->number());
  const std::string why = WhySlurmWaits(job_->number());
  return fmt::format("waits in Slurm's queue as job {}{}", job_->number(),
                     why.empty() ? "" : fmt::format(" ({})", why));
}

void Attempt::OnProgress(int64_t step) {
  heard_ = true;
  last_sign_ = Clock::now();
  step_ = std::max(step_, step);
}

void Attempt::OnMeasured(bool point, bool profile, bool more) {
  OnProgress(step_);
  if (request_.kind == TrialKind::kProfile ? !profile : !point) return;
  has_result_ = true;
  if (!more && !done_) done_ = last_sign_;
}

void Attempt::OnInfeasible(int64_t rank, const std::string& reason) {
  OnProgress(step_);
  if (!infeasible_) infeasible_ = fmt::format("rank {}: {}", rank, reason);
}

void Attempt::Cancel(std::chrono::milliseconds grace) {
  canceled_ = true;
  if (process_) {
    process_->Stop(grace);
  } else {
    job_->Release();
    exit_ = ExitReport{};
  }
}

std::optional<int64_t> Attempt::NewStep() {
  if (step_ == shown_step_) return std::nullopt;
  shown_step_ = step_;
  return step_;
}

AttemptNews Attempt::Observe() {
  if (!process_) AwaitJob();
  if (!process_) return {};
  if (!exit_) exit_ = process_->Poll();
  AttemptNews news = target_->Poll(request_, exit_.has_value());
  if (news.measured || news.profile) OnProgress(step_);
  if (news.progress > polled_progress_) {
    polled_progress_ = news.progress;
    OnProgress(news.progress);
  }
  return news;
}

std::optional<AttemptEnd> Attempt::End() {
  if (exit_) {
    AttemptEnd end{Decide(), exit_->log_tail};
    end.heard = heard_;
    if (end.outcome.state == TrialState::kFailed && !heard_) end.lost_host = exit_->lost_host;
    const bool may_be_slurms = process_ && job_ && end.outcome.state == TrialState::kFailed;
    const std::string why = may_be_slurms ? WhySlurmEnded(job_->number()) : "";
    if (!why.empty()) end.outcome.reason = fmt::format("{}; {}", why, end.outcome.reason);
    return end;
  }
  if (process_ && !canceled_ && !overdue_) KillIfOverdue();
  return std::nullopt;
}

void Attempt::KillIfOverdue() {
  const Clock::time_point now = Clock::now();
  const Clock::duration pause = now - std::exchange(looked_, now);
  // This process was stopped or blocked: what was reported meanwhile is still to be read.
  if (pause > kLongPause) {
    started_ += pause;
    last_sign_ += pause;
  }
  const auto exit_grace = std::min(kExitGrace, limits_.hang.value_or(kExitGrace));
  const bool lingers = done_ && now - *done_ > exit_grace;
  const std::string reason = OverdueReason(now);
  if (!lingers && reason.empty()) return;
  overdue_ = reason;
  process_->Stop(kKillGrace);
}

std::string Attempt::OverdueReason(Clock::time_point now) const {
  if (done_) return "";
  if (limits_.total && now - started_ > *limits_.total) {
    return fmt::format("still running after {} s (--trial-timeout), at step {}; killed",
                       Seconds(*limits_.total), step_);
  }
  if (!heard_ && limits_.start && now - started_ > *limits_.start) {
    return fmt::format("no report for {} s after the start (--start-timeout); killed",
                       Seconds(*limits_.start));
  }
  if (heard_ && limits_.hang && now - last_sign_ > *limits_.hang) {
    return fmt::format("no progress for {} s (--hang-timeout), the last step was {}; killed",
                       Seconds(*limits_.hang), step_);
  }
  return "";
}

// The reports of ranks take precedence over a time-out, and both over exit codes: a process may
// crash while it exits, after its result has been recorded.
Outcome Attempt::Decide() {
  if (!process_ && !canceled_) return {TrialState::kFailed, no_job_};
  if (!process_) return {TrialState::kStopped, "canceled"};
  if (has_result_ && !done_ && !canceled_) return {TrialState::kSucceeded, ""};
  if (infeasible_) return {TrialState::kInfeasible, *infeasible_};
  Outcome by_exit{TrialState::kStopped, "canceled"};
  if (!canceled_) by_exit = target_->Classify(request_, *exit_);
  if (by_exit.state == TrialState::kInfeasible) return by_exit;
  if (done_) return {TrialState::kSucceeded, ""};
  if (overdue_) {
    const bool knows_more = by_exit.state == TrialState::kStopped && !by_exit.reason.empty();
    return {TrialState::kFailed, knows_more ? *overdue_ + "; " + by_exit.reason : *overdue_};
  }
  if (by_exit.state == TrialState::kStopped && !canceled_)
    return {TrialState::kFailed, "a signal from outside ended its supervisor"};
  if (by_exit.state == TrialState::kSucceeded && !request_.full_run) {
    return {TrialState::kFailed,
            fmt::format("every rank exited with code 0, but none reported a {}",
                        request_.kind == TrialKind::kProfile ? "profile" : "measurement")};
  }
  return by_exit;
}

std::unique_ptr<LaunchTarget> MakeTarget(const ExperimentSpec& spec,
                                         const std::string& trial_binary) {
  return IsBuiltin(spec) ? MakeBuiltinTarget(spec, trial_binary) : MakeCommandTarget(spec);
}

}  // namespace dsat
