// A gRPC server that listens on this machine, and the token that its callers must send.
#ifndef DSAT_SEARCHER_SERVICE_SERVICE_LISTENER_H_
#define DSAT_SEARCHER_SERVICE_SERVICE_LISTENER_H_

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"
#include "searcher/service/service_acceptor.h"

namespace dsat {

// 128 random bits from the kernel as 32 hex digits.
std::string RandomToken();

// Compares texts in a time that does not depend on where they differ.
bool SameToken(std::string_view sent, std::string_view token);

// Lets the calls with the token in.
struct Gate {
  // Trusts the connection of a call that it admits.
  bool Admits(const grpc::ServerContext& context);

  const std::string token = RandomToken();
  std::atomic<Acceptor*> acceptor = nullptr;  // The acceptor of the listener.
};

// Serves one service while it exists.
class Listener {
 public:
  // `address` and errors as ExperimentServer in searcher/service/service.h. `service`, which asks
  // `gate` about every call, and `gate` must outlive this.
  Listener(const std::string& address, grpc::Service* service, Gate* gate);
  // Refuses new calls; running calls have 1 s to end.
  ~Listener();

  const std::string& address() const { return address_; }

 private:
  std::string address_;
  std::optional<std::pair<dev_t, ino_t>> file_;  // The file of a socket that has a path.
  UniqueFd path_;  // The socket as a path, if the address is a descriptor of this process.
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SERVICE_SERVICE_LISTENER_H_
