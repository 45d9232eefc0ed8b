// A gRPC server that listens on this machine, and the token that its callers must send.
#ifndef DSAT_SEARCHER_SERVICE_LISTENER_H_
#define DSAT_SEARCHER_SERVICE_LISTENER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

namespace dsat {

// 128 random bits from the kernel as 32 hex digits.
std::string RandomToken();

// Compares texts in a time that does not depend on where they differ.
bool SameToken(std::string_view sent, std::string_view token);

// Serves one service while it exists.
class Listener {
 public:
  // `address` and errors as ExperimentServer in searcher/service.h. `service` must outlive this.
  Listener(const std::string& address, grpc::Service* service);
  // Refuses new calls; running calls have 1 s to end.
  ~Listener();

  const std::string& address() const { return address_; }

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SERVICE_LISTENER_H_
