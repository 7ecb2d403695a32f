// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which node of a cluster has a key. A key belongs to one of 16,384 slots by its CRC16 (the variant
// of XMODEM), https://redis.io/docs/reference/cluster-spec; CLUSTER SLOTS says whose the slots are.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "redis/reply.h"

namespace kvfolio::redis {

inline constexpr int kNumSlots = 16384;

[[nodiscard]] std::uint16_t crc16(std::string_view text) noexcept;
// Keys of ours have no braces, so the whole key counts.
[[nodiscard]] int slot_of(std::string_view key) noexcept;

struct SlotRange {
  int first = 0, last = 0;
  std::string host{};  // empty: of the node that was asked
  std::uint16_t port = 0;
};

// Reads a reply to CLUSTER SLOTS. Ranges and nodes that make no sense are left out.
[[nodiscard]] std::vector<SlotRange> read_slots(const Reply& reply);

// "HOST:PORT", "[HOST]:PORT"; false: it is neither.
[[nodiscard]] bool split_address(std::string_view text, std::string& host, std::uint16_t& port);

}  // namespace kvfolio::redis
