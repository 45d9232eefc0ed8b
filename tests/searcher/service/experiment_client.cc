// A client of ExperimentService, as other programs have one.
#include "tests/searcher/service/experiment_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "dsat.grpc.pb.h"
#include "tests/proto/trial_from_proto.h"

namespace dsat {
namespace {

ExperimentClient::Asked ToAsked(const v1::AskReply& reply) {
  ExperimentClient::Asked asked;
  if (reply.has_trial()) asked.trial = TrialFromProto(reply.trial());
  asked.finished = reply.finished();
  return asked;
}

v1::TellRequest ToRequest(ExperimentId id, TrialId trial, const Outcome& outcome,
                          const Measurement& measurement,
                          const std::optional<ModelProfile>& profile) {
  v1::TellRequest request;
  request.set_experiment(id);
  request.set_trial(trial);
  request.set_state(ToString(outcome.state));
  request.set_reason(ValidUtf8(outcome.reason));
  if (!measurement.empty()) *request.mutable_measurement() = ToProto(measurement);
  request.set_profile_json(ProfileText(profile));
  return request;
}

}  // namespace

struct ExperimentClient::Impl {
  template <typename Method, typename Request, typename Reply>
  void Call(Method method, const Request& request, Reply* reply) {
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
    grpc::Status status;
    do {  // A call that finds all threads at work has not begun.
      if (!status.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      grpc::ClientContext context;
      context.set_deadline(deadline);
      status = (*stub.*method)(&context, request, reply);
    } while (status.error_message() == "Server Threadpool Exhausted");
    if (!status.ok()) throw Error(ErrorCode{status.error_code()}, status.error_message());
  }

  std::unique_ptr<v1::ExperimentService::Stub> stub;
};

ExperimentClient::ExperimentClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExperimentClient::ExperimentClient(ExperimentClient&&) noexcept = default;
ExperimentClient& ExperimentClient::operator=(ExperimentClient&&) noexcept = default;
ExperimentClient::~ExperimentClient() = default;

ExperimentClient ExperimentClient::Connect(const std::string& address, const std::string& key) {
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("dsat");
  arguments.SetMaxReceiveMessageSize(-1);
  const auto credentials =
      key.empty() ? grpc::InsecureChannelCredentials() : grpc::SslCredentials({key, key, key});
  return ExperimentClient(std::unique_ptr<Impl>(new Impl{
      v1::ExperimentService::NewStub(grpc::CreateCustomChannel(address, credentials, arguments))}));
}

ExperimentClient::Asked ExperimentClient::Ask(ExperimentId id) {
  v1::AskRequest request;
  request.set_experiment(id);
  v1::AskReply reply;
  impl_->Call(&v1::ExperimentService::Stub::Ask, request, &reply);
  return ToAsked(reply);
}

bool ExperimentClient::Tell(ExperimentId id, TrialId trial, const Outcome& outcome,
                            const Measurement& measurement,
                            const std::optional<ModelProfile>& profile) {
  v1::TellReply reply;
  impl_->Call(&v1::ExperimentService::Stub::Tell,
              ToRequest(id, trial, outcome, measurement, profile), &reply);
  return reply.finished();
}

ExperimentClient::View ExperimentClient::GetExperiment(ExperimentId id) {
  v1::GetExperimentRequest request;
  request.set_experiment(id);
  v1::GetExperimentReply reply;
  impl_->Call(&v1::ExperimentService::Stub::GetExperiment, request, &reply);
  View view;
  view.spec_json = reply.spec_json();
  view.state = reply.state();
  for (const v1::Trial& trial : reply.trials())
    view.trials.push_back(TrialFromProto(trial));
  if (reply.best_trial() >= 0) view.best_trial = reply.best_trial();
  return view;
}

}  // namespace dsat
