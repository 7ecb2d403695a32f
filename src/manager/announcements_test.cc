// SPDX-License-Identifier: Apache-2.0
//
// Announcements alone: rows that say what they have published, and no manager.

#include "manager/announcements.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace kvfolio {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kUnit = 4;

MediaSpan medium(std::int32_t begin, std::int32_t end, int content) {
  MediaSpan span{.begin = begin, .end = end, .content_id = {}};
  span.content_id.fill(static_cast<std::byte>(content));
  return span;
}

// What the rows have said; of that, what they published lies below begin().
struct Sequences {
  std::map<std::int32_t, Tokens> tokens;
  std::map<std::int32_t, std::vector<MediaSpan>> media;

  [[nodiscard]] bool begins_with(std::int32_t row, std::span<const std::int32_t> asked,
                                 std::span<const MediaSpan> /*with*/) const {
    return std::equal(asked.begin(), asked.end(), tokens.at(row).begin());
  }
  [[nodiscard]] std::span<const MediaSpan> media_of(std::int32_t row) const {
    const auto found = media.find(row);
    return found == media.end() ? std::span<const MediaSpan>() : std::span(found->second);
  }
};

struct Board {
  Announcements announced;
  Sequences rows;

  explicit Board(std::int64_t units = 16) { EXPECT_TRUE(announced.allocate(8, units, kUnit, 7)); }
  ~Board() {
    const Status whole = announced.check();
    EXPECT_TRUE(whole.ok()) << whole.message();
  }
  // Announces all whole units of the tokens from `begin` on.
  bool open(std::int32_t row, const Tokens& tokens, std::int32_t begin = 0, std::int32_t root = 0) {
    rows.tokens[row] = tokens;
    const auto end = static_cast<std::int32_t>(tokens.size()) / kUnit * kUnit;
    return announced.open(row, {root, tokens, rows.media_of(row)}, begin, end);
  }
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> find(
      const Tokens& tokens, std::int32_t root = 0, const std::vector<MediaSpan>& media = {}) const {
    const Announcements::Found found = announced.find({root, tokens, media}, rows);
    return {found.row, found.tokens};
  }
};

using Found = std::pair<std::int32_t, std::int32_t>;
constexpr Found kNothing{Announcements::kNone, 0};

TEST(Announcements, AreFoundAsFarAsTheTokensAreEqual) {
  Board board;
  ASSERT_TRUE(board.open(2, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 7, 8, 9}), (Found{2, 8}));  // no whole unit behind it
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 9}), (Found{2, 6}));
  EXPECT_EQ(board.find({1, 2, 3, 4}), (Found{2, 4}));
  EXPECT_EQ(board.find({1, 2, 3, 9, 5, 6, 7, 8}), kNothing);
  EXPECT_EQ(board.find({1, 2, 3}), kNothing);
  EXPECT_EQ(board.find({}), kNothing);
  EXPECT_EQ(board.find({1, 2, 3, 4}, 1), kNothing);
}

TEST(Announcements, AreFoundBehindWhatTheirRowHasPublished) {
  Board board;
  ASSERT_TRUE(board.open(0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9}, 4));
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 7, 8}), (Found{0, 8}));
  // All that is equal is published.
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 7, 7}), kNothing);
  EXPECT_EQ(board.find({2, 2, 3, 4, 5, 6, 7, 8}), kNothing);
  board.announced.publish(0, 11);
  EXPECT_EQ(board.announced.begin(0), 8);
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 7, 8}), kNothing);
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9}), (Found{0, 12}));
  board.announced.publish(0, 12);
  EXPECT_FALSE(board.announced.is_open(0));
  EXPECT_FALSE(board.announced.any());
}

TEST(Announcements, OfEqualsTheFirstToOpenIsNamed) {
  Board board;
  ASSERT_TRUE(board.open(5, {1, 2, 3, 4, 5, 5, 5, 5}));
  ASSERT_TRUE(board.open(1, {1, 2, 3, 4, 5, 6, 6, 6}));
  ASSERT_TRUE(board.open(3, {1, 2, 3, 4, 5, 6, 6, 6, 7, 7, 7, 7}));
  EXPECT_EQ(board.find({1, 2, 3, 4}), (Found{5, 4}));
  // Inside a unit counts what the first one shares, though others share more.
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 6}), (Found{5, 5}));
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 6, 6}), (Found{1, 8}));
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 6, 6, 7, 7, 7, 7}), (Found{3, 12}));
  board.announced.close(5);
  EXPECT_EQ(board.find({1, 2, 3, 4}), (Found{1, 4}));
  ASSERT_TRUE(board.open(5, {1, 2, 3, 4}));
  EXPECT_EQ(board.find({1, 2, 3, 4}), (Found{1, 4}));
  std::vector<std::int32_t> order;
  board.announced.for_each([&](std::int32_t row) { order.push_back(row); });
  EXPECT_EQ(order, (std::vector<std::int32_t>{1, 3, 5}));
}

TEST(Announcements, OtherMediaAreOtherTokens) {
  Board board;
  board.rows.media[0] = {medium(5, 7, 1)};
  ASSERT_TRUE(board.open(0, {1, 2, 3, 4, 5, 6, 7, 8}));
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(board.find(tokens, 0, {medium(5, 7, 1)}), (Found{0, 8}));
  EXPECT_EQ(board.find(tokens, 0, {medium(5, 7, 2)}), (Found{0, 5}));
  EXPECT_EQ(board.find(tokens), (Found{0, 5}));
}

TEST(Announcements, GoOnWithTheTokensThatWereAnnounced) {
  Board board;
  ASSERT_TRUE(board.open(0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9}, 4));
  const auto goes_on = [&](std::int32_t at, const Tokens& tokens) {
    return board.announced.goes_on_with(0, at, tokens);
  };
  EXPECT_TRUE(goes_on(4, {5, 6, 7, 8, 9, 9, 9, 9}));
  EXPECT_TRUE(goes_on(6, {7, 8, 9}));
  EXPECT_TRUE(goes_on(11, {9, 1, 2, 3}));
  EXPECT_TRUE(goes_on(12, {1, 2, 3}));
  EXPECT_TRUE(goes_on(5, {}));
  EXPECT_FALSE(goes_on(6, {7, 9}));
  EXPECT_FALSE(goes_on(7, {8, 8}));
}

TEST(Announcements, AreNotKeptWithoutRoomForAllOfThem) {
  Board board(3);
  ASSERT_TRUE(board.open(0, {1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_FALSE(board.open(1, {1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_FALSE(board.announced.is_open(1));
  EXPECT_TRUE(board.open(1, {9, 9, 9, 9}));
  board.announced.close(0);
  EXPECT_TRUE(board.open(2, {1, 2, 3, 4, 5, 6, 7, 8}));  // in two places
  EXPECT_EQ(board.find({1, 2, 3, 4, 5, 6, 7, 8}), (Found{2, 8}));
}

TEST(Announcements, ACopyIsAnEqual) {
  Board board;
  ASSERT_TRUE(board.open(0, {1, 2, 3, 4}));
  ASSERT_TRUE(board.open(1, {1, 2, 3, 4, 5, 6, 7, 8}));
  board.announced.close(0);
  Board other;
  ASSERT_TRUE(other.open(3, {7, 7, 7, 7}));
  other.announced.copy_from(board.announced);
  other.rows = board.rows;
  EXPECT_FALSE(other.announced.is_open(3));
  EXPECT_EQ(other.find({1, 2, 3, 4, 5, 6, 7, 8}), (Found{1, 8}));
  ASSERT_TRUE(other.open(0, {2, 2, 2, 2}));
  EXPECT_EQ(board.find({2, 2, 2, 2}), kNothing);
}

// The same question answered by looking at every row.
TEST(Announcements, AnswerAsAListOfPromptsWould) {
  std::mt19937 rng(1);
  const auto below = [&](int n) {
    return static_cast<std::int32_t>(rng() % static_cast<unsigned>(n));
  };
  Board board(20);
  std::vector<std::int32_t> order;
  for (int i = 0; i < 20000; ++i) {
    const auto draw = [&] {
      Tokens tokens(static_cast<std::size_t>(below(18)));
      for (std::int32_t& token : tokens) token = below(20) == 0 ? 1 : 0;
      return tokens;
    };
    const std::int32_t row = below(8);
    if (!board.announced.is_open(row)) {
      const Tokens tokens = draw();
      const auto units = static_cast<std::int32_t>(tokens.size()) / kUnit;
      if (units > 0 && board.open(row, tokens, below(units) * kUnit)) order.push_back(row);
    } else if (below(3) == 0) {
      board.announced.close(row);
      std::erase(order, row);
    } else {
      board.announced.publish(row, board.announced.begin(row) + below(7));
      if (!board.announced.is_open(row)) std::erase(order, row);
    }
    const Tokens asked = draw();
    Found best = kNothing;
    for (const std::int32_t each : order) {
      const Tokens& said = board.rows.tokens[each];
      std::int32_t common = 0;
      while (common < std::min<std::int32_t>(board.announced.end(each),
                                             static_cast<std::int32_t>(asked.size())) &&
             said[static_cast<std::size_t>(common)] == asked[static_cast<std::size_t>(common)]) {
        ++common;
      }
      if (common / kUnit * kUnit <= board.announced.begin(each)) continue;
      if (common / kUnit > best.second / kUnit) best = {each, common};
    }
    ASSERT_EQ(board.find(asked), best) << i;
    if (i % 100 == 0) {
      ASSERT_TRUE(board.announced.check().ok());
    }
  }
}

}  // namespace
}  // namespace kvfolio
