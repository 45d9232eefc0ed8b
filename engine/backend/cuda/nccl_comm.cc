// One communicator of NCCL, and the watch over its calls.
#include "engine/backend/cuda/nccl_comm.h"

#include <cstring>

#include "engine/backend/cuda/watches.h"
#include "engine/core/arena.h"

namespace dsat::engine {
namespace {

using std::chrono::milliseconds;

// How often a waiting rank looks whether its peers live.
constexpr milliseconds kWatchPeriod{50};
// A peer may leave when its own part is done, and this rank's GPU be a little later.
constexpr milliseconds kGrace{500};
constexpr std::chrono::seconds kMostToFinalize{5};
// So much work is kept before anybody asks whether it is done.
constexpr size_t kFewWorks = 16;

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
  Guard([&] {
    Check(device.api.init(&comm_, host.size(), id, host.rank(), &config), call);
    Await(call, ProcessGroup::kAllPeers, [&] { return IsSettled(call); });
  });
  Watches* const watches = device.kernels->stream().watches();
  if (watches != nullptr) watches->Add(this, [this] { Watch(); });
}

NcclComm::~NcclComm() {
  Watches* const watches = device_.kernels->stream().watches();
  if (watches != nullptr) watches->Remove(this);
  if (comm_ == nullptr) return;
  const auto deadline = Clock::now() + kMostToFinalize;
  int state = device_.api.finalize(comm_);
  const auto is_done = [&] {
    if (state == nccl::kInProgress) device_.api.get_async_error(comm_, &state);
    if (state == nccl::kSuccess) DropDoneWork();
    return state != nccl::kInProgress && (state != nccl::kSuccess || work_.empty());
  };
  try {
    if (!Poll(is_done, [&] { return Clock::now() < deadline; })) state = nccl::kInProgress;
  } catch (const Error&) {  // The GPU has failed.
    state = nccl::kInProgress;
  }
  state == nccl::kSuccess ? device_.api.destroy(comm_) : device_.api.abort(comm_);
}

void NcclComm::Guard(const std::function<void()>& part) {
  const std::lock_guard lock(mutex_);
  try {
    part();
  } catch (const Error& error) {
    Abort(error);
    throw;
  }
}

void NcclComm::Run(const std::string& call, int peer,
                   const std::function<int(nccl::Comm)>& enqueue) {
  Stream& stream = device_.kernels->stream();
  Guard([&] {
    if (comm_ == nullptr) {
      Throw(ErrorCode::kUnavailable, "rank {} in {}: NCCL's group has failed before", host_.rank(),
            call);
    }
    device_.queue->WaitEvent(stream.RecordEvent());
    StreamEvent begin = device_.queue->RecordEvent();
    Check(enqueue(comm_), call);
    Await(call, peer, [&] { return IsSettled(call); });  // The work is in the queue only then.
    StreamEvent end = device_.queue->RecordEvent();
    stream.WaitEvent(end);
    if (end == nullptr) return;
    if (work_.size() >= kFewWorks) DropDoneWork();
    work_.push_back({call, peer, std::move(begin), std::move(end), std::nullopt});
  });
}

void NcclComm::Check(int result, const std::string& call) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  const char* const about = device_.api.last_error(comm_);
  const std::string_view detail = about == nullptr ? "" : about;
  const bool lacks_memory =
      result == nccl::kUnhandledCudaError && detail.find("out of memory") != std::string_view::npos;
  const std::string what =
      fmt::format("rank {} in {}: NCCL: {}{}{}", host_.rank(), call,
                  device_.api.error_string(result), detail.empty() ? "" : ": ", detail);
  if (lacks_memory) throw OutOfMemory(ErrorCode::kResourceExhausted, what);
  throw Error(ErrorCode::kUnavailable, what);
}

bool NcclComm::IsSettled(const std::string& call) const {
  int state = nccl::kSuccess;
  Check(device_.api.get_async_error(comm_, &state), call);
  Check(state, call);
  return state == nccl::kSuccess;
}

void NcclComm::DropDoneWork() {
  while (!work_.empty() && device_.kernels->stream().QueryEvent(work_.front().end))
    work_.pop_front();
}

// Checks the first work that is not done: what comes after it waits for it.
void NcclComm::CheckWork() {
  DropDoneWork();
  if (work_.empty()) return;
  Stream& stream = device_.kernels->stream();
  Work& work = work_.front();
  IsSettled(work.call);
  if (!work.begun_at && stream.QueryEvent(work.begin)) work.begun_at = Clock::now();
  try {
    host_.CheckPeers(work.call, work.peer, work.begun_at.value_or(Clock::now()));
  } catch (const Error&) {
    if (!IsDoneSoon([&] { return stream.QueryEvent(work.end); })) throw;
  }
}

void NcclComm::Watch() {
  if (has_failed_) throw Error(*failure_);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || comm_ == nullptr || Clock::now() < next_look_) return;  // A call looks itself.
  next_look_ = Clock::now() + kWatchPeriod;
  try {
    CheckWork();
  } catch (const Error& error) {
    Abort(error);
    throw;
  }
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

void NcclComm::Abort(const Error& error) {
  if (comm_ == nullptr) return;
  failure_ = error;
  has_failed_ = true;  // Before the GPU continues, because threads that wait for it check then.
  device_.api.abort(comm_);
  comm_ = nullptr;
}

}  // namespace dsat::engine
