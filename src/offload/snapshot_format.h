// SPDX-License-Identifier: Apache-2.0
#pragma once

// The sections of a snapshot. Each begins at a multiple of 64 with a header of 64 bytes:
//
//    0  magic "KVFS" (4), version (2), type (2)
//    8  its own place in the file (8)
//   16  bytes of the body (8)
//   24  checksum of the body, XXH3-64 with the place as seed; 0 for a record, which has its own (8)
//   32  a (4), b (4): see the types
//   40  zero (20)
//   60  CRC-32C of the 60 bytes before (4)
//
//   type       a           b        body
//   identity   groups      unit     fields: name and value, each a length (4) and its bytes
//   root       its number  -        four texts as above (model, adapter, version, salt), epoch (8)
//   tokens     first node  before   root (4), begin (4), tokens (4), spans (4), the tokens, the
//                                   spans: begin (4), end (4), content (32), attends (1)
//   record     node        group    a record (record.h)
//   sequence   node        priority flags (4: 1 has a caller id, 2 publishes full blocks only),
//                                   max_tokens (4), caller id (8), tokens that others could find
//                                   (4), the hash of its tokens (32)
//   end        -           -        number of sections before it (8)
//
// The bytes between a body and the next multiple of 64 are zero. A node is a unit of tokens, or the
// part of a unit that ends a path. Nodes are numbered in the order of the file, and what stands
// before a node comes before it (kNoNode: nothing does). Thread safety: values.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/little_endian.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio::snapshot {

inline constexpr std::uint32_t kMagic = 0x5346564b;  // "KVFS"
inline constexpr std::uint16_t kVersion = 2;
inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::int64_t kAlignment = 64;
inline constexpr std::uint32_t kNoNode = 0xffffffff;
inline constexpr std::size_t kSpanBytes = 4 + 4 + 32 + 1;

// Limits of a section of tokens, in a file that is written: the last node may pass the second one.
inline constexpr std::uint32_t kNodesMax = 4096;
inline constexpr std::size_t kTokensMax = 65536;
// Bytes of a body that is no record, in a file that is read. Tokens take the most: each may have a
// span of its own.
inline constexpr std::int64_t kBodyMax = 4 << 20;
static_assert(kBodyMax > 16 + (kTokensMax + kMaxBlockSize) * (4 + kSpanBytes));
// What a reader takes in memory for all that leads to records, and how many bytes it reads in vain,
// looking for the next header or over bodies that are damaged: whatever a file says, and however
// long it is.
struct Limits {
  std::int64_t memory_bytes = 512 << 20;
  std::int64_t bytes_in_vain = 1 << 30;
};

enum class Type : std::uint16_t {
  kIdentity = 1,
  kRoot = 2,
  kTokens = 3,
  kRecord = 4,
  kSequence = 5,
  kEnd = 6,
};

struct SectionHeader {
  std::uint16_t version = kVersion;
  Type type = Type::kEnd;
  std::int64_t place = 0;
  std::int64_t body_bytes = 0;
  std::uint64_t checksum = 0;
  std::uint32_t a = 0, b = 0;
};

inline void write_header(const SectionHeader& header, std::span<std::byte, kHeaderBytes> out) {
  KVFOLIO_CHECK(header.place % kAlignment == 0 && header.body_bytes >= 0);
  std::memset(out.data(), 0, out.size());
  LittleEndianWriter to(out);
  to.put(kMagic);
  to.put(header.version);
  to.put(static_cast<std::uint16_t>(header.type));
  to.put(header.place);
  to.put(header.body_bytes);
  to.put(header.checksum);
  to.put(header.a);
  to.put(header.b);
  LittleEndianWriter(out.subspan(60)).put(crc32c(out.first(60)));
}

// False: these bytes are no header of a section at this place.
[[nodiscard]] inline bool read_header(std::span<const std::byte, kHeaderBytes> in,
                                      std::int64_t place, SectionHeader& out) {
  LittleEndianReader from(in);
  if (from.get<std::uint32_t>() != kMagic) return false;
  if (LittleEndianReader(in.subspan(60)).get<std::uint32_t>() != crc32c(in.first(60))) return false;
  out.version = from.get<std::uint16_t>();
  out.type = static_cast<Type>(from.get<std::uint16_t>());
  out.place = from.get<std::int64_t>();
  out.body_bytes = from.get<std::int64_t>();
  out.checksum = from.get<std::uint64_t>();
  out.a = from.get<std::uint32_t>();
  out.b = from.get<std::uint32_t>();
  return out.place == place && out.body_bytes >= 0;
}

[[nodiscard]] inline std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace kvfolio::snapshot
