// A gRPC server that listens at a unix socket of this user, or with TLS on the network.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace dsat {

class Door;

// Serves one service while it exists.
class Listener {
 public:
  // `address` and errors as ExperimentServer in searcher/service/service.h. `service` must outlive
  // this.
  Listener(const std::string& address, grpc::Service* service);
  // Refuses new calls; running calls have 1 s to end.
  ~Listener();

  const std::string& address() const { return address_; }
  // The key that clients must have (RunKeys::client); "" at a unix socket.
  const std::string& key() const { return key_; }

 private:
  std::string address_, key_;
  std::optional<std::pair<dev_t, ino_t>> file_;  // The file of a socket that has a path.
  UniqueFd path_;  // The socket as a path, if the address is a descriptor of this process.
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Door> door_;
};

}  // namespace dsat
