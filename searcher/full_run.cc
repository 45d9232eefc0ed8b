// Runs one full training with the launcher of trials.
#include "searcher/full_run.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/files.h"
#include "proto/trial_task.h"
#include "searcher/attempt.h"
#include "searcher/event_queue.h"
#include "searcher/hosts/placement.h"
#include "searcher/service.h"

namespace dsat {
namespace {

constexpr int kLookEveryMs = 200;
constexpr std::chrono::seconds kCancelGrace{5};
constexpr AttemptRef kFullRun{0, 0, 0};

using OnProgress = std::function<void(const TrainingProgress&)>;

// Passes each step of rank 0 to the caller once; progress of any rank resets the hang time-out.
struct Listener {
  EventQueue<TrialMessage>* queue;
  Attempt* attempt;
  const OnProgress* on_progress;
  int64_t last_step = 0;

  void Hear() {
    for (TrialMessage& message : queue->Drain()) {
      std::visit([this](auto& said) { OnMessage(said); }, message);
    }
  }

  void OnMessage(const ProgressMessage& message) {
    attempt->OnProgress(message.step);
    const bool validated = message.phase == kValidated;
    if (message.rank != 0 || (message.step <= last_step && !validated)) return;
    last_step = std::max(last_step, message.step);
    if (*on_progress) (*on_progress)({message.step, message.loss, message.latency_ms, validated});
  }
  void OnMessage(const InfeasibleMessage& message) {
    attempt->OnInfeasible(message.rank, message.reason);
  }
  // A measurement was not requested; the rank continues.
  void OnMessage(MeasuredMessage& message) { message.next_point.set_value(std::nullopt); }
};

void WaitForNews(const EventQueue<TrialMessage>& queue, const Attempt& attempt) {
  pollfd fds[] = {{queue.fd(), POLLIN, 0}, {attempt.fd(), POLLIN, 0}};
  if (poll(fds, 2, kLookEveryMs) < 0 && errno != EINTR) ThrowErrno("poll", errno);
}

}  // namespace

Outcome RunFullTraining(const ExperimentSpec& spec, const Json& ds_config,
                        const RunnerOptions& options, const OnProgress& on_progress,
                        const std::function<int64_t()>& num_cancels) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue, options.machines.runner_address);
  server.Admit(kFullRun);
  const std::unique_ptr<LaunchTarget> target = MakeTarget(spec, options.trial_binary);
  LaunchRequest request;
  request.full_run = true;
  request.checkpoint_interval = options.checkpoint_interval > 0
                                    ? options.checkpoint_interval
                                    : std::max<int64_t>(1, spec.max_length_steps / 10);
  request.eval_interval = options.eval_interval;
  request.trace = options.trace;
  request.ds_config = ds_config;
  request.dir = options.out_dir;
  request.report_address = server.address();
  request.token = server.token();
  if (!options.machines.hosts.empty()) {
    request.hosts = options.machines.hosts;
    CheckHosts(spec, request.hosts);
    request.slots = FindSlots(request.hosts, {}, spec.slots_per_trial);
  }
  MakeWritableFolder(request.dir);
  // The user's own command does not report progress if DeepSpeed's hooks are off.
  AttemptLimits limits;
  if (IsBuiltin(spec)) limits = {options.start_timeout, options.hang_timeout, std::nullopt};
  Attempt attempt(options.dsat_binary, target.get(), request, limits);
  Listener listener{&queue, &attempt, &on_progress};
  int64_t cancels = 0;
  while (true) {
    WaitForNews(queue, attempt);
    const int64_t before = std::exchange(cancels, num_cancels ? num_cancels() : 0);
    // Ranks of the built-in engine are told to stop by the answer to their next progress report.
    if (cancels > before) server.Dismiss(kFullRun);
    const bool at_once = cancels > 1 || (cancels == 1 && !IsBuiltin(spec));
    if (at_once && cancels > before) attempt.Cancel(kCancelGrace);
    attempt.Observe();
    listener.Hear();
    const std::optional<AttemptEnd> end = attempt.End();
    if (!end) continue;
    const bool stopped = cancels > 0 && end->outcome.state == TrialState::kSucceeded;
    return stopped ? Outcome{TrialState::kStopped, "canceled"} : end->outcome;
  }
}

}  // namespace dsat
