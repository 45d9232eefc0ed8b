// The door of a gRPC server: who comes in, and what one client may cost.
//
// A stranger costs one of 128 connections for at most 10 s. gRPC sees none of their bytes, and of
// clients only what FrameCheck and the limits of door.cc and relay.cc let through. A connection
// that has to go for another one is that of a stranger, if there is one, or else the quietest.
#ifndef DSAT_SEARCHER_SERVICE_DOOR_H_
#define DSAT_SEARCHER_SERVICE_DOOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace dsat {

class Door {
 public:
  // Raises this process's limit of descriptors. Accepts at `listening`, which does not block. The
  // other end of a unix socket must belong to this user or root. With `key` (RunKeys::server) the
  // other end must show the run's key of clients by TLS 1.3 instead. `hand_over` is called on the
  // door's thread with the unencrypted side of each connection, which it then owns. Throws
  // kUnavailable if there is no thread or descriptor for that.
  Door(UniqueFd listening, const std::string& key, std::function<void(int fd)> hand_over);
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;
  // Closes all connections.
  ~Door();

  // Closes the listening socket. Connections continue.
  void StopAccepting();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SERVICE_DOOR_H_
