// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a RedisTier knows of a node of the cluster, and of each of its two connections. Invariants:
// a lane is of the node that it lies in; epoll knows only descriptors that are open. Thread safety:
// values.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "redis/breaker.h"
#include "redis/connection.h"
#include "redis/items.h"

namespace kvfolio::redis {

struct Lane {
  Node* node = nullptr;
  Connection connection;
  Items::Queue queue;
  std::uint32_t interest = 0;  // as epoll knows it; 0: it does not know the descriptor
  Breaker breaker;

  [[nodiscard]] bool is_open() const noexcept { return breaker.is_open(); }
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

  // Null: none is broken.
  [[nodiscard]] const char* broken_rule(GrowingPause::Limits pauses) const {
    for (const Lane& lane : lanes) {
      if (lane.node != this) return "a lane is of another node";
      if (lane.interest != 0 && lane.connection.fd() < 0) {
        return "a descriptor that is closed is waited for";
      }
      if (!lane.breaker.check(pauses)) return "a breaker is open without its failures";
      if (!lane.connection.check()) return "the bytes of a connection are miscounted";
    }
    return nullptr;
  }
};

}  // namespace kvfolio::redis
