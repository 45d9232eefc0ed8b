// The messages between a runner and a supervisor, one line of JSON each.
#include "searcher/processes/supervise_wire.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/fields.h"

namespace dsat {
namespace {

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

DSAT_SOME_FIELDS(RankCommand, argv, env, log_path, work_dir, continues_log, shares_folder,
                 buffers_port)
DSAT_SOME_FIELDS(GraceTimes, siblings, terminate, silence)
DSAT_FIELDS(SuperviseOrder, ranks, work_dir, grace, remote, files)
DSAT_FIELDS(SuperviseHello, version, num_cores, devices, address, runner_address)
DSAT_SOME_FIELDS(ExitReport, first_failed_rank, exit_code, not_started, killed_by_us, oom_kills,
                 exit_codes, log_tail)
DSAT_FIELDS(SuperviseReport, exit, logs)

Json ToJson(const SuperviseOrder& order) {
  return fields::Encode(order);
}
Json ToJson(const SuperviseHello& hello) {
  return fields::Encode(hello);
}
Json ToJson(const SuperviseReport& report) {
  return fields::Encode(report);
}

SuperviseOrder SuperviseOrderFromJson(const Json& json) {
  return fields::DecodeAs<SuperviseOrder>(json, "order");
}

// Other versions may have other fields, which do not hide the version.
SuperviseHello SuperviseHelloFromJson(const Json& json) {
  SuperviseHello hello;
  const std::string what = "hello";
  fields::Reader reader(json, what);
  VisitFields(reader, hello);
  return hello;
}

SuperviseReport SuperviseReportFromJson(const Json& json) {
  return fields::DecodeAs<SuperviseReport>(json, "report");
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
