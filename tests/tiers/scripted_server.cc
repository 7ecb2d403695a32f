// SPDX-License-Identifier: Apache-2.0
#include "tiers/scripted_server.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "tiers/now.h"

namespace kvfolio::test {

namespace {

// Takes a whole command off the front: "*N", and N times "$BYTES" and the bytes.
bool take_command(std::string& in, std::vector<std::string>& words) {
  std::size_t at = 0;
  const auto number = [&](char kind, long& value) {
    const std::size_t end = in.find("\r\n", at);
    if (end == std::string::npos || in[at] != kind) return false;
    value = std::stol(in.substr(at + 1, end - at - 1));
    at = end + 2;
    return true;
  };
  long count = 0;
  if (!number('*', count)) return false;
  words.clear();
  for (long i = 0; i < count; ++i) {
    long bytes = 0;
    if (!number('$', bytes) || in.size() < at + static_cast<std::size_t>(bytes) + 2) return false;
    words.push_back(in.substr(at, static_cast<std::size_t>(bytes)));
    at += static_cast<std::size_t>(bytes) + 2;
  }
  in.erase(0, at);
  return true;
}

}  // namespace

ScriptedServer::ScriptedServer(Answer answer, Runs runs) : answer_(std::move(answer)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener_, name, bytes) != 0 || ::listen(listener_, 64) != 0 ||
      getsockname(listener_, name, &bytes) != 0) {
    throw std::runtime_error("no port on loopback");
  }
  port_ = ntohs(address.sin_port);
  if (runs == Runs::kByCaller) return;
  thread_ = std::thread([this] {
    while (!ends_) step(1);
  });
}

ScriptedServer::~ScriptedServer() {
  ends_ = true;
  if (thread_.joinable()) thread_.join();
  for (const Client& client : clients_) ::close(client.fd);
  ::close(listener_);
}

void ScriptedServer::step(int wait_ms) {
  std::vector<pollfd> events{{.fd = listener_, .events = POLLIN, .revents = 0}};
  for (const Client& client : clients_) {
    events.push_back({.fd = client.fd, .events = POLLIN, .revents = 0});
  }
  ::poll(events.data(), events.size(), wait_ms);
  for (Client& client : clients_) serve(client);
  std::erase_if(clients_, [](const Client& client) { return client.fd < 0; });
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  const int one = 1;  // or bytes are sent together
  static_cast<void>(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
  ++connections_;
  clients_.push_back({.fd = fd});
}

void ScriptedServer::hang_up() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  for (const Client& client : clients_) {
    static_cast<void>(setsockopt(client.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    ::close(client.fd);
  }
  clients_.clear();
}

void ScriptedServer::serve(Client& client) {
  std::array<char, 65536> some;
  ssize_t n = recv(client.fd, some.data(), some.size(), 0);
  if (n > 0) client.in.append(some.data(), static_cast<std::size_t>(n));
  bool gone = n == 0 || (n < 0 && errno != EAGAIN);
  std::vector<std::string> words;
  while (take_command(client.in, words)) client.out += answer_(words);
  const int drip_us = drip_us_;
  std::size_t most = client.out.size();
  if (drip_us > 0 && now_us() < client.next_us) most = 0;
  if (drip_us > 0 && most > 1) most = 1;
  if (most > 0) {
    client.next_us = now_us() + static_cast<std::uint64_t>(drip_us);
    n = send(client.fd, client.out.data(), most, MSG_NOSIGNAL);
    if (n > 0) client.out.erase(0, static_cast<std::size_t>(n));
    gone = gone || (n < 0 && errno != EAGAIN);
  }
  if (!gone) return;
  ::close(client.fd);
  client.fd = -1;
}

}  // namespace kvfolio::test
