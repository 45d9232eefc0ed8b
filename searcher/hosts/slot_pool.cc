// Counts trials or places them, on hosts that are not lost.
#include "searcher/hosts/slot_pool.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "searcher/hosts/slots.h"

namespace dsat {
namespace {

constexpr double kFirstPauseSeconds = 10;
constexpr int64_t kMostLosses = 6;
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

int64_t NumSlots(const std::vector<LaunchHost>& hosts) {
  int64_t count = 0;
  for (const LaunchHost& host : hosts)
    count += std::ssize(host.slots);
  return count;
}

SlotPool SlotPool::On(const std::vector<LaunchHost>& hosts, int64_t num_ranks, bool are_known) {
  SlotPool pool(std::max<int64_t>(1, NumSlots(hosts) / num_ranks));
  if (!are_known || NumSlots(hosts) < num_ranks) return pool;
  pool.hosts_ = hosts;
  pool.num_ranks_ = num_ranks;
  return pool;
}

bool SlotPool::HasFree(double now_s) const {
  return num_ranks_ == 0 ? num_running_ < most_trials_ : !Find(used_, now_s).empty();
}

std::vector<Slot> SlotPool::Take(double now_s) {
  ++num_running_;
  if (num_ranks_ == 0) return {};
  const std::vector<Slot> slots = Find(used_, now_s);
  used_.insert(slots.begin(), slots.end());
  return slots;
}

void SlotPool::Return(const std::vector<Slot>& slots, bool answered) {
  --num_running_;
  for (const Slot& slot : slots) {
    used_.erase(slot);
    if (answered) losses_.erase(slot.host);
  }
}

std::optional<double> SlotPool::Lose(int64_t host, double now_s) {
  Loss& loss = losses_[host];
  if (now_s < loss.until_s) return std::nullopt;
  const double pause_s =
      ++loss.times < kMostLosses ? kFirstPauseSeconds * std::exp2(loss.times - 1) : kNever;
  loss.until_s = now_s + pause_s;
  return pause_s;
}

bool SlotPool::IsEnough() const {
  return num_ranks_ == 0 || !Find({}, std::numeric_limits<double>::max()).empty();
}

std::vector<Slot> SlotPool::Find(std::set<Slot> used, double now_s) const {
  for (const auto& [host, loss] : losses_) {
    if (loss.until_s <= now_s) continue;
    for (const int64_t index : hosts_.at(static_cast<size_t>(host)).slots)
      used.insert({host, index});
  }
  return FindSlots(hosts_, used, num_ranks_);
}

}  // namespace dsat
