// One training to its end, by the launcher and the server that trials have.
#include <poll.h>

#include <filesystem>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/files.h"
#include "searcher/attempt.h"
#include "searcher/event_queue.h"
#include "searcher/runner.h"
#include "searcher/service.h"

namespace dsat {
namespace {

constexpr int kLookEveryMs = 200;
constexpr std::chrono::seconds kCancelGrace{5};
constexpr AttemptRef kFullRun{0, 0, 0};

using OnProgress = std::function<void(int64_t, double, double)>;

// Rank 0's steps go to the caller, each once; any rank's progress is a sign of life.
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
    if (message.rank != 0 || message.step <= last_step) return;
    last_step = message.step;
    if (*on_progress) (*on_progress)(message.step, message.loss, message.latency_ms);
  }
  void OnMessage(const InfeasibleMessage& message) {
    attempt->OnInfeasible(message.rank, message.reason);
  }
  // Nobody asked for a measurement; the rank goes on.
  void OnMessage(MeasuredMessage& message) { message.next_point.set_value(std::nullopt); }
};

void WaitForNews(const EventQueue<TrialMessage>& queue, const Attempt& attempt) {
  pollfd fds[] = {{queue.fd(), POLLIN, 0}, {attempt.fd(), POLLIN, 0}};
  if (poll(fds, 2, kLookEveryMs) < 0 && errno != EINTR) ThrowErrno("poll", errno);
}

}  // namespace

Outcome RunFullTraining(const ExperimentSpec& spec, const Json& ds_config,
                        const RunnerOptions& options, const OnProgress& on_progress,
                        const std::function<bool()>& cancelled) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue);
  server.Admit(kFullRun);
  const std::unique_ptr<LaunchTarget> target = MakeTarget(spec, options.trial_binary);
  LaunchRequest request;
  request.full_run = true;
  request.ds_config = ds_config;
  request.dir = options.out_dir;
  request.report_address = server.address();
  request.token = server.token();
  MakeWritableFolder(request.dir);
  // The user's own command shows no sign of life when DeepSpeed's hooks are off.
  AttemptLimits limits;
  if (IsBuiltin(spec)) limits = {options.start_timeout, options.hang_timeout, std::nullopt};
  Attempt attempt(options.dsat_binary, target.get(), request, limits);
  Listener listener{&queue, &attempt, &on_progress};
  bool asked_to_end = false;
  while (true) {
    WaitForNews(queue, attempt);
    if (!asked_to_end && cancelled && cancelled()) {
      asked_to_end = true;
      attempt.Cancel(kCancelGrace);
    }
    attempt.Observe();
    listener.Hear();
    if (const std::optional<AttemptEnd> end = attempt.End()) return end->outcome;
  }
}

}  // namespace dsat
