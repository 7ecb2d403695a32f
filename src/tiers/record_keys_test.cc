// SPDX-License-Identifier: Apache-2.0
//
// Records that are sealed with a key. Who writes to a medium has the bytes, the names and this
// source, and not the key.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvfolio/checked_copy.h"
#include "kvfolio/record.h"

namespace kvfolio {
namespace {

using Key = std::array<std::byte, kRecordKeyBytes>;

Key key_from(int seed) {
  Key key{};
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = std::byte(i * 7 + std::size_t(seed));
  return key;
}

RecordKeys keys_of(int seed) {
  const Key key = key_from(seed);
  Result<RecordKeys> keys = RecordKeys::create({.key = key});
  EXPECT_TRUE(keys);
  return *keys;
}

RecordKeys keys_of(int seed, int accepted) {
  const Key key = key_from(seed), other = key_from(accepted);
  Result<RecordKeys> keys = RecordKeys::create({.key = key, .accepted_key = other});
  EXPECT_TRUE(keys);
  return *keys;
}

RecordInfo keyed_info(std::int64_t payload_bytes) {
  RecordInfo info{
      .payload_bytes = payload_bytes, .begin = 32, .end = 48, .epoch = 5, .writer = 6, .owner = 7};
  info.key.bytes[30] = std::byte{3};
  info.layout[1] = std::byte{9};
  return info;
}

std::vector<std::byte> sealed_with(const RecordInfo& info, const RecordKeys& keys) {
  std::vector<std::byte> record(static_cast<std::size_t>(kRecordHeaderBytes + info.payload_bytes));
  for (std::size_t i = 0; i < record.size(); ++i) record[i] = std::byte(i * 11);
  EXPECT_TRUE(seal_record(info, record, keys));
  return record;
}

void mend_crc(std::vector<std::byte>& record) {
  const std::uint32_t crc = crc32c(std::span(record).first(188));
  for (std::size_t i = 0; i < 4; ++i) record[188 + i] = static_cast<std::byte>(crc >> (8 * i));
}

TEST(KeyedRecord, VerifiesWithItsKeyAndReadsBack) {
  const RecordKeys keys = keys_of(1);
  for (const std::int64_t bytes : {0, 1, 63, 64, 4096, 100'000}) {
    const RecordInfo info = keyed_info(bytes);
    const std::vector<std::byte> record = sealed_with(info, keys);
    EXPECT_EQ(check_record(record, info, keys), RecordFault::kNone);
    RecordInfo seen;
    ASSERT_EQ(read_record_header(record, seen), RecordFault::kNone);
    EXPECT_EQ(seen.key_id, keys.id());
    EXPECT_NE(seen.key_id, 0u);
    EXPECT_EQ(seen.checksum, 0u);
  }
}

// A golden record: what other programs must compute, with Python's hmac and hashlib.
TEST(KeyedRecord, TheMacIsHmacSha256OfHeaderAndPayload) {
  RecordInfo info{.payload_bytes = 3};
  std::vector<std::byte> record(195);
  std::memcpy(record.data() + 192, "abc", 3);
  ASSERT_TRUE(seal_record(info, record, keys_of(0)));
  std::string hex;
  for (std::size_t i = 144; i < 180; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[unsigned(record[i]) >> 4];
    hex += kDigits[unsigned(record[i]) & 15];
  }
  EXPECT_EQ(hex,
            "cde39f4b"
            "931d8438ad53fbaed96c8c93c487a6299d49c4625ea7a8d87d38a69a2c7d974b");
}

// With the checksum of the header made right again: all that an attacker can do without the key.
TEST(KeyedRecord, EveryFlippedBitIsAMissWhateverChecksumsAreMended) {
  const RecordKeys keys = keys_of(1);
  const RecordInfo info = keyed_info(100);
  std::vector<std::byte> record = sealed_with(info, keys);
  const std::vector<std::byte> good = record;
  for (std::size_t bit = 0; bit < record.size() * 8; ++bit) {
    record[bit / 8] ^= std::byte(1u << bit % 8);
    mend_crc(record);
    if (record != good) {
      EXPECT_NE(check_record(record, info, keys), RecordFault::kNone) << bit;
    }
    record = good;
  }
}

TEST(KeyedRecord, AForgedRecordIsAMiss) {
  const RecordInfo info = keyed_info(100);
  // Sealed without a key; with a key of the attacker; and with one under the number of the right
  // one.
  EXPECT_EQ(check_record(sealed_with(info, {}), info, keys_of(1)), RecordFault::kSealer);
  EXPECT_EQ(check_record(sealed_with(info, keys_of(2)), info, keys_of(1)), RecordFault::kSealer);
  std::vector<std::byte> record = sealed_with(info, keys_of(2));
  const std::uint32_t id = keys_of(1).id();
  for (std::size_t i = 0; i < 4; ++i) record[144 + i] = static_cast<std::byte>(id >> (8 * i));
  mend_crc(record);
  EXPECT_EQ(check_record(record, info, keys_of(1)), RecordFault::kPayload);
}

// Header and MAC of another name, and the header of the asked name before the other's MAC.
TEST(KeyedRecord, ARecordMovedUnderAnotherNameIsAMiss) {
  const RecordKeys keys = keys_of(1);
  const RecordInfo info = keyed_info(100);
  RecordInfo asked = info;
  asked.key.bytes[30] ^= std::byte{1};
  std::vector<std::byte> record = sealed_with(info, keys);
  EXPECT_EQ(check_record(record, asked, keys), RecordFault::kKey);
  std::memcpy(record.data() + 8, asked.key.bytes.data(), asked.key.bytes.size());
  mend_crc(record);
  EXPECT_EQ(check_record(record, asked, keys), RecordFault::kPayload);
}

TEST(KeyedRecord, ARecordReplayedFromAnOlderEpochIsAMiss) {
  const RecordKeys keys = keys_of(1);
  const RecordInfo old = keyed_info(100);
  RecordInfo asked = old;
  ++asked.epoch;
  std::vector<std::byte> record = sealed_with(old, keys);
  EXPECT_EQ(check_record(record, asked, keys), RecordFault::kEpoch);
  record[128] = std::byte{6};
  mend_crc(record);
  EXPECT_EQ(check_record(record, asked, keys), RecordFault::kPayload);
}

TEST(KeyedRecord, TwoKeysAreAcceptedWhileOneIsReplaced) {
  const RecordInfo info = keyed_info(100);
  const std::vector<std::byte> of_old = sealed_with(info, keys_of(1));
  const std::vector<std::byte> of_new = sealed_with(info, keys_of(2));
  for (const RecordKeys& keys : {keys_of(1, 2), keys_of(2, 1)}) {
    EXPECT_EQ(check_record(of_old, info, keys), RecordFault::kNone);
    EXPECT_EQ(check_record(of_new, info, keys), RecordFault::kNone);
  }
  EXPECT_EQ(sealed_with(info, keys_of(2, 1)), of_new);
  EXPECT_EQ(check_record(of_old, info, keys_of(2)), RecordFault::kSealer);
}

TEST(KeyedRecord, WithoutAKeyNoKeyedRecordIsBelieved) {
  const RecordInfo info = keyed_info(100);
  EXPECT_EQ(check_record(sealed_with(info, keys_of(1)), info), RecordFault::kSealer);
}

TEST(KeyedRecord, WrongKeysAreRefusedWithoutAByteOfThem) {
  const Key key = key_from('A');
  const auto refused = [](const RecordKeyOptions& options) {
    const Result<RecordKeys> keys = RecordKeys::create(options);
    EXPECT_FALSE(keys);
    if (keys) return std::string();
    EXPECT_EQ(keys.error().code(), ErrorCode::kInvalidArgument);
    return std::string(keys.error().message());
  };
  EXPECT_EQ(refused({.key = std::span(key).first(31)}),
            "record keys: key has 31 bytes, allowed: 32");
  EXPECT_EQ(refused({.key = key, .accepted_key = std::span(key).first(1)}),
            "record keys: accepted_key has 1 bytes, allowed: 32");
  EXPECT_EQ(refused({.accepted_key = key}), "record keys: accepted_key without key");
  EXPECT_EQ(refused({.key = key, .accepted_key = key}),
            "record keys: key and accepted_key are the same, or have the same number");
  EXPECT_FALSE(RecordKeys::create({})->has_key());
}

TEST(KeyedRecord, AMacIsMadeInPiecesOfAnySize) {
  const RecordKeys keys = keys_of(1);
  const RecordInfo info = keyed_info(10'000);
  const std::vector<std::byte> record = sealed_with(info, keys);
  RecordInfo seen;
  ASSERT_EQ(read_record_header(record, seen), RecordFault::kNone);
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    RecordMac mac;
    ASSERT_TRUE(mac.begin(keys, keys.id(), info));
    std::span<const std::byte> rest = std::span(record).subspan(192);
    while (!rest.empty()) {
      const std::size_t n = std::min<std::size_t>(rest.size(), random() % 700);
      mac.add(rest.first(n));
      rest = rest.subspan(n);
    }
    Digest made{};
    ASSERT_TRUE(mac.end(made));
    EXPECT_TRUE(same_mac(made, seen.mac));
  }
  RecordMac mac;
  EXPECT_FALSE(mac.begin({}, 1, info));
  EXPECT_FALSE(mac.begin(keys, keys.id() + 1, info));
}

TEST(KeyedRecord, ThreadsShareKeys) {
  const RecordKeys keys = keys_of(1);
  const RecordInfo info = keyed_info(1000);
  const std::vector<std::byte> record = sealed_with(info, keys);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_EQ(check_record(record, info, keys), RecordFault::kNone);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvfolio
