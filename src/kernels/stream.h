// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stores past the caches: they do not read what they overwrite, so that a large write moves two
// bytes for each instead of three; and whole lines that were written are in no cache afterwards.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kvfolio/status.h"

namespace kvfolio::kernels {

enum class Stores : std::int32_t { kCached = 0, kPastCaches = 1 };

// What an append or a gather of so many bytes writes goes past the caches: its reader will
// have to fetch most of it from memory anyway. 256 MiB of granule tiles take 0.8 to 0.9 of the time
// then (Zen 4), rows 0.65 to 0.8 (a Xeon with 2 MiB of second level). What is gathered is read
// next: at 32 MiB that still costs more than is gained. In double: a hostile shape may overflow.
constexpr double kAppendPastCaches = 32.0 * 1024 * 1024;
constexpr double kGatherPastCaches = 64.0 * 1024 * 1024;

[[nodiscard]] constexpr Stores stores_for(double bytes, double past_caches) noexcept {
  return bytes < past_caches ? Stores::kCached : Stores::kPastCaches;
}

// What to ask for meanwhile: for each line that is written, `per_line` bytes from `next` on. It may
// lie anywhere; null: nothing.
struct Meanwhile {
  const std::byte* next = nullptr;
  std::int64_t per_line = 0;
};

// Requires: both aligned to 64 bytes, bytes a multiple of 64, a stream_fence() before anybody else
// is told of the bytes.
inline void stream_lines(const std::byte* src, std::byte* dst, std::int64_t bytes,
                         Meanwhile meanwhile) noexcept {
  KVFOLIO_DCHECK(bytes % 64 == 0 && reinterpret_cast<std::uintptr_t>(src) % 64 == 0 &&
                 reinterpret_cast<std::uintptr_t>(dst) % 64 == 0);
#if defined(__SSE2__)
  if (meanwhile.next == nullptr) meanwhile.per_line = 0;
  for (std::int64_t line = 0; line < bytes; line += 64) {
    for (std::int64_t at = 0; at < meanwhile.per_line; at += 64) {
      __builtin_prefetch(meanwhile.next + at, 0, 2);
    }
    meanwhile.next += meanwhile.per_line;
    for (std::int64_t at = line; at < line + 64; at += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst + at),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(src + at)));
    }
  }
#else
  static_cast<void>(meanwhile);
  std::memcpy(dst, src, static_cast<std::size_t>(bytes));
#endif
}

// Any bytes, in any place: the whole lines of dst go past the caches, and as many are asked for
// `ahead` bytes further on. Requires: a stream_fence().
inline void stream_bytes(const std::byte* src, std::byte* dst, std::int64_t bytes,
                         std::int64_t ahead) noexcept {
#if defined(__SSE2__)
  const auto into_line = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(dst) % 64);
  const std::int64_t head = std::min(bytes, (64 - into_line) % 64);
  std::memcpy(dst, src, static_cast<std::size_t>(head));
  std::int64_t at = head;
  // A number: what is asked for may lie outside of the array.
  const auto from = reinterpret_cast<std::uintptr_t>(src);
  for (; at + 64 <= bytes; at += 64) {
    const std::uintptr_t later = from + static_cast<std::uintptr_t>(at + ahead);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    __builtin_prefetch(reinterpret_cast<const void*>(later), 0, 2);
    for (std::int64_t part = at; part < at + 64; part += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + part)));
    }
  }
  std::memcpy(dst + at, src + at, static_cast<std::size_t>(bytes - at));
#else
  static_cast<void>(ahead);
  std::memcpy(dst, src, static_cast<std::size_t>(bytes));
#endif
}

inline void stream_fence() noexcept {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace kvfolio::kernels
