// What a runner and a supervisor say to each other: one line of JSON per message on a socket.
#include "searcher/launch/supervise_wire.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace dsat {
namespace {

Json ToJson(const RankCommand& command) {
  return {{"argv", command.argv},
          {"env", command.env},
          {"log_path", command.log_path},
          {"work_dir", command.work_dir},
          {"stamp_marker", command.stamp_marker}};
}

RankCommand RankCommandFromJson(const Json& json) {
  return {.argv = json.at("argv"),
          .env = json.at("env"),
          .log_path = json.at("log_path"),
          .work_dir = json.at("work_dir"),
          .stamp_marker = json.at("stamp_marker")};
}

}  // namespace

Json ToJson(const SuperviseOrder& order) {
  Json ranks = Json::array();
  for (const RankCommand& command : order.ranks)
    ranks.push_back(ToJson(command));
  return {{"ranks", std::move(ranks)},
          {"work_dir", order.work_dir},
          {"sibling_grace_ms", order.grace.siblings.count()},
          {"terminate_grace_ms", order.grace.terminate.count()}};
}

SuperviseOrder SuperviseOrderFromJson(const Json& json) {
  SuperviseOrder order;
  for (const Json& rank : json.at("ranks"))
    order.ranks.push_back(RankCommandFromJson(rank));
  order.work_dir = json.at("work_dir");
  order.grace.siblings = std::chrono::milliseconds(json.at("sibling_grace_ms").get<int64_t>());
  order.grace.terminate = std::chrono::milliseconds(json.at("terminate_grace_ms").get<int64_t>());
  return order;
}

Json ToJson(const ExitReport& report) {
  return {{"first_failed_rank", report.first_failed_rank},
          {"exit_code", report.exit_code},
          {"killed_by_us", report.killed_by_us},
          {"oom_kills", report.oom_kills},
          {"exit_codes", report.exit_codes},
          {"elapsed_ms", report.elapsed.count()},
          {"log_tail", report.log_tail}};
}

ExitReport ExitReportFromJson(const Json& json) {
  ExitReport report;
  report.first_failed_rank = json.at("first_failed_rank");
  report.exit_code = json.at("exit_code");
  report.killed_by_us = json.at("killed_by_us");
  report.oom_kills = json.at("oom_kills");
  report.exit_codes = json.at("exit_codes").get<std::vector<int>>();
  report.elapsed = std::chrono::milliseconds(json.at("elapsed_ms").get<int64_t>());
  report.log_tail = json.at("log_tail");
  return report;
}

bool LineSocket::Send(const Json& message) {
  // Paths and arguments need not be UTF-8; a replaced character is better than no trial at all.
  const std::string line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = send(fd_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool LineSocket::Receive() {
  char buffer[16384];
  while (true) {
    const ssize_t n = recv(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return false;
    received_.append(buffer, static_cast<size_t>(n));
  }
}

std::optional<std::string> LineSocket::NextLine() {
  const size_t end = received_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

}  // namespace dsat
