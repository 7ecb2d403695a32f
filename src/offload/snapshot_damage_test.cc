// SPDX-License-Identifier: Apache-2.0
//
// Snapshots that are damaged, cut, endless, put together from two, or written by someone hostile.
// They may lose prompts. They never give other bytes or other tokens, and take bounded time and
// memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "kvfolio/snapshot.h"
#include "offload/offload_test_cache.h"
#include "offload/snapshot_reader.h"

namespace kvfolio {
namespace {

using snapshot::kHeaderBytes;
using snapshot::SectionHeader;
using snapshot::Type;
using test::Cache;
using test::MemoryFile;
using test::prompt_of;

Identity identity_of(const Cache& cache) {
  return *Identity::create(test::toy_of(cache.manager.spec()), cache.manager.spec());
}

MemoryFile saved(Cache& cache, const SaveOptions& options = {}) {
  MemoryFile file;
  const auto stats = save(cache.manager, identity_of(cache), file, options);
  EXPECT_TRUE(stats) << stats.error();
  return file;
}

RestoreStats restored(Cache& cache, ByteSource& file) {
  auto stats = restore(cache.manager, identity_of(cache), file);
  EXPECT_TRUE(stats) << stats.error();
  EXPECT_TRUE(cache.manager.check_invariants().ok());
  return stats ? *std::move(stats) : RestoreStats{};
}

std::int64_t peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss >> 10;
}

#ifdef __SANITIZE_ADDRESS__
constexpr std::int64_t kMemoryMib = 2000;  // what is freed is kept for a while
#else
constexpr std::int64_t kMemoryMib = 300;
#endif

struct Section {
  SectionHeader header;
  std::size_t place = 0;
};
std::vector<Section> sections_of(const MemoryFile& file) {
  std::vector<Section> sections;
  for (std::size_t at = 0; at < file.bytes.size();) {
    Section section{{}, at};
    EXPECT_TRUE(snapshot::read_header(std::span(file.bytes).subspan(at).first<kHeaderBytes>(),
                                      static_cast<std::int64_t>(at), section.header));
    sections.push_back(section);
    at += static_cast<std::size_t>(
        snapshot::aligned(static_cast<std::int64_t>(kHeaderBytes) + section.header.body_bytes));
  }
  return sections;
}
// As one who knows the format writes a section anew.
void seal(MemoryFile& file, const Section& section) {
  SectionHeader header = section.header;
  const auto body =
      std::span(file.bytes)
          .subspan(section.place + kHeaderBytes, static_cast<std::size_t>(header.body_bytes));
  if (header.type != Type::kRecord) {
    header.checksum = checksum(body, static_cast<std::uint64_t>(section.place));
  }
  snapshot::write_header(header,
                         std::span(file.bytes).subspan(section.place).first<kHeaderBytes>());
}

// ---- flips and cuts ----

constexpr int kNumbers[] = {1, 2, 3};

// A hostile author may give a sequence any caller id, but no other tokens than the records' own.
void restore_damaged(MemoryFile& file, const CacheSpec& spec, bool hostile = false) {
  Cache after(spec);
  const auto stats = restore(after.manager, identity_of(after), file);
  ASSERT_TRUE(after.manager.check_invariants().ok());
  if (!stats) {
    EXPECT_FALSE(hostile) << "no section takes the others with it: " << stats.error();
    return;
  }
  for (const RestoredSequence& one : stats->sequences) {
    const bool is_known = std::any_of(std::begin(kNumbers), std::end(kNumbers), [&](int number) {
      return (hostile || one.caller_id == std::uint64_t(number)) &&
             one.tokens == prompt_of(number, 50 + number);
    });
    EXPECT_TRUE(is_known || (hostile && one.tokens.empty())) << "other tokens under a caller id";
    after.check_sequence(one.sequence, std::span(one.tokens).first(std::size_t(one.length)));
  }
  for (const int prompt : kNumbers) after.check_hit(prompt_of(prompt, 64));
}

MemoryFile small_file(const CacheSpec& spec) {
  Cache before(spec);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<SnapshotSequence> sequences;
  for (const int number : kNumbers) {
    before.compute(prompt_of(number, 64));
    prompts.push_back(prompt_of(number, 50 + number));
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const OpenOptions options{.caller_id = std::uint64_t(kNumbers[i])};
    sequences.push_back({.sequence = before.start(prompts[i], options), .tokens = prompts[i]});
  }
  return saved(before, {.sequences = sequences});
}

TEST(SnapshotDamage, FiveHundredFlippedBitsNeverGiveOtherBytes) {
  const CacheSpec spec = test::mixed(40, 40);
  const MemoryFile good = small_file(spec);
  ASSERT_LE(good.size(), 64 << 10);
  constexpr std::uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  const std::int64_t before_mib = peak_mib();
  for (int i = 0; i < 500; ++i) {
    MemoryFile file = good;
    const std::size_t at = random() % file.bytes.size();
    file.bytes[at] ^= std::byte(1u << random() % 8);
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", flip " << i << " at " << at);
    restore_damaged(file, spec);
    if (HasFailure()) return;
  }
  EXPECT_LT(peak_mib() - before_mib, kMemoryMib);
}

TEST(SnapshotDamage, ACutAtAnyPlaceNeverGivesOtherBytes) {
  const CacheSpec spec = test::mixed(40, 40);
  const MemoryFile good = small_file(spec);
  const std::int64_t before_mib = peak_mib();
  for (std::size_t size = 0; size < good.bytes.size(); size += 97) {
    MemoryFile file = good;
    file.bytes.resize(size);
    SCOPED_TRACE(testing::Message() << "cut at " << size);
    restore_damaged(file, spec);
    if (HasFailure()) return;
  }
  EXPECT_LT(peak_mib() - before_mib, kMemoryMib);
}

TEST(SnapshotDamage, ADamagedRecordEndsItsPathAndNothingElse) {
  Cache before(test::full(40));
  for (const int prompt : {1, 2, 3}) before.compute(prompt_of(prompt, 64));
  MemoryFile file = saved(before);
  // The payload of one record, found by its bytes: block 3 of prompt 2.
  const std::vector<std::byte> image = before.image(prompt_of(2, 64), 24, 32);
  const auto at = std::search(file.bytes.begin(), file.bytes.end(), image.begin(), image.end());
  ASSERT_NE(at, file.bytes.end());
  *at ^= std::byte{1};
  Cache after(test::full(40));
  const RestoreStats stats = restored(after, file);
  EXPECT_EQ(stats.records_refused, 1);
  EXPECT_EQ(after.check_hit(prompt_of(1, 64)), 63);
  EXPECT_EQ(after.check_hit(prompt_of(2, 64)), 24);
  EXPECT_EQ(after.check_hit(prompt_of(3, 64)), 63);
}

// ---- what flips do not meet ----

// The bytes that fill up a section are no place for anything.
TEST(SnapshotDamage, AByteBehindABodyIsDamageOfItsSection) {
  Cache before(test::full(40));
  before.compute(prompt_of(1, 64));
  const MemoryFile good = saved(before);
  for (const Section& section : sections_of(good)) {
    const std::size_t end =
        section.place + kHeaderBytes + static_cast<std::size_t>(section.header.body_bytes);
    if (end % 64 == 0) continue;
    MemoryFile file = good;
    file.bytes[end / 64 * 64 + 63] ^= std::byte{1};
    Cache after(test::full(40));
    const auto stats = restore(after.manager, identity_of(after), file);
    EXPECT_TRUE(!stats || stats->sections_damaged + stats->records_refused > 0)
        << "section at " << section.place;
  }
}

TEST(SnapshotDamage, TheEndSaysHowManySectionsWereLost) {
  Cache before(test::full(40));
  for (const int number : kNumbers) before.compute(prompt_of(number, 64));
  const MemoryFile good = saved(before);
  const std::vector<Section> sections = sections_of(good);
  const auto damaged = [&](const MemoryFile& file) {
    MemoryFile copy = file;
    Cache after(test::full(40));
    return restored(after, copy).sections_damaged;
  };
  EXPECT_EQ(damaged(good), 0);
  // Three headers in a row: one gap.
  MemoryFile file = good;
  for (const std::size_t i : {std::size_t{9}, std::size_t{10}, std::size_t{11}})
    file.bytes[sections[i].place] ^= std::byte{1};
  EXPECT_EQ(damaged(file), 3);
  // Another count, under a right checksum.
  file = good;
  file.bytes[sections.back().place + kHeaderBytes] ^= std::byte{2};
  seal(file, sections.back());
  EXPECT_GT(damaged(file), 0);
  // No end, and something behind the end.
  file = good;
  file.bytes.resize(sections.back().place);
  EXPECT_EQ(damaged(file), 1);
  file = good;
  file.bytes.resize(file.bytes.size() + 640);
  EXPECT_EQ(damaged(file), 1);
}

// As a medium that lost some of its writes mixes an old file and a new one of the same length.
TEST(SnapshotDamage, ASequenceOfAnotherFileIsNotRestoredWithTheTokensOfThisOne) {
  const auto file_of = [](int number) {
    Cache cache(test::full(40));
    const std::vector<std::int32_t> prompt = prompt_of(number, 40);
    const SnapshotSequence sequence{
        .sequence = cache.start(prompt, {.caller_id = std::uint64_t(number)}), .tokens = prompt};
    return saved(cache, {.sequences = std::span(&sequence, 1)});
  };
  MemoryFile mixed = file_of(1);
  const MemoryFile other = file_of(2);
  ASSERT_EQ(mixed.size(), other.size());
  int sequences = 0;
  for (const Section& section : sections_of(mixed)) {
    if (section.header.type != Type::kSequence) continue;
    ++sequences;
    std::copy_n(other.bytes.begin() + static_cast<std::ptrdiff_t>(section.place), 128,
                mixed.bytes.begin() + static_cast<std::ptrdiff_t>(section.place));
  }
  ASSERT_EQ(sequences, 1);
  Cache after(test::full(40));
  const RestoreStats stats = restored(after, mixed);
  EXPECT_TRUE(stats.sequences.empty());
  EXPECT_EQ(stats.sections_damaged, 1);
  EXPECT_EQ(after.check_hit(prompt_of(1, 40)), 39);
}

// ---- hostile files ----

// A file that goes on for ever with zeros, as a sparse one does. Counts what is read.
class Endless final : public ByteSource {
 public:
  explicit Endless(MemoryFile file) : file_(std::move(file)) {}
  std::int64_t bytes_read = 0;

  [[nodiscard]] std::int64_t size() const override { return std::int64_t{1} << 62; }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    bytes_read += static_cast<std::int64_t>(out.size());
    std::fill(out.begin(), out.end(), std::byte{0});
    if (offset >= file_.size()) return {};
    const auto there = std::min(out.size(), static_cast<std::size_t>(file_.size() - offset));
    std::memcpy(out.data(), file_.bytes.data() + offset, there);
    return {};
  }

 private:
  MemoryFile file_;
};

TEST(SnapshotDamage, AnEndlessFileIsReadForABoundedTime) {
  Cache before(test::full(40));
  before.compute(prompt_of(1, 64));
  Endless file(saved(before));
  Cache after(test::full(40));
  const std::int64_t before_mib = peak_mib();
  const RestoreStats stats = restored(after, file);
  EXPECT_EQ(stats.sections_damaged, 1);
  EXPECT_EQ(after.check_hit(prompt_of(1, 64)), 63);
  EXPECT_LT(file.bytes_read, snapshot::Limits().bytes_in_vain + (1 << 20));
  EXPECT_LT(peak_mib() - before_mib, kMemoryMib);
}

// Sections of tokens without end, each right, each new: a hole in a file can hold most of each.
class EndlessTokens final : public ByteSource {
 public:
  EndlessTokens(const MemoryFile& file, std::size_t head)
      : head_(file.bytes.begin(), file.bytes.begin() + static_cast<std::ptrdiff_t>(head)) {}
  std::int64_t bytes_read = 0;
  static constexpr std::uint32_t kTokens = 4096;
  static constexpr std::int64_t kSection = 64 + 16 + 4 * kTokens + 48;
  static_assert(kSection % 64 == 0);

  [[nodiscard]] std::int64_t size() const override { return std::int64_t{1} << 62; }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    bytes_read += static_cast<std::int64_t>(out.size());
    for (std::size_t done = 0; done < out.size();) {
      const std::int64_t at = offset + static_cast<std::int64_t>(done);
      const auto head = static_cast<std::int64_t>(head_.size());
      const std::vector<std::byte>& from = at < head ? head_ : section((at - head) / kSection);
      const auto first = static_cast<std::size_t>(at < head ? at : (at - head) % kSection);
      const std::size_t count = std::min(out.size() - done, from.size() - first);
      std::memcpy(out.data() + done, from.data() + first, count);
      done += count;
    }
    return {};
  }

 private:
  const std::vector<std::byte>& section(std::int64_t number) {
    if (number == number_) return section_;
    number_ = number;
    section_.assign(static_cast<std::size_t>(kSection), std::byte{0});
    LittleEndianWriter body{std::span<std::byte>(section_).subspan(kHeaderBytes)};
    for (const std::uint32_t word : {0u, 0u, kTokens, 0u}) body.put(word);
    body.put(static_cast<std::uint32_t>(number));
    const std::int64_t place = static_cast<std::int64_t>(head_.size()) + number * kSection;
    const std::size_t bytes = 16 + 4 * kTokens;
    snapshot::write_header({.type = Type::kTokens,
                            .place = place,
                            .body_bytes = static_cast<std::int64_t>(bytes),
                            .checksum = checksum(std::span(section_).subspan(kHeaderBytes, bytes),
                                                 static_cast<std::uint64_t>(place)),
                            .a = static_cast<std::uint32_t>(number) * (kTokens / 8),
                            .b = snapshot::kNoNode},
                           std::span(section_).first<kHeaderBytes>());
    return section_;
  }
  std::vector<std::byte> head_, section_;
  std::int64_t number_ = -1;
};

TEST(SnapshotDamage, TokensWithoutEndTakeBoundedMemoryAndTime) {
  Cache before(test::full(40));
  before.compute(prompt_of(1, 64));
  const MemoryFile good = saved(before);
  std::size_t head = 0;  // identity and root
  for (const Section& section : sections_of(good)) {
    if (section.header.type == Type::kTokens) break;
    head =
        section.place + static_cast<std::size_t>(snapshot::aligned(
                            static_cast<std::int64_t>(kHeaderBytes) + section.header.body_bytes));
  }
  EndlessTokens file(good, head);
  const Identity identity = identity_of(before);
  const snapshot::Limits limits{.memory_bytes = 4 << 20, .bytes_in_vain = 8 << 20};
  SnapshotReader reader(identity, *before.manager.storage(), file, limits);
  const std::int64_t before_mib = peak_mib();
  ASSERT_TRUE(reader.read().ok());
  EXPECT_GT(reader.num_damaged(), 400);
  EXPECT_LT(file.bytes_read, 4 * (limits.memory_bytes + limits.bytes_in_vain));
  EXPECT_LT(peak_mib() - before_mib, kMemoryMib);
  EXPECT_TRUE(reader.leaves().empty()) << "nothing has a record";
}

// Writes a section behind what is there.
void add_section(MemoryFile& file, SectionHeader header, std::span<const std::byte> body) {
  header.place = static_cast<std::int64_t>(file.bytes.size());
  header.body_bytes = static_cast<std::int64_t>(body.size());
  header.checksum =
      header.type == Type::kRecord ? 0 : checksum(body, static_cast<std::uint64_t>(header.place));
  const auto bytes = kHeaderBytes + body.size();
  file.bytes.resize(file.bytes.size() +
                    static_cast<std::size_t>(snapshot::aligned(static_cast<std::int64_t>(bytes))));
  const auto section = std::span(file.bytes).subspan(static_cast<std::size_t>(header.place));
  std::memcpy(section.data() + kHeaderBytes, body.data(), body.size());
  snapshot::write_header(header, section.first<kHeaderBytes>());
}

// Nodes with these tokens; returns the hash behind them.
Digest add_tokens(MemoryFile& file, const Identity& identity, std::uint32_t node,
                  std::int32_t begin, std::uint32_t before, Digest hash,
                  std::span<const std::int32_t> tokens) {
  std::vector<std::byte> body(16 + 4 * tokens.size());
  LittleEndianWriter to{std::span<std::byte>(body)};
  to.put(std::uint32_t{0});
  to.put(static_cast<std::uint32_t>(begin));
  to.put(static_cast<std::uint32_t>(tokens.size()));
  to.put(std::uint32_t{0});
  for (const std::int32_t token : tokens) to.put(static_cast<std::uint32_t>(token));
  add_section(file, {.type = Type::kTokens, .a = node, .b = before}, body);
  for (std::size_t at = 0; at < tokens.size(); at += 8) {
    hash = identity.next(hash, begin + static_cast<std::int32_t>(at), tokens.subspan(at, 8));
  }
  return hash;
}

// A file of four megabytes: many prompts of a million tokens, of which it has the last block only.
TEST(SnapshotDamage, PathsThatBringNothingAreNotOpenedForEver) {
  Cache before(test::full(40));
  before.compute(prompt_of(1, 64));
  MemoryFile file = saved(before);
  file.bytes.resize(sections_of(file)[2].place);  // the identity and the root
  const Identity identity = identity_of(before);
  constexpr std::int32_t kPart = 65536, kTrunk = 16 * kPart;
  const std::vector<std::int32_t> part(kPart, 5);
  Digest trunk = identity.root({}, 0);
  for (std::int32_t begin = 0; begin < kTrunk; begin += kPart) {
    const auto node = static_cast<std::uint32_t>(begin / 8);
    trunk = add_tokens(file, identity, node, begin, begin == 0 ? snapshot::kNoNode : node - 1,
                       trunk, part);
  }
  const std::int64_t image = before.manager.storage()->block_image_bytes(GroupId(0));
  constexpr std::int32_t kPaths = 200;
  for (std::int32_t i = 0; i < kPaths; ++i) {
    const auto node = static_cast<std::uint32_t>(kTrunk / 8 + i);
    const std::vector<std::int32_t> last(8, i);
    const Digest end = add_tokens(file, identity, node, kTrunk, kTrunk / 8 - 1, trunk, last);
    std::vector<std::byte> record(static_cast<std::size_t>(kRecordHeaderBytes + image));
    seal_record({.key = identity.key(GroupId(0), end),
                 .layout = identity.layout_namespace(GroupId(0)),
                 .payload_bytes = image,
                 .begin = kTrunk,
                 .end = kTrunk + 8},
                record);
    add_section(file, {.type = Type::kRecord, .a = node, .b = 0}, record);
  }
  Cache after(test::full(40));
  const RestoreStats stats = restored(after, file);
  EXPECT_EQ(stats.paths, kPaths);
  EXPECT_EQ(stats.records, kPaths);
  EXPECT_EQ(stats.records_loaded, 0);
  EXPECT_LT(after.manager.counters().sequences_opened, 150u);
  EXPECT_GE(stats.paths_no_room, kPaths);
}

// Each is a hundred bytes of the file, and as many in memory.
TEST(SnapshotDamage, SequencesWithoutEndTakeBoundedMemory) {
  Cache before(test::full(40));
  MemoryFile file = saved(before);
  file.bytes.resize(sections_of(file)[1].place);  // the identity
  constexpr std::int64_t kBody = 4 + 4 + 8 + 4 + 32;
  for (std::uint64_t id = 0; id < 50'000; ++id) {
    const auto place = static_cast<std::int64_t>(file.bytes.size());
    file.bytes.resize(file.bytes.size() + kHeaderBytes + 64);
    const auto section = std::span(file.bytes).last(kHeaderBytes + 64);
    LittleEndianWriter body(section.subspan(kHeaderBytes));
    body.put(std::uint32_t{1});
    body.put(std::uint32_t{0});
    body.put(id);
    const auto whole = section.subspan(kHeaderBytes, kBody);
    snapshot::write_header({.type = Type::kSequence,
                            .place = place,
                            .body_bytes = kBody,
                            .checksum = checksum(whole, static_cast<std::uint64_t>(place)),
                            .a = snapshot::kNoNode},
                           section.first<kHeaderBytes>());
  }
  const Identity identity = identity_of(before);
  const snapshot::Limits limits{.memory_bytes = 1 << 20};
  SnapshotReader reader(identity, *before.manager.storage(), file, limits);
  ASSERT_TRUE(reader.read().ok());
  const auto taken = static_cast<std::int64_t>(reader.sequences().size());
  EXPECT_GT(taken, 1000);
  EXPECT_LE(taken * std::int64_t{sizeof(SnapshotReader::Sequence)}, limits.memory_bytes);
  EXPECT_GT(reader.num_damaged(), 1000);
}

// A hundred bytes each again, and each names a path that is already there: what a restore gives for
// it is that of the path.
TEST(SnapshotDamage, SequencesThatShareALongPathTakeBoundedMemory) {
  Cache before(test::full(40));
  before.compute(prompt_of(1, 64));
  MemoryFile file = saved(before);
  file.bytes.resize(sections_of(file)[2].place);  // the identity and the root
  const Identity identity = identity_of(before);
  const std::vector<std::int32_t> tokens(65536, 5);
  const Digest end =
      add_tokens(file, identity, 0, 0, snapshot::kNoNode, identity.root({}, 0), tokens);
  constexpr std::int32_t kSequences = 1000;
  for (std::int32_t i = 0; i < kSequences; ++i) {
    std::vector<std::byte> body(4 + 4 + 8 + 4 + 32);
    LittleEndianWriter to{std::span<std::byte>(body)};
    to.put(std::uint32_t{0});
    to.put(std::uint32_t{65536} + static_cast<std::uint32_t>(i));  // so it is no fork
    to.put(std::uint64_t{0});
    to.put(std::uint32_t{0});
    to.put(std::span<const std::byte>(end));
    add_section(file, {.type = Type::kSequence, .a = 65536 / 8 - 1}, body);
  }
  const snapshot::Limits limits{.memory_bytes = 8 << 20};
  SnapshotReader reader(identity, *before.manager.storage(), file, limits);
  ASSERT_TRUE(reader.read().ok());
  const auto taken = std::ssize(reader.sequences());
  EXPECT_GT(taken, 8);
  EXPECT_LE(taken * std::ssize(tokens) * 4, limits.memory_bytes);
  EXPECT_GE(reader.num_damaged(), kSequences - taken);
}

// As open() refuses it. Records of its tokens lead nowhere then, and are no damage of their own.
TEST(SnapshotDamage, AMediaSpanWithoutAContentIdIsDamageOfItsSection) {
  const MediaSpan cat{.begin = 4, .end = 12, .content_id = {std::byte{1}}};
  Cache before(test::full(40));
  before.compute(prompt_of(1, 32), {.media = std::span(&cat, 1)});
  MemoryFile file = saved(before);
  for (const Section& section : sections_of(file)) {
    if (section.header.type != Type::kTokens) continue;
    const auto end = section.place + kHeaderBytes + std::size_t(section.header.body_bytes);
    ASSERT_EQ(file.bytes[end - 33], std::byte{1});  // behind the content, whether it attends
    file.bytes[end - 33] = std::byte{0};
    seal(file, section);
  }
  Cache after(test::full(40));
  EXPECT_EQ(restored(after, file).sections_damaged, 1);
}

// Under right checksums, every number of every section takes values that a program trips over.
TEST(SnapshotDamage, NumbersOfASectionThatKnowsTheFormatGiveNoOtherBytes) {
  const CacheSpec spec = test::mixed(40, 40);
  const MemoryFile good = small_file(spec);
  const std::int64_t before_mib = peak_mib();
  for (const Section& section : sections_of(good)) {
    if (section.header.type == Type::kIdentity) continue;
    for (const std::uint32_t value : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 4u << 20}) {
      for (int field = 0; field < 8; ++field) {
        MemoryFile file = good;
        Section changed = section;
        if (field == 0) changed.header.a = value;
        if (field == 1) changed.header.b = value;
        if (field >= 2) {
          std::memcpy(file.bytes.data() + section.place + kHeaderBytes + 4 * (field - 2), &value,
                      4);
        }
        seal(file, changed);
        SCOPED_TRACE(testing::Message() << "section at " << section.place << ", field " << field
                                        << ", value " << value);
        restore_damaged(file, spec, true);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_LT(peak_mib() - before_mib, kMemoryMib);
}

// ---- keys ----

std::vector<std::byte> secret(int number) {
  return std::vector<std::byte>(kRecordKeyBytes, std::byte(number));
}

MemoryFile saved_with(Cache& cache, int key, const SaveOptions& options = {}) {
  const std::vector<std::byte> bytes = secret(key);
  SaveOptions with = options;
  with.keys = {.key = bytes};
  return saved(cache, with);
}

// What comes back of prompt 1, of 51 tokens, and how many records were refused.
struct CameBack {
  std::int32_t tokens = 0;
  RestoreStats stats{};
};
CameBack restored_with(const CacheSpec& spec, MemoryFile& file, const RecordKeyOptions& keys) {
  Cache after(spec);
  auto stats = restore(after.manager, identity_of(after), file, {.keys = keys});
  EXPECT_TRUE(stats) << stats.error();
  EXPECT_TRUE(after.manager.check_invariants().ok());
  if (!stats) return {};
  return {after.check_hit(prompt_of(1, 51)), *std::move(stats)};
}

TEST(KeyedSnapshot, ComesBackWithItsKeyOnly) {
  for (const CacheSpec& spec : {test::full(40), test::mixed(40, 40)}) {
    Cache before(spec);
    before.compute(prompt_of(1, 51));
    MemoryFile file = saved_with(before, 1);
    const std::vector<std::byte> one = secret(1), two = secret(2);
    EXPECT_GE(restored_with(spec, file, {.key = one}).tokens, 48);
    EXPECT_GE(restored_with(spec, file, {.key = two, .accepted_key = one}).tokens, 48);
    EXPECT_EQ(restored_with(spec, file, {.key = two}).tokens, 0);
    const CameBack without = restored_with(spec, file, {});
    EXPECT_EQ(without.tokens, 0);
    EXPECT_GT(without.stats.records_refused, 0);
    EXPECT_EQ(without.stats.sections_damaged, 0);
    MemoryFile bare = saved(before);
    EXPECT_EQ(restored_with(spec, bare, {.key = one}).tokens, 0);
    EXPECT_GE(restored_with(spec, bare, {}).tokens, 48);
  }
}

// Each way to other bytes that an author has who knows everything but the key: the first record
// takes what the second has, or is made anew.
TEST(KeyedSnapshot, AForgedOrMovedRecordIsAMiss) {
  Cache before(test::full(40));
  before.compute(prompt_of(1, 51));
  const MemoryFile good = saved_with(before, 1);
  const std::vector<std::byte> one = secret(1);
  std::vector<Section> records = sections_of(good);
  std::erase_if(records, [](const Section& s) { return s.header.type != Type::kRecord; });
  ASSERT_GE(records.size(), 3u);
  const auto header_of = [&](MemoryFile& file, std::size_t i) {
    return std::span(file.bytes)
        .subspan(records[i].place + kHeaderBytes)
        .first<static_cast<std::size_t>(kRecordHeaderBytes)>();
  };
  const auto payload_of = [&](MemoryFile& file, std::size_t i) {
    return std::span(file.bytes)
        .subspan(records[i].place + kHeaderBytes + std::size_t(kRecordHeaderBytes),
                 std::size_t(records[i].header.body_bytes - kRecordHeaderBytes));
  };
  ASSERT_EQ(records[0].header.body_bytes, records[1].header.body_bytes);
  for (int attack = 0; attack < 5; ++attack) {
    MemoryFile file = good;
    RecordInfo info, other;
    ASSERT_EQ(read_record_header(header_of(file, 0), info), RecordFault::kNone);
    ASSERT_EQ(read_record_header(header_of(file, 1), other), RecordFault::kNone);
    const auto to = payload_of(file, 0), from = payload_of(file, 1);
    std::copy(from.begin(), from.end(), to.begin());
    if (attack == 1) info.mac = other.mac;  // the payload of another one with its MAC
    if (attack == 2) {                      // sealed without a key
      info.key_id = 0;
      info.checksum = checksum(to, payload_seed(info.key));
    }
    write_record_header(info, header_of(file, 0));
    if (attack >= 3) {  // with another key, and under the number of the right one
      const std::uint32_t id = info.key_id;
      const auto keys = RecordKeys::create({.key = secret(2)});
      ASSERT_TRUE(seal_record(info, to, *keys, header_of(file, 0)));
      if (attack == 4) {
        ASSERT_EQ(read_record_header(header_of(file, 0), info), RecordFault::kNone);
        info.key_id = id;
        write_record_header(info, header_of(file, 0));
      }
    }
    const CameBack back = restored_with(test::full(40), file, {.key = one});
    EXPECT_EQ(back.tokens, 0) << attack;
    EXPECT_GT(back.stats.records_refused, 0) << attack;
  }
  MemoryFile file = good;
  EXPECT_GE(restored_with(test::full(40), file, {.key = one}).tokens, 48);
}

TEST(KeyedSnapshot, EveryDamageIsAMiss) {
  Cache before(test::full(40));
  before.compute(prompt_of(1, 51));
  const MemoryFile good = saved_with(before, 1);
  const std::vector<std::byte> one = secret(1);
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    MemoryFile file = good;
    file.bytes[random() % file.bytes.size()] ^= std::byte(1u << random() % 8);
    Cache after(test::full(40));
    static_cast<void>(restore(after.manager, identity_of(after), file, {.keys = {.key = one}}));
    after.check_hit(prompt_of(1, 51));  // compares what it finds
  }
}

TEST(KeyedSnapshot, AKeyOfAnotherLengthIsRefusedAndNothingHappens) {
  Cache cache(test::full(40));
  const std::vector<std::byte> key(33);
  MemoryFile file;
  const auto stats = save(cache.manager, identity_of(cache), file, {.keys = {.key = key}});
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().message(), "record keys: key has 33 bytes, allowed: 32");
  EXPECT_TRUE(file.bytes.empty());
  file = saved(cache);
  EXPECT_FALSE(restore(cache.manager, identity_of(cache), file, {.keys = {.key = key}}));
}

}  // namespace
}  // namespace kvfolio
