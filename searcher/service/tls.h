// The keys of one run, with which a server and its clients on other hosts know each other, and the
// server's side of TLS over sockets that do not block.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

struct ssl_ctx_st;
struct ssl_st;

namespace dsat {

// Each is a text of PEM blocks: a private key, its certificate for kKeyName (proto/client.h), and
// the certificate of the run's authority, whose own key nobody keeps. They do not expire, because
// they serve one run, whatever the clocks of its hosts say.
struct RunKeys {
  std::string server;
  std::string client;  // Cannot act as the server.
};

// Draws new keys. Throws kInternal if OpenSSL refuses.
RunKeys MakeRunKeys();

// The results of an operation that does not block, instead of a number of bytes.
inline constexpr ssize_t kEnded = -1;  // The connection is over, or broken.
inline constexpr ssize_t kWouldBlock = -2;

class TlsContext {
 public:
  // `key` is RunKeys::server. Only TLS 1.3 and HTTP/2; the other side must show a key of the run.
  explicit TlsContext(const std::string& key);

 private:
  friend class TlsSession;
  std::shared_ptr<ssl_ctx_st> context_;
};

// One connection over the socket `fd`, which must outlive it.
class TlsSession {
 public:
  TlsSession(const TlsContext& context, int fd);

  // 1 if the handshake is done, kEnded if it has failed, or kWouldBlock.
  ssize_t Handshake();
  ssize_t Read(std::span<char> bytes);
  ssize_t Write(std::string_view bytes);

 private:
  ssize_t Result(int result);

  std::shared_ptr<ssl_st> session_;
};

}  // namespace dsat
