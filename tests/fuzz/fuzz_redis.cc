// SPDX-License-Identifier: Apache-2.0

// The input is what a server of Redis says, in pieces. Each reply is whole and bounded, a target is
// written as a whole or not at all, and the slots that are read exist.

#include <algorithm>
#include <array>
#include <cstdint>

#include "kvfolio/status.h"
#include "redis/reply.h"
#include "redis/slot_map.h"

namespace {

using namespace kvfolio::redis;

void check(const Reply& reply, std::span<const std::byte> target) {
  KVFOLIO_CHECK(reply.text.size() <= Reply::kTextMax);
  KVFOLIO_CHECK(reply.elements.empty() || reply.kind == Reply::Kind::kArray);
  const auto untouched = [](std::byte byte) { return byte == std::byte{0xa5}; };
  KVFOLIO_CHECK(reply.delivered || std::all_of(target.begin(), target.end(), untouched));
  for (const SlotRange& range : read_slots(reply)) {
    KVFOLIO_CHECK(range.first >= 0 && range.first <= range.last && range.last < kNumSlots);
    KVFOLIO_CHECK(range.port != 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // The first byte says how long the pieces are.
  const std::size_t piece = std::size_t{data[0]} + 1;
  std::span<const char> rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string host;
  std::uint16_t port = 0;
  static_cast<void>(
      split_address({rest.data(), std::min<std::size_t>(rest.size(), 64)}, host, port));
  ReplyReader reader;
  while (!rest.empty()) {
    const auto next = rest.first(std::min(piece, rest.size()));
    rest = rest.subspan(next.size());
    if (!reader.feed(next)) return 0;
    for (;;) {
      std::array<std::byte, 16> target;
      target.fill(std::byte{0xa5});
      const Reply* reply = nullptr;
      const ReplyReader::Next what = reader.next(target, reply, Reply::kNodesMax);
      if (what == ReplyReader::Next::kBroken) return 0;
      if (what == ReplyReader::Next::kMore) break;
      check(*reply, target);
    }
  }
  return 0;
}
