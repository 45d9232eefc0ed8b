// The messages between a runner and a supervisor, one line of JSON each.
#include "searcher/processes/supervise_wire.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/error.h"
#include "base/json_integers.h"

namespace dsat {
namespace {

Json ToJson(const RankCommand& command) {
  return {{"argv", command.argv},
          {"env", command.env},
          {"log_path", command.log_path},
          {"work_dir", command.work_dir},
          {"continues_log", command.continues_log},
          {"shares_folder", command.shares_folder},
          {"buffers_port", command.buffers_port}};
}

RankCommand RankCommandFromJson(const Json& json) {
  return {.argv = json.at("argv"),
          .env = json.at("env"),
          .log_path = json.at("log_path"),
          .work_dir = json.at("work_dir"),
          .continues_log = json.at("continues_log"),
          .shares_folder = json.at("shares_folder"),
          .buffers_port = IntegerIn(json.at("buffers_port"))};
}

// The runner may not ignore SIGPIPE, and a supervisor may write to a pipe.
ssize_t WriteSome(int fd, const char* data, size_t size) {
  const ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
  return sent < 0 && errno == ENOTSOCK ? write(fd, data, size) : sent;
}

bool HasInput(int fd) {
  pollfd input = {fd, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}

}  // namespace

Json ToJson(const SuperviseOrder& order) {
  Json ranks = Json::array();
  for (const RankCommand& command : order.ranks)
    ranks.push_back(ToJson(command));
  return {{"ranks", std::move(ranks)},
          {"work_dir", order.work_dir},
          {"sibling_grace_ms", order.grace.siblings.count()},
          {"terminate_grace_ms", order.grace.terminate.count()},
          {"silence_ms", order.grace.silence.count()},
          {"remote", order.remote},
          {"files", order.files}};
}

SuperviseOrder SuperviseOrderFromJson(const Json& json) {
  SuperviseOrder order;
  for (const Json& rank : json.at("ranks"))
    order.ranks.push_back(RankCommandFromJson(rank));
  order.work_dir = json.at("work_dir");
  order.grace.siblings = std::chrono::milliseconds(IntegerIn(json.at("sibling_grace_ms")));
  order.grace.terminate = std::chrono::milliseconds(IntegerIn(json.at("terminate_grace_ms")));
  order.grace.silence = std::chrono::milliseconds(IntegerIn(json.at("silence_ms")));
  order.remote = json.at("remote");
  order.files = json.at("files");
  return order;
}

Json ToJson(const SuperviseHello& hello) {
  return {{"version", hello.version},
          {"num_cores", hello.num_cores},
          {"devices", hello.devices},
          {"address", hello.address},
          {"runner_address", hello.runner_address}};
}

SuperviseHello SuperviseHelloFromJson(const Json& json) {
  return {.version = json.at("version"),
          .num_cores = IntegerIn(json.at("num_cores")),
          .devices = json.value("devices", std::string()),  // Other versions lack it.
          .address = json.at("address"),
          .runner_address = json.at("runner_address")};
}

Json ToJson(const SuperviseReport& report) {
  const ExitReport& exit = report.exit;
  return {{"first_failed_rank", exit.first_failed_rank},
          {"exit_code", exit.exit_code},
          {"not_started", exit.not_started},
          {"killed_by_us", exit.killed_by_us},
          {"oom_kills", exit.oom_kills},
          {"exit_codes", exit.exit_codes},
          {"elapsed_ms", exit.elapsed.count()},
          {"log_tail", exit.log_tail},
          {"logs", report.logs}};
}

SuperviseReport SuperviseReportFromJson(const Json& json) {
  SuperviseReport report;
  ExitReport& exit = report.exit;
  exit.first_failed_rank = static_cast<int>(IntegerIn(json.at("first_failed_rank")));
  exit.exit_code = static_cast<int>(IntegerIn(json.at("exit_code")));
  exit.not_started = json.at("not_started");
  exit.killed_by_us = json.at("killed_by_us");
  exit.oom_kills = IntegerIn(json.at("oom_kills"));
  const std::vector<int64_t> codes = IntegersIn(json.at("exit_codes"));
  exit.exit_codes.assign(codes.begin(), codes.end());
  exit.elapsed = std::chrono::milliseconds(IntegerIn(json.at("elapsed_ms")));
  exit.log_tail = json.at("log_tail");
  report.logs = json.at("logs");
  return report;
}

LineChannel::LineChannel(UniqueFd socket)
    : in_(std::move(socket)), out_(fcntl(in_.get(), F_DUPFD_CLOEXEC, 0)) {
  if (!out_) ThrowErrno("control socket", errno);
}

void LineChannel::Close() {
  in_.Reset();
  out_.Reset();
}

bool LineChannel::Send(const Json& message) {
  // Paths and arguments may not be UTF-8; invalid characters are replaced.
  const std::string line = message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  // So much never blocks once the stream is writable.
  constexpr size_t kMostBytes = PIPE_BUF;
  size_t sent = 0;
  while (sent < line.size()) {
    pollfd writable = {out_.get(), POLLOUT, 0};
    const int ready = poll(&writable, 1, static_cast<int>(kSendTimeout.count()));
    if (ready < 0 && errno == EINTR) continue;
    is_stuck_ = ready == 0;
    if (ready <= 0) return false;
    const size_t part = std::min(line.size() - sent, kMostBytes);
    const ssize_t n = WriteSome(out_.get(), line.data() + sent, part);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool LineChannel::Receive() {
  constexpr int kMostReads = 64;
  received_.erase(0, begin_);
  searched_ -= std::exchange(begin_, 0);
  char buffer[16384];
  for (int i = 0; i < kMostReads && HasInput(in_.get()); ++i) {
    const ssize_t n = read(in_.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    received_.append(buffer, static_cast<size_t>(n));
  }
  return !IsTooLong();
}

std::optional<std::string> LineChannel::NextLine() {
  const size_t end = received_.find('\n', searched_);
  searched_ = end == std::string::npos ? received_.size() : end + 1;
  if (end == std::string::npos) return std::nullopt;
  const size_t begin = std::exchange(begin_, end + 1);
  return received_.substr(begin, end - begin);
}

}  // namespace dsat
