// SPDX-License-Identifier: Apache-2.0
//
// TLS of a Socket, by OpenSSL. Its own functions for sockets write with write(), which ends a
// process with SIGPIPE when the other side is gone; ours use send() and MSG_NOSIGNAL.

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/text.h"
#include "kvfolio/status.h"
#include "redis/socket.h"

namespace kvfolio::redis {

namespace {

int fd_of(BIO* bio) { return *static_cast<const int*>(BIO_get_data(bio)); }

int finish(BIO* bio, ssize_t n, int flags) {
  BIO_clear_retry_flags(bio);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_flags(bio, flags | BIO_FLAGS_SHOULD_RETRY);
  }
  return static_cast<int>(n);
}

int bio_write(BIO* bio, const char* from, int bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  return finish(bio, send(fd_of(bio), from, size, MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

int bio_read(BIO* bio, char* to, int bytes) {
  return finish(bio, recv(fd_of(bio), to, static_cast<std::size_t>(bytes), 0), BIO_FLAGS_READ);
}

long bio_control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* make_method() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvfolio socket");
  if (method == nullptr) return nullptr;
  BIO_meth_set_write(method, bio_write);
  BIO_meth_set_read(method, bio_read);
  BIO_meth_set_ctrl(method, bio_control);
  return method;
}

// Lives as long as the process.
const BIO_METHOD* method() {
  static const BIO_METHOD* const made = make_method();
  return made;
}

std::string last_error() {
  std::array<char, 256> words{};
  const unsigned long code = ERR_get_error();
  if (code == 0) return "no reason given";
  ERR_error_string_n(code, words.data(), words.size());
  ERR_clear_error();
  return words.data();
}

Status bad_file(const char* what, std::string_view file) {
  return {ErrorCode::kInvalidArgument,
          text::concat("tls.", what, ": ", file, " cannot be used: ", last_error())};
}

Status load_files(SSL_CTX* context, const RedisTls& options) {
  const std::string ca(options.ca_file);
  const std::string cert(options.cert_file);
  const std::string key(options.key_file);
  if (ca.empty() ? SSL_CTX_set_default_verify_paths(context) != 1
                 : SSL_CTX_load_verify_locations(context, ca.c_str(), nullptr) != 1) {
    return bad_file("ca_file", ca);
  }
  if (cert.empty() != key.empty()) {
    return {ErrorCode::kInvalidArgument, "tls: cert_file and key_file are given together"};
  }
  if (cert.empty()) return {};
  if (SSL_CTX_use_certificate_chain_file(context, cert.c_str()) != 1) {
    return bad_file("cert_file", cert);
  }
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return bad_file("key_file", key);
  }
  return {};
}

// The certificate must be of this name or address.
bool expect_name(SSL* ssl, const std::string& name) {
  in6_addr address{};
  if (inet_pton(AF_INET, name.c_str(), &address) == 1 ||
      inet_pton(AF_INET6, name.c_str(), &address) == 1) {
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str()) == 1;
  }
  return SSL_set1_host(ssl, name.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, name.c_str()) == 1;
}

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::create(const RedisTls& options) {
  std::unique_ptr<TlsContext> made(new TlsContext);
  ERR_clear_error();
  made->context_ = SSL_CTX_new(TLS_client_method());
  if (made->context_ == nullptr) {
    return Status(ErrorCode::kOutOfMemory, "TLS: " + last_error());
  }
  SSL_CTX_set_verify(made->context_, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_min_proto_version(made->context_, TLS1_2_VERSION);
  // Servers that end without a farewell are the normal case, and say so to read().
  // A second handshake would be work without end for who wants it so; TLS 1.3 has none.
  SSL_CTX_set_options(made->context_, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(made->context_,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  made->server_name_ = options.server_name;
  if (Status status = load_files(made->context_, options); !status.ok()) return status;
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Socket::Io Socket::begin_tls(const TlsContext& tls) {
  if (ssl_ == nullptr) {
    const std::string& name = tls.server_name().empty() ? host_ : tls.server_name();
    ssl_ = SSL_new(tls.get());
    BIO* bio = method() == nullptr ? nullptr : BIO_new(method());
    if (ssl_ == nullptr || bio == nullptr || !expect_name(ssl_, name)) {
      BIO_free(bio);
      return fail("TLS: no memory");
    }
    BIO_set_data(bio, &fd_);  // the socket outlives its TLS
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_, bio, bio);
    SSL_set_connect_state(ssl_);
  }
  ERR_clear_error();
  const Io io = tls_result(SSL_do_handshake(ssl_));
  greeted_ = io == Io::kDone;
  return io;
}

Socket::Io Socket::tls_result(int result) {
  wants_write_ = false;
  if (result > 0) return Io::kDone;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return Io::kAgain;
    case SSL_ERROR_WANT_WRITE:
      wants_write_ = true;
      return Io::kAgain;
    case SSL_ERROR_ZERO_RETURN:
      return fail("the server closed the connection");
    default:
      break;
  }
  const long verdict = SSL_get_verify_result(ssl_);
  if (verdict != X509_V_OK) {
    ERR_clear_error();
    return fail(std::string("TLS: the certificate of the server is refused: ") +
                X509_verify_cert_error_string(verdict));
  }
  const int number = errno;
  if (ERR_peek_error() == 0) return fail_errno("TLS", number != 0 ? number : ECONNRESET);
  return fail("TLS: " + last_error());
}

Socket::Io Socket::tls_read(std::span<char> to, std::size_t& bytes) {
  ERR_clear_error();
  const int n =
      SSL_read(ssl_, to.data(), static_cast<int>(std::min<std::size_t>(to.size(), INT_MAX)));
  if (n > 0) bytes = static_cast<std::size_t>(n);
  return tls_result(n);
}

Socket::Io Socket::tls_write(std::span<const char> from, std::size_t& bytes) {
  ERR_clear_error();
  const int n =
      SSL_write(ssl_, from.data(), static_cast<int>(std::min<std::size_t>(from.size(), INT_MAX)));
  if (n > 0) bytes = static_cast<std::size_t>(n);
  KVFOLIO_DCHECK(from.size() >= blocked_bytes_);  // an attempt that is made again has no less
  blocked_bytes_ = n > 0 ? 0 : from.size();
  return tls_result(n);
}

void Socket::end_tls() noexcept {
  if (ssl_ != nullptr) SSL_free(ssl_);
  ssl_ = nullptr;
}

}  // namespace kvfolio::redis
