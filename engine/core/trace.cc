// The record of what one rank did and when.
#include "engine/core/trace.h"

#include <algorithm>

namespace dsat::engine {

int Trace::Lane(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(lanes_, name);
  const auto lane = static_cast<int>(found - lanes_.begin());
  if (found == lanes_.end()) lanes_.push_back(name);
  return lane;
}

void Trace::Add(TraceEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

std::vector<std::string> Trace::lanes() const {
  const std::lock_guard lock(mutex_);
  return lanes_;
}

std::vector<TraceEvent> Trace::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

}  // namespace dsat::engine
