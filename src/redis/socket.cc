// SPDX-License-Identifier: Apache-2.0
#include "redis/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "kvfolio/status.h"

namespace kvfolio::redis {

namespace {

void set_option(int fd, int level, int option, int value) {
  // Each of them only makes failures seen sooner or replies come sooner.
  static_cast<void>(setsockopt(fd, level, option, &value, sizeof value));
}

}  // namespace

std::vector<Address> resolve(const std::string& host, std::uint16_t port, bool numeric) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0);
  addrinfo* list = nullptr;
  std::vector<Address> addresses;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return addresses;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Address address;
    if (one->ai_addrlen > sizeof address.storage) continue;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.bytes = one->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  return addresses;
}

Scope scope_of(const Address& address) noexcept {
  in_addr v4{};
  if (address.storage.ss_family == AF_INET6) {
    in6_addr v6{};
    std::memcpy(&v6, &reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr, sizeof v6);
    if (IN6_IS_ADDR_LOOPBACK(&v6) || IN6_IS_ADDR_UNSPECIFIED(&v6)) return Scope::kMachine;
    if (IN6_IS_ADDR_LINKLOCAL(&v6)) return Scope::kLink;
    if (!IN6_IS_ADDR_V4MAPPED(&v6)) return Scope::kAny;
    std::memcpy(&v4, v6.s6_addr + 12, sizeof v4);
  } else {
    std::memcpy(&v4, &reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr, sizeof v4);
  }
  const std::uint32_t number = ntohl(v4.s_addr);
  if (number >> 24 == 127 || number >> 24 == 0) return Scope::kMachine;
  return number >> 16 == 0xa9feu ? Scope::kLink : Scope::kAny;
}

bool Socket::open(const Address& address, const TlsContext* tls, const std::string& host,
                  std::uint64_t timeout_us) {
  KVFOLIO_CHECK(address.bytes <= sizeof address.storage);
  close();
  tls_ = tls;
  host_ = host;
  fd_ = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) {
    fail_errno("socket", errno);
    return false;
  }
  set_option(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout_us / 1000 + 1));
  wants_write_ = true;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the type of sockets
  const auto* target = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(fd_, target, address.bytes) == 0 || errno == EINPROGRESS || errno == EINTR) {
    return true;
  }
  fail_errno("connect", errno);
  return false;
}

Socket::Io Socket::fail(std::string why) {
  error_ = std::move(why);
  return Io::kFailed;
}

Socket::Io Socket::fail_errno(const char* what, int number) {
  std::array<char, 128> text{};
  return fail(std::string(what) + ": " + strerror_r(number, text.data(), text.size()));
}

Socket::Io Socket::go_on() {
  if (!connected_) {
    int number = 0;
    socklen_t bytes = sizeof number;
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &number, &bytes) != 0) number = errno;
    if (number != 0) return fail_errno("connect", number);
    sockaddr_storage peer{};
    bytes = sizeof peer;
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the type of sockets
    if (getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return Io::kAgain;
    connected_ = true;
    wants_write_ = false;
  }
  if (tls_ == nullptr || greeted_) return Io::kDone;
  return begin_tls(*tls_);
}

void Socket::close() noexcept {
  end_tls();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  connected_ = wants_write_ = greeted_ = false;
  blocked_bytes_ = 0;
}

Socket::Io Socket::read(std::span<char> to, std::size_t& bytes) {
  KVFOLIO_DCHECK(fd_ >= 0 && connected_);
  if (ssl_ != nullptr) return tls_read(to, bytes);
  for (;;) {
    const ssize_t n = recv(fd_, to.data(), to.size(), 0);
    if (n > 0) {
      bytes = static_cast<std::size_t>(n);
      return Io::kDone;
    }
    if (n == 0) return fail("the server closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::kAgain;
    if (errno != EINTR) return fail_errno("recv", errno);
  }
}

Socket::Io Socket::write(std::span<const char> from, std::size_t& bytes) {
  KVFOLIO_DCHECK(fd_ >= 0 && connected_ && !from.empty());
  if (ssl_ != nullptr) return tls_write(from, bytes);
  wants_write_ = false;
  for (;;) {
    const ssize_t n = send(fd_, from.data(), from.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes = static_cast<std::size_t>(n);
      return Io::kDone;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return fail_errno("send", errno);
    wants_write_ = true;
    return Io::kAgain;
  }
}

}  // namespace kvfolio::redis
