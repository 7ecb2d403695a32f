// SPDX-License-Identifier: Apache-2.0

// The texts of ids and errors, as to_string() and streams give them.

#include "kvfolio/ids.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iomanip>
#include <sstream>
#include <string>

#include "base/packed_id.h"
#include "kvfolio/status.h"

namespace kvfolio {
namespace {

template <typename T>
std::string streamed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

std::uint64_t bits(std::uint16_t tag, std::uint32_t generation, std::int32_t row) {
  return PackedId{.tag = tag, .generation = generation, .row = row}.bits();
}

TEST(Text, OfANumberedIdIsItsKindAndNumber) {
  EXPECT_EQ(to_string(BlockId(0)), "block 0");
  EXPECT_EQ(to_string(BlockId(2147483647)), "block 2147483647");
  EXPECT_EQ(to_string(GroupId(3)), "group 3");
  EXPECT_EQ(to_string(Ticket(18446744073709551615u)), "ticket 18446744073709551615");
}

TEST(Text, OfASequenceIsItsRowAndGeneration) {
  EXPECT_EQ(to_string(SequenceId(bits(0, 3, 7))), "sequence 7.3");
  EXPECT_EQ(to_string(SequenceId(bits(0, 0xffffff, 0xffffff))), "sequence 16777215.16777215");
  EXPECT_EQ(to_string(PinId(bits(0, 1, 0))), "pin 0.1");
}

TEST(Text, OfASequenceNamesATagThatIsNotZero) {
  EXPECT_EQ(to_string(SequenceId(bits(2, 3, 7))), "sequence 7.3 (tag 2)");
  EXPECT_EQ(to_string(PinId(bits(65535, 3, 7))), "pin 7.3 (tag 65535)");
}

TEST(Text, OfAnIdThatNamesNothingSaysSo) {
  EXPECT_EQ(to_string(BlockId()), "no block");
  EXPECT_EQ(to_string(GroupId()), "no group");
  EXPECT_EQ(to_string(SequenceId()), "no sequence");
  EXPECT_EQ(to_string(PinId()), "no pin");
  EXPECT_EQ(to_string(Ticket()), "no ticket");
}

TEST(Text, OfAStatusIsItsCodeAndMessage) {
  EXPECT_EQ(to_string(Status()), "ok");
  EXPECT_EQ(to_string(Status(ErrorCode::kNotFound, "sequence 7.3 is closed")),
            "not found: sequence 7.3 is closed");
  EXPECT_EQ(to_string(Status(Shortage{.group = 1, .needed = 2, .sequences = 1, .num_blocks = 2})),
            "no blocks: group 1: need 2 blocks, 0 free, 0 evictable (0 pinned, 0 retiring; "
            "open: 1 sequence)");
}

TEST(Text, OfAStreamIsThatOfToString) {
  const Shortage shortage{.needed = 5, .free = 4};
  EXPECT_EQ(streamed(shortage), to_string(shortage));
  EXPECT_EQ(streamed(Status(shortage)), to_string(Status(shortage)));
  EXPECT_EQ(streamed(ErrorCode::kOutOfMemory), "out of memory");
  EXPECT_EQ(streamed(BlockId(4)), "block 4");
  EXPECT_EQ(streamed(GroupId()), "no group");
  EXPECT_EQ(streamed(SequenceId(bits(1, 2, 3))), "sequence 3.2 (tag 1)");
  EXPECT_EQ(streamed(PinId()), "no pin");
  EXPECT_EQ(streamed(Ticket(9)), "ticket 9");
}

TEST(Text, OfAStreamIsPaddedAsAWhole) {
  std::ostringstream out;
  out << std::left << std::setw(10) << BlockId(4) << "|";
  EXPECT_EQ(out.str(), "block 4   |");
}

TEST(Text, IsWhatAFailedExpectationShows) {
  EXPECT_EQ(::testing::PrintToString(SequenceId(bits(0, 3, 7))), "sequence 7.3");
  EXPECT_EQ(::testing::PrintToString(ErrorCode::kAborted), "aborted");
  EXPECT_EQ(::testing::PrintToString(Status(ErrorCode::kAborted, "why")), "aborted: why");
}

}  // namespace
}  // namespace kvfolio
