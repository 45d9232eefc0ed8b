// The servers of the two services of proto/dsat.proto.
#include "searcher/service/service.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "db/store.h"
#include "dsat.grpc.pb.h"
#include "proto/wire.h"
#include "searcher/search/experiment.h"
#include "searcher/search/runner_lock.h"

namespace dsat {
namespace {

constexpr std::chrono::seconds kAnswerTimeout{50};  // For the loop to answer a Measured.

constexpr size_t kMostReasonBytes = 4096;  // A line that says why, not a log.

// Some threads of the server (searcher/service/service_listener.cc) are left for the calls of other
// experiments.
constexpr int kMostCallsOfExperiment = 24;

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

// An address of `host` with any port; "" for "", a unix socket.
std::string AnyPortOf(const std::string& host) {
  if (host.empty()) return "";
  return host.find(':') == std::string::npos ? host + ":0" : "[" + host + "]:0";
}

}  // namespace

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
  explicit ExperimentServiceImpl(const std::string& database) : database_(database) {
    Store::Open(database, Store::Mode::kReadWrite);
  }

  grpc::Status Ask(grpc::ServerContext* context, const v1::AskRequest* request,
                   v1::AskReply* reply) override {
    return InTurn(request->experiment(), [&](std::optional<Experiment>& experiment, Store& store) {
      // A client that has given up would never run the trial that it asked for.
      if (context->IsCancelled())
        Throw(ErrorCode::kCancelled, "the client has given up the call, which gets no trial");
      const ExperimentId id = request->experiment();
      // The log of an ended one need not be replayed to say that.
      reply->set_finished(!experiment && store.GetExperiment(id).state != ExperimentState::kActive);
      if (reply->finished()) return;
      if (!experiment) experiment = Experiment::Open(store, id);
      const std::optional<Trial> trial = experiment->Ask();
      if (trial) *reply->mutable_trial() = ToProto(*trial);
      reply->set_finished(experiment->FinishIfDone());
    });
  }

  grpc::Status Tell(grpc::ServerContext*, const v1::TellRequest* request,
                    v1::TellReply* reply) override {
    return InTurn(request->experiment(), [&](std::optional<Experiment>& experiment, Store& store) {
      if (!experiment) experiment = Experiment::Open(store, request->experiment());
      Tell(*request, *experiment);
      reply->set_finished(experiment->FinishIfDone());
    });
  }

  grpc::Status GetExperiment(grpc::ServerContext*, const v1::GetExperimentRequest* request,
                             v1::GetExperimentReply* reply) override {
    return Answer([&] {
      const ExperimentId id = request->experiment();
      const Store& store = StoreOfThread();
      const ExperimentRow row = store.GetExperiment(id);
      reply->set_spec_json(ToJson(store.GetSpec(id)).dump());
      reply->set_state(ToString(row.state));
      reply->set_reason(row.reason);
      const auto best = store.BestTrials(id);
      reply->set_best_trial(best.empty() ? -1 : best.at(id).trial);
      for (const Trial& trial : store.Trials(id))
        *reply->add_trials() = ToProto(trial);
    });
  }

 private:
  struct Served {
    std::mutex mutex;                      // It is of the call whose turn it is.
    std::optional<Experiment> experiment;  // Since a call has needed it, until it ends.
  };

  // Calls of one experiment take turns, and those of others do not wait for them.
  template <typename Work>
  grpc::Status InTurn(ExperimentId id, const Work& work) {
    return Answer([&] {
      Store& store = StoreOfThread();
      RunnerLock::CheckNotOurs(store, id);  // Throws if there is no such experiment.
      const std::shared_ptr<Served> served = Enter(id);
      const std::lock_guard turn(served->mutex);
      std::optional<Experiment>& experiment = served->experiment;
      if (experiment) experiment->Use(store);
      work(experiment, store);
      if (experiment && experiment->state() != ExperimentState::kActive) experiment.reset();
    });
  }

  // A connection is used by one call at a time.
  Store& StoreOfThread() const {
    thread_local std::map<std::string, Store> stores;
    const auto found = stores.find(database_);
    if (found != stores.end()) return found->second;
    return stores.emplace(database_, Store::Open(database_, Store::Mode::kReadWrite)).first->second;
  }

  std::shared_ptr<Served> Enter(ExperimentId id) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Served>& served = served_[id];
    if (!served) served = std::make_shared<Served>();
    if (served.use_count() > kMostCallsOfExperiment) {
      Throw(ErrorCode::kResourceExhausted,
            "experiment {}: {} calls wait for it, as many as may; try again", id,
            kMostCallsOfExperiment);
    }
    return served;
  }

  static void Tell(const v1::TellRequest& request, Experiment& experiment) {
    if (request.reason().size() > kMostReasonBytes) {
      Throw(ErrorCode::kInvalidArgument, "tell: the reason has {} bytes; expected at most {}",
            request.reason().size(), kMostReasonBytes);
    }
    // Another process may have asked for the trial.
    if (!experiment.search().trials().contains(request.trial())) experiment.CatchUp();
    const Outcome outcome{Parse<TrialState>(request.state()), request.reason()};
    if (outcome.state == TrialState::kSucceeded && !outcome.reason.empty())
      Throw(ErrorCode::kInvalidArgument, "tell: a trial that has succeeded has no reason");
    const auto trial = experiment.search().trials().find(request.trial());
    std::vector<PointResult> points;
    if (request.has_measurement() && trial != experiment.search().trials().end())
      points = {{ConfigPoint(trial->second), FromProto(request.measurement())}};
    experiment.TellExternal(request.trial(), outcome, points,
                            ProfileFromText(request.profile_json()));
  }

  std::string database_;
  std::mutex mutex_;
  std::map<ExperimentId, std::shared_ptr<Served>> served_;
};

TrialServer::TrialServer(EventQueue<TrialMessage>* queue, const std::string& host)
    : queue_(queue),
      service_(std::make_unique<TrialServiceImpl>(queue)),
      listener_(AnyPortOf(host), service_.get()) {}
TrialServer::~TrialServer() {
  queue_->Close();
}
void TrialServer::Admit(const AttemptRef& attempt) {
  service_->Admit(attempt);
}
void TrialServer::Dismiss(const AttemptRef& attempt) {
  service_->Dismiss(attempt);
}

ExperimentServer::ExperimentServer(const std::string& database, const std::string& address)
    : service_(std::make_unique<ExperimentServiceImpl>(database)),
      listener_(address, service_.get()) {}
ExperimentServer::~ExperimentServer() = default;

}  // namespace dsat
