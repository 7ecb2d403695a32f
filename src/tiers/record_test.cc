// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/record.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kvfolio/checked_copy.h"

namespace kvfolio {
namespace {

RecordInfo info_of(std::int64_t payload_bytes) {
  RecordInfo info{
      .payload_bytes = payload_bytes, .begin = 32, .end = 48, .epoch = 5, .writer = 6, .owner = 7};
  for (std::size_t i = 0; i < info.key.bytes.size(); ++i) info.key.bytes[i] = std::byte(i * 3);
  for (std::size_t i = 0; i < info.layout.size(); ++i) info.layout[i] = std::byte(i * 5);
  return info;
}

std::vector<std::byte> sealed(const RecordInfo& info) {
  std::vector<std::byte> record(static_cast<std::size_t>(kRecordHeaderBytes + info.payload_bytes));
  std::mt19937 random(7);
  for (std::byte& byte : record) byte = static_cast<std::byte>(random());
  seal_record(info, record);
  return record;
}

TEST(Record, ASealedRecordVerifiesAndReadsBack) {
  const RecordInfo info = info_of(1000);
  const std::vector<std::byte> record = sealed(info);
  EXPECT_EQ(check_record(record, info), RecordFault::kNone);
  RecordInfo seen;
  ASSERT_EQ(read_record_header(record, seen), RecordFault::kNone);
  EXPECT_EQ(seen.checksum, checksum(std::span(record).subspan(192), payload_seed(info.key)));
  seen.checksum = 0;
  EXPECT_EQ(seen, info);
}

// The places of the header stand in record.h, and other programs may read them.
TEST(Record, TheBytesOfTheHeaderAreFixed) {
  const std::vector<std::byte> record = sealed(info_of(1000));
  EXPECT_EQ(std::memcmp(record.data(), "KVFR\x02\x00\xc0\x00", 8), 0);
  EXPECT_EQ(record[8 + 71], std::byte(71 * 3 % 256));
  EXPECT_EQ(record[80 + 31], std::byte(31 * 5));
  EXPECT_EQ(std::memcmp(record.data() + 112, "\xe8\x03\0\0\0\0\0\0", 8), 0);
  EXPECT_EQ(std::memcmp(record.data() + 120, "\x20\0\0\0\x30\0\0\0", 8), 0);
  EXPECT_EQ(record[128], std::byte{5});
  EXPECT_EQ(record[136], std::byte{6});
  EXPECT_EQ(std::memcmp(record.data() + 144, "\0\0\0\0", 4), 0);
  const std::uint64_t sum =
      checksum(std::span(record).subspan(192), payload_seed(info_of(1000).key));
  EXPECT_EQ(std::memcmp(record.data() + 148, &sum, 8), 0);
  EXPECT_EQ(record[180], std::byte{7});
  const std::uint32_t crc = crc32c(std::span(record).first(188));
  EXPECT_EQ(std::memcmp(record.data() + 188, &crc, 4), 0);  // on a little-endian machine
}

TEST(Record, EveryFlippedBitIsFound) {
  const RecordInfo info = info_of(100);
  std::vector<std::byte> record = sealed(info);
  for (std::size_t bit = 0; bit < record.size() * 8; ++bit) {
    record[bit / 8] ^= std::byte(1u << bit % 8);
    EXPECT_NE(check_record(record, info), RecordFault::kNone) << bit;
    record[bit / 8] ^= std::byte(1u << bit % 8);
  }
  EXPECT_EQ(check_record(record, info), RecordFault::kNone);
}

TEST(Record, EveryCutAndEveryTailIsFound) {
  const RecordInfo info = info_of(100);
  std::vector<std::byte> record = sealed(info);
  for (std::size_t n = 0; n < record.size(); ++n) {
    EXPECT_EQ(check_record(std::span(record).first(n), info), RecordFault::kSize) << n;
  }
  record.push_back(std::byte{0});
  EXPECT_EQ(check_record(record, info), RecordFault::kSize);
}

// An intact record under the wrong name: what a tier that mixes up its files gives.
TEST(Record, ARecordOfAnotherBlockIsFoundWhateverDiffers) {
  const RecordInfo info = info_of(100);
  const std::vector<std::byte> record = sealed(info);
  RecordInfo other = info;
  other.key.bytes[71] ^= std::byte{1};
  EXPECT_EQ(check_record(record, other), RecordFault::kKey);
  other = info;
  other.layout[31] ^= std::byte{1};  // beyond what the key holds of it
  EXPECT_EQ(check_record(record, other), RecordFault::kLayout);
  other = info;
  ++other.begin;
  EXPECT_EQ(check_record(record, other), RecordFault::kTokens);
  other = info;
  --other.end;
  EXPECT_EQ(check_record(record, other), RecordFault::kTokens);
  other = info;
  ++other.epoch;
  EXPECT_EQ(check_record(record, other), RecordFault::kEpoch);
  other = info;
  ++other.payload_bytes;
  EXPECT_EQ(check_record(record, other), RecordFault::kSize);
  other = info;
  other.writer = 9;  // anybody may have written it
  other.owner = 9;   // the key says whose it is
  EXPECT_EQ(check_record(record, other), RecordFault::kNone);
}

// The payload of one record behind the header of another one.
TEST(Record, TheChecksumOfAPayloadHoldsUnderItsOwnKeyOnly) {
  const RecordInfo info = info_of(100);
  const std::vector<std::byte> record = sealed(info);
  RecordInfo other = info;
  other.key.bytes[30] ^= std::byte{1};
  RecordInfo seen;
  ASSERT_EQ(read_record_header(record, seen), RecordFault::kNone);
  other.checksum = seen.checksum;
  std::vector<std::byte> mixed = record;
  write_record_header(other, std::span(mixed).first<kRecordHeaderBytes>());
  EXPECT_EQ(check_record_header(mixed, other), RecordFault::kNone);
  EXPECT_EQ(check_record(mixed, other), RecordFault::kPayload);
}

TEST(Record, AnotherVersionAndAnotherFileAreNamed) {
  std::vector<std::byte> record = sealed(info_of(100));
  RecordInfo seen;
  record[4] = std::byte{1};
  EXPECT_EQ(read_record_header(record, seen), RecordFault::kVersion);
  record[0] = std::byte{0};
  EXPECT_EQ(read_record_header(record, seen), RecordFault::kMagic);
  EXPECT_STREQ(to_string(RecordFault::kVersion), "version");
  EXPECT_STREQ(to_string(RecordFault::kPayload), "payload");
}

}  // namespace
}  // namespace kvfolio
