// SPDX-License-Identifier: Apache-2.0
//
// A directory that others wrote to, who do not have the key; and one of version 1.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/little_endian.h"
#include "disk/test_store.h"
#include "kvfolio/checked_copy.h"

namespace kvfolio::disk {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Answer = std::optional<TierResult>;

constexpr std::size_t kCrcOfHeader = 188;

Bytes secret(int number) { return Bytes(kRecordKeyBytes, std::byte(number)); }

std::span<std::byte, kPiece> piece_at(SimDisk::File& file, std::int64_t offset) {
  return std::span<std::byte, kPiece>(file.data.data() + offset, kPiece);
}

void mend_header(std::span<std::byte, kPiece> piece) {
  LittleEndianWriter(piece.subspan(kCrcOfHeader)).put(crc32c(piece.first(kCrcOfHeader)));
}

std::map<std::string, std::shared_ptr<SimDisk::File>> segments_of(SimDisk& disk) {
  std::map<std::string, std::shared_ptr<SimDisk::File>> found;
  for (const auto& [path, file] : disk.files) {
    if (path.find("segment-") != path.npos) found[path] = file;
  }
  return found;
}

// The offsets of the records of a file, and what their headers say.
std::vector<std::pair<std::int64_t, RecordHeader>> records_of(SimDisk::File& file) {
  std::vector<std::pair<std::int64_t, RecordHeader>> found;
  RecordHeader header;
  for (std::int64_t at = kPiece; at + kPiece <= std::ssize(file.data);
       at += record_bytes(header.data_bytes)) {
    if (decode(piece_at(file, at), header) != FormatFault::kNone) break;
    found.emplace_back(at, header);
  }
  return found;
}

// As one who knows the format: headers and a footer that are right in all but the MAC.
void write_footer(SimDisk::File& file) {
  std::vector<FooterEntry> entries;
  std::int64_t end = kPiece;
  for (const auto& [at, header] : records_of(file)) {
    entries.push_back({header.key, header.sequence, at, header.data_bytes});
    end = at + record_bytes(header.data_bytes);
  }
  SegmentHeader segment;
  ASSERT_EQ(decode(piece_at(file, 0), segment), FormatFault::kNone);
  file.data.resize(static_cast<std::size_t>(end + footer_bytes(std::ssize(entries))));
  encode_footer(segment.epoch, entries, std::span(file.data).subspan(std::size_t(end)));
  file.durable = file.data;
}

// Makes the file what version 1 wrote.
void make_old(SimDisk::File& file) {
  for (const auto& [at, header] : records_of(file)) {
    const auto piece = piece_at(file, at);
    RecordInfo info;
    ASSERT_EQ(read_record_header(piece, info), RecordFault::kNone);
    std::fill(piece.begin(), piece.begin() + kRecordFieldsBytes, std::byte{0});
    LittleEndianWriter to(piece);
    to.put(std::uint32_t{0x4446564b});  // "KVFD"
    to.put(std::uint16_t{1});
    to.put(std::uint16_t{192});
    to.put(header.epoch);
    to.put(header.sequence);
    to.put(std::span<const std::byte>(header.key.bytes));
    to.put(static_cast<std::uint64_t>(header.data_bytes));
    to.put(info.checksum);
    mend_header(piece);
  }
  for (const std::int64_t at : {std::int64_t{0}, std::ssize(file.data) - kPiece}) {
    piece_at(file, at)[4] = std::byte{1};
    mend_header(piece_at(file, at));
  }
  file.durable = file.data;
}

class KeyedDisk : public ::testing::Test {
 protected:
  void open(std::optional<int> key, std::optional<int> accepted = {}) {
    waiter_.reset();
    sim.close();
    key_ = key ? secret(*key) : Bytes();
    accepted_ = accepted ? secret(*accepted) : Bytes();
    sim.options.keys = {.key = key_, .accepted_key = accepted_};
    const Status status = sim.open();
    ASSERT_TRUE(status.ok()) << status;
    waiter_.emplace(*sim.store);
  }
  void close() {
    waiter_.reset();
    sim.close();
  }
  Answer store(std::uint64_t number) { return waiter_->store(number); }
  Answer load(std::uint64_t number) { return waiter_->load(number); }
  Answer erase(std::uint64_t number) { return (*waiter_)(TierOp::kErase, key_of(number), {}); }
  SimDisk::File& only_segment() {
    const auto segments = segments_of(*sim.disk);
    EXPECT_EQ(segments.size(), 1u);
    return *segments.begin()->second;
  }

  SimStore sim;

 private:
  Bytes key_, accepted_;
  std::optional<Waiter<SegmentStore>> waiter_;
};

TEST_F(KeyedDisk, RecordsOfTheKeyAreFoundAgain) {
  open(1);
  for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(store(i), TierResult::kOk);
  open(1);
  for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
  EXPECT_EQ(sim.store->stats().corrupt, 0u);
}

// O12.
TEST_F(KeyedDisk, ARecordOfAnotherKeyOrOfNoneIsAMissAndStaysForItsOwner) {
  for (const auto& [writer, reader] : {std::pair<std::optional<int>, std::optional<int>>{2, 1},
                                       {std::nullopt, 1},
                                       {1, std::nullopt}}) {
    sim.disk = std::make_unique<SimDisk>();
    open(writer);
    for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(store(i), TierResult::kOk);
    open(reader);
    for (std::uint64_t i = 0; i < 9; ++i) {
      EXPECT_EQ(load(i), TierResult::kMiss) << i;
      EXPECT_EQ(store(i), TierResult::kOk) << i;  // as what is there already
      EXPECT_EQ(load(i), TierResult::kMiss) << i;
    }
    EXPECT_EQ(store(9), TierResult::kOk);
    EXPECT_EQ(load(9), TierResult::kOk);
    EXPECT_EQ(sim.store->stats().records, 10);
    EXPECT_EQ(sim.store->stats().corrupt, 0u);
    EXPECT_EQ(sim.store->stats().of_another_key, 18u);
    EXPECT_EQ(sim.store->health().of_another_key, 18u);
    EXPECT_EQ(sim.store->health().corrupt_unasked, 0u);
    EXPECT_THAT(sim.store->describe(), HasSubstr(", 18 loads met a record of another key"));
    open(writer);
    for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
    EXPECT_EQ(load(9), TierResult::kMiss);
    close();
  }
}

TEST_F(KeyedDisk, ARecordOfAnotherKeyIsErasedByItsNameAlone) {
  open(2);
  EXPECT_EQ(store(0), TierResult::kOk);
  open(1);
  EXPECT_EQ(load(0), TierResult::kMiss);
  EXPECT_EQ(erase(0), TierResult::kOk);
  EXPECT_EQ(store(0), TierResult::kOk);
  EXPECT_EQ(load(0), TierResult::kOk);
}

// Who writes to the medium can make it so: that costs a miss, as if he had damaged the record.
TEST_F(KeyedDisk, ARecordThatSaysAnotherKeyIsAMissAndADamagedOneIsCorrupt) {
  open(1);
  EXPECT_EQ(store(0), TierResult::kOk);
  EXPECT_EQ(store(1), TierResult::kOk);
  close();
  SimDisk::File& file = only_segment();
  const auto records = records_of(file);
  const auto piece = piece_at(file, records.at(0).first);
  piece[144] ^= std::byte{1};
  mend_header(piece);
  piece_at(file, records.at(1).first)[144] ^= std::byte{1};  // and the checksum of the header
  file.durable = file.data;
  open(1);
  EXPECT_EQ(load(0), TierResult::kMiss);
  EXPECT_EQ(load(1), TierResult::kCorrupt);
  EXPECT_EQ(sim.store->stats().of_another_key, 1u);
  EXPECT_EQ(sim.store->stats().corrupt, 1u);
}

// They go with their segments: the reader used none of them, and must not seal their bytes anew.
TEST_F(KeyedDisk, RecordsOfAnotherKeyAreNotWrittenAgain) {
  open(2);
  EXPECT_EQ(store(0), TierResult::kOk);
  open(1);
  EXPECT_EQ(load(0), TierResult::kMiss);
  for (std::uint64_t i = 1; i < 60; ++i) EXPECT_EQ(store(i), TierResult::kOk);
  EXPECT_GT(sim.store->stats().evicted, 0u);
  EXPECT_EQ(sim.store->stats().reinserted, 0u);
  EXPECT_EQ(store(0), TierResult::kOk);
  EXPECT_EQ(load(0), TierResult::kOk);  // its name is free again
}

// Other data, under a header with the right name, place, number of the key, and checksums.
TEST_F(KeyedDisk, AForgedRecordIsAMiss) {
  open(1);
  EXPECT_EQ(store(0), TierResult::kOk);
  close();
  SimDisk::File& file = only_segment();
  const auto [at, header] = records_of(file).at(0);
  RecordInfo before;
  ASSERT_EQ(read_record_header(piece_at(file, at), before), RecordFault::kNone);
  const kvfolio::Result<RecordKeys> attackers = RecordKeys::create({.key = secret(2)});
  ASSERT_TRUE(seal(header, Bytes(std::size_t(header.data_bytes)), *attackers, piece_at(file, at)));
  LittleEndianWriter(piece_at(file, at).subspan(144)).put(before.key_id);
  mend_header(piece_at(file, at));
  std::fill(file.data.begin() + at + kPiece,
            file.data.begin() + at + record_bytes(header.data_bytes), std::byte{0});
  file.durable = file.data;
  open(1);
  EXPECT_EQ(load(0), TierResult::kCorrupt);
}

// Records 1 and 10 have one size: their names change places, in headers and footer.
TEST_F(KeyedDisk, ARecordMovedUnderAnotherNameIsAMiss) {
  for (const bool whole : {false, true}) {
    sim.disk = std::make_unique<SimDisk>();
    open(1);
    EXPECT_EQ(store(1), TierResult::kOk);
    EXPECT_EQ(store(10), TierResult::kOk);
    close();
    SimDisk::File& file = only_segment();
    const auto records = records_of(file);
    ASSERT_EQ(records.size(), 2u);
    const std::int64_t a = records[0].first, b = records[1].first;
    ASSERT_EQ(records[0].second.data_bytes, records[1].second.data_bytes);
    if (whole) {  // headers and data, each with its MAC: at another place, under another number
      const auto size = record_bytes(records[0].second.data_bytes);
      std::swap_ranges(file.data.begin() + a, file.data.begin() + a + size, file.data.begin() + b);
      for (std::size_t i = 0; i < 2; ++i) {
        const auto piece = piece_at(file, records[i].first);
        LittleEndianWriter(piece.subspan(136)).put(records[i].second.sequence);
        mend_header(piece);
      }
    } else {  // the names alone
      std::swap_ranges(file.data.begin() + a + 8, file.data.begin() + a + 80,
                       file.data.begin() + b + 8);
      mend_header(piece_at(file, a));
      mend_header(piece_at(file, b));
    }
    write_footer(file);
    open(1);
    EXPECT_EQ(load(1), TierResult::kCorrupt);
    EXPECT_EQ(load(10), TierResult::kCorrupt);
    close();
  }
}

// What an earlier file had under the name, put into a later one: its header says the earlier epoch,
// or its MAC does.
TEST_F(KeyedDisk, ARecordReplayedFromAnOlderEpochIsAMiss) {
  for (const bool patched : {false, true}) {
    sim.disk = std::make_unique<SimDisk>();
    open(1);
    EXPECT_EQ(store(1), TierResult::kOk);
    close();
    const SimDisk::File old = only_segment();
    sim.disk = std::make_unique<SimDisk>();
    open(1);
    EXPECT_EQ(store(1), TierResult::kOk);
    close();
    SimDisk::File& file = only_segment();
    SimDisk::File copy = old;
    const auto [at, header] = records_of(file).at(0);
    const auto [old_at, old_header] = records_of(copy).at(0);
    ASSERT_NE(header.epoch, old_header.epoch);
    std::copy_n(copy.data.begin() + old_at, record_bytes(old_header.data_bytes),
                file.data.begin() + at);
    if (patched) {
      LittleEndianWriter(piece_at(file, at).subspan(128)).put(header.epoch);
      LittleEndianWriter(piece_at(file, at).subspan(136)).put(header.sequence);
      mend_header(piece_at(file, at));
    }
    file.durable = file.data;
    open(1);
    EXPECT_EQ(load(1), TierResult::kCorrupt) << patched;
    close();
  }
}

// Each step of a replacement finds what the step before wrote.
TEST_F(KeyedDisk, AKeyIsReplacedWithoutAMiss) {
  open(1);
  EXPECT_EQ(store(0), TierResult::kOk);
  open(1, 2);
  EXPECT_EQ(load(0), TierResult::kOk);
  open(2, 1);
  EXPECT_EQ(load(0), TierResult::kOk);
  EXPECT_EQ(store(1), TierResult::kOk);
  open(2);
  EXPECT_EQ(load(1), TierResult::kOk);
  EXPECT_EQ(load(0), TierResult::kMiss);
}

TEST_F(KeyedDisk, AKeyOfAnotherLengthIsRefused) {
  const Bytes key(31);
  sim.options.keys = {.key = key};
  const Status status = sim.open();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "record keys: key has 31 bytes, allowed: 32");
}

// ---- version 1 ----

TEST_F(KeyedDisk, SegmentsOfVersionOneAreReadAndNotWrittenTo) {
  open({});
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(store(i), TierResult::kOk);
  close();
  make_old(only_segment());
  const Bytes before = only_segment().data;
  open({});
  EXPECT_EQ(sim.store->stats().recovered, 5u);
  EXPECT_GE(sim.store->stats().bytes, std::ssize(before));
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(load(i), TierResult::kOk) << i;
  EXPECT_EQ(store(9), TierResult::kOk);
  EXPECT_EQ(segments_of(*sim.disk).begin()->second->data, before);
  EXPECT_GE(segments_of(*sim.disk).size(), 2u);
  close();
  // Damage of theirs is found as ever.
  SimDisk::File& file = *segments_of(*sim.disk).begin()->second;
  file.data[kPiece + 200] ^= std::byte{1};
  open({});
  EXPECT_EQ(load(0), TierResult::kCorrupt);
  EXPECT_EQ(load(9), TierResult::kOk);
}

TEST_F(KeyedDisk, SegmentsOfVersionOneGoFirst) {
  open({});
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(store(i), TierResult::kOk);
  close();
  make_old(only_segment());
  const std::string old = segments_of(*sim.disk).begin()->first;
  open({});
  for (std::uint64_t i = 5; i < 60; ++i) EXPECT_EQ(store(i), TierResult::kOk);
  EXPECT_LE(sim.store->stats().bytes, sim.options.bytes);
  EXPECT_FALSE(segments_of(*sim.disk).contains(old));
}

TEST_F(KeyedDisk, WithAKeyARecordOfVersionOneIsAMiss) {
  open({});
  EXPECT_EQ(store(0), TierResult::kOk);
  close();
  make_old(only_segment());
  open(1);
  EXPECT_EQ(load(0), TierResult::kMiss);
  EXPECT_EQ(sim.store->stats().of_another_key, 1u);
  open({});
  EXPECT_EQ(load(0), TierResult::kOk);
}

}  // namespace
}  // namespace kvfolio::disk
