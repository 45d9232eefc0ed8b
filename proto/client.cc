// The client of TrialService.
#include "proto/client.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <exception>
#include <future>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "dsat.grpc.pb.h"
#include "proto/wire.h"

namespace dsat {
namespace {

// Long enough for a runner whose machine is overloaded.
constexpr std::chrono::seconds kDeadline{60};
constexpr std::chrono::milliseconds kPause{100};  // Before a call is tried again.
constexpr int kThreadsOfClient = 12;              // About as many as gRPC begins with.

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const std::string& key) {
  StartGrpc(kThreadsOfClient);
  grpc::ChannelArguments arguments;
  // gRPC waits a whole second after a failed first connection by default. Its shortest reconnect
  // backoff stays as it is, because that is also the time that a connection may take.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Local calls do not use a proxy from the environment.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  if (key.empty())
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  arguments.SetSslTargetNameOverride(kKeyName);
  // Each finds its own blocks in the key.
  const auto credentials =
      grpc::SslCredentials({.pem_root_certs = key, .pem_private_key = key, .pem_cert_chain = key});
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

void StartGrpc(int num_threads) {
  std::promise<void> all_run;
  std::vector<std::jthread> threads;
  const std::shared_future<void> end = all_run.get_future().share();
  try {
    for (int i = 0; i < num_threads; ++i)
      threads.emplace_back([end] { end.wait(); });
  } catch (const std::exception& error) {
    all_run.set_value();
    throw Error(ErrorCode::kUnavailable, MessageOf(error));
  }
  all_run.set_value();
  [[maybe_unused]] static const bool started = (grpc_init(), true);
}

// A channel and its stub. Call adds the deadline and converts statuses to Errors.
struct TrialClient::Impl {
  Impl(const std::string& address_in, const std::string& key, const AttemptRef& attempt_in)
      : address(address_in),
        stub(v1::TrialService::NewStub(MakeChannel(address, key))),
        attempt(attempt_in) {}

  template <typename Method, typename Request, typename Reply>
  void Call(Method method, const Request& request, Reply* reply, bool waits = false) {
    const auto deadline = std::chrono::system_clock::now() + kDeadline;
    while (true) {
      grpc::ClientContext context;
      context.set_wait_for_ready(waits);
      context.set_deadline(deadline);
      const grpc::Status status = (*stub.*method)(&context, request, reply);
      // In gRPC's words. Such a call has not begun.
      const bool is_full = status.error_message() == "Server Threadpool Exhausted";
      if (!is_full || std::chrono::system_clock::now() + kPause > deadline) return Check(status);
      std::this_thread::sleep_for(kPause);
    }
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
  std::unique_ptr<v1::TrialService::Stub> stub;
  AttemptRef attempt;
};

TrialClient TrialClient::Connect(const std::string& address, const std::string& key,
                                 const AttemptRef& attempt) {
  return TrialClient(std::make_shared<Impl>(address, key, attempt));
}

bool TrialClient::Progress(int64_t rank, int64_t step, bool begins,
                           const std::vector<std::string>& warnings) {
  v1::ProgressRequest request;
  *request.mutable_attempt() = ToProto(impl_->attempt);
  request.set_rank(rank);
  request.set_step(step);
  request.set_begins(begins);
  for (const std::string& warning : warnings)
    request.add_warnings(ValidUtf8(warning));
  v1::ProgressReply reply;
  impl_->Call(&v1::TrialService::Stub::Progress, request, &reply);
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
  impl_->Call(&v1::TrialService::Stub::Measured, request, &reply, /*waits=*/true);
  if (!reply.has_next_point()) return std::nullopt;
  return FromProto(reply.next_point());
}

void TrialClient::Infeasible(int64_t rank, const std::string& reason) {
  v1::InfeasibleRequest request;
  *request.mutable_attempt() = ToProto(impl_->attempt);
  request.set_rank(rank);
  request.set_reason(ValidUtf8(reason));
  v1::InfeasibleReply reply;
  impl_->Call(&v1::TrialService::Stub::Infeasible, request, &reply);
}

}  // namespace dsat
