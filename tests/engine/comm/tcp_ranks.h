// Ranks that meet over TCP on this machine, at a port that the kernel chooses.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "engine/comm/process_group.h"
#include "engine/comm/socket.h"

namespace dsat::engine {

// Where rank 0 will be; one group after another may meet there.
class TcpPlace {
 public:
  explicit TcpPlace(const std::string& host = "127.0.0.1")
      : host_(host), listener_(ListenAt(Resolve(host, 0).front())) {}

  const std::string& host() const { return host_; }
  int port() const { return SocketAddress::OfThisSide(listener_.get()).port(); }
  TcpGroupArgs ArgsOf(int rank, int size, std::chrono::milliseconds timeout) const {
    return {.rank = rank,
            .size = size,
            .master_address = host_,
            .master_port = port(),
            .key = "secret",
            .timeout = timeout,
            .listening_fd = rank == 0 ? listener_.get() : -1};
  }
  std::unique_ptr<ProcessGroup> Join(int rank, int size, std::chrono::milliseconds timeout) const {
    return MakeTcpGroup(ArgsOf(rank, size, timeout));
  }

 private:
  std::string host_;
  UniqueFd listener_;
};

}  // namespace dsat::engine
