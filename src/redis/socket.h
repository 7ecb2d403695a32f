// SPDX-License-Identifier: Apache-2.0
#pragma once

// A TCP connection that never waits, with TLS or without. Thread safety: none.

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvfolio/redis_tier.h"

struct ssl_ctx_st;
struct ssl_st;

namespace kvfolio::redis {

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

// The addresses of a name. With `numeric`, of an address in text only, and never waits; else it
// asks the name servers.
[[nodiscard]] std::vector<Address> resolve(const std::string& host, std::uint16_t port,
                                           bool numeric);

// Who may have the address: any machine, this one alone, or those of one link (169.254.0.0/16,
// where clouds have their metadata).
enum class Scope : std::uint8_t { kAny, kMachine, kLink };
[[nodiscard]] Scope scope_of(const Address& address) noexcept;

// What all connections of a tier share: certificates, and what is accepted.
class TlsContext {
 public:
  // kInvalidArgument: a file that cannot be read or does not fit, by its name.
  static Result<std::unique_ptr<TlsContext>> create(const RedisTls& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  [[nodiscard]] ssl_ctx_st* get() const noexcept { return context_; }
  [[nodiscard]] const std::string& server_name() const noexcept { return server_name_; }

 private:
  TlsContext() = default;
  ssl_ctx_st* context_ = nullptr;
  std::string server_name_;
};

class Socket {
 public:
  enum class Io : std::uint8_t { kDone, kAgain, kFailed };

  Socket() = default;
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Begins to connect. False: error() says why.
  bool open(const Address& address, const TlsContext* tls, const std::string& host,
            std::uint64_t timeout_us);
  void close() noexcept;
  [[nodiscard]] int fd() const noexcept { return fd_; }
  // Goes on with connecting and, after that, with the handshake of TLS. kDone: data may flow.
  Io go_on();
  // Reads or writes what it can: kDone with bytes > 0.
  Io read(std::span<char> to, std::size_t& bytes);
  Io write(std::span<const char> from, std::size_t& bytes);
  // It waits for room to write, beside what the caller has to write.
  [[nodiscard]] bool wants_write() const noexcept { return wants_write_; }
  // Bytes of the last write(), if TLS could not send them yet; else 0.
  [[nodiscard]] std::size_t blocked_bytes() const noexcept { return blocked_bytes_; }
  [[nodiscard]] const std::string& error() const noexcept { return error_; }

 private:
  // In tls.cc.
  Io begin_tls(const TlsContext& tls);
  Io tls_read(std::span<char> to, std::size_t& bytes);
  Io tls_write(std::span<const char> from, std::size_t& bytes);
  Io tls_result(int result);
  void end_tls() noexcept;
  Io fail(std::string why);
  Io fail_errno(const char* what, int number);

  int fd_ = -1;
  bool connected_ = false;
  bool wants_write_ = false;
  std::size_t blocked_bytes_ = 0;
  const TlsContext* tls_ = nullptr;
  ssl_st* ssl_ = nullptr;
  bool greeted_ = false;  // the handshake is over
  std::string host_;
  std::string error_;
};

}  // namespace kvfolio::redis
