// A runner that is slow to accept connections, as on an overloaded machine.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <variant>

#include "base/unique_fd.h"
#include "engine/comm/socket.h"
#include "proto/client.h"
#include "searcher/service/service.h"

namespace dsat {
namespace {

constexpr AttemptRef kAttempt{1, 2, 3};

engine::SocketAddress Loopback(int port) {
  return engine::Resolve("127.0.0.1", port).at(0);
}

// Copies what arrives at one socket to the other. Returns false at the end of the stream.
bool Copy(int from, int to) {
  std::array<char, 4096> bytes;
  const ssize_t got = read(from, bytes.data(), bytes.size());
  if (got < 0 && errno == EAGAIN) return true;
  return got > 0 && send(to, bytes.data(), static_cast<size_t>(got), MSG_NOSIGNAL) == got;
}

// Accepts one connection after `delay` and relays it to `port` until a side closes it.
void RelayLate(int listener, int port, std::chrono::milliseconds delay) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::this_thread::sleep_for(delay);
  ASSERT_TRUE(engine::WaitFor(listener, POLLIN, deadline));
  const UniqueFd client(accept(listener, nullptr, nullptr));
  const UniqueFd server = engine::ConnectTo(Loopback(port), deadline);
  ASSERT_GE(server.get(), 0);
  while (true) {
    pollfd fds[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
    ASSERT_GT(poll(fds, 2, 60'000), 0);
    if (fds[0].revents != 0 && !Copy(client.get(), server.get())) return;
    if (fds[1].revents != 0 && !Copy(server.get(), client.get())) return;
  }
}

TEST(SlowConnectionTest, AReportWaitsForARunnerThatAcceptsLate) {
  EventQueue<TrialMessage> queue;
  TrialServer server(&queue, "127.0.0.1");
  server.Admit(kAttempt);
  const int port = std::stoi(server.address().substr(server.address().rfind(':') + 1));
  const UniqueFd listener = engine::ListenAt(Loopback(0));
  std::thread relay([&] { RelayLate(listener.get(), port, std::chrono::milliseconds(400)); });
  {
    TrialClient client = TrialClient::Connect(
        engine::SocketAddress::OfThisSide(listener.get()).ToString(), server.key(), kAttempt);
    EXPECT_NO_THROW(client.Progress(0, 7));
  }
  relay.join();
  const std::vector<TrialMessage> seen = queue.Drain();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(std::get<ProgressMessage>(seen[0]).step, 7);
}

}  // namespace
}  // namespace dsat
