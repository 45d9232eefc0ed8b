// Runs one full training with the launcher of trials.
#include "searcher/full_run.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "engine/files/checkpoint_manifest.h"
#include "searcher/attempt.h"
#include "searcher/hosts/slots.h"
#include "searcher/launch/rank_places.h"
#include "searcher/search/runner_lock.h"
#include "searcher/service/event_queue.h"
#include "searcher/service/service.h"

namespace dsat {
namespace {

constexpr int64_t kMostTimesFull = 3;  // In a row.
// For a command at the first time: its ranks may save a checkpoint before they end.
constexpr std::chrono::seconds kSaveGrace{60};
// Without --checkpoint-interval: what the loss of a rank may cost.
constexpr int64_t kCheckpointSeconds = 600;

using OnProgress = std::function<void(const TrainingStep&)>;

// Reads the lines of a training's metrics.jsonl as they are written.
class HistoryReader {
 public:
  HistoryReader(std::string path, const OnProgress* on_progress)
      : path_(std::move(path)), on_progress_(on_progress) {}

  // The file is complete up to `step`, from which a run continues.
  void Begin(int64_t step) {
    file_ = std::ifstream(path_, std::ios::binary);
    told_ = told_validation_ = step;
    partial_.clear();
  }

  // Tells of every new line.
  void Follow() {
    if (!file_.is_open()) return;
    file_.clear();
    char buffer[16384];
    while (file_.read(buffer, sizeof(buffer)), file_.gcount() > 0)
      partial_.append(buffer, static_cast<size_t>(file_.gcount()));
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1)
      Tell(partial_.substr(begin, end - begin));
    partial_.erase(0, begin);
  }

  int64_t last_step() const { return told_; }

 private:
  void Tell(const std::string& line) {
    TrainingStep step;
    try {
      step = TrainingStepFromJson(Json::parse(line));
    } catch (const Json::exception&) {
      return;  // The line is damaged, or of a later version.
    }
    int64_t& told = step.validated ? told_validation_ : told_;
    const bool is_new = step.step > told && (!step.validated || step.step >= told_);
    told = std::max(told, step.step);
    if (is_new && *on_progress_) (*on_progress_)(step);
  }

  std::string path_;
  const OnProgress* on_progress_;
  std::ifstream file_;
  std::string partial_;
  int64_t told_ = 0;  // The last step of which the caller knows.
  int64_t told_validation_ = 0;
};

LaunchRequest MakeRequest(const ExperimentSpec& spec, const Json& ds_config,
                          const RunnerOptions& options, const TrialServer& server) {
  LaunchRequest request;
  request.full_run = true;
  request.training = options.training;
  if (options.training.checkpoint_interval == 0) {
    request.training.checkpoint_interval = std::max<int64_t>(1, spec.max_length_steps / 10);
    request.training.checkpoint_seconds = kCheckpointSeconds;
  }
  request.trace = options.trace;
  request.ds_config = ds_config;
  request.dir = options.out_dir;
  request.report_address = server.address();
  request.report_key = server.key();
  request.token = RandomToken();
  if (!options.jobs && !options.machines.hosts.empty()) {
    request.hosts = options.machines.hosts;
    request.slots = FindSlots(request.hosts, {}, spec.slots_per_trial);
  }
  return request;
}

// Whether a full disk is why something has failed in `dir`, whose logs may then not say it. The
// disk of an nvme_path is another one.
bool IsDiskFull(const std::string& reason, const std::string& dir) {
  constexpr uintmax_t kRoomForLogs = 64 << 10;
  if (reason.find("/nvme_path: ") != std::string::npos) return false;
  for (const int error : {ENOSPC, EDQUOT, EFBIG})
    if (reason.find(std::generic_category().message(error)) != std::string::npos) return true;
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(dir, unknown);
  return !unknown && space.available < kRoomForLogs;
}

// A training that is restarted when it has lost a rank.
struct FullTraining {
  // One attempt to its end.
  Outcome Run(const LaunchRequest& request);
  // Also if a full disk is why it cannot be started.
  Outcome TryToRun(const LaunchRequest& request);

  // Signs of life and ends that the ranks report themselves.
  void OnMessage(const ProgressMessage& message, Attempt& attempt);
  void OnMessage(const InfeasibleMessage& message, Attempt& attempt);
  // A measurement was not requested; the rank continues.
  void OnMessage(MeasuredMessage& message, Attempt&) { message.next_point.set_value(std::nullopt); }

  const ExperimentSpec& spec;
  const RunnerOptions& options;
  const std::function<int64_t()>& num_cancels;
  EventQueue<TrialMessage>& queue;
  TrialServer& server;
  LaunchTarget* target;
  HistoryReader history;
  int64_t cancels = 0;
};

void FullTraining::OnMessage(const ProgressMessage& message, Attempt& attempt) {
  if (message.attempt.attempt != attempt.request().attempt) return;
  attempt.OnProgress(message.step);
  if (message.rank == 0 && message.begins) history.Begin(message.step);
  for (const std::string& warning : message.warnings)
    Log(LogLevel::kWarn, Printable(warning));
}

void FullTraining::OnMessage(const InfeasibleMessage& message, Attempt& attempt) {
  if (message.attempt.attempt == attempt.request().attempt)
    attempt.OnInfeasible(message.rank, message.reason);
}

Outcome FullTraining::Run(const LaunchRequest& request) {
  const AttemptRef ref{request.experiment, request.trial, request.attempt};
  server.Admit(ref);
  // The user's own command reports no steps in a full run.
  AttemptLimits limits;
  if (IsBuiltin(spec)) limits = {options.start_timeout, options.hang_timeout, std::nullopt};
  Attempt attempt(options.dsat_binary, target, request, limits, options.jobs);
  while (true) {
    pollfd fds[] = {{queue.fd(), POLLIN, 0}, {attempt.fd(), POLLIN, 0}};
    if (poll(fds, 2, kLookEveryMs) < 0 && errno != EINTR) ThrowErrno("poll", errno);
    const int64_t before = std::exchange(cancels, num_cancels ? num_cancels() : 0);
    // Ranks of the built-in engine are told to stop by the answer to their next progress report.
    if (cancels > before) server.Dismiss(ref);
    const bool can_save = IsBuiltin(spec) && attempt.started();
    const bool at_once = cancels > 1 || (cancels == 1 && !can_save);
    if (at_once && cancels > before)
      attempt.Cancel(cancels > 1 || IsBuiltin(spec) ? kCancelGrace : kSaveGrace);
    attempt.Observe();
    if (const std::string news = attempt.NewsOfJob(); !news.empty())
      Log(LogLevel::kInfo, "the training " + news);
    for (TrialMessage& message : queue.Drain())
      std::visit([&](auto& said) { OnMessage(said, attempt); }, message);
    history.Follow();
    const std::optional<AttemptEnd> end = attempt.End();
    if (!end) continue;
    history.Follow();
    server.Dismiss(ref);
    const bool stopped = cancels > 0 && end->outcome.state == TrialState::kSucceeded;
    return stopped ? Outcome{TrialState::kStopped, "canceled"} : end->outcome;
  }
}

Outcome FullTraining::TryToRun(const LaunchRequest& request) {
  try {
    return Run(request);
  } catch (const Error& error) {
    if (!IsDiskFull(error.what(), request.dir)) throw;
    return {TrialState::kFailed, error.what()};
  }
}

}  // namespace

std::string NewestCheckpoint(const std::string& out_dir) {
  const std::string dir = out_dir + "/checkpoint";
  const std::vector<std::string> tags = engine::TagsToContinue(dir);
  if (tags.empty()) return "";
  return dir + "/" + (tags[0].empty() ? engine::TagIn(dir, "latest") : tags[0]);
}

Outcome RunFullTraining(const ExperimentSpec& spec, const Json& ds_config,
                        const RunnerOptions& options, const OnProgress& on_progress,
                        const std::function<int64_t()>& num_cancels) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue, options.machines.runner_address);
  const std::unique_ptr<LaunchTarget> target = MakeTarget(spec, options.trial_binary);
  LaunchRequest request = MakeRequest(spec, ds_config, options, server);
  MakeWritableFolder(request.dir);
  const RunnerLock lock = RunnerLock::LockFolder(request.dir);
  FullTraining training{spec,
                        options,
                        num_cancels,
                        queue,
                        server,
                        target.get(),
                        HistoryReader(request.dir + "/metrics.jsonl", &on_progress)};
  int64_t restarts = 0;
  std::optional<std::string> full_at;  // The newest checkpoint when the disk was last full, and
  int64_t num_full = 0;                // how often it was full there.
  for (int64_t furthest = 0;; ++request.attempt) {
    Outcome outcome = training.TryToRun(request);
    const int64_t reached = training.history.last_step();
    // A training that comes further each time may lose ranks more often.
    restarts = reached > furthest ? 1 : restarts + 1;
    furthest = std::max(furthest, reached);
    const bool ended = outcome.state == TrialState::kSucceeded ||
                       outcome.state == TrialState::kStopped || training.cancels > 0;
    const bool is_full = !ended && IsDiskFull(outcome.reason, request.dir);
    const bool lost = outcome.state == TrialState::kFailed || is_full;
    // A disk that is still full stops the training at the same place.
    const auto stopped_at = is_full ? std::optional(NewestCheckpoint(request.dir)) : std::nullopt;
    num_full = !is_full ? 0 : stopped_at == full_at ? num_full + 1 : 1;
    const bool stays_full = num_full >= kMostTimesFull;
    full_at = stopped_at;
    if (ended || !lost || !IsBuiltin(spec) || furthest == 0 || stays_full ||
        restarts > spec.max_restarts) {
      if (is_full)
        outcome.reason += fmt::format(
            "; the disk of {} is full: free space there, then run the same command again{}",
            request.dir, stopped_at->empty() ? "" : ", which continues from the newest checkpoint");
      return outcome;
    }
    const std::string checkpoint = NewestCheckpoint(request.dir);
    Log(LogLevel::kWarn, "the training is started again",
        {{"from", checkpoint.empty() ? "its beginning" : checkpoint}, {"reason", outcome.reason}});
    const auto until = std::chrono::steady_clock::now() + PauseAfter(restarts);
    while ((!num_cancels || num_cancels() == 0) && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(kLookEveryMs));
  }
}

}  // namespace dsat
