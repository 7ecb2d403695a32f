// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where bytes go to and come from: a file, or what the host program makes of it. No format is known
// here. Every member of these two is pure or inline, so a derived
// class can be compiled with or without RTTI. Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/status.h"

namespace kvfolio {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Takes all of the bytes, behind those of earlier calls, or returns an error.
  virtual Status write(std::span<const std::byte> bytes) = 0;
  // The same for several pieces, one behind the other: a sink may take them in one call.
  virtual Status write_pieces(std::span<const std::span<const std::byte>> pieces) {
    for (const std::span<const std::byte> piece : pieces) {
      if (Status status = write(piece); !status.ok()) return status;
    }
    return {};
  }
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Fills all of `out` from this place, or returns an error. Requires: it lies within size().
  virtual Status read_at(std::int64_t offset, std::span<std::byte> out) = 0;
  // The same for several pieces, which follow each other in the file.
  virtual Status read_pieces_at(std::int64_t offset, std::span<const std::span<std::byte>> pieces) {
    for (const std::span<std::byte> piece : pieces) {
      if (Status status = read_at(offset, piece); !status.ok()) return status;
      offset += static_cast<std::int64_t>(piece.size());
    }
    return {};
  }
};

}  // namespace kvfolio
