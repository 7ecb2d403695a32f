// SPDX-License-Identifier: Apache-2.0
#include "offload/checksum_thread.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

#include "kvfolio/checked_copy.h"

namespace kvfolio {
namespace {

TEST(ChecksumThread, AnswersInTheOrderOfWhatWasAdded) {
  std::vector<std::byte> memory(1 << 20);
  std::mt19937 random(5);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  ChecksumThread thread;
  std::deque<std::uint64_t> expected;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0) {
      const std::size_t at = random() % 4096, size = 1 + random() % 40'000, cut = random() % size;
      const auto piece = std::span(memory).subspan(at, size);
      const std::vector<CopyRun> reads = {
          {nullptr, piece.data(), static_cast<std::int64_t>(cut)},
          {nullptr, piece.data() + cut, static_cast<std::int64_t>(size - cut)}};
      thread.add(reads, static_cast<std::uint64_t>(i));
      expected.push_back(checksum(piece, static_cast<std::uint64_t>(i)));
    } else if (!expected.empty()) {
      ASSERT_EQ(thread.take(), expected.front());
      expected.pop_front();
    }
    ASSERT_EQ(thread.pending(), expected.size());
  }
}

TEST(ChecksumThread, MayEndBeforeAllIsTaken) {
  std::vector<std::byte> memory(1 << 20);
  const CopyRun whole{nullptr, memory.data(), std::int64_t{1} << 20};
  for (int i = 0; i < 50; ++i) {
    ChecksumThread thread;
    for (int added = 0; added < i; ++added) thread.add(std::span(&whole, 1), 0);
    if (i > 0) static_cast<void>(thread.take());
  }
}

}  // namespace
}  // namespace kvfolio
