// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kvfolio/ids.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

constexpr Shortage kShortage{.group = 0,
                             .needed = 37,
                             .free = 12,
                             .evictable = 0,
                             .pinned = 25,
                             .retiring = 0,
                             .sequences = 3,
                             .num_blocks = 37};

TEST(Shortage, ItsTextSaysAllNumbers) {
  EXPECT_EQ(
      to_string(kShortage),
      "group 0: need 37 blocks, 12 free, 0 evictable (25 pinned, 0 retiring; open: 3 sequences)");
  Shortage other{.group = 2,
                 .needed = 9,
                 .free = 1,
                 .evictable = 2,
                 .pinned = 4,
                 .retiring = 5,
                 .sequences = 1,
                 .num_blocks = 12};
  EXPECT_EQ(to_string(other),
            "group 2: need 9 blocks, 1 free, 2 evictable (4 pinned, 5 retiring; open: 1 sequence)");
  other.needed = 1;
  EXPECT_THAT(to_string(other), HasSubstr("need 1 block, 1 free"));
  other.sequences = 0;
  EXPECT_THAT(to_string(other), HasSubstr("(4 pinned, 5 retiring; open: 0 sequences)"));
  other.pins = 1;
  EXPECT_THAT(to_string(other), HasSubstr("(4 pinned, 5 retiring; open: 0 sequences and 1 pin)"));
  other.pins = 2;
  EXPECT_THAT(to_string(other), HasSubstr("(4 pinned, 5 retiring; open: 0 sequences and 2 pins)"));
}

TEST(Shortage, NeverIsWhatIsNeededAndKeptAndNotSparedBeyondTheGroup) {
  Shortage lack{.needed = 5, .num_blocks = 8, .kept = 3};
  EXPECT_FALSE(lack.never());
  lack.kept = 4;
  EXPECT_TRUE(lack.never());
  EXPECT_THAT(to_string(lack), HasSubstr("; never: the group has 8 blocks and 4 are kept"));
  lack.spared = 1;
  EXPECT_FALSE(lack.never());
  EXPECT_THAT(to_string(lack), testing::Not(HasSubstr("never")));
  lack = {.needed = 2, .num_blocks = 1};
  EXPECT_THAT(to_string(lack), HasSubstr("; never: the group has 1 block"));
  lack = {.needed = std::numeric_limits<std::int32_t>::max(),
          .num_blocks = 1,
          .kept = std::numeric_limits<std::int32_t>::max()};
  EXPECT_TRUE(lack.never());
}

TEST(Status, IsOkWhenMadeWithNothing) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(static_cast<bool>(status));
  EXPECT_EQ(status.code(), ErrorCode::kOk);
  EXPECT_EQ(status.message(), "ok");
  EXPECT_EQ(status.shortage(), nullptr);
}

TEST(Status, AShortageTravelsInlineAndItsTextIsMadeOnDemand) {
  const Status status = kShortage;
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kNoBlocks);
  ASSERT_NE(status.shortage(), nullptr);
  EXPECT_EQ(*status.shortage(), kShortage);
  EXPECT_EQ(status.message(), to_string(kShortage));
  // Inline: the numbers lie in the object itself.
  const auto* at = reinterpret_cast<const char*>(status.shortage());
  const auto* object = reinterpret_cast<const char*>(&status);
  EXPECT_TRUE(at >= object && at < object + sizeof status);
}

TEST(Status, ASentenceSurvivesCopiesAndMoves) {
  Status status(ErrorCode::kInvalidArgument, "num_blocks is 0");
  Status copy = status;
  EXPECT_EQ(copy.message(), "num_blocks is 0");
  EXPECT_EQ(status.message(), "num_blocks is 0");
  const Status& alias = copy;
  copy = alias;
  EXPECT_EQ(copy.message(), "num_blocks is 0");
  Status moved = std::move(status);
  EXPECT_EQ(moved.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(moved.message(), "num_blocks is 0");
  EXPECT_EQ(moved.shortage(), nullptr);
  moved = kShortage;
  EXPECT_EQ(moved.message(), to_string(kShortage));
  moved = copy;
  EXPECT_EQ(moved.message(), "num_blocks is 0");
}

TEST(Status, AShortageSurvivesCopiesAndMovesOntoAnyOther) {
  Status status;
  status = Status(kShortage);  // where none was written before
  const Status& alias = status;
  status = alias;
  Status same = kShortage;
  same = status;  // over another one
  Status moved = std::move(same);
  Status& own = moved;
  moved = std::move(own);
  for (const Status& each : {status, moved}) {
    ASSERT_NE(each.shortage(), nullptr);
    EXPECT_EQ(*each.shortage(), kShortage);
  }
  moved = Status();
  EXPECT_EQ(moved.shortage(), nullptr);
}

TEST(Status, EachCodeHasItsOwnName) {
  std::unordered_set<std::string> names;
  for (std::int32_t code = 0; code <= 8; ++code) {
    EXPECT_TRUE(names.insert(to_string(static_cast<ErrorCode>(code))).second);
  }
  EXPECT_STREQ(to_string(static_cast<ErrorCode>(99)), "unknown error");
}

// Counts how many are alive.
struct Counted {
  explicit Counted(int* alive_in) : alive(alive_in) { ++*alive; }
  Counted(Counted&& other) noexcept : alive(other.alive) { ++*alive; }
  Counted& operator=(Counted&&) = delete;
  ~Counted() { --*alive; }
  int* alive;
};

TEST(Result, HoldsAValueThatCanOnlyMove) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(static_cast<bool>(result));
  EXPECT_EQ(**result, 7);
  Result<std::unique_ptr<int>> moved = std::move(result);
  EXPECT_EQ(**moved, 7);
  const std::unique_ptr<int> taken = *std::move(moved);
  EXPECT_EQ(*taken, 7);
}

TEST(Result, HoldsTheErrorWhereThereIsNoValue) {
  Result<int> result = Status(ErrorCode::kNotFound, "no sequence 9");
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kNotFound);
  const Status error = std::move(result).error();
  EXPECT_EQ(error.message(), "no sequence 9");
  const Result<int> shortage = kShortage;
  EXPECT_EQ(*shortage.error().shortage(), kShortage);
}

TEST(Result, ValueOrGivesTheFallbackOnlyForAnError) {
  EXPECT_EQ(Result<int>(3).value_or(5), 3);
  EXPECT_EQ(Result<int>(Status(ErrorCode::kNotFound, "")).value_or(5), 5);
}

TEST(Result, ArrowReachesIntoTheValue) {
  Result<std::string> result(std::string("kv"));
  EXPECT_EQ(result->size(), 2u);
  const Result<std::string>& same = result;
  EXPECT_EQ(same->size(), 2u);
  EXPECT_EQ(*same, "kv");
}

TEST(Result, AssignmentEndsWhatWasThereAndNothingElse) {
  int alive = 0;
  {
    Result<Counted> result{Counted(&alive)};
    EXPECT_EQ(alive, 1);
    result = Result<Counted>(Status(ErrorCode::kAborted, "gone"));
    EXPECT_EQ(alive, 0);
    EXPECT_EQ(result.error().message(), "gone");
    result = Result<Counted>(Counted(&alive));
    EXPECT_EQ(alive, 1);
    Result<Counted>& alias = result;
    result = std::move(alias);
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
}

TEST(ReturnIfError, ReturnsTheErrorAndGoesOnOtherwise) {
  const auto run = [](Status first) -> Result<int> {
    KVFOLIO_RETURN_IF_ERROR(std::move(first));
    return 1;
  };
  EXPECT_EQ(*run({}), 1);
  EXPECT_EQ(run(kShortage).error().code(), ErrorCode::kNoBlocks);
}

TEST(CheckDeathTest, ABrokenInvariantNamesItselfAndStops) {
  const int zero = 0;
  EXPECT_DEATH(KVFOLIO_CHECK(zero == 1), "broken invariant at .*status_test.cc:[0-9]+: zero == 1");
  KVFOLIO_CHECK(zero == 0);
}

// ---- ids ----

static_assert(!std::is_convertible_v<std::int32_t, BlockId>);
static_assert(!std::is_convertible_v<BlockId, GroupId>);
static_assert(!std::is_convertible_v<SequenceId, PinId>);
static_assert(sizeof(BlockId) == 4 && sizeof(SequenceId) == 8);
static_assert(std::is_trivially_copyable_v<BlockId> && std::is_trivially_copyable_v<Place>);

TEST(StrongId, NamesNothingByDefault) {
  EXPECT_FALSE(BlockId().valid());
  EXPECT_FALSE(SequenceId().valid());
  EXPECT_FALSE(Ticket().valid());
  EXPECT_FALSE(Place().valid());
  EXPECT_TRUE(BlockId(0).valid());
  EXPECT_TRUE(Ticket(1).valid());
}

TEST(StrongId, IsAPlainValueOfTheSizeOfItsInteger) {
  static_assert(sizeof(BlockId) == 4 && sizeof(GroupId) == 4);
  static_assert(sizeof(SequenceId) == 8 && sizeof(PinId) == 8 && sizeof(Ticket) == 8);
  static_assert(std::is_trivially_copyable_v<SequenceId>);
  static_assert(!std::is_convertible_v<std::int32_t, BlockId>);
  static_assert(!std::is_convertible_v<BlockId, GroupId>);
}

TEST(StrongId, ComparesAndHashesLikeItsValue) {
  EXPECT_LT(Ticket(1), Ticket(2));
  EXPECT_EQ(BlockId(3), BlockId(3));
  EXPECT_NE(BlockId(3), BlockId(4));
  const std::unordered_set<BlockId> ids = {BlockId(1), BlockId(2), BlockId(1)};
  EXPECT_EQ(ids.size(), 2u);
}

TEST(Result, ItsValueOutlivesALoopOverIt) {
  const auto three = [] { return Result<std::vector<int>>(std::vector<int>{1, 2, 3}); };
  int sum = 0;
  for (const int each : *three()) sum += each;
  EXPECT_EQ(sum, 6);
  static_assert(!std::is_reference_v<decltype(*three())>);
}

TEST(Status, ACallersOwnSentenceOfNoBlocksIsKept) {
  const Status own(ErrorCode::kNoBlocks, "no request fits the pool");
  EXPECT_EQ(own.message(), "no request fits the pool");
  EXPECT_EQ(own.shortage(), nullptr);
  EXPECT_EQ(Status(own).message(), own.message());
}

TEST(ResultDeathTest, TakingTheErrorOfAValueSaysSo) {
  const Result<int> seven(7);
  EXPECT_DEATH(static_cast<void>(seven.error()),
               "the error was taken of a Result that has a value");
}

}  // namespace
}  // namespace kvfolio
