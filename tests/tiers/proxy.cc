// SPDX-License-Identifier: Apache-2.0
#include "tiers/proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <list>
#include <random>
#include <stdexcept>
#include <string>

namespace kvfolio::test {

namespace {

using Clock = std::chrono::steady_clock;

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// One direction of a connection.
struct Way {
  int from = -1, to = -1;
  std::string held{};       // read, not written yet
  Clock::time_point due{};  // not before
  std::int64_t passed = 0;
};

struct Pair {
  int client = -1, server = -1;
  Way up, down;
  std::int64_t cut_at = 0;
  bool dead = false;
};

void no_waiting(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

void end(Pair& pair, bool reset) {
  if (reset) {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  close(pair.client);
  close(pair.server);
  pair.dead = true;
}

class Worker {
 public:
  Worker(int target_port, std::uint32_t seed) : target_port_(target_port), random_(seed) {}
  ~Worker() {
    for (Pair& pair : pairs_) end(pair, false);
  }

  void accept_one(int listener, ProxyFault fault) {
    const int client = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (client < 0) return;
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(target_port_);
    const bool connected =
        connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (!connected || fault == ProxyFault::kRefuse) {
      close(client);
      close(server);
      return;
    }
    no_waiting(server);
    const int on = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Pair& pair = pairs_.emplace_back();
    pair.client = client;
    pair.server = server;
    pair.up = {.from = client, .to = server};
    pair.down = {.from = server, .to = client};
    pair.cut_at = 700 + static_cast<std::int64_t>(random_() % 30000);
  }

  void move_all(ProxyFault fault) {
    for (Pair& pair : pairs_) {
      move(pair, pair.up, false, fault);
      if (!pair.dead) move(pair, pair.down, true, fault);
    }
    pairs_.remove_if([](const Pair& pair) { return pair.dead; });
  }

 private:
  void move(Pair& pair, Way& way, bool from_server, ProxyFault fault) {
    if (fault == ProxyFault::kSilence && from_server) return;
    if (way.held.empty() && !take(pair, way, from_server, fault)) return;
    if (Clock::now() < way.due) return;
    std::size_t most = way.held.size();
    if (from_server && fault == ProxyFault::kFragments && way.passed < 4000) most = 1;
    if (from_server && fault == ProxyFault::kDrip) {
      most = std::min<std::size_t>(most, 1024);
      way.due = Clock::now() + std::chrono::milliseconds(10);
    }
    const ssize_t n = send(way.to, way.held.data(), most, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return end(pair, false);
    if (n <= 0) return;
    way.held.erase(0, static_cast<std::size_t>(n));
    way.passed += n;
    const bool cuts = fault == ProxyFault::kCut || fault == ProxyFault::kReset;
    if (from_server && cuts && way.passed >= pair.cut_at) end(pair, fault == ProxyFault::kReset);
  }

  bool take(Pair& pair, Way& way, bool from_server, ProxyFault fault) {
    std::array<char, 65536> piece;
    const ssize_t n = recv(way.from, piece.data(), piece.size(), 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
      end(pair, false);
      return false;
    }
    if (n < 0) return false;
    way.held.assign(piece.data(), static_cast<std::size_t>(n));
    const bool stores = way.held.find("$3\r\nSET\r\n") != std::string::npos;
    if (fault == ProxyFault::kNoStores && stores) {
      end(pair, false);
      return false;
    }
    if (fault == ProxyFault::kDelay) way.due = Clock::now() + std::chrono::milliseconds(20);
    if (fault == ProxyFault::kGarbage && from_server && random_() % 4 == 0) {
      for (int i = 0; i < 3; ++i) {
        way.held[random_() % way.held.size()] = static_cast<char>(random_());
      }
    }
    return true;
  }

  int target_port_;
  std::mt19937 random_;
  std::list<Pair> pairs_;
};

}  // namespace

Proxy::Proxy(int target_port, std::uint32_t seed) : target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t bytes = sizeof address;
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    throw std::runtime_error("proxy: cannot listen");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this, seed] { work(seed); });
}

Proxy::~Proxy() {
  ends_ = true;
  thread_.join();
  close(listener_);
}

void Proxy::work(std::uint32_t seed) {
  Worker worker(target_port_, seed);
  while (!ends_) {
    // Bytes are looked for every 200 microseconds: simple, and soon enough.
    pollfd descriptor{.fd = listener_, .events = POLLIN, .revents = 0};
    const timespec pause{.tv_sec = 0, .tv_nsec = 200'000};
    if (ppoll(&descriptor, 1, &pause, nullptr) > 0) worker.accept_one(listener_, fault_);
    worker.move_all(fault_);
  }
}

}  // namespace kvfolio::test
