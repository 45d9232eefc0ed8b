// Placing buffers whose lifetimes are known.
#include "engine/core/buffer_plan.h"

#include <algorithm>

namespace dsat::engine {
namespace {

// A part of the block that grows at its end. A buffer gets the first free range that holds it.
class Region {
 public:
  int64_t Take(int64_t bytes) {
    const auto& ranges = free_.ranges();
    const auto fits = [&](const auto& range) { return range.second >= bytes; };
    const auto range = std::ranges::find_if(ranges, fits);
    int64_t begin = size_;
    if (range != ranges.end()) {
      begin = range->first;
    } else {
      const bool extends =
          !ranges.empty() && ranges.rbegin()->first + ranges.rbegin()->second == size_;
      if (extends) begin = ranges.rbegin()->first;
      free_.Add(size_, begin + bytes - size_);
      size_ = begin + bytes;
    }
    free_.Take(begin, bytes);
    return begin;
  }
  void Free(int64_t begin, int64_t bytes) { free_.Add(begin, bytes); }

  int64_t size() const { return size_; }

 private:
  FreeRanges free_;
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
