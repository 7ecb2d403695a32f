// SPDX-License-Identifier: Apache-2.0
#pragma once

// FixedArray<T>: an array whose size is chosen once, at creation, and whose creation may fail
// without an exception. Zeroed arrays come from calloc: pages that are never touched cost nothing,
// so tables may be sized for the worst case. The first element begins a cache line, so that an
// element of 64 bytes costs one miss and not two. Large arrays (4 MiB and more) ask for huge pages
// of 2 MiB, because random reads of a table otherwise miss the TLB each time.
//
// It does not know what an element means, and never grows. Only builds without NDEBUG check that an
// index is in range (KVFOLIO_DCHECK). It owns its elements and is moved, never copied; a moved-from
// array may only be assigned to or destroyed. No constructor or destructor of an element runs: T is
// trivially copyable and destructible, and its owner must be able to start from all bytes zero.
// Thread safety: as for a plain array.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "kvfolio/export.h"
#include "kvfolio/status.h"

namespace kvfolio {

// Asks the kernel for 2 MiB pages wherever they fit into the range; it may refuse.
KVFOLIO_API void prefer_huge_pages(void* memory, std::size_t bytes) noexcept;

// Bytes of memory: all that was reserved at creation, and what of it is in use. An array with a
// place for each block or sequence is in use as a whole; of a store that fills up, the part that is
// filled.
struct MemoryUse {
  std::int64_t reserved = 0;
  std::int64_t used = 0;

  [[nodiscard]] static MemoryUse whole(std::int64_t bytes) noexcept { return {bytes, bytes}; }
  MemoryUse& operator+=(const MemoryUse& other) noexcept {
    reserved += other.reserved;
    used += other.used;
    return *this;
  }
};

template <typename T>
class FixedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  static_assert(alignof(T) <= 64);

 public:
  FixedArray() noexcept = default;

  // Makes `size` elements of zero bytes. Returns false if there is no memory; the array is then
  // empty.
  [[nodiscard]] bool allocate_zeroed(std::int64_t size) noexcept {
    memory_.reset();
    data_ = nullptr;
    size_ = 0;
    if (size < 0 || static_cast<std::uint64_t>(size) >
                        std::numeric_limits<std::size_t>::max() / 2 / sizeof(T)) {
      return false;
    }
    const auto count = static_cast<std::size_t>(size);
    constexpr std::size_t kLine = 64;
    memory_.reset(std::calloc(count * sizeof(T) + kLine, 1));
    if (!memory_) return false;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.get());
    data_ = reinterpret_cast<T*>(static_cast<std::byte*>(memory_.get()) + (kLine - begin % kLine));
    constexpr std::size_t kLarge = std::size_t{4} << 20;
    if (count * sizeof(T) >= kLarge) prefer_huge_pages(data_, count * sizeof(T));
    size_ = count;
    return true;
  }

  // The first `count` elements become the other's. Requires: both have as many.
  template <typename Count>
  void copy_from(const FixedArray& other, Count count) noexcept {
    const auto n = static_cast<std::size_t>(count);
    KVFOLIO_CHECK(n <= size_ && n <= other.size_);
    if (n != 0) std::memcpy(data_, other.data_, n * sizeof(T));
  }
  // All of them. Requires: equal sizes.
  void copy_from(const FixedArray& other) noexcept {
    KVFOLIO_CHECK(size_ == other.size_);
    copy_from(other, size_);
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::int64_t bytes() const noexcept {
    return static_cast<std::int64_t>(size_ * sizeof(T));
  }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] const T* data() const noexcept { return data_; }

  // Requires: index < size(). Any integer type may index, since ids and positions are int32.
  template <typename Index>
  T& operator[](Index index) noexcept {
    KVFOLIO_DCHECK(static_cast<std::size_t>(index) < size_);
    return data_[static_cast<std::size_t>(index)];
  }
  template <typename Index>
  const T& operator[](Index index) const noexcept {
    KVFOLIO_DCHECK(static_cast<std::size_t>(index) < size_);
    return data_[static_cast<std::size_t>(index)];
  }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  T* data_ = nullptr;  // within memory_
  std::size_t size_ = 0;
};

}  // namespace kvfolio
