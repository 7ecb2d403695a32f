// SPDX-License-Identifier: Apache-2.0
//
// Random caches against a naive model of what a snapshot is: after save() and restore() into a pool
// with room, every text that was found before is found as far as before, with the bytes of its
// tokens (model_rows.h computes them anew); no other text is; sequences are what they were; and
// what was shared is shared.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "kvfolio/snapshot.h"
#include "offload/block_image.h"
#include "offload/model_rows.h"
#include "offload/offload_test_cache.h"

namespace kvfolio {
namespace {

using test::MemoryFile;
using test::Text;

class World {
 public:
  World(std::uint32_t seed, const CacheSpec& spec)
      : random_(seed),
        spec_(spec),
        manager_(make(spec)),
        identity_(*Identity::create(model_of(spec), spec)) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      step();
      if (testing::Test::HasFailure()) return;
    }
  }
  void check_save_and_restore();

 private:
  static ModelIdentity model_of(const CacheSpec& spec) {
    return {.model = "m",
            .weights = "1",
            .tokenizer = "1",
            .model_dtype = "f32",
            .positions = "1",
            .engine = "1",
            .layers = spec.groups.size() == 1 ? "0-1" : "0-1;2-3"};
  }

  static KVCacheManager make(const CacheSpec& spec) {
    KVCacheManager manager =
        *KVCacheManager::create(*KVStorage::create(spec), {.max_sequences = 64});
    EXPECT_TRUE(manager.storage()->fill(std::byte{0xee}).ok());
    return manager;
  }
  [[nodiscard]] int draw(int below) { return static_cast<int>(random_() % std::uint32_t(below)); }

  void step();
  void open();
  void go_on(SequenceId id, Text& text, std::size_t count);
  void fork(SequenceId parent);
  void end(SequenceId id);
  void compute(SequenceId id, const Text& text, std::size_t from);
  Text new_text();
  [[nodiscard]] std::vector<SnapshotSequence> sequences_to_save();
  [[nodiscard]] bool has_windows() const { return spec_.groups.back().window > 0; }
  RestoreStats restore_into(KVCacheManager& manager, MemoryFile& file);
  std::int32_t check_text(KVCacheManager& manager, const Text& text) const;
  void check_prefixes(const KVCacheManager& after, const Text& text) const;
  static void check_bytes(KVCacheManager& manager, SequenceId id, const Text& text,
                          std::int32_t length);
  [[nodiscard]] static std::int64_t used(const KVCacheManager& manager);

  std::mt19937 random_;
  CacheSpec spec_;
  KVCacheManager manager_;
  Identity identity_;
  std::map<std::uint64_t, Text> open_;  // by caller id
  std::vector<Text> seen_;
  std::uint64_t next_id_ = 1;
};

// Few tokens and few beginnings, so that texts share much.
Text World::new_text() {
  static constexpr const char* kSalts[] = {"", "a", "b"};
  Text text{.salt = kSalts[draw(3)], .adapter = draw(4) == 0 ? "lora" : ""};
  if (!seen_.empty() && draw(3) > 0) {
    text = seen_[std::size_t(draw(int(seen_.size())))];
    text.tokens.resize(std::size_t(draw(int(text.tokens.size()) + 1)));
    std::erase_if(text.media, [&](const MediaSpan& span) {
      return span.end > static_cast<std::int32_t>(text.tokens.size());
    });
  } else if (draw(3) == 0) {
    const int begin = draw(20);
    MediaSpan span{.begin = begin, .end = begin + 1 + draw(12)};
    span.content_id[0] = std::byte(1 + draw(3));
    text.media.push_back(span);
  }
  const int more = 1 + draw(70);
  for (int i = 0; i < more; ++i) text.tokens.push_back(draw(3));
  return text;
}

void World::compute(SequenceId id, const Text& text, std::size_t from) {
  const std::vector<std::uint32_t> seeds = text.seeds();
  for (std::size_t g = 0; g < spec_.groups.size(); ++g) {
    const GroupId group(static_cast<std::int32_t>(g));
    const auto table = *manager_.block_table(id, group);
    const int size = spec_.groups[g].block_size;
    std::vector<std::int32_t> slots;
    for (std::size_t p = from; p < text.tokens.size(); ++p) {
      const int block = table[p / std::size_t(size)];
      slots.push_back(block < 0 ? -1 : block * size + int(p) % size);
    }
    test::append_rows(*manager_.storage(), group,
                      {seeds.begin() + std::ptrdiff_t(from), seeds.end()}, slots);
  }
}

void World::go_on(SequenceId id, Text& text, std::size_t count) {
  const std::size_t from = text.tokens.size() - count;
  const Ticket ticket = *manager_.begin_step();
  const Status status = manager_.append(id, std::span(text.tokens).subspan(from));
  if (!status.ok()) {  // the pool is full
    ASSERT_TRUE(manager_.drop(ticket).ok());
    text.tokens.resize(from);
    return;
  }
  ASSERT_TRUE(manager_.plan());
  ASSERT_TRUE(manager_.run_copies().ok());
  compute(id, text, from);
  ASSERT_TRUE(manager_.finish(ticket).ok());
}

void World::open() {
  Text text = new_text();
  OpenOptions options{.root = text.root(), .media = text.media, .caller_id = next_id_};
  if (draw(8) == 0) options.publish = Publish::kFullBlocks;
  if (draw(12) == 0) options.publish = Publish::kNothing;
  text.publish = options.publish;
  const auto opened = manager_.open(text.tokens, options);
  ASSERT_TRUE(opened) << opened.error();
  go_on(opened->sequence, text, text.tokens.size() - std::size_t(opened->cached_tokens));
  seen_.push_back(text);
  open_[next_id_++] = std::move(text);
}

void World::fork(SequenceId parent) {
  const std::uint64_t id = next_id_++;
  const auto child = manager_.fork(parent, {.caller_id = id});
  ASSERT_TRUE(child) << child.error();
  open_[id] = open_.at(*manager_.info(parent)->caller_id);
  Text& text = open_[id];
  text.tokens.push_back(draw(3));
  go_on(*child, text, 1);
  seen_.push_back(text);
}

void World::end(SequenceId id) {
  open_.erase(*manager_.info(id)->caller_id);
  ASSERT_TRUE(manager_.close(id).ok());
}

void World::step() {
  if (open_.size() < 3 || (draw(4) == 0 && open_.size() < 12)) return open();
  auto chosen = open_.begin();
  std::advance(chosen, draw(int(open_.size())));
  const SequenceId id = *manager_.find(chosen->first);
  Text& text = chosen->second;
  switch (draw(10)) {
    case 0:
      return fork(id);
    case 1: {
      const auto n = std::size_t(draw(int(text.tokens.size()) + 1));
      if (manager_.truncate(id, std::int32_t(n)).ok()) text.tokens.resize(n);
      return;
    }
    case 2:
      ASSERT_TRUE(manager_.trim(id, {.num_sinks = draw(5), .window = 1 + draw(40)}));
      return;
    case 3:
      if (draw(4) == 0) static_cast<void>(manager_.forget(text.root()));
      return;
    case 4:
    case 5:
    case 6:
      return end(id);
    default:
      const int more = 1 + draw(20);
      for (int i = 0; i < more; ++i) text.tokens.push_back(draw(3));
      go_on(id, text, std::size_t(more));
      seen_.push_back(text);
  }
}

// Those that save() takes; the others it refuses by what they are.
std::vector<SnapshotSequence> World::sequences_to_save() {
  std::vector<SnapshotSequence> sequences;
  for (const auto& [caller_id, text] : open_) {
    const SnapshotSequence one{.sequence = *manager_.find(caller_id),
                               .tokens = text.tokens,
                               .root = text.root(),
                               .media = text.media,
                               .publish = text.publish};
    MemoryFile file;
    const auto saved =
        save(manager_, identity_, file, {.prefix_cache = false, .sequences = std::span(&one, 1)});
    if (saved) {
      sequences.push_back(one);
    } else {
      EXPECT_EQ(saved.error().code(), ErrorCode::kFailedPrecondition) << saved.error();
    }
  }
  return sequences;
}

void World::check_bytes(KVCacheManager& manager, SequenceId id, const Text& text,
                        std::int32_t length) {
  const std::vector<std::uint32_t> seeds = text.seeds();
  for (std::size_t g = 0; g < manager.spec().groups.size(); ++g) {
    const GroupId group(static_cast<std::int32_t>(g));
    const GroupSpec& spec = manager.spec().groups[g];
    const auto table = *manager.block_table(id, group);
    for (std::int32_t begin = 0; begin < length; begin += spec.block_size) {
      const std::int32_t block = table[std::size_t(begin / spec.block_size)];
      if (block < 0) continue;
      const std::int32_t tokens = std::min(spec.block_size, length - begin);
      std::vector<std::byte> image(std::size_t(manager.storage()->block_image_bytes(group)));
      ASSERT_TRUE(manager.storage()->read_blocks(group, std::span(&block, 1), image).ok());
      zero_behind(spec, tokens, image);
      ASSERT_EQ(image, test::image_of(spec, group,
                                      {seeds.begin() + begin, seeds.begin() + begin + tokens}))
          << "group " << g << ", tokens from " << begin;
    }
  }
}

std::int64_t World::used(const KVCacheManager& manager) {
  std::int64_t blocks = 0;
  for (std::size_t g = 0; g < manager.spec().groups.size(); ++g) {
    const auto usage = *manager.usage(GroupId(static_cast<std::int32_t>(g)));
    blocks += usage.num_blocks - usage.free;
  }
  return blocks;
}

void World::check_save_and_restore() {
  const std::vector<SnapshotSequence> sequences = sequences_to_save();
  MemoryFile file;
  MemoryFile again;
  const auto saved = save(manager_, identity_, file, {.sequences = sequences});
  ASSERT_TRUE(saved) << saved.error();
  ASSERT_TRUE(save(manager_, identity_, again, {.sequences = sequences}));
  EXPECT_EQ(file.bytes, again.bytes) << "the same cache, another file";
  const std::vector<std::byte> poison(12, std::byte{0xee});
  EXPECT_EQ(std::search(file.bytes.begin(), file.bytes.end(), poison.begin(), poison.end()),
            file.bytes.end())
      << "bytes of no token are in the file";

  CacheSpec larger = spec_;
  for (GroupSpec& group : larger.groups) group.num_blocks += 30 + draw(50);
  KVCacheManager after = make(larger);
  const RestoreStats stats = restore_into(after, file);
  // The tail of a sequence may go on in the block of a tail that others find, which is shorter.
  EXPECT_LE(used(after), used(manager_) + static_cast<std::int64_t>(sequences.size()))
      << "what was shared is not";
  ASSERT_EQ(stats.sequences.size(), sequences.size());
  for (const RestoredSequence& one : stats.sequences) {
    EXPECT_EQ(one.length, static_cast<std::int32_t>(one.tokens.size()));
  }
  for (const Text& text : seen_) {
    const std::int32_t there = check_text(after, text);
    if (has_windows()) {
      check_prefixes(after, text);
    } else {
      EXPECT_EQ(there, *manager_.probe(text.tokens, {.root = text.root(), .media = text.media}));
    }
  }

  CacheSpec smaller = spec_;
  for (GroupSpec& group : smaller.groups) group.num_blocks = 5 + draw(30);
  KVCacheManager part = make(smaller);
  restore_into(part, file);
  for (const Text& text : seen_) check_text(part, text);
}

// Restores and compares what came back of sequences.
RestoreStats World::restore_into(KVCacheManager& manager, MemoryFile& file) {
  const Identity identity = *Identity::create(model_of(manager.spec()), manager.spec());
  auto restored = restore(manager, identity, file);
  EXPECT_TRUE(restored) << restored.error();
  if (!restored) return {};
  EXPECT_TRUE(manager.check_invariants().ok()) << manager.check_invariants();
  EXPECT_EQ(restored->records_refused + restored->sections_damaged, 0);
  for (const RestoredSequence& one : restored->sequences) {
    const Text& text = open_.at(*one.caller_id);
    EXPECT_EQ(one.tokens, text.tokens);
    check_bytes(manager, one.sequence, text, one.length);
  }
  return *std::move(restored);
}

// What is found of a text: no more than before, and the bytes of its tokens.
std::int32_t World::check_text(KVCacheManager& manager, const Text& text) const {
  const OpenOptions options{.root = text.root(), .media = text.media};
  const auto opened = manager.open(text.tokens, options);
  EXPECT_TRUE(opened) << opened.error();
  if (!opened) return 0;
  EXPECT_LE(opened->cached_tokens, *manager_.probe(text.tokens, options))
      << "of " << text.tokens.size() << " tokens";
  check_bytes(manager, opened->sequence, text, opened->cached_tokens);
  EXPECT_TRUE(manager.close(opened->sequence).ok());
  return opened->cached_tokens;
}

// Window groups: what blocks of several texts give together within a unit may be lost. A prefix of
// whole units is found if it was.
void World::check_prefixes(const KVCacheManager& after, const Text& text) const {
  const OpenOptions options{.root = text.root(), .media = text.media};
  const auto size = static_cast<std::int32_t>(text.tokens.size());
  for (std::int32_t end = identity_.unit(); end < size; end += identity_.unit()) {
    const auto prompt = std::span(text.tokens).first(std::size_t(end) + 1);
    if (*manager_.probe(prompt, options) < end) continue;
    EXPECT_EQ(*after.probe(prompt, options), end) << "of " << size << " tokens";
  }
}

CacheSpec random_spec(std::mt19937& random) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kE4M3};
  constexpr Format kFormats[] = {Format::kHnd, Format::kNhd, Format::kGranule};
  const Format format = kFormats[random() % 3];
  const std::int32_t unit = format == Format::kGranule ? 16 : 4 << random() % 3;
  GroupSpec group{.num_layers = 2,
                  .num_kv_heads = 2,
                  .head_dim_k = 8,
                  .head_dim_v = random() % 4 == 0 ? 0 : 16,
                  .block_size = unit,
                  .dtype = kTypes[random() % (format == Format::kGranule ? 4 : 5)],
                  .format = format,
                  .num_blocks = 60};
  GroupSpec window = group;
  window.kind = AttentionKind::kSlidingWindow;
  window.window = 1 + static_cast<std::int32_t>(random() % 40);
  window.num_sinks = static_cast<std::int32_t>(random() % 3);
  switch (random() % 3) {
    case 0:
      return {.groups = {group}};
    case 1:
      return {.groups = {window}};
    default:
      group.block_size = 2 * unit;
      return {.groups = {group, window}};
  }
}

TEST(SnapshotProperty, ARestoredCacheFindsWhatTheSavedOneFound) {
  const char* given = std::getenv("KVFOLIO_SEED");
  const auto first =
      given != nullptr ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10)) : 1u;
#ifdef __SANITIZE_ADDRESS__
  constexpr std::uint32_t kWorlds = 10;
#else
  constexpr std::uint32_t kWorlds = 60;
#endif
  for (std::uint32_t seed = first; seed < first + (given != nullptr ? 1 : kWorlds); ++seed) {
    SCOPED_TRACE(testing::Message() << "KVFOLIO_SEED=" << seed);
    std::mt19937 random(seed);
    World world(seed, random_spec(random));
    for (int round = 0; round < 3; ++round) {
      world.run(25);
      world.check_save_and_restore();
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvfolio
