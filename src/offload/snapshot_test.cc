// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "offload/offload_test_cache.h"
#include "offload/snapshot_format.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::MemoryFile;
using test::prompt_of;
using ::testing::HasSubstr;

Identity identity_of(const Cache& cache, const ModelIdentity& model = test::kToy) {
  auto identity = Identity::create(test::toy_of(cache.manager.spec(), model), cache.manager.spec());
  EXPECT_TRUE(identity) << identity.error();
  return *std::move(identity);
}

MemoryFile saved(Cache& cache, const SaveOptions& options = {}) {
  MemoryFile file;
  const auto stats = save(cache.manager, identity_of(cache), file, options);
  EXPECT_TRUE(stats) << stats.error();
  EXPECT_EQ(stats->bytes, file.size());
  return file;
}

RestoreStats restored(Cache& cache, MemoryFile& file) {
  auto stats = restore(cache.manager, identity_of(cache), file);
  EXPECT_TRUE(stats) << stats.error();
  EXPECT_TRUE(cache.manager.check_invariants().ok());
  return stats ? *std::move(stats) : RestoreStats{};
}

TEST(Snapshot, APromptIsFoundInAnotherPoolAsFarAsItsUnitsGo) {
  for (const CacheSpec& spec : {test::full(40), test::window(40), test::mixed(40, 40)}) {
    Cache before(spec);
    for (const int prompt : {1, 2, 3}) before.compute(prompt_of(prompt, 37));
    MemoryFile file = saved(before);
    for (const std::int32_t blocks : {40, 57}) {
      CacheSpec other = spec;
      for (GroupSpec& group : other.groups) group.num_blocks = blocks;
      Cache after(other);
      const RestoreStats stats = restored(after, file);
      EXPECT_EQ(stats.sections_damaged, 0);
      EXPECT_EQ(stats.records_refused, 0);
      EXPECT_GT(stats.records_loaded, 0);
      for (const int prompt : {1, 2, 3}) EXPECT_EQ(after.check_hit(prompt_of(prompt, 37)), 36);
      EXPECT_EQ(after.check_hit(prompt_of(4, 37)), 0);
    }
  }
}

TEST(Snapshot, PathsThatShareTokensAreSavedOnce) {
  Cache before(test::full(40));
  std::vector<std::int32_t> a = prompt_of(1, 64);
  std::vector<std::int32_t> b = a;
  for (std::size_t i = 40; i < b.size(); ++i) b[i] += 1;
  before.compute(a);
  before.compute(b);
  MemoryFile file;
  const auto stats = save(before.manager, identity_of(before), file);
  ASSERT_TRUE(stats);
  EXPECT_EQ(stats->records, 8 + 3);
  EXPECT_EQ(stats->tokens, 64 + 24);
  Cache after(test::full(40));
  restored(after, file);
  EXPECT_EQ(after.check_hit(a), 63);
  EXPECT_EQ(after.check_hit(b), 63);
}

// The records of version 1 have another header.
TEST(Snapshot, OneOfAnotherVersionIsRefusedByItsNumber) {
  for (const std::uint16_t version : {std::uint16_t{1}, std::uint16_t{3}}) {
    Cache before(test::full(40));
    before.compute(prompt_of(1, 32));
    MemoryFile file = saved(before);
    snapshot::SectionHeader header;
    const auto first = std::span(file.bytes).first<snapshot::kHeaderBytes>();
    ASSERT_TRUE(snapshot::read_header(first, 0, header));
    header.version = version;
    snapshot::write_header(header, first);
    Cache after(test::full(40));
    const auto stats = restore(after.manager, identity_of(after), file);
    ASSERT_FALSE(stats);
    EXPECT_EQ(stats.error().code(), ErrorCode::kUnsupported);
    EXPECT_EQ(stats.error().message(),
              "snapshot: version is " + std::to_string(version) + ", this library reads 2");
    EXPECT_EQ(after.check_hit(prompt_of(1, 32)), 0);
  }
}

TEST(Snapshot, TenantsAndAdaptersStayApart) {
  Cache before(test::full(40));
  before.compute(prompt_of(1, 32), {.root = {.adapter = "a", .tenant_salt = "x"}});
  before.compute(prompt_of(1, 32), {.root = {.tenant_salt = "y"}});
  MemoryFile file = saved(before);
  Cache after(test::full(40));
  restored(after, file);
  EXPECT_EQ(after.hit(prompt_of(1, 32), {.root = {.adapter = "a", .tenant_salt = "x"}}), 31);
  EXPECT_EQ(after.hit(prompt_of(1, 32), {.root = {.tenant_salt = "y"}}), 31);
  EXPECT_EQ(after.hit(prompt_of(1, 32), {.root = {.tenant_salt = "x"}}), 0);
  EXPECT_EQ(after.hit(prompt_of(1, 32)), 0);
}

// Every field of a root alone, in pairs: what one computed, the other one does not find.
TEST(Snapshot, OfTwoRootsEachFindsItsOwn) {
  const RootKey roots[] = {{},
                           {.model = "x"},
                           {.adapter = "x"},
                           {.adapter = "x", .adapter_version = "1"},
                           {.adapter_version = "x"},
                           {.tenant_salt = "x"},
                           {.tenant_salt = "y"},
                           {.epoch = 1}};
  for (const RootKey& saver : roots) {
    Cache before(test::full(40));
    before.compute(prompt_of(1, 32), {.root = saver});
    MemoryFile file = saved(before);
    Cache after(test::full(40));
    restored(after, file);
    for (const RootKey& asker : roots) {
      EXPECT_EQ(after.hit(prompt_of(1, 32), {.root = asker}), &saver == &asker ? 31 : 0);
    }
  }
}

TEST(Snapshot, MediaComeBackWithTheirTokens) {
  const MediaSpan cat{.begin = 4, .end = 12, .content_id = {std::byte{1}}};
  const MediaSpan dog{.begin = 4, .end = 12, .content_id = {std::byte{2}}};
  Cache before(test::full(40));
  before.compute(prompt_of(1, 32), {.media = std::span(&cat, 1)});
  MemoryFile file = saved(before);
  Cache after(test::full(40));
  restored(after, file);
  EXPECT_EQ(after.hit(prompt_of(1, 32), {.media = std::span(&cat, 1)}), 31);
  EXPECT_EQ(after.hit(prompt_of(1, 32), {.media = std::span(&dog, 1)}), 4);
  EXPECT_EQ(after.hit(prompt_of(1, 32)), 4);
}

// Sections of tokens hold what a reader takes, however large a unit is and however many spans.
TEST(Snapshot, ALongPromptOfLargeBlocksWithASpanForEachTokenComesBack) {
  CacheSpec spec = test::full(100);
  spec.groups[0].block_size = 1024;
  const std::vector<std::int32_t> prompt = prompt_of(1, 80'000);
  std::vector<MediaSpan> media(prompt.size());
  for (std::size_t i = 0; i < media.size(); ++i) {
    media[i] = {.begin = static_cast<std::int32_t>(i),
                .end = static_cast<std::int32_t>(i) + 1,
                .content_id = {std::byte{1}}};
  }
  const ManagerOptions options{
      .max_sequences = 16, .max_media_extents = 1 << 18, .max_table_entries = 1 << 22};
  Cache before(spec, options);
  before.compute(prompt, {.media = media});
  MemoryFile file = saved(before);
  Cache after(spec, options);
  EXPECT_EQ(restored(after, file).sections_damaged, 0);
  EXPECT_EQ(after.hit(prompt, {.media = media}), 79'999);
}

TEST(Snapshot, SequencesComeBackUnderTheirCallerIds) {
  for (const CacheSpec& spec : {test::full(40), test::window(40), test::mixed(40, 40)}) {
    Cache before(spec);
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<SnapshotSequence> sequences;
    for (const int length : {5, 16, 37}) {
      prompts.push_back(prompt_of(length, length));
      const SequenceId id = before.start(
          prompts.back(),
          {.caller_id = 100u + unsigned(length), .max_tokens = 50, .priority = length});
      sequences.push_back({.sequence = id, .tokens = prompts.back()});
    }
    MemoryFile file = saved(before, {.prefix_cache = false, .sequences = sequences});
    Cache after(spec);
    const RestoreStats stats = restored(after, file);
    ASSERT_EQ(stats.sequences.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const RestoredSequence& one = stats.sequences[i];
      EXPECT_EQ(one.tokens, prompts[i]);
      EXPECT_EQ(one.length, static_cast<std::int32_t>(prompts[i].size()));
      EXPECT_EQ(*after.manager.find(100u + prompts[i].size()), one.sequence);
      const auto info = after.manager.info(one.sequence);
      EXPECT_EQ(info->length, one.length);
      EXPECT_EQ(info->max_tokens, 50);
      EXPECT_EQ(info->priority, static_cast<std::int32_t>(prompts[i].size()));
      after.check_sequence(one.sequence, one.tokens);
    }
    EXPECT_FALSE(restore(after.manager, identity_of(after), file)) << "the caller ids are open";
  }
}

TEST(Snapshot, ForksShareTheirBlocksAgain) {
  Cache before(test::full(40));
  const std::vector<std::int32_t> prompt = prompt_of(1, 44);
  const SequenceId parent = before.start(prompt, {.caller_id = 1});
  const SequenceId same = *before.manager.fork(parent, {.caller_id = 2, .priority = 5});
  const SequenceId other = *before.manager.fork(parent, {.caller_id = 3});
  std::vector<std::int32_t> longer = prompt;
  longer.push_back(7);
  before.go_on(other, longer, 44);
  const SnapshotSequence sequences[] = {{.sequence = parent, .tokens = prompt},
                                        {.sequence = same, .tokens = prompt},
                                        {.sequence = other, .tokens = longer}};
  MemoryFile file = saved(before, {.sequences = sequences});
  Cache after(test::full(50));
  const RestoreStats stats = restored(after, file);
  ASSERT_EQ(stats.sequences.size(), 3u);
  EXPECT_EQ(stats.records_loaded, 5 + 1 + 1);
  EXPECT_EQ(after.manager.usage(GroupId(0))->held, before.manager.usage(GroupId(0))->held);
  EXPECT_EQ(after.manager.info(stats.sequences[1].sequence)->priority, 5);
  after.check_sequence(stats.sequences[1].sequence, prompt);
  after.check_sequence(stats.sequences[2].sequence, longer);
  // A step of one of them leaves the other one's tail alone.
  after.go_on(stats.sequences[0].sequence, longer, 44);
  after.check_sequence(stats.sequences[1].sequence, prompt);
}

// Neither the text nor the tail of a sequence becomes findable because it was saved.
TEST(Snapshot, WhatNobodyCouldFindIsNotFoundAfterwards) {
  for (const std::int32_t length : {5, 8, 44}) {
    Cache before(test::full(40));
    const std::vector<std::int32_t> prompt = prompt_of(1, length);
    std::vector<std::int32_t> asked = prompt;
    asked.push_back(7);
    const SequenceId id = before.start(prompt, {.publish = Publish::kFullBlocks});
    const SnapshotSequence sequence{
        .sequence = id, .tokens = prompt, .publish = Publish::kFullBlocks};
    MemoryFile file = saved(before, {.sequences = std::span(&sequence, 1)});
    Cache after(test::full(40));
    const RestoreStats stats = restored(after, file);
    EXPECT_EQ(after.hit(asked), length / 8 * 8);
    ASSERT_TRUE(after.manager.close(stats.sequences.at(0).sequence).ok());
    EXPECT_EQ(after.hit(asked), length / 8 * 8) << "its tail is never published";
    // Nothing of one that is forgotten can be found, and nothing is saved.
    static_cast<void>(before.manager.forget(RootKey{}));
    MemoryFile none;
    const auto refused =
        save(before.manager, identity_of(before), none, {.sequences = std::span(&sequence, 1)});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr("publishes nothing"));
  }
}

// In a window group the blocks before the last window are for prompts that part earlier.
TEST(Snapshot, APromptThatPartsEarlierIsFoundInWindowsToo) {
  for (const CacheSpec& spec : {test::window(40), test::mixed(40, 40)}) {
    Cache before(spec);
    before.compute(prompt_of(1, 112));
    MemoryFile file = saved(before);
    CacheSpec other = spec;
    for (GroupSpec& group : other.groups) group.num_blocks += 7;
    Cache after(other);
    restored(after, file);
    for (std::int32_t end = 16; end < 112; end += 16) {
      std::vector<std::int32_t> prompt = prompt_of(1, end);
      prompt.push_back(7);
      EXPECT_EQ(before.check_hit(prompt), end);
      EXPECT_EQ(after.check_hit(prompt), end);
    }
  }
}

TEST(Snapshot, WhatIsNotQuietOrNotKnownIsNotSaved) {
  Cache cache(test::full(40));
  const std::vector<std::int32_t> prompt = prompt_of(1, 20);
  const SequenceId id = cache.start(prompt);
  MemoryFile file;
  const auto refusal = [&](const SaveOptions& options) {
    return to_string(save(cache.manager, identity_of(cache), file, options).error());
  };
  const SnapshotSequence shorter{.sequence = id, .tokens = std::span(prompt).first(19)};
  EXPECT_THAT(refusal({.sequences = std::span(&shorter, 1)}),
              HasSubstr("has 20 tokens, given: 19"));
  const SnapshotSequence unknown{.tokens = prompt};
  EXPECT_THAT(refusal({.sequences = std::span(&unknown, 1)}), HasSubstr("not found"));
  const Ticket ticket = *cache.manager.begin_step();
  EXPECT_THAT(refusal({}), HasSubstr("1 steps are open or in flight"));
  EXPECT_TRUE(cache.manager.drop(ticket).ok());
}

// A server that reserves for each request saves them, too.
TEST(Snapshot, ASequenceWithAPromiseIsSavedWithoutThePromise) {
  for (const CacheSpec& spec : {test::full(40), test::window(40), test::mixed(40, 40)}) {
    Cache before(spec);
    const std::vector<std::int32_t> prompt = prompt_of(1, 37);
    const SequenceId id = before.start(prompt, {.caller_id = 1});
    ASSERT_TRUE(before.manager.reserve(id, 20).ok());
    const SnapshotSequence sequence{.sequence = id, .tokens = prompt};
    MemoryFile file = saved(before, {.sequences = std::span(&sequence, 1)});
    EXPECT_EQ(before.manager.info(id)->reserved_tokens, 20) << "it stays";
    Cache after(spec);
    const RestoreStats stats = restored(after, file);
    ASSERT_EQ(stats.sequences.size(), 1u);
    EXPECT_EQ(stats.sequences[0].length, 37);
    after.check_sequence(stats.sequences[0].sequence, prompt);
    EXPECT_EQ(after.manager.info(stats.sequences[0].sequence)->reserved_tokens, 0);
    EXPECT_EQ(after.manager.usage(GroupId(0))->reserved, 0);
  }
}

// A wrong text would be served with another one's K and V, and a private one would become findable.
TEST(Snapshot, AnotherTextAndAPrivateSequenceAreNotSaved) {
  Cache cache(test::full(40));
  const std::vector<std::int32_t> prompt = prompt_of(1, 40);
  const std::vector<std::int32_t> other = prompt_of(2, 40);
  const SequenceId open = cache.start(prompt);
  const SequenceId hidden = cache.start(other, {.publish = Publish::kNothing});
  MemoryFile file;
  const auto refusal = [&](SequenceId id, const std::vector<std::int32_t>& tokens) {
    const SnapshotSequence sequence{.sequence = id, .tokens = tokens};
    const auto saved_now =
        save(cache.manager, identity_of(cache), file, {.sequences = std::span(&sequence, 1)});
    return saved_now ? std::string("saved") : to_string(saved_now.error());
  };
  EXPECT_THAT(refusal(open, other), HasSubstr("are not those of sequence"));
  EXPECT_THAT(refusal(hidden, other), HasSubstr("publishes nothing: it is private"));
  EXPECT_EQ(refusal(open, prompt), "saved");
  const MediaSpan cat{.begin = 4, .end = 12, .content_id = {std::byte{1}}};
  for (const SnapshotSequence& wrong :
       {SnapshotSequence{.sequence = open, .tokens = prompt, .root = {.tenant_salt = "b"}},
        SnapshotSequence{.sequence = open, .tokens = prompt, .media = std::span(&cat, 1)}}) {
    const auto now = save(cache.manager, identity_of(cache), file, {.sequences = {&wrong, 1}});
    ASSERT_FALSE(now);
    EXPECT_THAT(now.error().message(), HasSubstr("another root or other media than given"));
  }
}

TEST(Snapshot, ASmallPoolTakesWhatFits) {
  Cache before(test::full(40));
  for (int prompt = 0; prompt < 8; ++prompt) before.compute(prompt_of(prompt, 32));
  MemoryFile file = saved(before);
  Cache after(test::full(10));
  const RestoreStats stats = restored(after, file);
  EXPECT_EQ(stats.records, 32);
  EXPECT_GE(stats.records_loaded, 8);
  EXPECT_LE(stats.records_loaded, 10);
  EXPECT_GT(stats.paths_no_room, 0);
  int found = 0;
  for (int prompt = 0; prompt < 8; ++prompt) found += after.check_hit(prompt_of(prompt, 32));
  EXPECT_GE(found, 2 * 31);
}

// Every field of the identity alone, and what the spec says: refused by its name.
TEST(Snapshot, AnotherIdentityIsRefusedByTheNameOfTheField) {
  Cache before(test::full(8));
  before.compute(prompt_of(1, 32));
  MemoryFile file = saved(before);
  const auto refusal = [&](const ModelIdentity& model, const CacheSpec& spec) {
    Cache after(spec);
    const auto stats = restore(after.manager, identity_of(after, model), file);
    EXPECT_FALSE(stats);
    if (stats) return std::string();
    EXPECT_EQ(stats.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(after.hit(prompt_of(1, 32)), 0);
    return stats.error().message();
  };
  const std::pair<std::string_view ModelIdentity::*, const char*> texts[] = {
      {&ModelIdentity::model, "snapshot: model is \"toy\" in the file and \"other\" here"},
      {&ModelIdentity::weights, "weights is"},
      {&ModelIdentity::tokenizer, "tokenizer is"},
      {&ModelIdentity::model_dtype, "model_dtype is"},
      {&ModelIdentity::positions, "positions is"},
      {&ModelIdentity::engine, "snapshot: engine is"},
      {&ModelIdentity::layers, "snapshot: layers is"},
      {&ModelIdentity::scales, "snapshot: scales is"}};
  for (const auto& [field, message] : texts) {
    ModelIdentity model = test::kToy;
    model.*field = field == &ModelIdentity::layers ? "2-3" : "other";
    EXPECT_THAT(refusal(model, test::full(8)), HasSubstr(message));
  }
  const auto with = [](auto change) {
    CacheSpec spec = test::full(8);
    change(spec.groups[0]);
    return spec;
  };
  EXPECT_THAT(refusal(test::kToy, with([](auto& g) { g.dtype = DType::kBF16; })),
              HasSubstr("group 0 dtype is \"f32\" in the file and \"bf16\" here"));
  EXPECT_THAT(refusal(test::kToy, with([](auto& g) { g.num_layers = 3; })),
              HasSubstr("num_layers"));
  EXPECT_THAT(refusal(test::kToy, with([](auto& g) { g.format = Format::kNhd; })),
              HasSubstr("format"));
  EXPECT_THAT(refusal(test::kToy, with([](auto& g) { g.block_size = 16; })),
              HasSubstr("snapshot: the smallest block_size is \"8\" in the file and \"16\" here"));
}

TEST(Snapshot, AFieldOfAFileThatIsEndlessOrHasControlsIsShownInPart) {
  std::string endless = "\x1b[2J";
  endless.append(60'000, 'x');
  ModelIdentity model = test::kToy;
  model.model = endless;
  Cache before(test::full(8));
  before.compute(prompt_of(1, 32));
  MemoryFile file;
  ASSERT_TRUE(save(before.manager, identity_of(before, model), file));
  Cache after(test::full(8));
  const auto stats = restore(after.manager, identity_of(after, test::kToy), file);
  ASSERT_FALSE(stats);
  const std::string message = stats.error().message();
  EXPECT_LT(message.size(), 200u);
  EXPECT_THAT(message, HasSubstr("model is \"?[2J" + std::string(60, 'x')));
  EXPECT_THAT(message, HasSubstr(" and 59940 bytes more in the file and \"toy\" here"));
}

TEST(Snapshot, WhatIsNoSnapshotIsRefused) {
  Cache cache(test::full(8));
  const Identity identity = identity_of(cache);
  MemoryFile empty;
  EXPECT_EQ(restore(cache.manager, identity, empty).error().code(), ErrorCode::kCorrupt);
  MemoryFile noise;
  noise.bytes.resize(5000, std::byte{0x5a});
  EXPECT_EQ(restore(cache.manager, identity, noise).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(FileSource::open("/dev/zero").error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(FileSource::open("/").error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(FileSource::open("/no/such/file").error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(FileSink::create("/").error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(FileSink::create("/no/such/folder/file").error().code(), ErrorCode::kUnavailable);
}

TEST(Snapshot, AFileAppearsWholeWithMode0600OrNotAtAll) {
  const std::string folder = testing::TempDir() + "/snapshot_test." + std::to_string(::getpid());
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  const std::string path = folder + "/cache.kv";
  Cache before(test::full(40));
  before.compute(prompt_of(1, 64));
  {
    auto sink = FileSink::create(path);
    ASSERT_TRUE(sink);
    ASSERT_TRUE(save(before.manager, identity_of(before), *sink));
    struct stat there {};
    EXPECT_NE(::stat(path.c_str(), &there), 0);
    ASSERT_TRUE(sink->commit().ok());
    ASSERT_EQ(::stat(path.c_str(), &there), 0);
    EXPECT_EQ(there.st_mode & 0777, 0600u);
  }
  Cache after(test::full(40));
  auto source = FileSource::open(path);
  ASSERT_TRUE(source);
  ASSERT_TRUE(restore(after.manager, identity_of(after), *source));
  EXPECT_EQ(after.check_hit(prompt_of(1, 64)), 63);
  { auto given_up = FileSink::create(path + "2"); }
  EXPECT_EQ(std::system(("test $(ls " + folder + " | wc -l) = 1 && rm -r " + folder).c_str()), 0);
}

}  // namespace
}  // namespace kvfolio
