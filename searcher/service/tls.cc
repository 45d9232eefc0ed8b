// The server's side of TLS over sockets that do not block.
#include "searcher/service/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "base/error.h"

namespace dsat {
namespace {

void CheckTls(bool done) {
  if (!done) Throw(ErrorCode::kInternal, "OpenSSL cannot use the key of this run");
}

// Chooses HTTP/2 from the protocols that a client offers.
int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kHttp2[] = "\x02h2";
  unsigned char* found = nullptr;
  const int result =
      SSL_select_next_proto(&found, size, kHttp2, sizeof(kHttp2) - 1, offered, offered_size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

TlsContext::TlsContext(const std::string& key)
    : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free) {
  SSL_CTX* const context = context_.get();
  CheckTls(context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> blocks(
      BIO_new_mem_buf(key.data(), static_cast<int>(key.size())), BIO_free_all);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> own_key(
      PEM_read_bio_PrivateKey(blocks.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> own(
      PEM_read_bio_X509(blocks.get(), nullptr, nullptr, nullptr), X509_free);
  const std::unique_ptr<X509, decltype(&X509_free)> authority(
      PEM_read_bio_X509(blocks.get(), nullptr, nullptr, nullptr), X509_free);
  CheckTls(own_key && own && authority);
  CheckTls(SSL_CTX_use_certificate(context, own.get()) == 1);
  CheckTls(SSL_CTX_use_PrivateKey(context, own_key.get()) == 1);
  CheckTls(X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) == 1);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_alpn_select_cb(context, ChooseProtocol, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  CheckTls(SSL_CTX_set_num_tickets(context, 0) == 1);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
}

TlsSession::TlsSession(const TlsContext& context, int fd)
    : session_(SSL_new(context.context_.get()), SSL_free) {
  CheckTls(session_ != nullptr && SSL_set_fd(session_.get(), fd) == 1);
  SSL_set_accept_state(session_.get());
}

ssize_t TlsSession::Result(int result) {
  if (result > 0) return result;
  const int error = SSL_get_error(session_.get(), result);
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? kWouldBlock : kEnded;
}

ssize_t TlsSession::Handshake() {
  ERR_clear_error();
  return Result(SSL_do_handshake(session_.get()));
}

ssize_t TlsSession::Read(std::span<char> bytes) {
  ERR_clear_error();
  return Result(SSL_read(session_.get(), bytes.data(), static_cast<int>(bytes.size())));
}

ssize_t TlsSession::Write(std::string_view bytes) {
  ERR_clear_error();
  return Result(SSL_write(session_.get(), bytes.data(), static_cast<int>(bytes.size())));
}

}  // namespace dsat
