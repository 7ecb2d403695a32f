// SPDX-License-Identifier: Apache-2.0
#include "disk/format.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <string>

namespace kvfolio::disk {
namespace {

std::uint64_t test_seed() {
  const char* text = std::getenv("KVFOLIO_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

RecordHeader header_of(std::uint64_t number) {
  RecordHeader header{.epoch = 7, .sequence = number, .data_bytes = 12345};
  header.key.bytes[5] = std::byte(number);
  return header;
}

std::array<std::byte, kPiece> piece_of(const RecordHeader& header) {
  std::array<std::byte, kPiece> piece{};
  const std::vector<std::byte> data(static_cast<std::size_t>(header.data_bytes), std::byte{3});
  EXPECT_TRUE(seal(header, data, {}, piece));
  return piece;
}

std::vector<std::byte> footer_of(std::size_t num_records) {
  std::vector<FooterEntry> entries(num_records);
  std::int64_t offset = kPiece;
  for (std::size_t i = 0; i < num_records; ++i) {
    entries[i] = {.key = header_of(i).key, .sequence = i, .offset = offset, .data_bytes = 5000};
    offset += record_bytes(5000);
  }
  const std::int64_t bytes = footer_bytes(std::int64_t(num_records));
  std::vector<std::byte> footer(static_cast<std::size_t>(bytes));
  encode_footer(7, entries, footer);
  return footer;
}

TEST(DiskFormat, DataIsSplitIntoTailAndBody) {
  for (std::int64_t bytes = 0; bytes < 3 * kPiece; ++bytes) {
    EXPECT_LE(tail_bytes(bytes), kTailBytesMax);
    EXPECT_EQ(body_bytes(bytes) % kPiece, 0);
    EXPECT_GE(tail_bytes(bytes) + body_bytes(bytes), bytes);
    EXPECT_LT(tail_bytes(bytes) + body_bytes(bytes), bytes + kPiece);
  }
  EXPECT_EQ(record_bytes((256 << 10) + 192), (256 << 10) + kPiece);
}

TEST(DiskFormat, AHeaderIsReadAsItWasWritten) {
  std::array<std::byte, kPiece> piece = piece_of(header_of(4));
  RecordHeader seen;
  ASSERT_EQ(decode(piece, seen), FormatFault::kNone);
  EXPECT_EQ(seen, header_of(4));
  SegmentHeader segment;
  EXPECT_EQ(decode(piece, segment), FormatFault::kMagic);
  encode(SegmentHeader{.number = 3, .epoch = 5}, piece);
  ASSERT_EQ(decode(piece, segment), FormatFault::kNone);
  EXPECT_EQ(segment.number, 3u);
  EXPECT_EQ(segment.epoch, 5u);
}

TEST(DiskFormat, EveryFlippedBitOfAHeaderIsSeen) {
  std::array<std::byte, kPiece> piece = piece_of(header_of(4));
  for (std::size_t bit = 0; bit < 8 * std::size_t{kRecordFieldsBytes}; ++bit) {
    piece[bit / 8] ^= std::byte(1 << (bit % 8));
    RecordHeader seen;
    EXPECT_NE(decode(piece, seen), FormatFault::kNone) << "bit " << bit;
    piece[bit / 8] ^= std::byte(1 << (bit % 8));
  }
}

// Those of a record: record_test.cc.
TEST(DiskFormat, TheBytesOfAHeaderAreFixed) {
  std::array<std::byte, kPiece> piece{};
  encode(SegmentHeader{.number = 7, .epoch = 4}, piece);
  std::string hex;
  for (std::size_t i = 0; i < 24; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[unsigned(piece[i]) >> 4];
    hex += kDigits[unsigned(piece[i]) & 15];
  }
  EXPECT_EQ(hex, "4b5646530200c00007000000000000000400000000000000");
}

// So are those of a tombstone: it is no record, and says how large the record was and no more.
TEST(DiskFormat, ATombstoneIsNoRecord) {
  const RecordHeader tombstone{.epoch = 7, .sequence = 4, .data_bytes = 12345, .erased = true};
  std::array<std::byte, kPiece> piece{};
  encode_tombstone(tombstone, piece);
  RecordHeader seen;
  ASSERT_EQ(decode(piece, seen), FormatFault::kNone);
  EXPECT_EQ(seen, tombstone);
  RecordHeader record = tombstone;
  record.erased = false;
  EXPECT_NE(seen, record);
  EXPECT_EQ(piece[3], std::byte{0x45});
  piece[3] = std::byte{0x44};  // the magic of a record of version 1
  EXPECT_NE(decode(piece, seen), FormatFault::kNone);
}

TEST(DiskFormat, AFooterIsReadAsItWasWritten) {
  for (const std::size_t count : {0u, 1u, 42u, 43u, 300u}) {
    const std::vector<std::byte> footer = footer_of(count);
    Trailer trailer;
    ASSERT_EQ(decode(std::span(footer).last(kPiece), trailer), FormatFault::kNone);
    EXPECT_EQ(trailer.num_records, std::int64_t(count));
    std::vector<FooterEntry> entries;
    const std::int64_t at = kPiece + std::int64_t(count) * record_bytes(5000);
    const auto body = std::span(footer).first(footer.size() - kPiece);
    ASSERT_EQ(decode_entries(trailer, body, at, entries), FormatFault::kNone);
    EXPECT_EQ(entries.size(), count);
    if (count == 0) continue;
    entries.clear();
    // A record that would reach into the footer is none.
    EXPECT_EQ(decode_entries(trailer, body, at - kPiece, entries), FormatFault::kFields);
  }
}

// Any bytes may lie where a header or a footer is expected: random ones, and damaged ones with a
// checksum that is right again.
TEST(DiskFormat, AnyBytesAreRead) {
  std::mt19937_64 random(test_seed());
  const std::vector<std::byte> good = footer_of(40);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes(good);
    const auto flips = 1 + random() % 4;
    for (std::uint64_t i = 0; i < flips; ++i) bytes[random() % bytes.size()] ^= std::byte(random());
    if (round % 3 == 0) bytes.resize(random() % bytes.size());
    const std::span<const std::byte> piece =
        bytes.size() >= kPiece ? std::span(bytes).last(kPiece) : std::span(bytes);
    SegmentHeader segment;
    RecordHeader record;
    Trailer trailer;
    static_cast<void>(decode(piece, segment));
    static_cast<void>(decode(piece, record));
    if (decode(piece, trailer) != FormatFault::kNone) trailer.num_records = random() % 64;
    std::vector<FooterEntry> entries;
    const std::span<const std::byte> body =
        std::span(bytes).first(bytes.size() - std::min(bytes.size(), std::size_t{kPiece}));
    if (decode_entries(trailer, body, 1 << 20, entries) != FormatFault::kNone) continue;
    EXPECT_EQ(entries.size(), 40u);
  }
}

}  // namespace
}  // namespace kvfolio::disk
