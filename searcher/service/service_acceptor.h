// Accepts the connections of a gRPC server.
//
// gRPC's own accept loop ends for good when descriptors run out, and it accepts any number of
// connections. Here strangers, whose calls have not shown the token yet, have a limited number of
// connections: the oldest is closed for a new one. A connection that sends nothing never reaches
// gRPC.
#ifndef DSAT_SEARCHER_SERVICE_SERVICE_ACCEPTOR_H_
#define DSAT_SEARCHER_SERVICE_SERVICE_ACCEPTOR_H_

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace dsat {

class Acceptor {
 public:
  // Raises this process's limit of descriptors. Accepts at `listening`, which does not block, and
  // gives each connection that begins like HTTP/2 to `hand_over`, which then owns it and is called
  // on a thread of the acceptor.
  Acceptor(UniqueFd listening, std::function<void(int fd)> hand_over);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  ~Acceptor();

  // Accepts nothing more. Connections that were handed over continue.
  void Stop();

  // A call over the connection "fd:N", as gRPC names it, has shown the token. Thread-safe.
  void Trust(const std::string& peer);

 private:
  struct Connection {
    UniqueFd ours;    // Until the first bytes the connection itself, then a duplicate.
    int number = -1;  // gRPC's descriptor; -1 until the first bytes.
    ino_t inode = 0;
    bool trusted = false;
    bool closing = false;
  };

  void Run();
  // Waits for something to do. Returns whether the acceptor continues.
  bool Wait(bool accepts);
  void Accept();
  void HearFirstBytes(Connection& connection);
  void Sweep();
  bool HasRoom() const;
  void CloseOldestStranger();

  UniqueFd listening_;
  std::function<void(int)> hand_over_;
  UniqueFd stop_;
  size_t most_strangers_;
  bool exhausted_ = false;  // No descriptor was left for the last connection.
  std::mutex mutex_;        // Guards the connections; the oldest is the first.
  std::vector<Connection> connections_;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace dsat

#endif  // DSAT_SEARCHER_SERVICE_SERVICE_ACCEPTOR_H_
