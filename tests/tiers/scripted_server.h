// SPDX-License-Identifier: Apache-2.0
#pragma once

// A server on loopback that says what a test tells it to: for replies that no Redis would give. One
// thread of its own, or the caller's, and one connection after another has its turn in it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvfolio::test {

class ScriptedServer {
 public:
  // What is said to a command, of whose words each is one element.
  using Answer = std::function<std::string(const std::vector<std::string>& words)>;

  // kByCaller: a process that forks has no thread, and calls step().
  enum class Runs : std::uint8_t { kInAThread, kByCaller };

  explicit ScriptedServer(Answer answer, Runs runs = Runs::kInAThread);
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Each answer takes so long for each of its bytes; 0: at once.
  void drip(int microseconds) { drip_us_ = microseconds; }
  [[nodiscard]] int connections() const { return connections_; }
  // Both with kByCaller only. Waits that long for something to answer, and answers what came.
  void step(int wait_ms);
  // Every connection ends at once, with what was on its way.
  void hang_up();

 private:
  struct Client {
    int fd = -1;
    std::string in{}, out{};
    std::uint64_t next_us = 0;  // when the next byte of `out` goes
  };
  void serve(Client& client);

  Answer answer_;
  std::vector<Client> clients_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> drip_us_ = 0;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace kvfolio::test
