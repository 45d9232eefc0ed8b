// One communicator of NCCL, and the watch over its calls.
#include "engine/backend/cuda/nccl_comm.h"

#include <cstring>
#include <thread>

#include "base/error.h"

namespace dsat::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Most collectives are done before the first sleep ends; a sleep costs a following one less than
// its launch does.
constexpr int kNumSpins = 100;
constexpr microseconds kSleep{20};
// How often a waiting rank looks whether its peers live.
constexpr milliseconds kWatchPeriod{50};
// A peer may leave when its own part is done, and this rank's GPU be a little later.
constexpr milliseconds kGrace{500};
constexpr std::chrono::seconds kMostToFinalize{5};

// Until `is_done`, or `go_on` says no. False: not done.
bool Poll(const std::function<bool()>& is_done, const std::function<bool()>& go_on) {
  for (int spin = 0; spin < kNumSpins; ++spin) {
    if (is_done()) return true;
    std::this_thread::yield();
  }
  while (!is_done()) {
    if (!go_on()) return false;
    std::this_thread::sleep_for(kSleep);
  }
  return true;
}

// Rank 0's, on every rank.
nccl::UniqueId AgreeOnId(const nccl::Api& api, ProcessGroup& host) {
  constexpr auto kIdBytes = static_cast<int64_t>(sizeof(nccl::UniqueId));
  const CommBuffer rows = host.Allocate(host.size() * kIdBytes);
  int result = nccl::kSuccess;
  if (host.rank() == 0) {
    nccl::UniqueId id = {};
    result = api.get_unique_id(&id);
    std::memcpy(rows.data, &id, sizeof(id));
  }
  const auto agreed = static_cast<int>(host.MaxScalar(result));
  if (agreed != nccl::kSuccess) {
    Throw(ErrorCode::kUnavailable, "ncclGetUniqueId on rank 0: {}", api.error_string(agreed));
  }
  host.AllGather(rows, kIdBytes);
  nccl::UniqueId id = {};
  std::memcpy(&id, rows.data, sizeof(id));
  return id;
}

}  // namespace

NcclComm::NcclComm(const NcclDevice& device, ProcessGroup& host) : device_(device), host_(host) {
  const std::string call = fmt::format("joining NCCL's group of {}", host.size());
  nccl::Config config;
  const nccl::UniqueId id = AgreeOnId(device.api, host);
  try {
    Check(device.api.init(&comm_, host.size(), id, host.rank(), &config), call);
    Await(call, ProcessGroup::kAllPeers, [&] { return IsSettled(call); });
  } catch (...) {
    Abort();
    throw;
  }
}

NcclComm::~NcclComm() {
  if (comm_ == nullptr) return;
  const auto deadline = Clock::now() + kMostToFinalize;
  int state = device_.api.finalize(comm_);
  const auto is_done = [&] {
    if (state == nccl::kInProgress) device_.api.get_async_error(comm_, &state);
    return state != nccl::kInProgress;
  };
  Poll(is_done, [&] { return Clock::now() < deadline; });
  state == nccl::kSuccess ? device_.api.destroy(comm_) : device_.api.abort(comm_);
}

void NcclComm::Run(const std::string& call, int peer,
                   const std::function<int(nccl::Comm)>& enqueue) {
  if (comm_ == nullptr) {
    Throw(ErrorCode::kUnavailable, "rank {} in {}: NCCL's group has failed before", host_.rank(),
          call);
  }
  Stream& stream = device_.kernels->stream();
  try {
    device_.queue->WaitEvent(stream.RecordEvent());
    Check(enqueue(comm_), call);
    Await(call, peer, [&] { return IsSettled(call); });  // The work is in the queue only then.
    const StreamEvent end = device_.queue->RecordEvent();
    stream.WaitEvent(end);
    Await(call, peer, [&] { return IsSettled(call) && stream.QueryEvent(end); });
  } catch (...) {
    Abort();
    throw;
  }
}

void NcclComm::Check(int result, const std::string& call) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  Throw(ErrorCode::kUnavailable, "rank {} in {}: NCCL: {}", host_.rank(), call,
        device_.api.error_string(result));
}

bool NcclComm::IsSettled(const std::string& call) const {
  int state = nccl::kSuccess;
  Check(device_.api.get_async_error(comm_, &state), call);
  Check(state, call);
  return state == nccl::kSuccess;
}

void NcclComm::Await(const std::string& call, int peer,
                     const std::function<bool()>& is_done) const {
  const auto begin = Clock::now();
  auto next_look = begin + kWatchPeriod;
  const auto watch = [&] {
    if (Clock::now() < next_look) return true;
    next_look = Clock::now() + kWatchPeriod;
    try {
      host_.CheckPeers(call, peer, begin);
    } catch (const Error&) {
      if (!IsDoneSoon(is_done)) throw;
      return false;
    }
    return true;
  };
  Poll(is_done, watch);
}

bool NcclComm::IsDoneSoon(const std::function<bool()>& is_done) const {
  const auto deadline = Clock::now() + kGrace;
  return Poll(is_done, [&] { return Clock::now() < deadline; });
}

void NcclComm::Abort() {
  if (comm_ != nullptr) device_.api.abort(comm_);
  comm_ = nullptr;
}

}  // namespace dsat::engine
