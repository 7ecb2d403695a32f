// SPDX-License-Identifier: Apache-2.0
#include "redis/slot_map.h"

#include <charconv>

namespace kvfolio::redis {

namespace {

constexpr std::array<std::uint16_t, 256> make_table() {
  std::array<std::uint16_t, 256> table{};
  for (unsigned i = 0; i < 256; ++i) {
    unsigned crc = i << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000u) != 0 ? crc << 1 ^ 0x1021u : crc << 1;
    table[i] = static_cast<std::uint16_t>(crc);
  }
  return table;
}
constexpr std::array<std::uint16_t, 256> kTable = make_table();
static_assert(kTable[1] == 0x1021 && kTable[255] == 0x1ef0);  // XMODEM

bool is_slot(const Reply& reply) {
  return reply.kind == Reply::Kind::kInteger && reply.integer >= 0 && reply.integer < kNumSlots;
}

bool read_range(const Reply& reply, SlotRange& out) {
  if (reply.kind != Reply::Kind::kArray || reply.elements.size() < 3) return false;
  const Reply& first = reply.elements[0];
  const Reply& last = reply.elements[1];
  const Reply& node = reply.elements[2];  // the primary; replicas follow
  if (!is_slot(first) || !is_slot(last) || first.integer > last.integer) return false;
  if (node.kind != Reply::Kind::kArray || node.elements.size() < 2) return false;
  const Reply& host = node.elements[0];
  const Reply& port = node.elements[1];
  if (port.kind != Reply::Kind::kInteger || port.integer < 1 || port.integer > 65535) return false;
  // "?" is a node whose address is not known yet.
  if (host.kind != Reply::Kind::kNil && host.kind != Reply::Kind::kString) return false;
  if (host.text == "?") return false;
  out.first = static_cast<int>(first.integer);
  out.last = static_cast<int>(last.integer);
  out.host = host.text;
  out.port = static_cast<std::uint16_t>(port.integer);
  return true;
}

}  // namespace

std::uint16_t crc16(std::string_view text) noexcept {
  unsigned crc = 0;
  for (const char c : text) {
    crc = (crc << 8 & 0xffffu) ^ kTable[(crc >> 8 ^ static_cast<unsigned char>(c)) & 0xffu];
  }
  return static_cast<std::uint16_t>(crc);
}

int slot_of(std::string_view key) noexcept { return crc16(key) % kNumSlots; }

std::vector<SlotRange> read_slots(const Reply& reply) {
  std::vector<SlotRange> ranges;
  if (reply.kind != Reply::Kind::kArray) return ranges;
  for (const Reply& element : reply.elements) {
    SlotRange range;
    if (read_range(element, range)) ranges.push_back(range);
  }
  return ranges;
}

bool split_address(std::string_view text, std::string& host, std::uint16_t& port) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  std::string_view name = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size() || port == 0) return false;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  } else if (name.find(':') != std::string_view::npos && name.front() == '[') {
    return false;
  }
  host = name;
  return host.size() < 256;
}

}  // namespace kvfolio::redis
