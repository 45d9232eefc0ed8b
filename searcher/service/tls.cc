// Makes the keys of a run, and speaks TLS over sockets that do not block.
#include "searcher/service/tls.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/error.h"
#include "proto/client.h"

namespace dsat {
namespace {

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* object) const { kFree(object); }
};
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509, X509_free>>;
using Text = std::unique_ptr<BIO, Free<BIO, BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION, X509_EXTENSION_free>>;

void Check(bool done) {
  if (!done) Throw(ErrorCode::kInternal, "OpenSSL cannot make or use the keys of this run");
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  const Extension extension(X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str()));
  Check(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

// A certificate for `key` without a signature.
Certificate MakeCertificate(EVP_PKEY* key, const std::string& name, X509* issuer) {
  Certificate made(X509_new());
  Check(made != nullptr && X509_set_version(made.get(), 2) == 1);
  uint32_t serial = 0;
  Check(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) == 1);
  Check(ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()), serial) == 1);
  Check(ASN1_TIME_set_string(X509_getm_notBefore(made.get()), "19700101000000Z") == 1);
  Check(ASN1_TIME_set_string(X509_getm_notAfter(made.get()), "99991231235959Z") == 1);
  Check(X509_set_pubkey(made.get(), key) == 1);
  X509_NAME* const subject = X509_get_subject_name(made.get());
  Check(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                   reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                   0) == 1);
  X509* const by = issuer != nullptr ? issuer : made.get();
  Check(X509_set_issuer_name(made.get(), X509_get_subject_name(by)) == 1);
  return made;
}

Key DrawKey() {
  Key key(EVP_EC_gen("P-256"));
  Check(key != nullptr);
  return key;
}

std::string Pem(EVP_PKEY* key, X509* certificate, X509* authority) {
  const Text bio(BIO_new(BIO_s_mem()));
  Check(bio != nullptr);
  Check(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  Check(PEM_write_bio_X509(bio.get(), certificate) == 1);
  Check(PEM_write_bio_X509(bio.get(), authority) == 1);
  char* text = nullptr;
  const int64_t size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(size)};
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

RunKeys MakeRunKeys() {
  const Key authority_key = DrawKey();
  const Certificate authority = MakeCertificate(authority_key.get(), "dsat run", nullptr);
  AddExtension(authority.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(authority.get(), NID_key_usage, "critical,keyCertSign");
  Check(X509_sign(authority.get(), authority_key.get(), EVP_sha256()) > 0);
  const auto issue = [&](const std::string& usage) {
    const Key key = DrawKey();
    const Certificate certificate = MakeCertificate(key.get(), kKeyName, authority.get());
    AddExtension(certificate.get(), NID_subject_alt_name, std::string("DNS:") + kKeyName);
    AddExtension(certificate.get(), NID_ext_key_usage, usage);
    Check(X509_sign(certificate.get(), authority_key.get(), EVP_sha256()) > 0);
    return Pem(key.get(), certificate.get(), authority.get());
  };
  return {.server = issue("serverAuth"), .client = issue("clientAuth")};
}

TlsContext::TlsContext(const std::string& key)
    : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free) {
  SSL_CTX* const context = context_.get();
  Check(context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
  const Text blocks(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())));
  const Key own_key(PEM_read_bio_PrivateKey(blocks.get(), nullptr, nullptr, nullptr));
  const Certificate own(PEM_read_bio_X509(blocks.get(), nullptr, nullptr, nullptr));
  const Certificate authority(PEM_read_bio_X509(blocks.get(), nullptr, nullptr, nullptr));
  Check(own_key && own && authority);
  Check(SSL_CTX_use_certificate(context, own.get()) == 1);
  Check(SSL_CTX_use_PrivateKey(context, own_key.get()) == 1);
  Check(X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) == 1);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_alpn_select_cb(context, ChooseProtocol, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  Check(SSL_CTX_set_num_tickets(context, 0) == 1);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
}

TlsSession::TlsSession(const TlsContext& context, int fd)
    : session_(SSL_new(context.context_.get()), SSL_free) {
  Check(session_ != nullptr && SSL_set_fd(session_.get(), fd) == 1);
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
