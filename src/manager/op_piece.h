// SPDX-License-Identifier: Apache-2.0
#pragma once

// The pieces in which a log holds its calls: one for each write to the sink. A piece is a header of
// 12 bytes (how many bytes follow, their hash, and a hash of these two and of the piece's place in
// the file) and the bytes. So a changed byte is seen before a call is believed, and so is a piece
// that is missing, repeated or in another place. A call may begin in one piece and end in the next.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/hash.h"
#include "base/little_endian.h"

namespace kvfolio::op_piece {

inline constexpr std::size_t kHeaderBytes = 12;
inline constexpr std::size_t kMostBytes = std::size_t{16384} - kHeaderBytes;

struct Header {
  std::uint32_t bytes = 0;
  std::uint32_t hash = 0;
  std::uint32_t check = 0;

  friend bool operator==(const Header&, const Header&) = default;
};

// `place`: of the header in the file.
[[nodiscard]] inline std::uint32_t check_of(std::uint32_t bytes, std::uint32_t hash,
                                            std::uint64_t place) noexcept {
  std::array<std::byte, 8> both{};
  LittleEndianWriter to(both);
  to.put(bytes);
  to.put(hash);
  return static_cast<std::uint32_t>(XXH3_64bits_withSeed(both.data(), both.size(), place));
}

[[nodiscard]] inline std::uint32_t hash_of(std::span<const std::byte> body) noexcept {
  return static_cast<std::uint32_t>(XXH3_64bits(body.data(), body.size()));
}

// Requires: 1 to kMostBytes bytes.
[[nodiscard]] inline std::array<std::byte, kHeaderBytes> header_of(std::span<const std::byte> body,
                                                                   std::uint64_t place) noexcept {
  const auto bytes = static_cast<std::uint32_t>(body.size());
  const std::uint32_t hash = hash_of(body);
  std::array<std::byte, kHeaderBytes> header{};
  LittleEndianWriter to(header);
  to.put(bytes);
  to.put(hash);
  to.put(check_of(bytes, hash, place));
  return header;
}

[[nodiscard]] inline Header read(std::span<const std::byte, kHeaderBytes> header) noexcept {
  LittleEndianReader from(header);
  Header read;
  read.bytes = from.get<std::uint32_t>();
  read.hash = from.get<std::uint32_t>();
  read.check = from.get<std::uint32_t>();
  return read;
}

}  // namespace kvfolio::op_piece
