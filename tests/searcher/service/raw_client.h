// A client that sends any bytes to a server of dsat, over TLS if it has a key.
#pragma once

#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "engine/comm/socket.h"

namespace dsat {

inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Types and flags of frames (RFC 9113).
inline constexpr int kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kContinuation = 9;
inline constexpr int kEndStream = 1, kEndHeaders = 4;

// A frame of HTTP/2 with a payload.
inline std::string Http2Frame(int type, int flags, uint32_t stream, std::string_view payload) {
  std::string frame;
  for (const int shift : {16, 8, 0})
    frame += static_cast<char>(payload.size() >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0})
    frame += static_cast<char>(stream >> shift);
  return frame.append(payload);
}

class RawClient {
 public:
  // `address` is "unix:/PATH" or 127.0.0.1:PORT. A `key` without blocks is none.
  explicit RawClient(const std::string& address, const std::string& key = "") {
    if (address.starts_with("unix:")) {
      sockaddr_un name{};
      name.sun_family = AF_UNIX;
      address.copy(name.sun_path, sizeof(name.sun_path) - 1, 5);
      fd_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(fd_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0)
        fd_.Reset();
    } else {
      const int port = std::stoi(address.substr(address.rfind(':') + 1));
      fd_ = engine::ConnectTo(engine::Resolve("127.0.0.1", port).at(0),
                              std::chrono::steady_clock::now() + std::chrono::seconds(5));
      fcntl(fd_.get(), F_SETFL, 0);  // It blocks, at most for a second.
    }
    const timeval limit = {.tv_sec = 1, .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (fd_ && !key.empty() && !Handshake(key)) fd_.Reset();
  }

  explicit operator bool() const { return static_cast<bool>(fd_); }

  // Returns whether all of it could be sent.
  bool Send(std::string_view bytes) {
    while (fd_ && !bytes.empty()) {
      const ssize_t sent = tls_
                               ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                               : send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return static_cast<bool>(fd_);
  }

  // Returns the bytes that arrive within a second; "" at the end of the connection.
  std::string Receive() {
    std::string bytes(65536, 0);
    if (!fd_) return "";
    const ssize_t got = tls_ ? SSL_read(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                             : recv(fd_.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  bool HasBytes() const {
    pollfd line = {fd_.get(), POLLIN, 0};
    return (tls_ && SSL_pending(tls_.get()) > 0) || poll(&line, 1, 0) > 0;
  }

  // Begins as gRPC's clients do.
  bool Begin() { return Send(std::string(kHttp2Preface) + Http2Frame(kSettings, 0, 0, "")); }

 private:
  bool Handshake(const std::string& key) {
    context_ = {SSL_CTX_new(TLS_client_method()), SSL_CTX_free};
    const std::unique_ptr<BIO, decltype(&BIO_free_all)> blocks(
        BIO_new_mem_buf(key.data(), static_cast<int>(key.size())), BIO_free_all);
    EVP_PKEY* const own_key = PEM_read_bio_PrivateKey(blocks.get(), nullptr, nullptr, nullptr);
    X509* const own = PEM_read_bio_X509(blocks.get(), nullptr, nullptr, nullptr);
    if (own != nullptr) SSL_CTX_use_certificate(context_.get(), own);
    if (own_key != nullptr) SSL_CTX_use_PrivateKey(context_.get(), own_key);
    X509_free(own);
    EVP_PKEY_free(own_key);
    static constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context_.get(), kHttp2.data(), kHttp2.size());
    tls_ = {SSL_new(context_.get()), SSL_free};
    SSL_set_fd(tls_.get(), fd_.get());
    return SSL_connect(tls_.get()) == 1;
  }

  UniqueFd fd_;
  std::shared_ptr<SSL_CTX> context_;
  std::shared_ptr<SSL> tls_;
};

}  // namespace dsat
