// SPDX-License-Identifier: Apache-2.0
//
// A hit in host memory: records of 256 KiB in an arena that is larger than the caches, copied out
// in random order. The other side is memcpy of the same bytes in the same order.

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstring>

#include "families.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/host_arena.h"
#include "kvfolio/identity.h"
#include "kvfolio/record.h"

namespace kvfolio::bench {
namespace {

constexpr std::int64_t kPayload = 256 << 10;
constexpr std::int64_t kRecord = kRecordHeaderBytes + kPayload;

Identity make_identity() {
  const CacheSpec spec{.groups = {{.head_dim_k = 128, .head_dim_v = 128, .num_blocks = 1}}};
  return take(Identity::create({.model = "bench",
                                .weights = "1",
                                .tokenizer = "1",
                                .model_dtype = "bf16",
                                .positions = "1",
                                .engine = "1"},
                               spec),
              "identity");
}

struct Arena {
  Identity identity = make_identity();
  HostArena records;
  std::vector<TierKey> keys;

  explicit Arena(std::int32_t count)
      : records(take(HostArena::create({.bytes = count * kRecord, .record_bytes = {&kRecord, 1}}),
                     "arena")) {
    std::vector<std::int32_t> tokens(16);
    Digest before = identity.root({}, 0);
    for (std::int32_t i = 0; i < count; ++i) {
      tokens[0] = i;
      before = identity.next(before, i * 16, tokens);
      keys.push_back(identity.key(GroupId(0), before));
      const auto slot = records.reserve(keys.back(), kRecord);
      require(slot.has_value(), "the arena holds all records");
      const auto record = records.fill(*slot);
      std::memset(record.data(), i, record.size());
      seal_record({.key = keys.back(),
                   .layout = identity.layout_namespace(GroupId(0)),
                   .payload_bytes = kPayload,
                   .begin = i * 16,
                   .end = (i + 1) * 16},
                  record);
      records.seal(*slot);
      require(records.publish(*slot), "a record is new");
    }
  }
};

// Finds a record, checks it, and copies it to `to`. Returns whether it is right.
bool hit(Arena& arena, std::int32_t i, std::byte* to, bool checked) {
  const TierKey& key = arena.keys[static_cast<std::size_t>(i)];
  const ArenaPin pin = arena.records.find(key);
  if (!pin) return false;
  const auto record = pin.record();
  const RecordInfo expected{.key = key,
                            .layout = arena.identity.layout_namespace(GroupId(0)),
                            .payload_bytes = kPayload,
                            .begin = i * 16,
                            .end = (i + 1) * 16};
  if (check_record_header(record, expected) != RecordFault::kNone) return false;
  const auto payload = record.subspan(static_cast<std::size_t>(kRecordHeaderBytes));
  if (!checked) {
    std::memcpy(to, payload.data(), payload.size());
    return true;
  }
  RecordInfo seen;
  static_cast<void>(read_record_header(record, seen));
  const CopyRun run{to, payload.data(), kPayload};
  return copy_with_checksum(std::span(&run, 1), payload_seed(key)) == seen.checksum;
}

void measure_hits(Session& session, Arena& arena, bool checked) {
  const auto count = static_cast<std::int32_t>(arena.keys.size());
  const Buffer to(count * kPayload);
  const Buffer other(count * kPayload);
  const std::vector<std::int32_t> order = shuffled(count, 5);
  const auto gigabytes = [&](double ns) {
    return static_cast<double>(count) * static_cast<double>(kPayload) / ns;
  };
  const auto ours = [&] {
    return gigabytes(nanoseconds_of([&] {
      for (const std::int32_t i : order) {
        require(hit(arena, i, to.data() + i * kPayload, checked), "a record of the arena");
      }
      keep(to.data());
    }));
  };
  const auto plain = [&] {
    return gigabytes(nanoseconds_of([&] {
      for (const std::int32_t i : order) {
        std::memcpy(other.data() + i * kPayload, to.data() + i * kPayload, std::size_t(kPayload));
      }
      keep(other.data());
    }));
  };
  ours();  // touches `to`
  plain();
  Figure figure{.name = checked ? "tiers.hit.checked" : "tiers.hit.entry"};
  figure.facts = {{"record_kib", kPayload >> 10}, {"records", std::int64_t{count}}};
  figure.unit = "GB/s";
  figure.lower_is_better = false;
  figure.promise = checked ? Promise{0.70, 0.85} : Promise{0.90, 0.95};
  figure.promise_is_ratio = true;
  figure.note = checked ? "found, header checked, copied with its checksum; ceiling: memcpy"
                        : "found, header checked, copied; ceiling: memcpy";
  session.measure(figure, ours, plain);
}

void measure_lookup(Session& session, Arena& arena) {
  const std::vector<std::int32_t> order = shuffled(static_cast<std::int32_t>(arena.keys.size()), 9);
  Figure figure{.name = "tiers.lookup"};
  figure.facts = {{"keys", std::int64_t{1000}}};
  figure.unit = "us";
  figure.promise = Promise{200, 100};
  figure.note = "contains() of 1,000 keys, half of them there";
  session.measure(figure, [&] {
    std::uint64_t found = 0;
    const double ns = nanoseconds_of([&] {
      for (std::size_t i = 0; i < 1000; ++i) {
        TierKey key = arena.keys[static_cast<std::size_t>(order[i % order.size()])];
        key.bytes[40] ^= std::byte(i & 1);
        found += arena.records.contains(key) ? 1 : 0;
      }
    });
    require(found == 500, "half of the keys are found");
    return ns / 1000;
  });
}

void measure_hash(Session& session, const Identity& identity) {
  std::vector<std::int32_t> tokens(16);
  Figure figure{.name = "tiers.hash"};
  figure.facts = {{"tokens", std::int64_t{16}}};
  figure.promise = Promise{400, 200};
  figure.note = "SHA-256 chain, for each unit of 16 tokens";
  constexpr int kUnits = 4096;
  session.measure(figure, [&] {
    Digest before{};
    const double ns = nanoseconds_of([&] {
      for (int i = 0; i < kUnits; ++i) {
        tokens[3] = i;
        before = identity.next(before, 0, tokens);
      }
    });
    keep(before.data());
    return ns / kUnits;
  });
}

// What a tier does with each record that it brings, and the host seals with a key or does not. The
// other side reads as many bytes: a copy to memory that stays in the caches, or libcrypto's HMAC.
void measure_check(Session& session, Arena& arena, bool keyed) {
  const std::array<std::byte, kRecordKeyBytes> secret{std::byte{1}};
  const RecordKeys keys = keyed ? take(RecordKeys::create({.key = secret}), "keys") : RecordKeys();
  const auto count = static_cast<std::int32_t>(arena.keys.size());
  const Buffer records(count * kRecord);
  const auto record = [&](std::int32_t i) {
    return std::span(reinterpret_cast<std::byte*>(records.data()) + i * kRecord,
                     static_cast<std::size_t>(kRecord));
  };
  const auto info = [&](std::int32_t i) {
    return RecordInfo{.key = arena.keys[static_cast<std::size_t>(i)], .payload_bytes = kPayload};
  };
  for (std::int32_t i = 0; i < count; ++i) {
    std::memset(record(i).data(), i, record(i).size());
    require(seal_record(info(i), record(i), keys), "a sealed record");
  }
  const std::vector<std::int32_t> order = shuffled(count, 7);
  const auto gigabytes = [&](double ns) {
    return static_cast<double>(count) * static_cast<double>(kPayload) / ns;
  };
  const auto ours = [&] {
    return gigabytes(nanoseconds_of([&] {
      for (const std::int32_t i : order) {
        require(check_record(record(i), info(i), keys) == RecordFault::kNone, "a right record");
      }
    }));
  };
  const Buffer to(kPayload);
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  const auto theirs = [&] {
    return gigabytes(nanoseconds_of([&] {
      for (const std::int32_t i : order) {
        const std::byte* payload = record(i).data() + kRecordHeaderBytes;
        if (keyed) {
          require(HMAC(EVP_sha256(), secret.data(), int{kRecordKeyBytes},
                       reinterpret_cast<const unsigned char*>(payload), std::size_t(kPayload),
                       mac.data(), nullptr) != nullptr,
                  "a MAC of libcrypto");
        } else {
          std::memcpy(to.data(), payload, std::size_t(kPayload));
        }
      }
      keep(to.data());
      keep(mac.data());
    }));
  };
  Figure figure{.name = keyed ? "tiers.check.keyed" : "tiers.check"};
  figure.facts = {{"record_kib", kPayload >> 10}, {"records", std::int64_t{count}}};
  figure.unit = "GB/s";
  figure.lower_is_better = false;
  figure.promise = keyed ? Promise{0.90, 0.97} : Promise{0.70, 0.85};
  figure.promise_is_ratio = true;
  figure.note = keyed ? "a record checked by its MAC; ceiling: HMAC-SHA-256 of libcrypto"
                      : "a record checked by its checksum; ceiling: memcpy into the caches";
  session.measure(figure, ours, theirs);
}

}  // namespace

void measure_arena(Session& session) {
  Arena arena(session.size(1024, 16));
  for (const bool checked : {true, false}) {
    if (session.wants(checked ? "tiers.hit.checked" : "tiers.hit.entry")) {
      measure_hits(session, arena, checked);
    }
  }
  if (session.wants("tiers.lookup")) measure_lookup(session, arena);
  if (session.wants("tiers.hash")) measure_hash(session, arena.identity);
  for (const bool keyed : {false, true}) {
    if (session.wants(keyed ? "tiers.check.keyed" : "tiers.check")) {
      measure_check(session, arena, keyed);
    }
  }
}

}  // namespace kvfolio::bench
