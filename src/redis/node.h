// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a RedisTier knows of a node of the cluster, and of each of its two connections. Thread
// safety: values.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "redis/connection.h"
#include "redis/items.h"
#include "tiers/growing_pause.h"

namespace kvfolio::redis {

struct Lane {
  static constexpr int kFailuresMax = 3;

  Node* node = nullptr;
  Connection connection;
  Items::Queue queue;
  std::uint32_t interest = 0;  // as epoll knows it; 0: it does not know the descriptor
  // The breaker: after kFailuresMax it is open, until a connection is greeted.
  int failures = 0;
  GrowingPause pause;          // no connection is begun in it,
  std::uint64_t retry_us = 0;  // nor before this

  [[nodiscard]] bool is_open() const noexcept { return failures >= kFailuresMax; }
  [[nodiscard]] bool is_ready() const noexcept {
    return connection.state() == Connection::State::kReady;
  }
};

enum LaneName : std::uint8_t { kLoads = 0, kStores = 1 };

struct Node {
  std::string host;
  std::uint16_t port = 0;
  std::vector<Address> addresses;
  std::size_t next_address = 0;
  bool is_seed = false;
  bool too_near = false;  // it is announced at an address of this machine or link
  bool in_map = false;
  bool is_used = false;  // while drop_strangers() looks
  bool tried = false;    // a connection has been begun
  bool refuses = false;  // it answers, and says that we may not ask
  std::array<Lane, 2> lanes;
  std::string trouble;  // of the last failure
};

}  // namespace kvfolio::redis
