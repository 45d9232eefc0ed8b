// The servers of the two services of proto/dsat.proto.
#include "searcher/service/service.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "db/store.h"
#include "dsat.grpc.pb.h"
#include "proto/wire.h"
#include "searcher/search/experiment.h"
#include "searcher/search/runner_lock.h"
#include "searcher/service/service_listener.h"

namespace dsat {
namespace {

constexpr std::chrono::seconds kAnswerTimeout{50};  // For the loop to answer a Measured.

constexpr size_t kMostReasonBytes = 4096;  // A line that says why, not a log.

// Does the work of a call and converts exceptions to a status.
template <typename Work>
grpc::Status Answer(Work work) {
  try {
    work();
    return grpc::Status::OK;
  } catch (const Error& error) {
    return {static_cast<grpc::StatusCode>(error.code()), ValidUtf8(error.what())};
  } catch (const std::exception& error) {
    return {grpc::StatusCode::INTERNAL, ValidUtf8(error.what())};
  }
}

class TrialServiceImpl final : public v1::TrialService::Service {
 public:
  explicit TrialServiceImpl(EventQueue<TrialMessage>* queue) : queue_(queue) {}

  void Admit(const AttemptRef& attempt) {
    std::lock_guard lock(mutex_);
    admitted_.insert(attempt);
  }

  void Dismiss(const AttemptRef& attempt) {
    std::lock_guard lock(mutex_);
    admitted_.erase(attempt);
  }

  grpc::Status Progress(grpc::ServerContext*, const v1::ProgressRequest* request,
                        v1::ProgressReply* reply) override {
    return Answer([&] {
      const AttemptRef attempt = FromProto(request->attempt());
      reply->set_stop(!IsAdmitted(attempt));
      if (reply->stop()) return;
      queue_->Push(ProgressMessage{attempt,
                                   request->rank(),
                                   request->step(),
                                   request->begins(),
                                   {request->warnings().begin(), request->warnings().end()}});
    });
  }

  grpc::Status Measured(grpc::ServerContext*, const v1::MeasuredRequest* request,
                        v1::MeasuredReply* reply) override {
    return Answer([&] {
      MeasuredMessage message;
      message.attempt = Admitted(request->attempt());
      message.result = FromProto(request->result());
      message.profile = ProfileFromText(request->profile_json());
      std::future<std::optional<Point>> answer = message.next_point.get_future();
      queue_->Push(std::move(message));
      const std::optional<Point> next = Wait(answer);
      if (next) *reply->mutable_next_point() = ToProto(*next);
    });
  }

  grpc::Status Infeasible(grpc::ServerContext*, const v1::InfeasibleRequest* request,
                          v1::InfeasibleReply*) override {
    return Answer([&] {
      queue_->Push(
          InfeasibleMessage{Admitted(request->attempt()), request->rank(), request->reason()});
    });
  }

 private:
  bool IsAdmitted(const AttemptRef& attempt) {
    std::lock_guard lock(mutex_);
    return admitted_.contains(attempt);
  }

  AttemptRef Admitted(const v1::AttemptRef& proto) {
    const AttemptRef attempt = FromProto(proto);
    if (!IsAdmitted(attempt)) {
      Throw(ErrorCode::kFailedPrecondition,
            "attempt {} of trial {} of experiment {} is not running here", attempt.attempt,
            attempt.trial, attempt.experiment);
    }
    return attempt;
  }

  static std::optional<Point> Wait(std::future<std::optional<Point>>& answer) {
    if (answer.wait_for(kAnswerTimeout) != std::future_status::ready) {
      Throw(ErrorCode::kDeadlineExceeded, "the runner did not answer within {} s",
            kAnswerTimeout.count());
    }
    try {
      return answer.get();
    } catch (const std::future_error&) {
      Throw(ErrorCode::kUnavailable, "the runner no longer accepts messages of this attempt");
    }
  }

  EventQueue<TrialMessage>* queue_;
  std::mutex mutex_;
  std::set<AttemptRef> admitted_;
};

class ExperimentServiceImpl final : public v1::ExperimentService::Service {
 public:
  explicit ExperimentServiceImpl(const std::string& database)
      : store_(Store::Open(database, Store::Mode::kReadWrite)) {}

  grpc::Status Ask(grpc::ServerContext* context, const v1::AskRequest* request,
                   v1::AskReply* reply) override {
    return Locked([&] { Ask(*context, request->experiment(), reply); });
  }

  grpc::Status Tell(grpc::ServerContext*, const v1::TellRequest* request,
                    v1::TellReply* reply) override {
    return Locked([&] {
      Tell(*request);
      reply->set_finished(Finish(request->experiment()));
    });
  }

  grpc::Status GetExperiment(grpc::ServerContext*, const v1::GetExperimentRequest* request,
                             v1::GetExperimentReply* reply) override {
    return Locked([&] {
      const ExperimentId id = request->experiment();
      const ExperimentRow row = store_.GetExperiment(id);
      reply->set_spec_json(ToJson(store_.GetSpec(id)).dump());
      reply->set_state(ToString(row.state));
      reply->set_reason(row.reason);
      const auto best_trials = store_.BestTrials();
      const auto best = best_trials.find(id);
      reply->set_best_trial(best == best_trials.end() ? -1 : best->second.trial);
      for (const Trial& trial : store_.Trials(id))
        *reply->add_trials() = ToProto(trial);
    });
  }

 private:
  // The store and its experiments belong to one call at a time.
  template <typename Work>
  grpc::Status Locked(Work work) {
    return Answer([&] {
      std::lock_guard lock(mutex_);
      work();
    });
  }

  // A client that has given up would never run the trial that it asked for.
  void Ask(const grpc::ServerContext& context, ExperimentId id, v1::AskReply* reply) {
    if (context.IsCancelled())
      Throw(ErrorCode::kCancelled, "the client has given up the call, which gets no trial");
    if (!experiments_.contains(id) && HasEnded(id)) {
      reply->set_finished(true);
      return;
    }
    const std::optional<Trial> trial = Opened(id).Ask();
    if (trial) *reply->mutable_trial() = ToProto(*trial);
    reply->set_finished(Finish(id));
  }

  void Tell(const v1::TellRequest& request) {
    if (request.reason().size() > kMostReasonBytes) {
      Throw(ErrorCode::kInvalidArgument, "tell: the reason has {} bytes; expected at most {}",
            request.reason().size(), kMostReasonBytes);
    }
    Experiment& experiment = Opened(request.experiment());
    // Another process may have asked for the trial.
    if (!experiment.search().trials().contains(request.trial())) experiment.CatchUp();
    const Outcome outcome{ParseTrialState(request.state()), request.reason()};
    if (outcome.state == TrialState::kSucceeded && !outcome.reason.empty())
      Throw(ErrorCode::kInvalidArgument, "tell: a trial that has succeeded has no reason");
    std::vector<PointResult> points;
    if (request.has_measurement()) {
      const auto trial = experiment.search().trials().find(request.trial());
      const bool known = trial != experiment.search().trials().end();
      points.push_back(
          {known ? ConfigPoint(trial->second) : Point{}, FromProto(request.measurement())});
    }
    experiment.TellExternal(request.trial(), outcome, points,
                            ProfileFromText(request.profile_json()));
  }

  // Opening an ended experiment would replay its log while all other clients wait.
  bool HasEnded(ExperimentId id) {
    RunnerLock::CheckNotOurs(store_, id);
    return store_.GetExperiment(id).state != ExperimentState::kActive;
  }

  // Marks the experiment as ended if its search has finished, and forgets it then. REQUIRES: it is
  // open.
  bool Finish(ExperimentId id) {
    const bool finished = experiments_.at(id).FinishIfDone();
    if (finished) experiments_.erase(id);
    return finished;
  }

  Experiment& Opened(ExperimentId id) {
    RunnerLock::CheckNotOurs(store_, id);
    const auto open = experiments_.find(id);
    if (open != experiments_.end()) return open->second;
    return experiments_.emplace(id, Experiment::Open(store_, id)).first->second;
  }

  std::mutex mutex_;
  Store store_;
  std::map<ExperimentId, Experiment> experiments_;
};

}  // namespace

struct TrialServer::Impl {
  Impl(EventQueue<TrialMessage>* queue_in, const std::string& host)
      : queue(queue_in), service(queue), listener(AnyPortOf(host), &service) {}

  static std::string AnyPortOf(const std::string& host) {
    if (host.empty()) return "";
    return host.find(':') == std::string::npos ? host + ":0" : "[" + host + "]:0";
  }

  EventQueue<TrialMessage>* queue;
  TrialServiceImpl service;
  Listener listener;
};

TrialServer::TrialServer(EventQueue<TrialMessage>* queue, const std::string& host)
    : impl_(std::make_unique<Impl>(queue, host)) {}
TrialServer::~TrialServer() {
  impl_->queue->Close();
}
const std::string& TrialServer::address() const {
  return impl_->listener.address();
}
const std::string& TrialServer::key() const {
  return impl_->listener.key();
}
void TrialServer::Admit(const AttemptRef& attempt) {
  impl_->service.Admit(attempt);
}
void TrialServer::Dismiss(const AttemptRef& attempt) {
  impl_->service.Dismiss(attempt);
}

struct ExperimentServer::Impl {
  Impl(const std::string& database, const std::string& address)
      : service(database), listener(address, &service) {}

  ExperimentServiceImpl service;
  Listener listener;
};

ExperimentServer::ExperimentServer(const std::string& database, const std::string& address)
    : impl_(std::make_unique<Impl>(database, address)) {}
ExperimentServer::~ExperimentServer() = default;
const std::string& ExperimentServer::address() const {
  return impl_->listener.address();
}
const std::string& ExperimentServer::key() const {
  return impl_->listener.key();
}

}  // namespace dsat
