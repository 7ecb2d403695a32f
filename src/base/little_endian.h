// SPDX-License-Identifier: Apache-2.0
#pragma once

// Numbers as files and servers hold them: little-endian, whatever the machine is. Both sides stay
// within their span: a writer checks, since it writes our own data, and a reader that runs out of
// bytes returns zeros from then on and says so by ok(). Thread safety: values.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kvfolio/status.h"

namespace kvfolio {

class LittleEndianWriter {
 public:
  explicit LittleEndianWriter(std::span<std::byte> to) noexcept : to_(to) {}

  template <typename Integer>
  void put(Integer value) noexcept {
    KVFOLIO_CHECK(sizeof value <= to_.size() - at_);
    for (std::size_t i = 0; i < sizeof value; ++i) {
      to_[at_++] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
    }
  }
  void put(std::span<const std::byte> bytes) noexcept {
    KVFOLIO_CHECK(bytes.size() <= to_.size() - at_);
    std::memcpy(to_.data() + at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  [[nodiscard]] std::size_t size() const noexcept { return at_; }

 private:
  std::span<std::byte> to_;
  std::size_t at_ = 0;
};

class LittleEndianReader {
 public:
  explicit LittleEndianReader(std::span<const std::byte> from) noexcept : from_(from) {}

  template <typename Integer>
  [[nodiscard]] Integer get() noexcept {
    if (sizeof(Integer) > left()) {
      fail();
      return Integer{};
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Integer); ++i) {
      value |= std::to_integer<std::uint64_t>(from_[at_++]) << (8 * i);
    }
    return static_cast<Integer>(value);
  }
  void get(std::span<std::byte> out) noexcept {
    if (out.size() > left()) {
      fail();
      return;
    }
    std::memcpy(out.data(), from_.data() + at_, out.size());
    at_ += out.size();
  }
  // The next `size` bytes where they lie; empty if there are fewer.
  [[nodiscard]] std::span<const std::byte> take(std::size_t size) noexcept {
    if (size > left()) {
      fail();
      return {};
    }
    at_ += size;
    return from_.subspan(at_ - size, size);
  }
  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] std::size_t left() const noexcept { return from_.size() - at_; }

 private:
  void fail() noexcept {
    ok_ = false;
    at_ = from_.size();
  }
  std::span<const std::byte> from_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace kvfolio
