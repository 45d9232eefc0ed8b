// The events of a trace, lane by lane.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "engine/core/trace.h"

namespace dsat::engine {

// By their begin; an event before those that lie in it. None if there is no such lane.
inline std::vector<TraceEvent> EventsOn(const Trace& trace, const std::string& lane) {
  const std::vector<std::string> lanes = trace.lanes();
  const auto number = std::ranges::find(lanes, lane) - lanes.begin();
  std::vector<TraceEvent> events = trace.events();
  std::erase_if(events, [&](const TraceEvent& event) { return event.lane != number; });
  std::ranges::stable_sort(events, [](const TraceEvent& a, const TraceEvent& b) {
    return std::tuple(a.begin, b.end) < std::tuple(b.begin, a.end);
  });
  return events;
}

// Expects one thing at a time.
inline void ExpectInOrder(const std::vector<TraceEvent>& events) {
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_LE(events[i].begin, events[i].end) << events[i].name;
    if (i == 0) continue;
    EXPECT_LE(events[i - 1].end, events[i].begin) << events[i].name;
  }
}

}  // namespace dsat::engine
