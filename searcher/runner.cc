// The search runner.
#include "searcher/runner.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/num_cores.h"
#include "base/unique_fd.h"
#include "engine/config/ds_config.h"
#include "searcher/attempt.h"
#include "searcher/budget.h"
#include "searcher/hosts/slots.h"
#include "searcher/launch/launch_target.h"
#include "searcher/launch/rank_places.h"
#include "searcher/processes/load_watch.h"
#include "searcher/results.h"
#include "searcher/search/runner_lock.h"
#include "searcher/service/event_queue.h"
#include "searcher/service/service.h"

namespace dsat {
namespace {

constexpr int64_t kMostUnreached = 3;  // Attempts of a trial that do not count.

// The end of a trial whose config the built-in engine refuses, without a launch: infeasible.
// nullopt if it can be launched.
std::optional<Outcome> Refusal(const ExperimentSpec& spec, const Trial& trial) {
  if (!IsBuiltin(spec)) return std::nullopt;
  try {
    engine::ParseDsConfig(trial.ds_config, fmt::format("trial {}", trial.id), spec.slots_per_trial,
                          nullptr);
    return std::nullopt;
  } catch (const Error& error) {
    return Outcome{TrialState::kInfeasible, error.what()};
  }
}

}  // namespace

struct Runner::Impl {
  using Kind = RunnerEvent::Kind;

  Impl(Experiment& experiment_in, RunnerOptions options_in, RunnerWatcher watcher_in)
      : experiment(experiment_in),
        options(std::move(options_in)),
        watcher(std::move(watcher_in)),
        lock(RunnerLock::Acquire(experiment.store().path(), experiment.id())),
        cancel_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (cancel_fd.get() < 0) ThrowErrno("eventfd", errno);
    experiment.CatchUp();
  }

  ExperimentState Run();
  void Open();
  void Loop();

  // Starting.
  void SettleOldAttempts();
  std::optional<Trial> NextTrial();
  void Launch(const Trial& trial);
  void NoteStart(Attempt& attempt);

  // Listening.
  void Wait();
  void HearCancel();
  void ObserveAttempts();
  void HearMessages();
  void EndAttempts();
  void OnMessage(ProgressMessage& message);
  void OnMessage(MeasuredMessage& message);
  void OnMessage(InfeasibleMessage& message);
  Attempt* Find(const AttemptRef& ref);

  // Budgets.
  double Clock() const;
  std::optional<std::string> WhyOver() const;
  void EndSearchIfOver();
  void Withdraw();

  // Recording.
  std::optional<Point> Record(Attempt& attempt, const std::optional<PointResult>& result,
                              const std::optional<ModelProfile>& profile);
  void OnEnd(const LaunchRequest& request, const AttemptEnd& end);
  Outcome ReturnSlots(const LaunchRequest& request, const AttemptEnd& end);
  void NoteLoad(TrialId id);
  bool EndsTrial(TrialId id, const Outcome& outcome) const;
  void Tell(TrialId id, const Outcome& outcome);
  void Notify(const RunnerEvent& event);

  Experiment& experiment;
  RunnerOptions options;
  RunnerWatcher watcher;
  RunnerLock lock;
  UniqueFd cancel_fd;
  uint64_t cancels = 0;
  std::vector<LaunchHost> hosts;  // This machine if no others are given.
  std::optional<SlotPool> pool;
  std::map<TrialId, int64_t> unreached;  // Attempts whose host was not reached.

  EventQueue<TrialMessage> queue;
  std::unique_ptr<TrialServer> server;
  std::unique_ptr<LaunchTarget> target;
  std::map<TrialId, Attempt> attempts;  // Running.
  // The search's own clock goes on where the last runner has left it.
  double clock_before_s = 0;
  std::chrono::steady_clock::time_point opened = std::chrono::steady_clock::now();
  std::map<TrialId, double> started_s;  // Starts of running trials, later by what they have waited.
  std::map<TrialId, double> spent_s;    // By earlier attempts of a trial.
  double paused_until_s = 0;            // After a failed attempt nothing is started until then.
  std::map<TrialId, double> others;     // The load by other processes while it ran last.
  LoadWatch load;
  std::set<TrialId> withdrawn;          // Because the search is over.
  std::optional<TrialId> written_best;  // The best trial when the results were written.
};

Runner::Runner(Experiment& experiment, RunnerOptions options, RunnerWatcher watcher)
    : impl_(std::make_unique<Impl>(experiment, std::move(options), std::move(watcher))) {}
Runner::~Runner() = default;
ExperimentState Runner::Run() {
  return impl_->Run();
}

void Runner::Cancel() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(impl_->cancel_fd.get(), &one, sizeof(one));
}

// Any failure outside of the trials ends the run but leaves the record valid.
ExperimentState Runner::Impl::Run() {
  const RunnerLock held = std::move(lock);  // To the end of this call.
  MakeWritableFolder(options.out_dir);
  const RunnerLock folder =
      RunnerLock::ClaimFolder(options.out_dir, FolderOwner(experiment.store(), experiment.id()));
  Open();
  const auto failed = [this](ErrorCode code, const std::string& what) {
    attempts.clear();
    try {
      experiment.HoldBack(false);
      WriteResults(experiment, options.out_dir);
    } catch (const std::exception&) {  // The cause of the failure may be a full disk.
    }
    return Error(code, fmt::format("{}; every running trial was stopped: fix this, then run "
                                   "`dsat resume {}`, which runs again what is not recorded",
                                   what, experiment.id()));
  };
  try {
    Loop();
    experiment.FinishIfDone();
    experiment.HoldBack(false);
    WriteResults(experiment, options.out_dir);
    return experiment.state();
  } catch (const Error& error) {
    throw failed(error.code(), error.what());
  } catch (const std::exception& error) {
    throw failed(ErrorCode::kInternal, MessageOf(error));
  }
}

void Runner::Impl::Open() {
  const ExperimentSpec& spec = experiment.search().spec();
  MakeWritableFolder(options.out_dir + "/trials");
  target = MakeTarget(spec, options.trial_binary);
  server = std::make_unique<TrialServer>(&queue, options.machines.runner_address);
  const bool are_known = options.num_slots > 0 || !options.machines.hosts.empty() || UsesGpus(spec);
  // A trial uses all cores of a machine, whose number says nothing of how many trials can share it.
  const int64_t num_slots =
      are_known ? options.num_slots : std::min<int64_t>(spec.slots_per_trial, NumCores());
  hosts = options.machines.hosts.empty() ? std::vector{ThisMachine(spec, num_slots)}
                                         : options.machines.hosts;
  CheckHosts(spec, hosts);
  pool = options.jobs ? SlotPool(std::numeric_limits<int64_t>::max())
                      : SlotPool::On(hosts, spec.slots_per_trial, are_known);
  if (const int64_t most = NumSlots(hosts); spec.slots_per_trial > most) {
    Notify(
        {.kind = Kind::kNote,
         .text = fmt::format("a trial needs {} slots, more than the {} to use here: trials run "
                             "one at a time and their ranks share cores, which makes them slower",
                             spec.slots_per_trial, most)});
  }
}

void Runner::Impl::Loop() {
  for (const auto& [id, trial] : experiment.search().trials())
    clock_before_s = std::max(clock_before_s, trial.times.ended_s);
  opened = std::chrono::steady_clock::now();
  experiment.HoldBack(true);  // Until a launch, an answer to a trial, or a wait.
  written_best = experiment.search().Best();
  SettleOldAttempts();
  while (true) {
    HearCancel();
    EndSearchIfOver();
    Withdraw();
    while (cancels == 0 && pool->HasFree(Clock())) {
      const std::optional<Trial> trial = NextTrial();
      if (!trial) break;
      const std::optional<Outcome> refusal = Refusal(experiment.search().spec(), *trial);
      refusal ? Tell(trial->id, *refusal) : Launch(*trial);
      HearCancel();
    }
    const bool may_start = pool->HasFree(Clock()) && Clock() >= paused_until_s;
    if (attempts.empty() && (cancels > 0 || may_start)) return;
    experiment.Flush();
    if (const auto best = experiment.search().Best(); best != written_best) {
      WriteResults(experiment, options.out_dir, /*waits_for_disk=*/false);
      written_best = best;
    }
    Wait();
    ObserveAttempts();
    HearMessages();
    EndAttempts();
  }
}

// Ends the attempts of a runner that died. An attempt that had delivered its result counts; any
// other says nothing about its trial. Also tells a trial whose runner died between its end and the
// tell.
void Runner::Impl::SettleOldAttempts() {
  for (const TrialId id : experiment.search().Running()) {
    const bool is_profile = experiment.search().trials().at(id).kind == TrialKind::kProfile;
    std::optional<Outcome> last;
    for (int64_t number = 0; const Experiment::Attempt& old : experiment.Attempts(id)) {
      const bool done = is_profile ? old.profile.has_value() : !old.points.empty();
      last = old.end.value_or(done ? Outcome{TrialState::kSucceeded, ""}
                                   : Outcome{TrialState::kStopped, "its runner ended before it"});
      if (!old.end) experiment.EndAttempt(id, number, *last, "");
      ++number;
    }
    if (last && EndsTrial(id, *last)) Tell(id, *last);
  }
}

// Seconds that the search has run.
double Runner::Impl::Clock() const {
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - opened;
  return clock_before_s + since.count();
}

std::optional<std::string> Runner::Impl::WhyOver() const {
  double slot_seconds = experiment.search().SlotSeconds();
  const auto slots = static_cast<double>(experiment.search().spec().slots_per_trial);
  for (const auto& [id, start] : started_s)
    slot_seconds += (Clock() - start) * slots;
  return WhySearchIsOver(experiment, {.clock_s = Clock(), .slot_seconds = slot_seconds});
}

void Runner::Impl::EndSearchIfOver() {
  if (!experiment.search().MayGoOn()) return;
  const std::optional<std::string> why = WhyOver();
  if (!why) return;
  experiment.EndSearch(*why);
  Notify({.kind = Kind::kNote, .text = "the search ends: " + *why});
}

// Ends trials in Slurm's queue once the search is over, and at --max-time all but the first ones.
void Runner::Impl::Withdraw() {
  const SearchState& search = experiment.search();
  const double most_s = search.spec.options.max_time_s.value_or(INFINITY);
  const bool is_late = !search.ignores_limits && Clock() >= most_s;
  for (auto& [id, attempt] : attempts) {
    const TrialKind kind = attempt.request().kind;
    const bool waits = !search.end_reason.empty() && !RunsAgain(kind) && !attempt.started();
    const bool is_needed = kind == TrialKind::kProfile || kind == TrialKind::kSubmitted;
    if ((waits || (is_late && !is_needed)) && withdrawn.insert(id).second)
      attempt.Cancel(std::chrono::seconds{0});
  }
}

// A trial that is running in the record but not here (the last runner died, or its attempt has
// failed), or else a new trial.
std::optional<Trial> Runner::Impl::NextTrial() {
  if (Clock() < paused_until_s) return std::nullopt;
  for (const TrialId id : experiment.search().Running()) {
    if (!attempts.contains(id)) return experiment.search().trials().at(id);
  }
  return experiment.Ask();
}

void Runner::Impl::Launch(const Trial& trial) {
  const int64_t attempt = experiment.NumAttempts(trial.id);
  LaunchRequest request;
  request.experiment = experiment.id();
  request.trial = trial.id;
  request.attempt = attempt;
  request.kind = trial.kind;
  request.give_up_below = trial.give_up_below;
  request.steps = trial.steps;
  request.ds_config = trial.ds_config;
  request.shared_dir = options.out_dir + "/trials";
  request.dir = fmt::format("{}/{}/attempt{}", request.shared_dir, trial.id, attempt);
  request.hosts = hosts;
  request.slots = pool->Take(Clock());
  request.report_address = server->address();
  request.report_key = server->key();
  request.token = RandomToken();
  std::filesystem::remove_all(
      request.dir);  // Left by a runner that died before it recorded this attempt.
  MakeWritableFolder(request.dir);
  if (request.kind == TrialKind::kSoak) std::filesystem::remove_all(SoakCheckpointDir(request));
  experiment.StartAttempt(trial.id, request.dir);
  experiment.Flush();
  server->Admit({request.experiment, request.trial, request.attempt});
  attempts.emplace(std::piecewise_construct, std::forward_as_tuple(trial.id),
                   std::forward_as_tuple(options.dsat_binary, target.get(), request,
                                         AttemptLimits{options.start_timeout, options.hang_timeout,
                                                       options.trial_timeout},
                                         options.jobs));
  NoteStart(attempts.at(trial.id));
  Notify({.kind = Kind::kTrialStarted, .trial = trial.id, .attempt = attempt});
}

// A trial that waits in Slurm's queue uses no slots.
void Runner::Impl::NoteStart(Attempt& attempt) {
  const TrialId id = attempt.request().trial;
  if (attempt.started()) started_s.try_emplace(id, Clock() - spent_s[id]);
  if (const std::string news = attempt.NewsOfJob(); !news.empty())
    Notify({.kind = Kind::kNote, .trial = id, .text = fmt::format("trial {} {}", id, news)});
}

void Runner::Impl::Wait() {
  std::vector<pollfd> fds = {{cancel_fd.get(), POLLIN, 0}, {queue.fd(), POLLIN, 0}};
  for (const auto& [id, attempt] : attempts)
    fds.push_back({attempt.fd(), POLLIN, 0});
  if (poll(fds.data(), fds.size(), kLookEveryMs) < 0 && errno != EINTR) ThrowErrno("poll", errno);
}

void Runner::Impl::HearCancel() {
  uint64_t count = 0;
  if (read(cancel_fd.get(), &count, sizeof(count)) != sizeof(count)) return;
  cancels += count;
  for (auto& [id, attempt] : attempts) {
    attempt.Cancel(cancels == 1 ? kCancelGrace : std::chrono::seconds{0});
  }
}

// Called before HearMessages, so that the messages that a process has sent before its exit are in
// the queue when its outcome is decided.
void Runner::Impl::ObserveAttempts() {
  for (auto& [id, attempt] : attempts) {
    const AttemptNews news = attempt.Observe();
    NoteStart(attempt);
    if (news.measured || news.profile) Record(attempt, news.measured, news.profile);
  }
}

void Runner::Impl::HearMessages() {
  for (TrialMessage& message : queue.Drain()) {
    std::visit([this](auto& said) { OnMessage(said); }, message);
  }
  for (auto& [id, attempt] : attempts) {
    if (const auto step = attempt.NewStep())
      Notify({.kind = Kind::kTrialProgress, .trial = id, .step = *step});
  }
}

void Runner::Impl::EndAttempts() {
  for (auto it = attempts.begin(); it != attempts.end();) {
    const std::optional<AttemptEnd> end = it->second.End();
    if (!end) {
      ++it;
      continue;
    }
    const LaunchRequest request = it->second.request();
    it = attempts.erase(it);
    OnEnd(request, *end);
  }
}

Attempt* Runner::Impl::Find(const AttemptRef& ref) {
  const auto found = attempts.find(ref.trial);
  if (found == attempts.end() || found->second.request().attempt != ref.attempt) return nullptr;
  return &found->second;
}

void Runner::Impl::OnMessage(ProgressMessage& message) {
  if (Attempt* attempt = Find(message.attempt)) attempt->OnProgress(message.step);
}

void Runner::Impl::OnMessage(MeasuredMessage& message) {
  Attempt* attempt = Find(message.attempt);
  if (attempt == nullptr) return;
  message.next_point.set_value(Record(*attempt, message.result, message.profile));
}

void Runner::Impl::OnMessage(InfeasibleMessage& message) {
  if (Attempt* attempt = Find(message.attempt)) attempt->OnInfeasible(message.rank, message.reason);
}

// Returns the next point to measure in the same process, nullopt to end it.
std::optional<Point> Runner::Impl::Record(Attempt& attempt,
                                          const std::optional<PointResult>& result,
                                          const std::optional<ModelProfile>& profile) {
  const TrialId id = attempt.request().trial;
  experiment.RecordMeasured(id, attempt.request().attempt, result, profile);
  experiment.Flush();
  std::optional<Point> next = experiment.NextPoint(id);
  if (next && (WhyOver() || !experiment.Fits(id, *next))) next.reset();
  attempt.OnMeasured(result.has_value(), profile.has_value(), next.has_value());
  return next;
}

void Runner::Impl::OnEnd(const LaunchRequest& request, const AttemptEnd& end) {
  server->Dismiss({request.experiment, request.trial, request.attempt});
  if (request.kind == TrialKind::kSoak) std::filesystem::remove_all(SoakCheckpointDir(request));
  NoteLoad(request.trial);
  const Outcome outcome = ReturnSlots(request, end);
  experiment.EndAttempt(request.trial, request.attempt, outcome, end.log_tail);
  const auto started = started_s.extract(request.trial);
  if (started) spent_s[request.trial] = Clock() - started.mapped();
  if (withdrawn.contains(request.trial) && outcome.state != TrialState::kSucceeded) {
    Tell(request.trial,
         {TrialState::kStopped, started ? "it ran when the time of --max-time was over"
                                        : "it waited in Slurm's queue when the search ended: " +
                                              experiment.search().EndReason()});
  } else if (EndsTrial(request.trial, outcome)) {
    Tell(request.trial, outcome);
  } else if (end.outcome.state == TrialState::kFailed) {
    paused_until_s = Clock() + PauseAfter(experiment.NumFailedAttempts(request.trial)).count();
    Notify({.kind = Kind::kNote,
            .trial = request.trial,
            .text = fmt::format("trial {} is tried again: {}", request.trial, end.outcome.reason)});
  }
}

// The outcome that counts: an attempt whose host was not reached says nothing about its
// configuration, unless many have ended so. Throws kUnavailable if too few hosts are left.
Outcome Runner::Impl::ReturnSlots(const LaunchRequest& request, const AttemptEnd& end) {
  pool->Return(request.slots, end.heard);
  // Slurm replaces the hosts of its jobs.
  if (end.lost_host < 0 || request.slots.empty() || options.jobs) return end.outcome;
  if (const std::optional<double> pause_s = pool->Lose(end.lost_host, Clock())) {
    const std::string until = std::isinf(*pause_s) ? "any more" : fmt::format("for {} s", *pause_s);
    Notify({.kind = Kind::kNote,
            .text = fmt::format("host {} does not start trials and gets none {}",
                                hosts.at(static_cast<size_t>(end.lost_host)).name, until)});
  }
  if (!pool->IsEnough())
    Throw(ErrorCode::kUnavailable, "too few hosts are left for a trial: {}", end.outcome.reason);
  if (++unreached[request.trial] > kMostUnreached) return end.outcome;
  return {TrialState::kStopped, end.outcome.reason};
}

// If trials run on this machine's processors: what other processes used of them, and a note once.
void Runner::Impl::NoteLoad(TrialId id) {
  if (!options.machines.hosts.empty() || UsesGpus(experiment.search().spec())) return;
  others[id] = load.OthersPart().value_or(0);
  if (const std::string news = load.News(); !news.empty())
    Notify({.kind = Kind::kNote, .text = news});
}

// After a canceled attempt, and after a failed one with restarts and time left that may end
// otherwise, NextTrial runs the trial again.
bool Runner::Impl::EndsTrial(TrialId id, const Outcome& outcome) const {
  if (outcome.state == TrialState::kStopped) return false;
  if (outcome.state != TrialState::kFailed || outcome.recurs) return true;
  const TrialKind kind = experiment.search().trials().at(id).kind;
  // Without a profile there is no search, and without the submitted one no comparison.
  const bool is_needed = kind == TrialKind::kProfile || kind == TrialKind::kSubmitted;
  if (is_needed && !experiment.search().EndReason().empty()) return true;  // The time is over.
  const int64_t least = is_needed ? 2 : 0;
  return experiment.NumFailedAttempts(id) >
         std::max(experiment.search().spec().max_restarts, least);
}

void Runner::Impl::Tell(TrialId id, const Outcome& outcome) {
  TrialTimes times;
  if (spent_s[id] > 0)
    times = {.started_s = Clock() - spent_s[id], .ended_s = Clock(), .others = others[id]};
  experiment.Tell(id, outcome, times);
  const Trial& told = experiment.search().trials().at(id);
  Notify({.kind = Kind::kTrialEnded, .trial = id, .text = told.reason});
  const bool profiled = told.kind == TrialKind::kProfile && told.state == TrialState::kSucceeded;
  if (profiled) Notify({.kind = Kind::kProfiled, .trial = id});
}

void Runner::Impl::Notify(const RunnerEvent& event) {
  if (watcher) watcher(experiment, event);
}

}  // namespace dsat
