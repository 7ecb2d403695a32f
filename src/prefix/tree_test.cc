// SPDX-License-Identifier: Apache-2.0
//
// The promises of prefix_tree.h and root_key.h, one by one. random_test.cc compares everything with
// a naive model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "kvfolio/prefix_tree.h"

namespace kvfolio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Tokens = std::vector<std::int32_t>;
using Media = std::vector<MediaSpan>;
using Table = std::vector<std::int32_t>;
using Tables = std::vector<Table>;

// What the log of a tree has said.
struct Listener {
  struct Gone {
    int group;
    int block;
    int successor;
    friend bool operator==(const Gone&, const Gone&) = default;
  };
  void hear(const TreeChange& change) {
    const std::pair<int, int> block(change.group.value(), change.block.value());
    if (change.kind == TreeChange::Kind::kUnhung) {
      unhung.push_back({block.first, block.second, change.successor.value()});
    }
    if (change.kind != TreeChange::Kind::kCandidate) return;
    leaves.erase(block);
    heads.erase(block);
    if (change.candidate == Candidate::kLeaf) leaves.insert(block);
    if (change.candidate == Candidate::kHead) heads.insert(block);
  }
  std::vector<Gone> unhung;
  std::set<std::pair<int, int>> leaves;
  std::set<std::pair<int, int>> heads;
  std::set<std::pair<int, int>> not_held;
};

// A tree whose log goes to a listener after each call. If two busy blocks have equal tokens, one
// that the listener knows as not held gives way.
class HeardTree : public PrefixTree {
 public:
  HeardTree(const PrefixTreeOptions& options, Listener& heard)
      : PrefixTree(*PrefixTree::create(options)), heard_(heard) {}

  bool extend(Place& place, std::span<const std::int32_t> tokens, std::span<const MediaSpan> media,
              const PublishOffer& offer, Published& published) {
    const bool done = PrefixTree::extend(place, tokens, media, offer, published);
    drain(&published);
    return done;
  }
  void set_idle(GroupId group, std::span<const std::int32_t> blocks) {
    PrefixTree::set_idle(group, blocks);
    drain();
  }
  void set_busy(GroupId group, std::span<const std::int32_t> blocks) {
    PrefixTree::set_busy(group, blocks);
    drain();
  }
  void unhang(GroupId group, BlockId block) {
    PrefixTree::unhang(group, block);
    drain();
  }

 private:
  void drain(Published* published = nullptr) {
    while (has_changes()) {
      const TreeChange change = take_change();
      heard_.hear(change);
      if (change.kind != TreeChange::Kind::kKept) continue;
      ASSERT_NE(published, nullptr);
      const std::int32_t end = findable_end(change.group, change.block);
      if (heard_.not_held.count({change.group.value(), change.block.value()}) != 0) {
        replace(change.group, change.block, change.successor);
        ++published->num_hung;
        EXPECT_FALSE(is_findable(change.group, change.block));
        EXPECT_EQ(findable_end(change.group, change.successor), end);
      } else {
        const std::int32_t size = change.group == GroupId(0) ? 4 : 2;
        published->missed_from = std::min(published->missed_from, (end - 1) / size * size);
        published->missed_to = std::max(published->missed_to, end);
      }
    }
  }

  Listener& heard_;
};

PrefixTreeOptions one_group(std::int32_t block_size) {
  return {.groups = {{.block_size = block_size, .num_blocks = 20000}},
          .max_index_tokens = 1 << 18,
          .max_runs = 1 << 15};
}

// Full groups with blocks of 4 (group 0) and a window of 6 with blocks of 2 (group 1).
PrefixTreeOptions two_groups() {
  return {.groups = {{.block_size = 4, .num_blocks = 100},
                     {.block_size = 2,
                      .kind = AttentionKind::kSlidingWindow,
                      .window = 6,
                      .num_blocks = 100}},
          .max_index_tokens = 1 << 12,
          .max_runs = 256,
          .max_root_keys = 8};
}

constexpr GroupId kFirst(0);
constexpr GroupId kSecond(1);
constexpr std::int32_t kNothingAgain = std::numeric_limits<std::int32_t>::max();

struct Tree {
  explicit Tree(const PrefixTreeOptions& options, const RootKey& key = {})
      : tree(options, heard), root(tree.make_root(key)) {}
  ~Tree() { EXPECT_EQ(tree.check_invariants().message(), "ok"); }

  // Publishes tokens from the root; the blocks are busy afterwards.
  Place publish(const Tokens& tokens, const std::vector<Table>& tables, bool tail = true,
                const Media& media = {}) {
    Place place = tree.enter(root, 0);
    EXPECT_TRUE(extend(place, tokens, tables, tail, kNothingAgain, media));
    return place;
  }
  // What became of the offer is in `published`.
  bool extend(Place& place, const Tokens& tokens, const std::vector<Table>& tables,
              bool tail = false, std::int32_t from = kNothingAgain, const Media& media = {}) {
    const std::vector<std::span<const std::int32_t>> spans(tables.begin(), tables.end());
    published = {};
    return tree.extend(place, tokens, media, {spans, from, tail}, published);
  }
  // The same, and the blocks are not in use any more.
  void cache(const Tokens& tokens, const std::vector<Table>& tables, bool tail = true,
             const Media& media = {}) {
    Place place = publish(tokens, tables, tail, media);
    for (std::size_t g = 0; g < tables.size(); ++g) {
      const GroupId group(static_cast<std::int32_t>(g));
      for (const std::int32_t b : tables[g]) {
        if (b >= 0 && tree.is_findable(group, BlockId(b))) tree.set_idle(group, std::array{b});
      }
    }
    tree.leave(place);
  }
  PrefixMatch match(const Tokens& tokens, const Media& media = {}) {
    return tree.match(root, tokens, media, static_cast<std::int32_t>(tokens.size()), false);
  }
  PrefixMatch match_prompt(const Tokens& tokens, const Media& media = {}) {
    return tree.match(root, tokens, media, static_cast<std::int32_t>(tokens.size()) - 1, true);
  }
  std::int32_t found(const Tokens& tokens, const Media& media = {}) {
    return match(tokens, media).tokens;
  }
  Table table(const PrefixMatch& match, GroupId group, std::int32_t block_size,
              bool one_more = false) {
    Table out(static_cast<std::size_t>((match.held_tokens() + block_size - 1) / block_size), 77);
    tree.fill_table(match, group, out, one_more);
    return out;
  }

  Listener heard;
  HeardTree tree;
  std::int32_t root;
  Published published;
};

Tokens counting(std::int32_t from, std::int32_t n) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

MediaSpan image_at(std::int32_t begin, std::int32_t end, int content, bool attends = false) {
  MediaSpan span{.begin = begin, .end = end, .content_id = {}, .attends_to_itself = attends};
  span.content_id[0] = static_cast<std::byte>(content);
  return span;
}

// ---- creation ----

TEST(PrefixTree, OptionsOutOfRangeAreRefusedWithTheFieldAndTheValue) {
  const auto refusal = [](auto change) {
    PrefixTreeOptions options = one_group(4);
    change(options);
    const Result<PrefixTree> tree = PrefixTree::create(options);
    if (tree) return std::string("made");
    EXPECT_EQ(tree.error().code(), ErrorCode::kInvalidArgument);
    return tree.error().message();
  };
  using Options = PrefixTreeOptions;
  EXPECT_THAT(refusal([](Options& o) { o.groups.clear(); }), HasSubstr("groups is 0"));
  EXPECT_THAT(refusal([](Options& o) { o.groups.resize(17, o.groups[0]); }),
              HasSubstr("groups is 17"));
  EXPECT_THAT(refusal([](Options& o) { o.max_index_tokens = 0; }),
              HasSubstr("max_index_tokens is 0"));
  EXPECT_THAT(refusal([](Options& o) { o.max_index_tokens = std::int64_t{1} << 40; }),
              HasSubstr("max_index_tokens is 1099511627776"));
  EXPECT_THAT(refusal([](Options& o) { o.max_runs = 1; }), HasSubstr("max_runs is 1"));
  EXPECT_THAT(refusal([](Options& o) { o.max_root_keys = 0; }), HasSubstr("max_root_keys is 0"));
  EXPECT_THAT(refusal([](Options& o) { o.max_root_key_bytes = -1; }),
              HasSubstr("max_root_key_bytes is -1"));
  EXPECT_THAT(refusal([](Options& o) { o.max_media_extents = -5; }),
              HasSubstr("max_media_extents is -5"));
  EXPECT_THAT(refusal([](Options& o) { o.groups[0].block_size = 0; }),
              HasSubstr("block_size is 0"));
  EXPECT_THAT(refusal([](Options& o) { o.groups[0].block_size = 1025; }),
              HasSubstr("block_size is 1025"));
  EXPECT_THAT(refusal([](Options& o) { o.groups[0].num_blocks = 0; }),
              HasSubstr("num_blocks is 0"));
  EXPECT_THAT(refusal([](Options& o) {
                o.groups.push_back(o.groups[0]);
                o.groups[1].block_size = 6;
              }),
              HasSubstr("block_size is 6"));
  EXPECT_THAT(refusal([](Options& o) {
                o.groups.push_back(o.groups[0]);
                o.groups[1].block_size = 0;
              }),
              HasSubstr("block_size is 0"));
  EXPECT_THAT(refusal([](Options& o) { o.groups[0].kind = AttentionKind::kSlidingWindow; }),
              HasSubstr("window is 0"));
}

TEST(PrefixTree, TheUnitIsTheSmallestBlockSize) {
  EXPECT_EQ(PrefixTree::create(two_groups())->unit(), 2);
  EXPECT_EQ(PrefixTree::create(one_group(16))->unit(), 16);
}

// ---- root keys ----

TEST(RootKeys, FieldsAreFramedSoThatNoTwoKeysAreTheSame) {
  Tree t(one_group(4));
  const std::vector<RootKey> keys = {{.adapter = "ab"},
                                     {.adapter = "a", .adapter_version = "b"},
                                     {.adapter_version = "ab"},
                                     {.model = "ab"},
                                     {.model = "a", .adapter = "b"},
                                     {.tenant_salt = "ab"},
                                     {.adapter = "ab", .epoch = 1},
                                     {.adapter = "ab", .epoch = std::uint64_t{1} << 32},
                                     {.adapter = std::string_view("ab\0", 3)},
                                     {.adapter = std::string_view("\0\0\0\0", 4)},
                                     {.adapter = std::string_view("\0\0\0", 3)}};
  std::set<std::int32_t> roots = {t.root};
  for (const RootKey& key : keys) {
    EXPECT_EQ(t.tree.find_root(key), -1);
    EXPECT_TRUE(roots.insert(t.tree.make_root(key)).second);
  }
  for (const RootKey& key : keys) EXPECT_EQ(t.tree.find_root(key), t.tree.make_root(key));
  EXPECT_EQ(t.tree.num_runs(), static_cast<std::int32_t>(roots.size()));
  for (const std::int32_t root : roots) {
    Place place = t.tree.enter(root, 0);
    t.tree.leave(place);
  }
  EXPECT_EQ(t.tree.num_runs(), 0);
}

TEST(RootKeys, EqualTokensUnderAnotherKeyAreNotFound) {
  Tree t(one_group(4), {.adapter = "ab"});
  t.cache(counting(0, 8), {{0, 1}});
  const std::int32_t other = t.tree.make_root({.adapter = "a", .adapter_version = "b"});
  EXPECT_EQ(t.tree.match(other, counting(0, 8), {}, 8, true).tokens, 0);
  EXPECT_EQ(t.found(counting(0, 8)), 8);
  Place place = t.tree.enter(other, 0);
  t.tree.leave(place);
}

TEST(RootKeys, KeysOver64KiBHaveNoRootAndAreNoError) {
  PrefixTreeOptions options = one_group(4);
  Tree t(options);
  const std::string most(65536, 'x');
  const std::string half(32769, 'x');
  EXPECT_GE(t.tree.make_root({.model = most}), 0);
  EXPECT_GE(t.tree.find_root({.model = most}), 0);
  EXPECT_EQ(t.tree.make_root({.model = most, .adapter = "y"}), -1);
  EXPECT_EQ(t.tree.make_root({.model = half, .tenant_salt = half}), -1);
  EXPECT_EQ(t.tree.find_root({.model = half, .tenant_salt = half}), -1);
  for (const RootKey& key : {RootKey{}, RootKey{.model = most}}) {
    Place place = t.tree.enter(t.tree.find_root(key), 0);
    t.tree.leave(place);
  }
}

TEST(RootKeys, ARootThatDoesNotFitIsNotMadeAndRoomComesBack) {
  PrefixTreeOptions options = one_group(4);
  options.max_root_keys = 2;
  Tree t(options);
  const std::int32_t second = t.tree.make_root({.model = "b"});
  ASSERT_GE(second, 0);
  EXPECT_EQ(t.tree.make_root({.model = "c"}), -1);
  Place place = t.tree.enter(second, 0);
  t.tree.leave(place);
  EXPECT_EQ(t.tree.find_root({.model = "b"}), -1);
  const std::vector<std::int32_t> prompt(8, 1);
  EXPECT_EQ(t.tree.match(-1, prompt, {}, 8, true).tokens, 0);  // no root, no match
  EXPECT_GE(t.tree.make_root({.model = "c"}), 0);
  for (const RootKey& key : {RootKey{}, RootKey{.model = "c"}}) {
    Place at = t.tree.enter(t.tree.find_root(key), 0);
    t.tree.leave(at);
  }
}

TEST(RootKeys, AsManyFitAsTheirBytesSayWhateverTheirLength) {
  constexpr std::int64_t kBytes = 1 << 16;
  for (const std::size_t length : {1u, 100u, 1000u, 1025u, 5000u, 20000u}) {
    PrefixTreeOptions options = one_group(4);
    options.max_root_keys = 200;
    options.max_root_key_bytes = kBytes;
    const std::unique_ptr<PrefixTree> tree =
        std::make_unique<PrefixTree>(*PrefixTree::create(options));
    std::int64_t made = 0;
    std::vector<Place> places;
    for (; made < 200; ++made) {
      std::string salt = std::to_string(1000 + made);
      salt.resize(length + 4, 'x');
      const std::int32_t root = tree->make_root({.tenant_salt = salt});
      if (root < 0) break;
      places.push_back(tree->enter(root, 0));
    }
    constexpr std::int64_t kMostFraming = 64;
    EXPECT_GE(made, std::min<std::int64_t>(
                        200, kBytes / (static_cast<std::int64_t>(length) + 4 + kMostFraming)))
        << length;
    for (Place& place : places) tree->leave(place);
    EXPECT_TRUE(tree->check_invariants().ok());
  }
}

TEST(RootKeys, TheMostBytesThatAreAllowedAreNoError) {
  PrefixTreeOptions options = one_group(4);
  options.max_root_key_bytes = std::int64_t{1} << 34;
  const Result<PrefixTree> tree = PrefixTree::create(options);
  // 32 GiB of addresses, of which none is touched.
  EXPECT_TRUE(tree.has_value() || tree.error().code() == ErrorCode::kOutOfMemory);
}

TEST(RootKeys, ARootStaysWhileSomethingHangsBelowOrSomebodyStandsOnIt) {
  Tree t(one_group(4));
  t.cache(counting(0, 4), {{0}});
  EXPECT_EQ(t.tree.find_root({}), t.root);
  Place place = t.tree.enter(t.root, 0);
  t.tree.unhang(kFirst, BlockId(0));
  EXPECT_EQ(t.tree.find_root({}), t.root);
  t.tree.leave(place);
  EXPECT_EQ(t.tree.find_root({}), -1);
  EXPECT_EQ(t.tree.num_runs(), 0);
  EXPECT_EQ(t.tree.num_tokens(), 0);
}

// ---- hits ----

TEST(PrefixTree, AHitEndsInsideABlockWhereThePromptLeavesIt) {
  Tree t(one_group(16));
  t.cache(counting(0, 32), {{5, 6}});
  Tokens prompt = counting(0, 23);
  prompt.push_back(-1);
  const PrefixMatch match = t.match_prompt(prompt);
  EXPECT_EQ(match.tokens, 23);
  EXPECT_FALSE(match.whole);
  EXPECT_THAT(t.table(match, kFirst, 16), ElementsAre(5, 6));
}

TEST(PrefixTree, TwoPromptsThatBranchInsideAUnitAreBothFoundToTheirEnds) {
  Tree t(one_group(4));
  t.cache({1, 2, 3, 4, 5, 6, 7, 8}, {{0, 1}});
  t.cache({1, 2, 3, 4, 5, 6, 9, 9}, {{2, 3}});
  EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(0)));  // equal tokens: a held block has the entry
  EXPECT_THAT(t.table(t.match({1, 2, 3, 4, 5, 6, 7, 8}), kFirst, 4), ElementsAre(2, 1));
  EXPECT_THAT(t.table(t.match({1, 2, 3, 4, 5, 6, 9, 9}), kFirst, 4), ElementsAre(2, 3));
  EXPECT_EQ(t.found({1, 2, 3, 4, 5, 6, 9, 1}), 7);
  EXPECT_EQ(t.found({1, 2, 3, 4, 5, 6, 8, 1}), 6);
  EXPECT_EQ(t.found({1, 2, 3, 5}), 3);
  EXPECT_EQ(t.found({2}), 0);
}

TEST(PrefixTree, ABranchWith7373ChildrenFindsEachAndTheLongestCommonPrefixInside) {
  Tree t(one_group(4));
  constexpr std::int32_t kChildren = 7373;
  std::vector<std::int32_t> order(kChildren);
  std::iota(order.begin(), order.end(), 0);
  for (std::int32_t i = 0; i < kChildren; ++i) {
    const std::int32_t c = static_cast<std::int32_t>((std::int64_t{i} * 3001) % kChildren);
    t.cache({7, 7, 7, 7, c / 100, c % 100, 5, 5}, {{i == 0 ? kChildren : -1, c}});
  }
  EXPECT_EQ(t.tree.num_runs(), kChildren + 2);
  for (std::int32_t c = 0; c < kChildren; c += 37) {
    EXPECT_THAT(t.table(t.match({7, 7, 7, 7, c / 100, c % 100, 5, 5}), kFirst, 4),
                ElementsAre(kChildren, c));
    const PrefixMatch near = t.match({7, 7, 7, 7, c / 100, c % 100, 5, 6});
    EXPECT_EQ(near.tokens, 7);
    EXPECT_THAT(t.table(near, kFirst, 4), ElementsAre(kChildren, c));
    EXPECT_EQ(t.found({7, 7, 7, 7, c / 100, 1000, 5, 6}), 5);
  }
  EXPECT_EQ(t.found({7, 7, 7, 7, -1, 0, 5, 5}), 4);
}

TEST(PrefixTree, AHitIsAtMostMaxTokens) {
  Tree t(one_group(4));
  t.cache(counting(0, 16), {{0, 1, 2, 3}});
  for (std::int32_t limit = -3; limit <= 20; ++limit) {
    const PrefixMatch match = t.tree.match(t.root, counting(0, 16), {}, limit, false);
    EXPECT_EQ(match.tokens, std::clamp(limit, 0, 16));
    EXPECT_FALSE(match.whole);
  }
}

TEST(PrefixTree, APromptFoundWholeHoldsTheBlockOfItsLastToken) {
  Tree t(one_group(4));
  t.cache(counting(0, 9), {{0, 1, 2}});
  for (std::int32_t n = 1; n <= 9; ++n) {
    const PrefixMatch match = t.match_prompt(counting(0, n));
    EXPECT_TRUE(match.whole);
    EXPECT_EQ(match.tokens, n - 1);
    EXPECT_EQ(match.held_tokens(), n);
    EXPECT_EQ(t.table(match, kFirst, 4).back(), (n - 1) / 4);
  }
  const PrefixMatch longer = t.match_prompt(counting(0, 10));
  EXPECT_FALSE(longer.whole);
  EXPECT_EQ(longer.tokens, 9);
  EXPECT_FALSE(t.match_prompt({}).whole);
}

TEST(PrefixTree, APromptIsFoundWholeBesideARunThatKeepsNoBlock) {
  for (std::int32_t kept = 0; kept < 4; ++kept) {
    Tree t(one_group(4));
    std::vector<Place> standing;
    for (std::int32_t b = 0; b < 4; ++b) {
      standing.push_back(t.publish({1, 2, 3, 4 + b}, {{b}}));
      if (b != kept) t.tree.unhang(kFirst, BlockId(b));
    }
    const PrefixMatch match = t.match_prompt({1, 2, 3});
    EXPECT_TRUE(match.whole);
    EXPECT_EQ(t.table(match, kFirst, 4), Table({kept}));
    for (Place& place : standing) t.tree.leave(place);
  }
}

TEST(PrefixTree, EightNeighboursOnEachSideAreAskedInside) {
  int served = 0;
  for (std::int32_t kept = 0; kept < 100; ++kept) {
    Tree t(one_group(4));
    std::vector<Place> standing;
    for (std::int32_t b = 0; b < 100; ++b) {
      standing.push_back(t.publish({1, 2, 3, 10 + b}, {{b}}));
      if (b != kept) t.tree.unhang(kFirst, BlockId(b));
    }
    const std::int32_t found = t.match({1, 2, 3, 60, 5}).tokens;
    EXPECT_TRUE(found == 0 || found == 3 || kept == 50) << found;
    served += found > 0;
    for (Place& place : standing) t.tree.leave(place);
  }
  EXPECT_EQ(served, 8 + 1 + 8);
}

TEST(PrefixTree, SiblingsOfARunThatKeepsNoBlockServeWhatTheyShare) {
  Tree t(one_group(4));
  std::vector<Place> standing;
  standing.push_back(t.publish({1, 2, 3, 4, 5, 6, 7, 8}, {{0, 1}}));
  standing.push_back(t.publish({1, 2, 3, 4, 9, 9, 9, 9}, {{0, 2}}));  // [1 2 3 4] has children now
  t.tree.unhang(kFirst, BlockId(0));
  ASSERT_EQ(t.heard.unhung.size(), 3u);
  t.cache({1, 2, 7, 7}, {{3}});
  const PrefixMatch match = t.match({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(match.tokens, 2);
  EXPECT_EQ(t.table(match, kFirst, 4), Table({3}));
  for (Place& place : standing) t.tree.leave(place);
}

TEST(PrefixTree, AWindowGroupGivesTheBlocksOfTheWindowOnly) {
  Tree t(two_groups());
  t.cache(counting(0, 16), {{0, 1, 2, 3}, {10, 11, 12, 13, 14, 15, 16, 17}});
  // A query at 12 reads tokens 7 .. 11.
  const PrefixMatch match = t.match(counting(0, 12));
  EXPECT_EQ(match.tokens, 12);
  EXPECT_THAT(t.table(match, kFirst, 4), ElementsAre(0, 1, 2));
  EXPECT_THAT(t.table(match, kSecond, 2), ElementsAre(-1, -1, -1, 13, 14, 15));
  // Found whole, the last token is computed again: tokens 6 .. 11.
  const PrefixMatch whole = t.match_prompt(counting(0, 13));
  ASSERT_TRUE(whole.whole);
  EXPECT_THAT(t.table(whole, kSecond, 2), ElementsAre(-1, -1, -1, 13, 14, 15, 16));
  const PrefixMatch further = t.match(counting(0, 11));
  EXPECT_THAT(t.table(further, kSecond, 2), ElementsAre(-1, -1, -1, 13, 14, 15));
  EXPECT_THAT(t.table(further, kSecond, 2, true), ElementsAre(-1, -1, 12, 13, 14, 15));
}

TEST(PrefixTree, AGapInTheWindowMovesTheHitToWhereTheGapNoLongerMatters) {
  Tree t(two_groups());
  t.cache(counting(0, 16), {{0, 1, 2, 3}, {10, 11, 12, 13, 14, 15, 16, 17}});
  t.tree.unhang(kSecond, BlockId(14));      // tokens 8 and 9
  EXPECT_EQ(t.found(counting(0, 16)), 16);  // reads 11 .. 15
  EXPECT_EQ(t.found(counting(0, 15)), 15);  // reads 10 .. 14
  EXPECT_EQ(t.found(counting(0, 14)), 8);
  EXPECT_EQ(t.found(counting(0, 8)), 8);
}

TEST(PrefixTree, SinksAreNeededByEveryHit) {
  PrefixTreeOptions options = two_groups();
  options.groups[1].num_sinks = 3;
  Tree t(options);
  t.cache(counting(0, 16), {{0, 1, 2, 3}, {10, 11, 12, 13, 14, 15, 16, 17}});
  EXPECT_THAT(t.table(t.match(counting(0, 12)), kSecond, 2), ElementsAre(10, 11, -1, 13, 14, 15));
  t.tree.unhang(kSecond, BlockId(11));  // tokens 2 and 3; 2 is a sink
  EXPECT_EQ(t.found(counting(0, 16)), 2);
}

// A copy of the sinks that ends inside their block: what lies behind it there was never written.
TEST(PrefixTree, ABlockOfSinksServesNoFurtherThanItsTokens) {
  PrefixTreeOptions options = two_groups();
  options.groups[0].block_size = 2;
  options.groups[1].block_size = 4;
  options.groups[1].window = 2;
  options.groups[1].num_sinks = 1;
  Tree t(options);
  t.cache(counting(0, 8), {{0, 1, 2, 3}, {11, 12}});
  EXPECT_EQ(t.found(counting(0, 8)), 8);
  t.tree.unhang(kSecond, BlockId(11));
  t.cache(counting(0, 2), {{-1}, {10}});
  EXPECT_EQ(t.found(counting(0, 8)), 2);  // block 10 has the sink, and nothing behind token 1
  EXPECT_THAT(t.table(t.match(counting(0, 8)), kSecond, 4), ElementsAre(10));
}

// ---- media ----

TEST(PrefixTree, EqualPlaceholdersOfOtherMediaAreOtherPrompts) {
  Tree t(one_group(4));
  const Tokens tokens(12, 9);
  t.cache(tokens, {{0, 1, 2}}, true, {image_at(2, 7, 1)});
  t.cache(tokens, {{3, 4, 5}}, true, {image_at(2, 7, 2)});
  t.cache(tokens, {{6, 7, 8}});
  EXPECT_THAT(t.table(t.match(tokens, {image_at(2, 7, 1)}), kFirst, 4), ElementsAre(0, 1, 2));
  EXPECT_THAT(t.table(t.match(tokens, {image_at(2, 7, 2)}), kFirst, 4), ElementsAre(3, 4, 5));
  EXPECT_THAT(t.table(t.match(tokens), kFirst, 4), ElementsAre(6, 7, 8));
  EXPECT_EQ(t.found(tokens, {image_at(2, 7, 3)}), 2);
  EXPECT_EQ(t.found(tokens, {image_at(2, 8, 1)}), 2);  // another length
  EXPECT_EQ(t.found(tokens, {image_at(1, 6, 1)}), 1);  // another place
  EXPECT_EQ(t.found(tokens, {image_at(2, 7, 1), image_at(9, 10, 4)}), 9);
}

TEST(PrefixTree, AHitNeverEndsInsideASpanThatAttendsToItself) {
  Tree t(one_group(4));
  const Media media = {image_at(3, 7, 1, true)};
  const Tokens tokens = counting(0, 12);
  t.cache(tokens, {{0, 1, 2}}, true, media);
  for (std::int32_t limit = 0; limit <= 12; ++limit) {
    EXPECT_EQ(t.tree.match(t.root, tokens, media, limit, false).tokens,
              limit > 3 && limit < 7 ? 3 : limit);
  }
  // Found whole means that the last token is computed again: not inside a span.
  const PrefixMatch whole = t.tree.match(t.root, counting(0, 7), media, 6, true);
  EXPECT_FALSE(whole.whole);
  EXPECT_EQ(whole.tokens, 3);
  EXPECT_TRUE(t.tree.match(t.root, counting(0, 8), media, 7, true).whole);
}

TEST(PrefixTree, ASpanThatRunsThroughASplitIsFoundOnBothSides) {
  Tree t(one_group(4));
  const Media media = {image_at(1, 11, 1)};
  Tokens other = counting(0, 12);
  other[9] = 99;
  t.cache(counting(0, 12), {{0, 1, 2}}, true, media);
  t.cache(other, {{3, 4, 5}}, true, media);
  EXPECT_THAT(t.table(t.match(counting(0, 12), media), kFirst, 4), ElementsAre(3, 4, 2));
  EXPECT_THAT(t.table(t.match(other, media), kFirst, 4), ElementsAre(3, 4, 5));
  EXPECT_EQ(t.found(other, {image_at(1, 11, 2)}), 1);
}

// ---- publishing ----

TEST(PrefixTree, APathWithoutChildrenGrowsAtItsEndWithoutANewRun) {
  Tree t(one_group(4));
  Place place = t.tree.enter(t.root, 0);
  Table table;
  for (std::int32_t i = 0; i < 50; ++i) {
    table.push_back(i);
    ASSERT_TRUE(t.extend(place, counting(4 * i, 4), {table}));
    EXPECT_EQ(t.published.num_hung, 1u);
    EXPECT_EQ(t.tree.num_runs(), 2);
    EXPECT_EQ(place.position, 4 * i + 4);
  }
  EXPECT_EQ(t.tree.num_tokens(), 200);
  t.tree.leave(place);
}

TEST(PrefixTree, ASplitKeepsPlacesAndBlocks) {
  Tree t(one_group(4));
  Place low = t.publish(counting(0, 16), {{0, 1, 2, 3}});
  Place high = t.tree.copy(low);
  t.tree.climb(high, 4);
  const std::int32_t runs = t.tree.num_runs();
  Tokens other = counting(0, 16);
  other[9] = -1;  // splits at 8
  t.cache(other, {{-1, -1, 10, 11}});
  EXPECT_EQ(t.tree.num_runs(), runs + 2);
  for (std::int32_t i = 0; i < 4; ++i)
    EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(i)), 4 * i + 4);
  Tokens back(16);
  t.tree.copy_tokens(low, 0, back);
  EXPECT_EQ(back, counting(0, 16));
  Tokens four(3);
  t.tree.copy_tokens(high, 1, four);
  EXPECT_THAT(four, ElementsAre(1, 2, 3));
  // Both go on from where they stand.
  EXPECT_TRUE(t.extend(low, counting(16, 4), {{0, 1, 2, 3, 4}}));
  EXPECT_EQ(t.found(counting(0, 20)), 20);
  EXPECT_TRUE(t.extend(high, counting(100, 4), {{0, 20}}));
  EXPECT_EQ(t.found({0, 1, 2, 3, 100, 101, 102, 103}), 8);
  t.tree.leave(low);
  t.tree.leave(high);
}

TEST(PrefixTree, BlocksOfALargerSizeSurviveASplitInsideThem) {
  Tree t(two_groups());
  t.cache({1, 2, 3, 4}, {{0}, {10, 11}});
  t.cache({1, 2, 5, 6}, {{1}, {-1, 12}});  // splits at 2, inside both blocks of four
  const PrefixMatch first = t.match({1, 2, 3, 4});
  EXPECT_EQ(first.tokens, 4);
  EXPECT_THAT(t.table(first, kFirst, 4), ElementsAre(0));
  const PrefixMatch second = t.match({1, 2, 5, 6});
  EXPECT_EQ(second.tokens, 4);
  EXPECT_THAT(t.table(second, kFirst, 4), ElementsAre(1));
  EXPECT_EQ(t.found({1, 2, 9, 9}), 2);  // some block of four begins with 1, 2
}

TEST(PrefixTree, OfTwoHeldBlocksWithEqualTokensTheFirstKeepsTheEntry) {
  Tree t(one_group(4));
  Place first = t.publish(counting(0, 8), {{0, 1}});
  EXPECT_EQ(t.published.num_hung, 2u);
  EXPECT_EQ(t.published.missed_from, kNothingAgain);
  Place second = t.publish(counting(0, 8), {{2, 3}});
  EXPECT_EQ(t.published.num_hung, 0u);
  EXPECT_EQ(t.published.missed_from, 0);
  EXPECT_FALSE(t.published.has_gap);
  EXPECT_THAT(t.heard.unhung, IsEmpty());
  EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(2)));
  t.tree.leave(first);
  t.tree.leave(second);
}

TEST(PrefixTree, AnIdleEntryGivesWayToAHeldBlockWithEqualTokens) {
  Tree t(one_group(4));
  t.cache(counting(0, 12), {{0, 1, 2}});
  Place place = t.publish(counting(0, 8), {{3, 4}});
  EXPECT_EQ(t.published.num_hung, 2u);
  EXPECT_EQ(t.published.missed_from, kNothingAgain);
  EXPECT_THAT(t.heard.unhung,
              UnorderedElementsAre(Listener::Gone{0, 0, 3}, Listener::Gone{0, 1, 4}));
  // What hangs below stays.
  EXPECT_THAT(t.table(t.match(counting(0, 12)), kFirst, 4), ElementsAre(3, 4, 2));
  EXPECT_EQ(t.tree.num_idle(kFirst), 1);
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 2)));
  t.tree.leave(place);
}

TEST(PrefixTree, ABusyEntryOfABlockThatIsNotHeldGivesWayToo) {
  Tree t(one_group(4));
  Place first = t.publish(counting(0, 8), {{0, 1}});
  t.heard.not_held = {{0, 1}};
  Place second = t.publish(counting(0, 8), {{2, 3}});
  EXPECT_EQ(t.published.num_hung, 1u);
  EXPECT_EQ(t.published.missed_from, 0);
  EXPECT_THAT(t.heard.unhung, ElementsAre(Listener::Gone{0, 1, 3}));
  EXPECT_THAT(t.table(t.match(counting(0, 8)), kFirst, 4), ElementsAre(0, 3));
  t.tree.leave(first);
  t.tree.leave(second);
}

TEST(PrefixTree, APartialTailGivesWayToAHeldOneWithEqualTokens) {
  Tree t(one_group(4));
  t.cache(counting(0, 6), {{0, 1}});
  Place place = t.publish(counting(0, 6), {{-1, 2}});
  EXPECT_THAT(t.heard.unhung, ElementsAre(Listener::Gone{0, 1, 2}));
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(2)), 6);
  t.tree.leave(place);
}

TEST(PrefixTree, BlocksOnThePathAreOfferedAgainFromAPositionOn) {
  Tree t(one_group(4));
  t.cache(counting(0, 12), {{0, 1, 2}});
  t.tree.set_busy(kFirst, Table{0, 1, 2});
  Place place = t.publish(counting(0, 12), {{3, 4, 5}});
  EXPECT_EQ(t.published.missed_from, 0);
  t.tree.set_idle(kFirst, Table{0, 1, 2});
  // Not by itself, nor before that position.
  ASSERT_TRUE(t.extend(place, {}, {{3, 4, 5}}));
  EXPECT_EQ(t.published.num_hung, 0u);
  EXPECT_EQ(t.published.missed_from, kNothingAgain);  // nothing was offered
  ASSERT_TRUE(t.extend(place, {}, {{3, 4, 5}}, false, 4));
  EXPECT_EQ(t.published.num_hung, 2u);
  EXPECT_EQ(t.published.missed_from, kNothingAgain);
  EXPECT_THAT(t.table(t.match(counting(0, 12)), kFirst, 4), ElementsAre(0, 4, 5));
  ASSERT_TRUE(t.extend(place, counting(12, 4), {{3, 4, 5, 6}}, false, 0));
  EXPECT_EQ(t.published.num_hung, 2u);
  EXPECT_THAT(t.table(t.match(counting(0, 16)), kFirst, 4), ElementsAre(3, 4, 5, 6));
  t.tree.leave(place);
}

TEST(PrefixTree, MissedFromIsTheFirstOfferedBlockOfAnyGroupWithoutAnEntry) {
  Tree t(two_groups());
  Place first = t.publish(counting(0, 8), {{0, 1}, {10, 11, 12, 13}});
  t.heard.not_held = {{0, 0}, {0, 1}, {1, 10}, {1, 11}, {1, 12}};
  Place second = t.publish(counting(0, 8), {{2, 3}, {20, 21, 22, 23}});
  EXPECT_EQ(t.published.num_hung, 5u);
  EXPECT_EQ(t.published.missed_from, 6);
  // The block of a table that does not offer one is not missed.
  ASSERT_TRUE(t.extend(second, {}, {{2, 3}, {20, 21, 22, -1}}, false, 0));
  EXPECT_EQ(t.published.num_hung, 0u);
  EXPECT_EQ(t.published.missed_from, kNothingAgain);
  t.tree.leave(first);
  t.tree.leave(second);
}

// ---- no gaps in full groups ----

TEST(PrefixTree, AFullGroupHangsNothingBehindAGapAndSaysSo) {
  Tree t(one_group(4));
  Place first = t.publish(counting(0, 12), {{-1, 1, 2}});
  EXPECT_EQ(t.published.num_hung, 0u);
  EXPECT_TRUE(t.published.has_gap);
  EXPECT_EQ(t.published.missed_from, 4);
  EXPECT_EQ(t.found(counting(0, 12)), 0);
  // Up to the gap they are hung.
  Place second = t.publish(counting(0, 16), {{4, 5, -1, 7}});
  EXPECT_EQ(t.published.num_hung, 2u);
  EXPECT_TRUE(t.published.has_gap);
  EXPECT_EQ(t.published.missed_from, 12);
  // Behind the last entry of the path, a later step neither.
  ASSERT_TRUE(t.extend(second, counting(16, 4), {{4, 5, -1, 7, 8}}));
  EXPECT_EQ(t.published.num_hung, 0u);
  EXPECT_TRUE(t.published.has_gap);
  EXPECT_EQ(t.published.missed_from, 16);
  EXPECT_EQ(t.found(counting(0, 20)), 8);
  t.tree.leave(first);
  t.tree.leave(second);
}

TEST(PrefixTree, AnotherSequencesEntryIsNoGap) {
  Tree t(one_group(4));
  t.cache(counting(0, 8), {{0, 1}});
  Place place = t.publish(counting(0, 12), {{-1, -1, 2}});
  EXPECT_EQ(t.published.num_hung, 1u);
  EXPECT_FALSE(t.published.has_gap);
  EXPECT_EQ(t.found(counting(0, 12)), 12);
  t.tree.leave(place);
}

TEST(PrefixTree, APartialEntryIsAGapForWhatFollowsItsBlock) {
  Tree t(one_group(4));
  t.cache(counting(0, 6), {{0, 1}});
  Place place = t.publish(counting(0, 12), {{-1, -1, 2}});
  EXPECT_EQ(t.published.num_hung, 0u);
  EXPECT_TRUE(t.published.has_gap);
  EXPECT_EQ(t.found(counting(0, 12)), 6);
  t.tree.leave(place);
}

TEST(PrefixTree, OwnCopiesFillAGapFirst) {
  Tree t(one_group(4));
  t.cache(counting(0, 8), {{0, 1}});
  t.tree.set_busy(kFirst, Table{0, 1});
  Place place = t.publish(counting(0, 8), {{2, 3}});
  ASSERT_EQ(t.published.missed_from, 0);
  t.tree.set_idle(kFirst, Table{0, 1});
  t.tree.unhang(kFirst, BlockId(0));
  EXPECT_EQ(t.found(counting(0, 8)), 0);
  // Without them the next block has nothing to hang behind.
  Place other = t.tree.copy(place);
  ASSERT_TRUE(t.extend(other, counting(100, 4), {{2, 3, 5}}));
  EXPECT_TRUE(t.published.has_gap);
  ASSERT_TRUE(t.extend(place, counting(8, 4), {{2, 3, 4}}, false, 0));
  EXPECT_EQ(t.published.num_hung, 3u);
  EXPECT_FALSE(t.published.has_gap);
  EXPECT_EQ(t.published.missed_from, kNothingAgain);
  EXPECT_THAT(t.table(t.match(counting(0, 12)), kFirst, 4), ElementsAre(2, 3, 4));
  t.tree.leave(place);
  t.tree.leave(other);
}

TEST(PrefixTree, AWindowGroupMayHaveGaps) {
  Tree t(two_groups());
  Place place = t.publish(counting(0, 8), {{0, 1}, {-1, 11, -1, 13}});
  EXPECT_EQ(t.published.num_hung, 4u);
  EXPECT_FALSE(t.published.has_gap);
  t.tree.leave(place);
}

TEST(PrefixTree, EntryAtNamesTheWholeBlockOfThePath) {
  Tree t(two_groups());
  Place low = t.publish(counting(0, 10), {{0, 1, 2}, {10, 11, -1, 13, 14}});
  Tokens other = counting(0, 8);
  other[6] = 99;
  Place side = t.publish(other, {{-1, 3}, {-1, -1, -1, 15}});
  EXPECT_EQ(t.tree.entry_at(low, kFirst, 0), BlockId(0));
  EXPECT_EQ(t.tree.entry_at(low, kFirst, 1), BlockId(1));
  EXPECT_EQ(t.tree.entry_at(side, kFirst, 0), BlockId(0));
  EXPECT_EQ(t.tree.entry_at(side, kFirst, 1), BlockId(3));
  EXPECT_EQ(t.tree.entry_at(low, kSecond, 1), BlockId(11));
  EXPECT_FALSE(t.tree.entry_at(low, kSecond, 2).valid());
  EXPECT_EQ(t.tree.entry_at(low, kSecond, 4), BlockId(14));
  EXPECT_EQ(t.tree.entry_at(side, kSecond, 3), BlockId(15));
  // A partial entry is not whole, though the path goes on behind it.
  ASSERT_TRUE(t.extend(low, counting(10, 6), {{0, 1, -1, -1}, {}}));
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(2)), 10);
  EXPECT_FALSE(t.tree.entry_at(low, kFirst, 2).valid());
  EXPECT_FALSE(t.tree.entry_at(low, kFirst, 3).valid());
  t.tree.leave(low);
  t.tree.leave(side);
}

TEST(PrefixTree, ATailGivesWayToALongerBlockThatBeginsWithIt) {
  Tree t(one_group(4));
  t.cache({1, 2, 3, 4, 5, 6}, {{0, 1}});
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(1)), 6);
  Place place = t.publish({1, 2, 3, 4, 5, 6, 7, 8}, {{-1, 2}});
  EXPECT_THAT(t.heard.unhung, ElementsAre(Listener::Gone{0, 1, 2}));
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(1)), 0);
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(2)), 8);
  t.tree.leave(place);
}

TEST(PrefixTree, ATailAboveABranchGivesWayToALongerBlockBelow) {
  Tree t(two_groups());
  std::vector<Place> standing = {t.publish({1, 2, 3, 4}, {{10}, {0, 1}}),
                                 t.publish({1, 2, 5, 6}, {{11}, {2, 3}})};
  t.tree.unhang(kFirst, BlockId(10));
  t.tree.unhang(kFirst, BlockId(11));
  standing.push_back(t.publish({1, 2}, {{9}, {4}}));
  ASSERT_EQ(t.tree.findable_end(kFirst, BlockId(9)), 2);
  t.heard.unhung.clear();
  standing.push_back(t.publish({1, 2, 3, 4}, {{12}, {5, 6}}));
  EXPECT_THAT(t.heard.unhung, ElementsAre(Listener::Gone{0, 9, 12}));
  for (Place& place : standing) t.tree.leave(place);
}

TEST(PrefixTree, ATailThatALongerBlockBeginsWithIsNotHung) {
  Tree t(one_group(4));
  t.cache({1, 2, 3, 4, 5, 6, 7, 8}, {{0, 1}});
  t.cache({1, 2, 3, 4, 5, 6}, {{-1, 2}});
  EXPECT_EQ(t.published.num_hung, 0u);
  EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(2)));
}

TEST(PrefixTree, ATailInsideARunIsNotHungWhereALongerBlockEndsBelow) {
  // The run [1 2] ends inside blocks of four that its two children end.
  Tree t(two_groups());
  t.cache({1, 2, 3, 4}, {{0}, {10, 11}});
  t.cache({1, 2, 5, 6}, {{1}, {-1, 12}});
  Place place = t.publish({1}, {{2}, {13}});
  EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(2)));
  EXPECT_FALSE(t.tree.is_findable(kSecond, BlockId(13)));
  t.tree.leave(place);
}

TEST(PrefixTree, TheWriterOfATailExtendsItInPlace) {
  Tree t(one_group(4));
  Place place = t.publish({1, 2, 3, 4, 5}, {{0, 1}});
  EXPECT_EQ(place.position, 4);
  EXPECT_EQ(t.found({1, 2, 3, 4, 5, 6}), 5);
  EXPECT_TRUE(t.extend(place, {5, 6, 7}, {{0, 1}}, true));
  EXPECT_EQ(t.published.num_hung, 1u);
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(1)), 7);
  EXPECT_THAT(t.heard.unhung, IsEmpty());  // the entry moves with the block
  EXPECT_EQ(t.tree.num_runs(), 2);
  t.tree.leave(place);
}

// A tail may hang in a gap in the middle of another path; its writer goes on otherwise.
TEST(PrefixTree, ATailInAGapOfAnotherPathFollowsItsWriter) {
  PrefixTreeOptions options = two_groups();
  options.groups.erase(options.groups.begin());
  Tree t(options);
  t.cache({1, 2, 3, 4}, {{0, 1}});
  t.tree.unhang(kFirst, BlockId(0));  // [1 2] is a gap now
  Place place = t.publish({1}, {{5}});
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(5)), 1);
  EXPECT_EQ(t.found({1, 2, 3, 4}), 1);
  EXPECT_TRUE(t.extend(place, {1, 9}, {{5}}));
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(5)), 2);
  EXPECT_THAT(t.table(t.match({1, 9}), kFirst, 2), ElementsAre(5));
  t.tree.leave(place);
}

TEST(PrefixTree, OnlyWholeBlocksAreHungWithoutTail) {
  Tree t(two_groups());
  Place place = t.publish(counting(0, 6), {{0, 1}, {10, 11, 12}}, false);
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(0)), 4);
  EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(1)));
  EXPECT_EQ(t.tree.findable_end(kSecond, BlockId(12)), 6);
  EXPECT_EQ(place.position, 6);
  // The block of four becomes findable when its last token is published.
  EXPECT_TRUE(t.extend(place, counting(6, 2), {{0, 1}, {-1, -1, -1, 13}}));
  EXPECT_EQ(t.tree.findable_end(kFirst, BlockId(1)), 8);
  t.tree.leave(place);
}

TEST(PrefixTree, AFullIndexRefusesAndChangesNothingVisible) {
  PrefixTreeOptions options = one_group(4);
  options.max_index_tokens = 32;
  options.max_runs = 4;
  options.max_root_keys = 1;
  Tree t(options);
  t.cache(counting(0, 16), {{0, 1, 2, 3}});
  Place place = t.tree.enter(t.root, 0);
  const Tokens longer = counting(100, 40);
  const Table table = counting(10, 10);
  EXPECT_FALSE(t.extend(place, longer, {table}, true));
  EXPECT_EQ(t.published.num_hung, 0u);
  EXPECT_EQ(place.position, 0);
  EXPECT_EQ(t.tree.num_tokens(), 16);
  EXPECT_EQ(t.found(counting(0, 16)), 16);
  EXPECT_EQ(t.found(longer), 0);
  EXPECT_THAT(t.heard.unhung, IsEmpty());
  for (std::int32_t b = 10; b < 20; ++b) EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(b)));
  // There is room again when the cold ones are gone.
  for (std::int32_t b = 3; b >= 0; --b) t.tree.unhang(kFirst, BlockId(b));
  EXPECT_TRUE(t.extend(place, counting(100, 32), {table}));
  EXPECT_EQ(t.published.num_hung, 8u);
  t.tree.leave(place);
}

TEST(PrefixTree, MediaThatDoNotFitAreRefusedLikeTokens) {
  PrefixTreeOptions options = one_group(4);
  options.max_media_extents = 1;
  Tree t(options);
  Place place = t.tree.enter(t.root, 0);
  const Media two = {image_at(0, 2, 1), image_at(3, 5, 2)};
  EXPECT_FALSE(t.extend(place, counting(0, 8), {{0, 1}}, true, kNothingAgain, two));
  EXPECT_EQ(t.tree.num_tokens(), 0);
  EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(0)));
  const Media one = {image_at(0, 2, 1)};
  EXPECT_TRUE(t.extend(place, counting(0, 8), {{0, 1}}, true, kNothingAgain, one));
  EXPECT_EQ(t.found(counting(0, 8), one), 8);
  t.tree.leave(place);
}

// ---- places ----

TEST(PrefixTree, ARunThatSomebodyStandsOnKeepsItsTokens) {
  Tree t(one_group(4));
  Place place = t.publish(counting(0, 12), {{0, 1, 2}});
  for (const std::int32_t b : {2, 1, 0}) {
    t.tree.set_idle(kFirst, std::array{b});
    t.tree.unhang(kFirst, BlockId(b));
  }
  Tokens kept(12);
  t.tree.copy_tokens(place, 0, kept);
  EXPECT_EQ(kept, counting(0, 12));
  EXPECT_EQ(t.found(counting(0, 12)), 0);
  t.tree.leave(place);
  EXPECT_FALSE(place.valid());
  EXPECT_EQ(t.tree.num_tokens(), 0);
}

// ---- blocks ----

TEST(PrefixTree, InAFullGroupOnlyTheLastIdleEntryIsACandidate) {
  Tree t(one_group(4));
  t.cache(counting(0, 12), {{0, 1, 2}});
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 2)));
  EXPECT_THAT(t.heard.heads, IsEmpty());
  EXPECT_EQ(t.tree.num_idle(kFirst), 3);
  t.tree.unhang(kFirst, BlockId(2));
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 1)));
  EXPECT_EQ(t.tree.num_idle(kFirst), 2);
  // Two branches: the block before them waits for both.
  t.cache({0, 1, 2, 3, 7, 7, 7, 7}, {{-1, 5}});
  EXPECT_THAT(t.heard.leaves, UnorderedElementsAre(std::pair(0, 1), std::pair(0, 5)));
  t.tree.unhang(kFirst, BlockId(1));
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 5)));
  t.tree.unhang(kFirst, BlockId(5));
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 0)));
  EXPECT_THAT(t.heard.heads, IsEmpty());
}

TEST(PrefixTree, TheLastIdleEntryAboveABusyOneIsAHead) {
  Tree t(one_group(4));
  Place place = t.publish(counting(0, 16), {{0, 1, 2, 3}});
  t.tree.set_idle(kFirst, std::array{0});
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 0)));
  t.tree.set_idle(kFirst, std::array{1});
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 1)));
  EXPECT_THAT(t.heard.leaves, IsEmpty());
  EXPECT_EQ(t.tree.num_idle(kFirst), 2);
  // The tail is let go: what lies above it waits for it.
  t.tree.set_idle(kFirst, std::array{3});
  EXPECT_THAT(t.heard.heads, IsEmpty());
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 3)));
  // Its predecessor is in use: the next idle one is a head again, and a leaf without that.
  t.tree.unhang(kFirst, BlockId(3));
  EXPECT_THAT(t.heard.leaves, IsEmpty());
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 1)));
  t.tree.unhang(kFirst, BlockId(2));
  EXPECT_THAT(t.heard.heads, IsEmpty());
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 1)));
  t.tree.leave(place);
}

TEST(PrefixTree, AHeadAboveABranchWaitsForEveryIdleEntryBelow) {
  Tree t(one_group(4));
  Place left = t.publish({1, 2, 3, 4, 5, 5, 5, 5}, {{0, 1}});
  Place right = t.publish({1, 2, 3, 4, 6, 6, 6, 6}, {{-1, 2}});
  t.tree.set_idle(kFirst, std::array{0});
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 0)));
  t.tree.set_idle(kFirst, std::array{1});
  EXPECT_THAT(t.heard.heads, IsEmpty());
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 1)));
  t.tree.unhang(kFirst, BlockId(1));
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 0)));
  t.tree.unhang(kFirst, BlockId(2));
  EXPECT_THAT(t.heard.heads, IsEmpty());
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 0)));
  // A busy block below makes it a head.
  Place again = t.publish({1, 2, 3, 4, 7, 7, 7, 7}, {{-1, 3}});
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 0)));
  EXPECT_THAT(t.heard.leaves, IsEmpty());
  for (Place* place : {&left, &right, &again}) t.tree.leave(*place);
}

TEST(PrefixTree, ASplitChangesNoCandidate) {
  Tree t(one_group(4));
  Place place = t.publish(counting(0, 12), {{0, 1, 2}});
  t.tree.set_idle(kFirst, Table{0, 1});
  ASSERT_THAT(t.heard.heads, ElementsAre(std::pair(0, 1)));
  t.tree.set_busy(kFirst, std::array{1});
  ASSERT_THAT(t.heard.heads, ElementsAre(std::pair(0, 0)));
  Place other = t.publish({0, 1, 2, 3, 9, 9, 9, 9}, {{-1, -1}});  // splits behind block 0
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 0)));
  t.tree.set_idle(kFirst, Table{1, 2});
  EXPECT_THAT(t.heard.heads, IsEmpty());
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 2)));
  t.tree.leave(place);
  t.tree.leave(other);
}

TEST(PrefixTree, WhatOtherGroupsKeepBelowMakesNoHead) {
  Tree t(two_groups());
  Place place = t.publish(counting(0, 8), {{0, 1}, {10, 11, 12, 13}});
  t.tree.set_idle(kFirst, Table{0, 1});
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 1)));
  EXPECT_THAT(t.heard.heads, IsEmpty());
  t.tree.leave(place);
}

TEST(PrefixTree, InAWindowGroupEveryIdleEntryIsACandidate) {
  Tree t(two_groups());
  Place place = t.publish(counting(0, 8), {{0, 1}, {10, 11, 12, 13}});
  EXPECT_THAT(t.heard.leaves, IsEmpty());
  t.tree.set_idle(kSecond, std::array{10});
  t.tree.set_idle(kSecond, std::array{12});
  EXPECT_THAT(t.heard.leaves, UnorderedElementsAre(std::pair(1, 10), std::pair(1, 12)));
  EXPECT_THAT(t.heard.heads, IsEmpty());
  EXPECT_EQ(t.tree.num_idle(kSecond), 2);
  t.tree.leave(place);
}

TEST(PrefixTree, UnhangTakesWhatLiesBelowAlongBusyOrIdleInAllGroups) {
  Tree t(two_groups());
  t.cache(counting(0, 12), {{0, 1, 2}, {10, 11, 12, 13, 14, 15}});
  t.tree.set_busy(kFirst, std::array{2});
  t.tree.set_busy(kSecond, std::array{13});
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 1)));
  t.tree.unhang(kFirst, BlockId(1));
  EXPECT_THAT(t.heard.unhung,
              UnorderedElementsAre(Listener::Gone{0, 1, -1}, Listener::Gone{0, 2, -1},
                                   Listener::Gone{1, 12, -1}, Listener::Gone{1, 13, -1},
                                   Listener::Gone{1, 14, -1}, Listener::Gone{1, 15, -1}));
  EXPECT_EQ(t.heard.unhung.back(), (Listener::Gone{0, 1, -1}));  // after those below it
  EXPECT_THAT(t.heard.leaves,
              UnorderedElementsAre(std::pair(0, 0), std::pair(1, 10), std::pair(1, 11)));
  EXPECT_EQ(t.found(counting(0, 12)), 4);
  EXPECT_EQ(t.tree.num_tokens(), 4);  // and their tokens are cut off
}

TEST(PrefixTree, UnhangTakesEveryBranchBelowAlong) {
  Tree t(two_groups());
  t.cache({1, 2, 3, 4, 5, 6, 7, 8}, {{0, 1}, {10, 11, 12, 13}});
  Place place = t.publish({1, 2, 3, 4, 5, 6, 9, 9}, {{-1, 2}, {-1, -1, -1, 14}});
  t.cache({1, 2, 3, 4, 8, 8, 8, 8}, {{-1, 3}, {-1, -1, 15, 16}});
  t.cache({1, 2, 7, 7}, {{4}, {-1, 17}});
  t.heard.unhung.clear();
  t.tree.unhang(kFirst, BlockId(0));
  // Not the first two tokens, which another block of the full group serves too.
  EXPECT_EQ(t.heard.unhung.size(), 10u);
  for (const int b : {0, 1, 2, 3}) EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(b)));
  for (const int b : {11, 12, 13, 14, 15, 16}) {
    EXPECT_FALSE(t.tree.is_findable(kSecond, BlockId(b)));
  }
  EXPECT_TRUE(t.tree.is_findable(kSecond, BlockId(10)));
  EXPECT_EQ(t.found({1, 2, 7, 7}), 4);
  // The run with a place on it stays, without entries.
  Tokens kept(8);
  t.tree.copy_tokens(place, 0, kept);
  EXPECT_THAT(kept, ElementsAre(1, 2, 3, 4, 5, 6, 9, 9));
  t.tree.leave(place);
}

TEST(PrefixTree, UnhangOfAWindowBlockTakesNothingElse) {
  Tree t(two_groups());
  t.cache(counting(0, 8), {{0, 1}, {10, 11, 12, 13}});
  t.tree.unhang(kSecond, BlockId(10));
  EXPECT_THAT(t.heard.unhung, ElementsAre(Listener::Gone{1, 10, -1}));
  EXPECT_EQ(t.found(counting(0, 8)), 8);
}

TEST(PrefixTree, UnhangTakesABusyEntryAway) {
  Tree t(one_group(4));
  Place place = t.publish(counting(0, 12), {{0, 1, 2}});
  t.tree.unhang(kFirst, BlockId(1));
  EXPECT_THAT(t.heard.unhung, ElementsAre(Listener::Gone{0, 2, -1}, Listener::Gone{0, 1, -1}));
  EXPECT_EQ(t.found(counting(0, 12)), 4);
  t.tree.leave(place);
}

// The tail [1 2] hung here too: only one child of the run [1 2] was asked, and then unhang() took
// the block that is longer along.
TEST(PrefixTree, ATailIsNotHungWhereAnyBranchBelowKeepsALongerBlock) {
  for (const std::int32_t kept : {0, 1}) {
    Tree t(two_groups());
    std::vector<Place> standing = {t.publish({1, 2, 3, 4}, {{0}, {}}),
                                   t.publish({1, 2, 5, 6}, {{1}, {}})};
    t.tree.unhang(kFirst, BlockId(1 - kept));
    standing.push_back(t.publish({1, 2}, {{2}, {}}));
    EXPECT_FALSE(t.tree.is_findable(kFirst, BlockId(2)));
    EXPECT_EQ(t.found({1, 2}), 0);  // the window group has nothing
    for (Place& place : standing) t.tree.leave(place);
  }
}

// 100,000 runs, one below the other: nothing may take a step of the stack for each.
TEST(PrefixTree, APathOfManyRunsNeedsNoStack) {
  constexpr std::int32_t kRuns = 50000;
  PrefixTreeOptions options;
  options.groups = {{.block_size = 1, .num_blocks = 2 * kRuns + 8}};
  options.max_index_tokens = std::int64_t{64} * kRuns;
  options.max_runs = 2 * kRuns + 16;
  options.max_root_keys = 1;
  Tree t(options);
  Place place = t.tree.enter(t.root, 0);
  Table table;
  const auto extend = [&](Place& at, std::int32_t token, std::int32_t block) {
    table[static_cast<std::size_t>(at.position)] = block;
    const std::span<const std::int32_t> tables[] = {table};
    return t.tree.extend(at, {&token, 1}, {}, {.tables = tables}, t.published);
  };
  // Each token has another beside it.
  for (std::int32_t i = 0; i < kRuns; ++i) {
    table.push_back(-1);
    Place side = t.tree.copy(place);
    ASSERT_TRUE(extend(side, 2, kRuns + i));
    ASSERT_TRUE(extend(place, 1, i));
    t.tree.leave(side);
  }
  EXPECT_EQ(t.tree.num_runs(), 2 * kRuns + 1);
  Place tip = t.tree.copy(place);
  table.push_back(-1);
  ASSERT_TRUE(extend(tip, 3, 2 * kRuns));
  // The only idle entry, at the very end, and then the first one, which all others hang below.
  t.tree.set_idle(kFirst, std::array{2 * kRuns});
  EXPECT_THAT(t.heard.leaves, ElementsAre(std::pair(0, 2 * kRuns)));
  t.tree.set_idle(kFirst, std::array{0});
  EXPECT_THAT(t.heard.heads, IsEmpty());
  t.tree.unhang(kFirst, BlockId(2 * kRuns));
  EXPECT_THAT(t.heard.heads, ElementsAre(std::pair(0, 0)));
  ASSERT_TRUE(t.extend(tip, {}, {table}, false, kRuns));
  t.tree.set_idle(kFirst, std::array{2 * kRuns});
  t.tree.set_busy(kFirst, std::array{2 * kRuns});
  t.tree.leave(place);
  t.tree.leave(tip);
  t.tree.unhang(kFirst, BlockId(0));
  EXPECT_EQ(t.heard.unhung.size(), std::size_t{2 * kRuns + 1});
  EXPECT_EQ(t.tree.num_runs(), 2);
}

TEST(PrefixTree, IdleAndBusySaidTwiceChangeNothing) {
  Tree t(one_group(4));
  t.cache(counting(0, 4), {{0}});
  t.tree.set_idle(kFirst, std::array{0});
  EXPECT_EQ(t.tree.num_idle(kFirst), 1);
  t.tree.set_busy(kFirst, std::array{0});
  t.tree.set_busy(kFirst, std::array{0});
  EXPECT_EQ(t.tree.num_idle(kFirst), 0);
}

TEST(PrefixTree, TheLogMayBeClearedUnread) {
  Result<PrefixTree> made = PrefixTree::create(one_group(4));
  ASSERT_TRUE(made);
  PrefixTree tree = std::move(*made);
  Place place = tree.enter(tree.make_root({}), 0);
  const Table table = {0};
  const std::span<const std::int32_t> tables[] = {table};
  Published published;
  EXPECT_TRUE(tree.extend(place, counting(0, 4), {}, {.tables = tables}, published));
  EXPECT_EQ(published.num_hung, 1u);
  EXPECT_TRUE(tree.has_changes());
  tree.clear_changes();
  EXPECT_FALSE(tree.has_changes());
  tree.set_idle(kFirst, std::array{0});
  tree.clear_changes();
  tree.leave(place);
  tree.unhang(kFirst, BlockId(0));
  EXPECT_EQ(tree.num_runs(), 0);
}

// ---- broken contracts stop the program ----

TEST(PrefixTreeDeathTest, MisuseStopsTheProgram) {
  Tree t(one_group(4));
  Place place = t.publish(counting(0, 4), {{0}});
  EXPECT_DEATH(t.tree.set_idle(kFirst, std::array{1}), "broken invariant");
  EXPECT_DEATH(t.tree.unhang(kFirst, BlockId(1)), "broken invariant");
  EXPECT_DEATH(static_cast<void>(t.tree.entry_at(place, kFirst, 1)), "broken invariant");
  EXPECT_DEATH(t.tree.climb(place, 5), "broken invariant");
  Place twice = place;
  t.tree.leave(place);
  EXPECT_DEATH(
      {
        t.tree.leave(twice);
        t.tree.leave(twice);
      },
      "broken invariant");
}

// ---- copies ----

TEST(PrefixTree, ACopyAnswersTheSameAndHasALogOfItsOwn) {
  Tree source(two_groups());
  Listener heard;
  HeardTree copy(two_groups(), heard);
  {
    Place place = copy.enter(copy.make_root({.model = "other"}), 0);
    const Table blocks = {7};
    const std::span<const std::int32_t> tables[] = {blocks, blocks};
    Published published;
    ASSERT_TRUE(
        copy.extend(place, Tokens{1, 2, 3}, {}, {.tables = tables, .tail = true}, published));
  }

  const MediaSpan image{.begin = 2, .end = 6, .content_id = {std::byte{1}}};
  source.cache({1, 2, 3, 4, 5, 6, 7, 8}, {{0, 1}, {0, 1, 2, 3}});
  source.cache({1, 2, 3, 4, 9, 9, 9}, {{2, 3}, {4, 5, 6, 7}});
  source.cache({1, 2, 3, 4, 5}, {{4, 5}, {8, 9, 10}}, true, {image});
  Place busy = source.publish({1, 2, 3, 4, 5, 6, 1, 1}, {{6, 7}, {11, 12, 13, 14}});

  copy.copy_from(source.tree);
  EXPECT_EQ(copy.check_invariants().message(), "ok");
  EXPECT_EQ(copy.num_runs(), source.tree.num_runs());
  EXPECT_EQ(copy.num_tokens(), source.tree.num_tokens());
  EXPECT_EQ(copy.find_root({}), source.root);
  EXPECT_EQ(copy.find_root({.model = "other"}), -1);
  for (const GroupId group : {kFirst, kSecond}) {
    EXPECT_EQ(copy.num_idle(group), source.tree.num_idle(group));
    EXPECT_EQ(copy.entry_at(busy, group, 0), source.tree.entry_at(busy, group, 0));
    for (std::int32_t b = 0; b < 20; ++b) {
      EXPECT_EQ(copy.findable_end(group, BlockId(b)), source.tree.findable_end(group, BlockId(b)));
    }
  }
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(copy.match(source.root, prompt, {}, 8, false).tokens,
            source.tree.match(source.root, prompt, {}, 8, false).tokens);
  EXPECT_EQ(copy.match(source.root, prompt, {{image}}, 8, false).tokens,
            source.tree.match(source.root, prompt, {{image}}, 8, false).tokens);

  // What happens to one is neither in the other's log nor seen in the other.
  const std::size_t told = source.heard.unhung.size();
  copy.unhang(kFirst, BlockId(1));
  EXPECT_EQ(source.heard.unhung.size(), told);
  EXPECT_FALSE(heard.unhung.empty());
  EXPECT_FALSE(copy.is_findable(kFirst, BlockId(1)));
  EXPECT_TRUE(source.tree.is_findable(kFirst, BlockId(1)));
  Place same = busy;  // places of the source's users are good in the copy
  copy.leave(same);
  EXPECT_EQ(copy.check_invariants().message(), "ok");
  EXPECT_EQ(source.tree.check_invariants().message(), "ok");
  source.tree.leave(busy);
}

TEST(PrefixTree, ACopyAndItsSourceGoOnAlike) {
  Tree source(one_group(2));
  source.cache({1, 2, 3, 4}, {{0, 1}});
  Tree copy(one_group(2));
  copy.cache({9, 9}, {{5}});
  copy.tree.copy_from(source.tree);
  source.heard = copy.heard = {};
  for (Tree* tree : {&source, &copy}) {
    tree->cache({1, 2, 3, 4, 5, 6}, {{2, 3, 4}});
    tree->cache({1, 2, 3, 3}, {{6, 7}});
    tree->tree.unhang(kFirst, BlockId(4));
  }
  EXPECT_EQ(source.heard.unhung, copy.heard.unhung);
  EXPECT_EQ(source.heard.leaves, copy.heard.leaves);
  EXPECT_EQ(source.tree.num_runs(), copy.tree.num_runs());
  EXPECT_EQ(source.found({1, 2, 3, 3}), copy.found({1, 2, 3, 3}));
}

// ---- ends ----

Tables blocks_of(int groups, const Tokens& tokens, std::int32_t first_block) {
  Tables tables;
  for (int g = 0; g < groups; ++g) {
    const std::int32_t size = g == 0 ? 4 : 2;
    tables.push_back(counting(first_block, static_cast<std::int32_t>(tokens.size()) / size));
  }
  return tables;
}

// Which of the blocks of group 1 are read by an end.
Tokens read(const Tree& t, const Table& blocks) {
  Tokens is_read;
  for (const std::int32_t b : blocks) {
    if (t.tree.is_read(kSecond, BlockId(b))) is_read.push_back(b);
  }
  return is_read;
}

TEST(PrefixTree, AnEndMarksTheWholeBlocksThatAHitThereReads) {
  Tree t(two_groups());  // group 1: a window of 6, blocks of 2
  const Tokens tokens = counting(0, 20);
  const Tables tables = blocks_of(2, tokens, 0);
  Place place = t.publish(tokens, tables);
  EXPECT_THAT(read(t, tables[1]), IsEmpty());
  t.tree.note_end(place, 13);  // reads 8 to 12
  EXPECT_THAT(read(t, tables[1]), ElementsAre(4, 5, 6));
  t.tree.note_end(place, 20);  // 15 to 19
  EXPECT_THAT(read(t, tables[1]), ElementsAre(4, 5, 6, 7, 8, 9));
  t.tree.note_end(place, 0);
  t.tree.note_read(kSecond, std::array{0, -1, 50});
  EXPECT_THAT(read(t, tables[1]), ElementsAre(0, 4, 5, 6, 7, 8, 9));
  t.tree.note_read(kFirst, std::array{0, 1});
  EXPECT_FALSE(
      t.tree.is_read(kFirst, BlockId(0)));  // all of a full group is read by whatever comes
  t.tree.unhang(kSecond, BlockId(5));
  EXPECT_THAT(read(t, tables[1]), ElementsAre(0, 4, 6, 7, 8, 9));
  t.tree.clear_changes();
  t.tree.leave(place);
}

TEST(PrefixTree, WherePathsPartIsAnEnd) {
  Tree t(two_groups());
  const Tokens shared = counting(0, 12);
  const auto with = [&](std::int32_t token) {
    Tokens tokens = shared;
    for (int i = 0; i < 4; ++i) tokens.push_back(token + i);
    return tokens;
  };
  const Tables first = blocks_of(2, with(100), 0);
  t.cache(with(100), first);
  EXPECT_THAT(read(t, first[1]), IsEmpty());
  // The second one finds what the first one left, and parts from it at 12: 7 to 11 are read there.
  Tables second = blocks_of(2, with(200), 20);
  for (std::size_t i = 0; i < 6; ++i) second[1][i] = -1;
  for (std::size_t i = 0; i < 3; ++i) second[0][i] = -1;
  t.cache(with(200), second);
  EXPECT_THAT(read(t, first[1]), ElementsAre(3, 4, 5));
  EXPECT_EQ(t.heard.leaves.count({1, 4}), 1u);  // the user hears of those that are idle
  // Lost, and hung again by a third one that comes by: the place is an end still.
  for (const int lost : {3, 4, 5}) t.tree.unhang(kSecond, BlockId(lost));
  const Tables third = blocks_of(2, with(300), 40);
  t.cache(with(300), third);
  EXPECT_THAT(read(t, third[1]), ElementsAre(43, 44, 45));
}

TEST(PrefixTree, ATailThatIsNotHungMakesNoEnd) {
  Tree t(two_groups());
  const Tables first = blocks_of(2, counting(0, 16), 0);
  t.cache(counting(0, 16), first);
  Tokens other = counting(0, 8);
  other.push_back(100);
  t.cache(other, {{-1, -1, -1}, {-1, -1, -1, -1, -1}});
  EXPECT_THAT(read(t, first[1]), IsEmpty());
}

TEST(PrefixTree, AMarkGoesWithTheEntryToTheBlockThatTakesItsPlace) {
  Tree t(two_groups());
  const Tokens tokens = counting(0, 8);
  const Tables first = blocks_of(2, tokens, 0);
  t.cache(tokens, first);
  Place place = t.tree.enter(t.match(tokens).run, 8);
  t.tree.note_end(place, 8);
  t.tree.clear_changes();
  EXPECT_THAT(read(t, first[1]), ElementsAre(1, 2, 3));
  t.tree.leave(place);
  const Tables second = blocks_of(2, tokens, 20);  // an idle block gives way to a busy one
  Place busy = t.publish(tokens, second);
  EXPECT_THAT(read(t, first[1]), IsEmpty());
  EXPECT_THAT(read(t, second[1]), ElementsAre(21, 22, 23));
  Tree copy(two_groups());
  copy.tree.copy_from(t.tree);
  EXPECT_THAT(read(copy, second[1]), ElementsAre(21, 22, 23));
  t.tree.leave(busy);
}

}  // namespace
}  // namespace kvfolio
