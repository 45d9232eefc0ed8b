// Clients of the two services of proto/dsat.proto.
#include "proto/client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "dsat.grpc.pb.h"
#include "proto/wire.h"

namespace dsat {
namespace {

// Long enough for a runner whose machine is overloaded.
constexpr std::chrono::seconds kDeadline{60};
// The size of sockaddr_un.sun_path without the NUL that ends a path or begins an abstract name.
constexpr size_t kMaxUnixName = 107;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  // gRPC waits a whole second after a failed first connection by default. Its shortest reconnect
  // backoff stays as it is, because that is also the time that a connection may take.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Local calls do not use a proxy from the environment.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// A channel and its stub. Call adds the deadline and the token and converts statuses to Errors.
template <typename Service>
struct Connection {
  Connection(const std::string& address_in, std::string token_in)
      : address(address_in),
        token(std::move(token_in)),
        stub(Service::NewStub(MakeChannel(address))) {}

  template <typename Method, typename Request, typename Reply>
  void Call(Method method, const Request& request, Reply* reply, bool waits = false) {
    grpc::ClientContext context;
    context.set_wait_for_ready(waits);
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    context.AddMetadata(kTokenKey, token);
    Check((*stub.*method)(&context, request, reply));
  }

  void Check(const grpc::Status& status) const {
    if (status.ok()) return;
    std::string message = status.error_message();
    if (message == "Deadline Exceeded")  // In gRPC's words, not in those of the server.
      message = fmt::format(
          "no answer within {} s; expected an address that this machine reaches by TCP "
          "(docs/hosts.md)",
          kDeadline.count());
    throw Error(static_cast<ErrorCode>(status.error_code()),
                fmt::format("call to {}: {}", address, message));
  }

  std::string address;
  std::string token;
  std::unique_ptr<typename Service::Stub> stub;
};

ExperimentClient::Asked ToAsked(const v1::AskReply& reply) {
  ExperimentClient::Asked asked;
  if (reply.has_trial()) asked.trial = FromProto(reply.trial());
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

bool IsPort(const std::string& text) {
  if (text.empty() || text.size() > 5) return false;
  if (text.find_first_not_of("0123456789") != std::string::npos) return false;
  return std::stoi(text) <= 65535;
}

}  // namespace

void CheckLocalAddress(const std::string& address) {
  if (address.starts_with("unix:/") || address.starts_with("unix-abstract:")) {
    const size_t length = address.size() - (address.find(':') + 1);
    if (1 <= length && length <= kMaxUnixName) return;
    Throw(ErrorCode::kInvalidArgument, "address {}: the path has {} bytes; expected 1 to {}",
          address, length, kMaxUnixName);
  }
  for (const std::string host : {"127.0.0.1:", "[::1]:", "localhost:"}) {
    if (address.starts_with(host) && IsPort(address.substr(host.size()))) return;
  }
  Throw(ErrorCode::kInvalidArgument,
        "address {}: expected unix:/absolute/path, unix-abstract:NAME, 127.0.0.1:PORT, [::1]:PORT "
        "or localhost:PORT; dsat talks within one machine only: its token is sent unencrypted",
        address);
}

struct TrialClient::Impl {
  Connection<v1::TrialService> connection;
  AttemptRef attempt;
};

TrialClient::TrialClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrialClient::TrialClient(TrialClient&&) noexcept = default;
TrialClient& TrialClient::operator=(TrialClient&&) noexcept = default;
TrialClient::~TrialClient() = default;

TrialClient TrialClient::Connect(const std::string& address, const std::string& token,
                                 const AttemptRef& attempt) {
  return TrialClient(std::unique_ptr<Impl>(new Impl{{address, token}, attempt}));
}

bool TrialClient::Progress(int64_t rank, int64_t step, bool begins) {
  v1::ProgressRequest request;
  *request.mutable_attempt() = ToProto(impl_->attempt);
  request.set_rank(rank);
  request.set_step(step);
  request.set_begins(begins);
  v1::ProgressReply reply;
  impl_->connection.Call(&v1::TrialService::Stub::Progress, request, &reply);
  return reply.stop();
}

std::optional<Point> TrialClient::Measured(const PointResult& result,
                                           const std::optional<ModelProfile>& profile) {
  v1::MeasuredRequest request;
  *request.mutable_attempt() = ToProto(impl_->attempt);
  *request.mutable_result() = ToProto(result);
  request.set_profile_json(ProfileText(profile));
  v1::MeasuredReply reply;
  // A connection that broke is made again: the measurement is worth more than the time.
  impl_->connection.Call(&v1::TrialService::Stub::Measured, request, &reply, /*waits=*/true);
  if (!reply.has_next_point()) return std::nullopt;
  return FromProto(reply.next_point());
}

void TrialClient::Infeasible(int64_t rank, const std::string& reason) {
  v1::InfeasibleRequest request;
  *request.mutable_attempt() = ToProto(impl_->attempt);
  request.set_rank(rank);
  request.set_reason(ValidUtf8(reason));
  v1::InfeasibleReply reply;
  impl_->connection.Call(&v1::TrialService::Stub::Infeasible, request, &reply);
}

struct ExperimentClient::Impl {
  Connection<v1::ExperimentService> connection;
};

ExperimentClient::ExperimentClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExperimentClient::ExperimentClient(ExperimentClient&&) noexcept = default;
ExperimentClient& ExperimentClient::operator=(ExperimentClient&&) noexcept = default;
ExperimentClient::~ExperimentClient() = default;

ExperimentClient ExperimentClient::Connect(const std::string& address, const std::string& token) {
  CheckLocalAddress(address);
  return ExperimentClient(std::unique_ptr<Impl>(new Impl{{address, token}}));
}

ExperimentClient::Asked ExperimentClient::Ask(ExperimentId id) {
  v1::AskRequest request;
  request.set_experiment(id);
  v1::AskReply reply;
  impl_->connection.Call(&v1::ExperimentService::Stub::Ask, request, &reply);
  return ToAsked(reply);
}

bool ExperimentClient::Tell(ExperimentId id, TrialId trial, const Outcome& outcome,
                            const Measurement& measurement,
                            const std::optional<ModelProfile>& profile) {
  v1::TellReply reply;
  impl_->connection.Call(&v1::ExperimentService::Stub::Tell,
                         ToRequest(id, trial, outcome, measurement, profile), &reply);
  return reply.finished();
}

ExperimentClient::View ExperimentClient::GetExperiment(ExperimentId id) {
  v1::GetExperimentRequest request;
  request.set_experiment(id);
  v1::GetExperimentReply reply;
  impl_->connection.Call(&v1::ExperimentService::Stub::GetExperiment, request, &reply);
  View view;
  view.spec_json = reply.spec_json();
  view.state = reply.state();
  for (const v1::Trial& trial : reply.trials())
    view.trials.push_back(FromProto(trial));
  if (reply.best_trial() >= 0) view.best_trial = reply.best_trial();
  return view;
}

}  // namespace dsat
