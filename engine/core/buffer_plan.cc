// Placing buffers whose lifetimes are known.
#include "engine/core/buffer_plan.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace dsat::engine {
namespace {

// A part of the block that grows at its end. A buffer gets the first free range that holds it.
class Region {
 public:
  int64_t Take(int64_t bytes) {
    const auto fits = [&](const auto& range) { return range.second >= bytes; };
    auto range = std::ranges::find_if(free_, fits);
    if (range == free_.end()) {
      const bool extends =
          !free_.empty() && std::prev(range)->first + std::prev(range)->second == size_;
      const int64_t begin = extends ? std::prev(range)->first : size_;
      if (extends) free_.erase(begin);
      size_ = begin + bytes;
      return begin;
    }
    const auto [begin, size] = *range;
    free_.erase(range);
    if (size > bytes) free_[begin + bytes] = size - bytes;
    return begin;
  }

  void Free(int64_t begin, int64_t bytes) {
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && next->first == begin + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == begin) {
      std::prev(next)->second += bytes;
    } else {
      free_[begin] = bytes;
    }
  }

  int64_t size() const { return size_; }

 private:
  std::map<int64_t, int64_t> free_;  // Bytes by begin.
  int64_t size_ = 0;
};

struct Event {
  int64_t time = 0;
  size_t request = 0;
  bool begins = false;
};

std::vector<Event> EventsOf(const std::vector<Request>& requests) {
  std::vector<Event> events;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].bytes == 0) continue;
    events.push_back({requests[i].begin, i, true});
    if (requests[i].end != Request::kNever) events.push_back({requests[i].end, i, false});
  }
  std::ranges::sort(events, {}, &Event::time);
  return events;
}

// Places buffers that live longer than `bound` in the lower region.
void PlaceByBound(const std::vector<Request>& requests, const std::vector<Event>& events,
                  int64_t bound, BufferPlan& plan) {
  Region lower, upper;
  const auto is_long = [&](size_t i) { return requests[i].end - requests[i].begin > bound; };
  plan.offsets.assign(requests.size(), 0);
  for (const Event& event : events) {
    Region& region = is_long(event.request) ? lower : upper;
    int64_t& offset = plan.offsets[event.request];
    const int64_t bytes = requests[event.request].bytes;
    event.begins ? void(offset = region.Take(bytes)) : region.Free(offset, bytes);
  }
  for (size_t i = 0; i < requests.size(); ++i)
    if (!is_long(i)) plan.offsets[i] += lower.size();
  plan.total_bytes = lower.size() + upper.size();
}

}  // namespace

BufferPlan PlanBuffers(const std::vector<Request>& requests, const std::vector<size_t>& steps) {
  constexpr int kNumBounds = 6;
  const std::vector<Event> events = EventsOf(requests);
  BufferPlan best, plan;
  auto bound = events.empty() ? int64_t{0} : events.back().time + 1;
  for (int i = 0; i < kNumBounds; ++i, bound /= 2) {
    PlaceByBound(requests, events, bound, plan);
    if (i == 0 || plan.total_bytes < best.total_bytes) best = plan;
  }
  for (const Request& request : requests)
    best.bytes.push_back(request.bytes);
  best.steps = steps;
  return best;
}

}  // namespace dsat::engine
