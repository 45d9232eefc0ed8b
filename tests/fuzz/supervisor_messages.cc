// Lines between a runner and its supervisors.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/unique_fd.h"
#include "searcher/processes/supervise_wire.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {
namespace {

template <typename Read>
void Try(const Read& read, const Json& message) {
  try {
    read(message);
  } catch (const Error&) {  // Callers refuse the peer.
  }
}

}  // namespace

// Reads the messages of a peer; at most 64 KiB, which a socket holds.
void SupervisorMessages(std::string_view input) {
  int ends[2];
  DSAT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  LineChannel channel{UniqueFd(ends[0])};
  {
    const UniqueFd peer(ends[1]);
    const size_t bytes = std::min(input.size(), size_t{64} << 10);
    DSAT_CHECK(bytes == 0 || write(peer.get(), input.data(), bytes) == static_cast<ssize_t>(bytes));
  }
  while (channel.Receive()) {
  }
  while (const auto line = channel.NextLine()) {
    const Json message = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
    Try(SuperviseOrderFromJson, message);
    Try(SuperviseHelloFromJson, message);
    Try(SuperviseReportFromJson, message);
  }
}

}  // namespace dsat::fuzz
