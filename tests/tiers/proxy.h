// SPDX-License-Identifier: Apache-2.0
#pragma once

// A TCP proxy on loopback that damages what goes through it: for tests of what a network may do.
// One thread of its own. Faults may be changed at any time; they count from then on.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvfolio::test {

enum class ProxyFault : std::uint8_t {
  kNone,
  kDelay,      // everything comes 20 ms late
  kFragments,  // one byte at a time from the server, for the first 4,000 of each connection
  kCut,        // closes after 700 to 30,000 bytes from the server
  kReset,      // the same, with RST
  kSilence,    // accepts, and says nothing
  kGarbage,    // a few bytes from the server are others
  kDrip,       // a kilobyte every 10 ms
  kRefuse,     // closes at once
  kNoStores,   // closes a connection that says SET
};
inline constexpr int kNumProxyFaults = 10;

class Proxy {
 public:
  explicit Proxy(int target_port, std::uint32_t seed = 1);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  [[nodiscard]] int port() const { return port_; }
  void set(ProxyFault fault) { fault_ = fault; }

 private:
  void work(std::uint32_t seed);

  int target_port_;
  int port_ = 0;
  int listener_ = -1;
  std::atomic<ProxyFault> fault_ = ProxyFault::kNone;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace kvfolio::test
