// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where bytes go to and come from: a file, or what the host program makes of it. No format is known
// here. Every member of these two is pure except the destructors, which are inline, so a derived
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
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Fills all of `out` from this place, or returns an error. Requires: it lies within size().
  virtual Status read_at(std::int64_t offset, std::span<std::byte> out) = 0;
};

}  // namespace kvfolio
