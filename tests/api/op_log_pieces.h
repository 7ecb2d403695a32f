// SPDX-License-Identifier: Apache-2.0
#pragma once

// Operation logs taken apart and put together as one who knows the format would, so that tests and
// the fuzzer reach what stands behind the checksums.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "manager/op_codes.h"
#include "manager/op_piece.h"

namespace kvfolio::op_log_pieces {

using Bytes = std::vector<std::byte>;

// Magic, format and size of the body.
inline constexpr std::size_t kHeadBytes = 16;

// Bytes of the header with its hash; 0: it is not all there.
inline std::size_t header_bytes(std::span<const std::byte> log) {
  if (log.size() < kHeadBytes) return 0;
  const auto size = LittleEndianReader(log.subspan(12)).get<std::uint32_t>();
  return size <= kMostHeaderBytes && size + kHeadBytes + 4 <= log.size() ? size + kHeadBytes + 4
                                                                         : 0;
}

// The header and each piece of a log that is whole.
inline std::vector<std::span<const std::byte>> of(std::span<const std::byte> log) {
  std::size_t at = header_bytes(log);
  std::vector<std::span<const std::byte>> parts = {log.first(at)};
  while (at < log.size()) {
    const auto body = LittleEndianReader(log.subspan(at)).get<std::uint32_t>();
    parts.push_back(log.subspan(at, op_piece::kHeaderBytes + body));
    at += parts.back().size();
  }
  return parts;
}

// What stands in the pieces, one after the other.
inline Bytes calls_of(std::span<const std::byte> log) {
  Bytes calls;
  const std::vector<std::span<const std::byte>> parts = of(log);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto body = parts[i].subspan(op_piece::kHeaderBytes);
    calls.insert(calls.end(), body.begin(), body.end());
  }
  return calls;
}

// The log with the header of `log` and these calls.
inline Bytes log_of(std::span<const std::byte> log, std::span<const std::byte> calls) {
  const auto header = log.first(header_bytes(log));
  Bytes made(header.begin(), header.end());
  while (!calls.empty()) {
    const auto body = calls.first(std::min(calls.size(), op_piece::kMostBytes));
    const auto begin = op_piece::header_of(body, made.size());
    made.insert(made.end(), begin.begin(), begin.end());
    made.insert(made.end(), body.begin(), body.end());
    calls = calls.subspan(body.size());
  }
  return made;
}

// All checksums; a piece that says it has more bytes than can be gets what is left.
inline void make_right(std::span<std::byte> log) {
  std::size_t at = header_bytes(log);
  if (at == 0) return;
  const bool is_bare = LittleEndianReader(log.subspan(8)).get<std::uint32_t>() == kOpLogFormatBare;
  const std::size_t begin = is_bare ? kHeadBytes : 0;
  LittleEndianWriter(log.subspan(at - 4))
      .put(op_piece::hash_of(log.subspan(begin, at - 4 - begin)));
  if (is_bare) return;
  while (log.size() - at > op_piece::kHeaderBytes) {
    const std::size_t left =
        std::min(log.size() - at - op_piece::kHeaderBytes, op_piece::kMostBytes);
    const std::size_t said = LittleEndianReader(log.subspan(at)).get<std::uint32_t>();
    const auto body = log.subspan(at + op_piece::kHeaderBytes, said - 1 < left ? said : left);
    const auto header = op_piece::header_of(body, at);
    LittleEndianWriter(log.subspan(at)).put(std::span<const std::byte>(header));
    at += op_piece::kHeaderBytes + body.size();
  }
}

}  // namespace kvfolio::op_log_pieces
