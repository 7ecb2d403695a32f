// SPDX-License-Identifier: Apache-2.0
#pragma once

// A record is what lies in a tier: a header of 192 bytes and a payload, any bytes. The header
// repeats all that decides whether the bytes are the right ones, so no index, file name or server
// has to be believed. One reader serves all media: the disk tier, Redis, snapshots, and the host
// arena. All numbers are little-endian:
//
//     0  magic "KVFR" (4), version 2 (2), bytes of the header (2)
//     8  the key (72)
//    80  the namespace of the layout; zero if the payload says it itself (32)
//   112  bytes of the payload (8)
//   120  position of the first token of the block (4), one past its last (4)
//   128  epoch: of the names; on a disk of the segment (8)
//   136  who wrote it; on a disk its place in the order of the directory (8)
//   144  which key sealed it, 0: none (4)
//   148  the seal (32): without a key the checksum of the payload, XXH3-64 seeded with the XXH3-64
//        of the key (8), and zeros; with one HMAC-SHA-256 over bytes 0 to 147, 180 to 187 and the
//        payload
//   180  whose it is: the first 8 bytes of the hash of the root (8)
//   188  CRC-32C of the 188 bytes before (4)
//
// A record that does not verify is a miss. A checksum shows damage and mix-ups. A key shows malice,
// too: without it a record cannot be made, changed, or moved to another name.
//
//   const Result<RecordKeys> keys = RecordKeys::create({.key = secret});  // once; or {}: no key
//   if (!seal_record(info, record, *keys)) ...                            // no memory
//   if (check_record(record, info, *keys) == RecordFault::kNone) ...      // the payload is right
//
// Thread safety: values and free functions; any number of threads may use one RecordKeys.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvfolio/export.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

inline constexpr std::int64_t kRecordHeaderBytes = 192;
inline constexpr std::size_t kRecordKeyBytes = 32;

// Secrets of the host: 32 random bytes each, copied by the object that takes them, and wiped when
// it ends.
struct RecordKeyOptions {
  std::span<const std::byte> key{};  // seals and verifies; empty: records have checksums only
  // Verifies as well, while one key is replaced by another: first all processes accept the new one,
  // then all seal with it and accept the old one, then the old one is left out.
  std::span<const std::byte> accepted_key{};
};

// The keys that seal and verify records; a default-constructed object has none. Copies share them.
class RecordKeys {
 public:
  RecordKeys() noexcept = default;
  // kInvalidArgument: a key that has not 32 bytes, an accepted key without a key, or two keys of
  // the same number; no message has a byte of them. kUnavailable: libcrypto has no HMAC-SHA-256.
  KVFOLIO_API static Result<RecordKeys> create(const RecordKeyOptions& options);

  [[nodiscard]] bool has_key() const noexcept { return keys_ != nullptr; }
  // The number of the key that seals: the beginning of the SHA-256 of it, never 0. 0: there is
  // none.
  [[nodiscard]] KVFOLIO_API std::uint32_t id() const noexcept;
  // A record with this number, RecordInfo::key_id, may verify. Without a key: 0 alone.
  [[nodiscard]] KVFOLIO_API bool accepts(std::uint32_t key_id) const noexcept;

 private:
  friend class RecordMac;
  struct Keys;
  std::shared_ptr<const Keys> keys_;
};

struct RecordInfo {
  TierKey key{};
  Digest layout{};
  std::int64_t payload_bytes = 0;
  std::int32_t begin = 0;  // of the block's tokens
  std::int32_t end = 0;
  std::uint64_t epoch = 0;
  std::uint64_t writer = 0;
  std::uint64_t checksum = 0;  // of the payload, if no key sealed it
  std::uint64_t owner = 0;     // root_owner() of the root; 0: not said
  std::uint32_t key_id = 0;    // of the key that sealed it; 0: none
  Digest mac{};                // if a key sealed it

  friend bool operator==(const RecordInfo&, const RecordInfo&) = default;
};

// What is wrong with a record: the first thing that is.
enum class RecordFault : std::int32_t {
  kNone = 0,
  kSize = 1,     // cut off, or longer than its header says
  kMagic = 2,    // not a record
  kVersion = 3,  // of another version
  kHeader = 4,   // the checksum of the header
  kKey = 5,      // a record of another block
  kLayout = 6,   // of another layout
  kTokens = 7,   // of other positions
  kEpoch = 8,    // of before something was forgotten
  kPayload = 9,  // the checksum of the payload, or the MAC
  kSealer = 10,  // no key sealed it, or one that is not known here
};
inline constexpr int kNumRecordFaults = 11;
[[nodiscard]] KVFOLIO_API const char* to_string(RecordFault fault) noexcept;

// What a record says of its root: enough to find the records of a tenant, not to name them.
[[nodiscard]] KVFOLIO_API std::uint64_t root_owner(const Digest& root) noexcept;
// The seed of the checksum of a payload.
[[nodiscard]] KVFOLIO_API std::uint64_t payload_seed(const TierKey& key) noexcept;
// Writes the header; its checksum, or key_id and mac, are taken as they are.
KVFOLIO_API void write_record_header(const RecordInfo& info,
                                     std::span<std::byte, kRecordHeaderBytes> out) noexcept;
// Computes the seal of the payload behind the header's place and writes the header. Requires:
// record.size() is kRecordHeaderBytes + info.payload_bytes. False: no memory; only with a key.
KVFOLIO_API bool seal_record(const RecordInfo& info, std::span<std::byte> record,
                             const RecordKeys& keys = {}) noexcept;
// The same where the payload lies elsewhere. Requires: it has info.payload_bytes.
[[nodiscard]] KVFOLIO_API bool seal_record(const RecordInfo& info,
                                           std::span<const std::byte> payload,
                                           const RecordKeys& keys,
                                           std::span<std::byte, kRecordHeaderBytes> out) noexcept;
// Reads a header without expecting anything of it. kNone, or kSize, kMagic, kVersion, kHeader.
[[nodiscard]] KVFOLIO_API RecordFault read_record_header(std::span<const std::byte> record,
                                                         RecordInfo& out) noexcept;
// Checks everything but the seal: the header is that of `expected`, whose seal, writer and owner do
// not count. `record` is the header alone, or header and payload.
[[nodiscard]] KVFOLIO_API RecordFault check_record_header(std::span<const std::byte> record,
                                                          const RecordInfo& expected) noexcept;
// Checks everything. A wrong MAC takes as long as a right one. kSealer also if there is no memory
// for a MAC.
[[nodiscard]] KVFOLIO_API RecordFault check_record(std::span<const std::byte> record,
                                                   const RecordInfo& expected,
                                                   const RecordKeys& keys = {}) noexcept;
// The same where the payload lies elsewhere. Requires: `payload` has expected.payload_bytes.
[[nodiscard]] KVFOLIO_API RecordFault check_record(
    std::span<const std::byte, kRecordHeaderBytes> header, std::span<const std::byte> payload,
    const RecordInfo& expected, const RecordKeys& keys) noexcept;

// The MAC of one record, made piece by piece: for payloads that come so. Thread safety: none.
class RecordMac {
 public:
  // begin() makes the MAC of a record with this header, whose seal is not looked at, by the key of
  // this number. False: there is no such key, or no memory.
  KVFOLIO_API RecordMac() noexcept;
  KVFOLIO_API RecordMac(RecordMac&& other) noexcept;
  KVFOLIO_API RecordMac& operator=(RecordMac&& other) noexcept;
  KVFOLIO_API ~RecordMac();
  [[nodiscard]] KVFOLIO_API bool begin(const RecordKeys& keys, std::uint32_t key_id,
                                       const RecordInfo& info) noexcept;
  KVFOLIO_API void add(std::span<const std::byte> payload) noexcept;
  // Requires: begin() and no end() since. False: libcrypto failed.
  [[nodiscard]] KVFOLIO_API bool end(Digest& out) noexcept;

 private:
  void* context_ = nullptr;  // EVP_MAC_CTX
  bool good_ = false;
};
// Compares in a time that does not depend on where they differ.
[[nodiscard]] KVFOLIO_API bool same_mac(const Digest& a, const Digest& b) noexcept;

}  // namespace kvfolio
