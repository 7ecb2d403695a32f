// SPDX-License-Identifier: Apache-2.0
//
// The children of a run alone, without entries: against a plain sorted list.

#include "prefix/children.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <vector>

namespace kvfolio {
namespace {

using Tokens = std::vector<std::int32_t>;
constexpr std::int32_t kNoChild = Children::kNone;
constexpr std::int32_t kUnit = 4;

// A root with children of one unit each.
struct Family {
  Family() {
    const PrefixTreeOptions options{.groups = {{.block_size = kUnit, .num_blocks = 1}},
                                    .max_index_tokens = 1 << 12,
                                    .max_runs = 400};
    EXPECT_TRUE(runs.allocate(options).ok());
    EXPECT_TRUE(media.allocate(8));
    EXPECT_TRUE(children.allocate(400, kUnit, 5));
    root = runs.add();
    runs.run(root).hash = 77;
    runs.run(root).chain = 99;
    children.index(root);
  }

  std::int32_t add(const Tokens& tokens, std::span<const MediaSpan> spans = {}) {
    const std::int32_t r = runs.add();
    Run& fresh = runs.run(r);
    fresh.parent = root;
    EXPECT_TRUE(runs.reserve(r, static_cast<std::int32_t>(tokens.size())));
    EXPECT_TRUE(media.append(fresh.extents, spans, 0, static_cast<std::int32_t>(tokens.size())));
    runs.append(r, tokens);
    fresh.hash = children.first_hash(r);
    children.index(r);
    children.insert(root, r, tokens, spans);
    return r;
  }
  void remove(std::int32_t r) {
    children.remove(r);
    children.unindex(r);
    media.cut(runs.run(r).extents, 0);
    runs.remove(r);
  }
  [[nodiscard]] Tokens tokens(std::int32_t r) const {
    return {runs.tokens(r), runs.tokens(r) + runs.run(r).length};
  }

  RunStore runs;
  MediaExtents media;
  Children children{runs, media};
  std::int32_t root = kNoChild;
};

std::int32_t common(const Tokens& a, const Tokens& b) {
  return static_cast<std::int32_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
}

TEST(Children, AreFoundInOrderAndByTheNearestAfterRandomInsertsAndRemovals) {
  std::mt19937 random(3);
  Family family;
  std::set<Tokens> in;
  std::vector<std::int32_t> names;
  const auto draw = [&] {
    Tokens tokens(kUnit);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 4);
    return tokens;
  };
  for (int i = 0; i < 1000; ++i) {
    if (random() % 3 != 0) {
      const Tokens tokens = draw();
      if (in.insert(tokens).second) names.push_back(family.add(tokens));
    } else if (!names.empty()) {
      std::swap(names[random() % names.size()], names.back());
      in.erase(family.tokens(names.back()));
      family.remove(names.back());
      names.pop_back();
    }
    ASSERT_EQ(family.children.check_run(family.root).message(), "ok");
    auto expected = in.begin();
    std::int32_t last = kNoChild;
    for (std::int32_t c = family.children.first(family.root); c != kNoChild; ++expected) {
      ASSERT_EQ(family.tokens(c), *expected);
      ASSERT_EQ(family.children.before(c), last);
      last = c;
      c = family.children.next(c);
    }
    ASSERT_EQ(expected, in.end());
    const Tokens asked = draw();
    const std::int32_t found = family.children.find(family.root, asked, {});
    ASSERT_EQ(found != kNoChild, in.count(asked) != 0);
    if (found != kNoChild) {
      ASSERT_EQ(family.tokens(found), asked);
    }
    std::int32_t most = 0;
    for (const Tokens& tokens : in) most = std::max(most, common(asked, tokens));
    const Children::Neighbours nearest = family.children.nearest(family.root, asked, {});
    ASSERT_EQ(nearest.common, most);
    ASSERT_EQ(nearest.best != kNoChild, most > 0);
  }
}

TEST(Children, EqualTokensBeforeOtherMediaAreOtherChildren) {
  Family family;
  const Tokens tokens = {1, 2, 3, 4};
  const MediaSpan cat{.begin = 1, .end = 3, .content_id = {std::byte{1}}};
  const MediaSpan dog{.begin = 1, .end = 3, .content_id = {std::byte{2}}};
  const std::int32_t with_dog = family.add(tokens, {&dog, 1});
  const std::int32_t plain = family.add(tokens);
  const std::int32_t with_cat = family.add(tokens, {&cat, 1});
  EXPECT_EQ(family.children.find(family.root, tokens, {}), plain);
  EXPECT_EQ(family.children.find(family.root, tokens, {&cat, 1}), with_cat);
  EXPECT_EQ(family.children.find(family.root, tokens, {&dog, 1}), with_dog);
  EXPECT_EQ(family.children.first(family.root), plain);
  EXPECT_EQ(family.children.next(plain), with_cat);
  EXPECT_EQ(family.children.next(with_cat), with_dog);
  EXPECT_EQ(family.children.common_prefix(plain, 0, tokens, {&cat, 1}), 1);
}

TEST(Children, AFreshRunTakesThePlaceOfAnother) {
  Family family;
  family.add({1, 1, 1, 1});
  const std::int32_t old_run = family.add({2, 2, 2, 2});
  family.add({3, 3, 3, 3});
  const std::int32_t fresh = family.runs.add();
  family.runs.run(fresh).parent = family.root;
  ASSERT_TRUE(family.runs.reserve(fresh, kUnit));
  family.runs.append(fresh, Tokens{2, 2, 2, 2});
  family.children.unindex(old_run);
  family.children.replace(old_run, fresh);
  family.runs.run(fresh).hash = family.runs.run(old_run).hash;
  family.children.index(fresh);
  EXPECT_EQ(family.children.find(family.root, Tokens{2, 2, 2, 2}, {}), fresh);
  EXPECT_EQ(family.children.check_run(family.root).message(), "ok");
}

TEST(Children, TheHashOfAQueryIsThatOfTheRun) {
  Family family;
  const Tokens tokens = {1, 2, 3, 4};
  const std::int32_t r = family.add(tokens);
  EXPECT_EQ(family.children.next_hash(99, 0, tokens.data(), {}), family.runs.run(r).hash);
  EXPECT_EQ(family.children.chain_of(r), family.runs.run(r).hash);  // it has one unit
  EXPECT_EQ(family.children.find_by_hash(77, [](std::int32_t) { return true; }), family.root);
}

TEST(Children, CheckNamesTheRun) {
  Family family;
  const std::int32_t r = family.add({1, 2, 3, 4});
  EXPECT_EQ(family.children.check_run(r).message(), "ok");
  ++family.runs.run(r).hash;
  EXPECT_EQ(family.children.check_run(r).message(), "prefix tree, run 1: its hash is stale");
  ++family.runs.run(family.root).num_children;
  EXPECT_EQ(family.children.check_run(family.root).message(),
            "prefix tree, run 0: has 1 children, kept 2");
}

TEST(Children, ACopyFindsTheSame) {
  Family family;
  Family copy;
  family.add({1, 2, 3, 4});
  const std::int32_t second = family.add({1, 2, 3, 5});
  copy.runs.copy_from(family.runs);
  copy.children.copy_from(family.children);
  EXPECT_EQ(copy.children.find(copy.root, Tokens{1, 2, 3, 5}, {}), second);
}

}  // namespace
}  // namespace kvfolio
