// SPDX-License-Identifier: Apache-2.0
//
// Chooses a target for each call: the CPU is asked for its features by a few loads, next to a
// checksum of kilobytes.

#include "kvfolio/checked_copy.h"

#include <array>

#include "tiers/checksum_targets.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvfolio {
namespace {

const checksum_targets::Functions& target() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return checksum_targets::avx512;
  if (__builtin_cpu_supports("avx2")) return checksum_targets::avx2;
#endif
  return checksum_targets::portable;
}

constexpr std::uint32_t kPolynomial = 0x82f63b78u;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() noexcept {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();
static_assert(kTable[1] == 0xf26b8303u && kTable[128] == kPolynomial);  // Castagnoli

std::uint32_t by_table(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(
    std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  for (const std::byte byte : bytes) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(byte));
  return crc;
}
#endif

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  return target().whole(bytes.data(), bytes.size(), seed);
}

std::uint64_t copy_with_checksum(std::span<const CopyRun> runs, std::uint64_t seed) noexcept {
  return target().copy(runs.data(), runs.size(), seed);
}

std::uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(~0u, bytes);
#endif
  return ~by_table(~0u, bytes);
}

}  // namespace kvfolio
