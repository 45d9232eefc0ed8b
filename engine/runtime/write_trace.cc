// The traces of all ranks as one JSON value.
#include "engine/runtime/write_trace.h"

#include <algorithm>
#include <vector>

#include "base/json.h"

namespace dsat::engine {
namespace {

// A mailbox grows to the largest message, so a large text goes in parts.
constexpr int64_t kPartBytes = 1 << 20;

void SendText(const std::string& text, int peer, ProcessGroup& group) {
  const auto size = static_cast<int64_t>(text.size());
  group.Send(&size, sizeof(size), peer);
  for (int64_t at = 0; at < size; at += kPartBytes)
    group.Send(text.data() + at, std::min(kPartBytes, size - at), peer);
}

std::string ReceiveText(int peer, ProcessGroup& group) {
  int64_t size = 0;
  group.Recv(&size, sizeof(size), peer);
  std::string text(static_cast<size_t>(size), '\0');
  for (int64_t at = 0; at < size; at += kPartBytes)
    group.Recv(text.data() + at, std::min(kPartBytes, size - at), peer);
  return text;
}

// In microseconds, to the nanosecond.
double Microseconds(TraceEvent::Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

Json ArgsOf(const TraceEvent& event) {
  Json args = Json::object();
  const auto add = [&](const char* name, int64_t value) {
    if (value >= 0) args[name] = value;
  };
  add("step", event.step);
  add("micro_batch", event.micro_batch);
  add("unit", event.unit);
  add("sub_group", event.sub_group);
  add("bytes", event.bytes);
  if (event.phase != nullptr) args["phase"] = event.phase;
  if (!event.about.empty()) args["about"] = event.about;
  return args;
}

// A fact about a process or a thread.
Json Fact(const char* what, int rank, int lane, const Json& args) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", args}};
}

// One event per line, separated by commas.
std::string TextOf(const Trace& trace, int rank) {
  std::string text = Fact("process_name", rank, 0, {{"name", fmt::format("rank {}", rank)}}).dump();
  const auto add = [&](const Json& event) { text += ",\n" + event.dump(); };
  const std::vector<std::string> lanes = trace.lanes();
  for (size_t i = 0; i < lanes.size(); ++i) {
    const auto lane = static_cast<int>(i);
    add(Fact("thread_name", rank, lane, {{"name", lanes[i]}}));
    add(Fact("thread_sort_index", rank, lane, {{"sort_index", lane}}));
  }
  for (const TraceEvent& event : trace.events()) {
    add({{"ph", "X"},
         {"name", event.name},
         {"pid", rank},
         {"tid", event.lane},
         {"ts", Microseconds(event.begin.time_since_epoch())},
         {"dur", Microseconds(event.end - event.begin)},
         {"args", ArgsOf(event)}});
  }
  return text;
}

}  // namespace

std::string GatherTraces(const Trace& trace, ProcessGroup& group) {
  std::string text = TextOf(trace, group.rank());
  if (group.rank() != 0) {
    SendText(text, 0, group);
    return "";
  }
  for (int rank = 1; rank < group.size(); ++rank)
    text += ",\n" + ReceiveText(rank, group);
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + text + "\n]}\n";
}

}  // namespace dsat::engine
