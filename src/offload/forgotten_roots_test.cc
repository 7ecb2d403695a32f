// SPDX-License-Identifier: Apache-2.0
#include "offload/forgotten_roots.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/test_arena.h"

namespace kvfolio {
namespace {

using test::numbered_key;

constexpr std::int64_t kOwnedPayload = 64, kOwnedRecord = kRecordHeaderBytes + kOwnedPayload;

Digest numbered_root(int number) {
  Digest root{};
  root[0] = std::byte(number + 1);
  return root;
}

struct Forgotten16 {
  HostArena arena = test::arena_of(16, kOwnedRecord);
  ForgottenRoots roots;

  void add(int number, int root) {
    const auto slot = arena.reserve(numbered_key(number), kOwnedRecord);
    ASSERT_TRUE(slot);
    RecordInfo info{.key = numbered_key(number), .payload_bytes = kOwnedPayload};
    info.owner = root_owner(numbered_root(root));
    ASSERT_TRUE(seal_record(info, arena.fill(*slot)));
    arena.seal(*slot);
    ASSERT_TRUE(arena.publish(*slot));
  }
  [[nodiscard]] bool check() const { return roots.check().ok() && arena.check_invariants().ok(); }
};

TEST(ForgottenRoots, TheirRecordsLeaveInPiecesAndOthersStay) {
  Forgotten16 all;
  for (int i = 0; i < 16; ++i) all.add(i, i % 4);
  all.roots.add(numbered_root(1), all.arena);
  EXPECT_TRUE(all.roots.owns(all.arena.hold(numbered_key(5)).record()));
  EXPECT_FALSE(all.roots.owns(all.arena.hold(numbered_key(4)).record()));
  std::int64_t looked = all.roots.erase_some(all.arena, 3);
  EXPECT_EQ(looked, 3);
  EXPECT_TRUE(all.check());
  // Another one while the first is on its way: each has its whole circle.
  all.roots.add(numbered_root(2), all.arena);
  while (!all.roots.empty()) {
    looked += all.roots.erase_some(all.arena, 3);
    ASSERT_TRUE(all.check());
  }
  EXPECT_EQ(looked, all.arena.num_slots() + 3);
  EXPECT_EQ(all.roots.erase_some(all.arena, 3), 0);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(all.arena.contains(numbered_key(i)), i % 4 == 0 || i % 4 == 3) << i;
  }
}

TEST(ForgottenRoots, WhatCannotBeReadGoesTooAndOnlyWhileOneIsLeaving) {
  Forgotten16 all;
  const auto slot = all.arena.reserve(numbered_key(1), kOwnedRecord);
  const std::span<std::byte> memory = all.arena.fill(*slot);
  std::fill(memory.begin(), memory.end(), std::byte{0x5a});
  all.arena.seal(*slot);
  ASSERT_TRUE(all.arena.publish(*slot));
  EXPECT_FALSE(all.roots.owns(all.arena.hold(numbered_key(1)).record()));
  all.roots.add(numbered_root(1), all.arena);
  EXPECT_TRUE(all.roots.owns(all.arena.hold(numbered_key(1)).record()));
  all.roots.clear();
  EXPECT_TRUE(all.roots.empty());
  EXPECT_FALSE(all.roots.owns(all.arena.hold(numbered_key(1)).record()));
  EXPECT_TRUE(all.check());
}

}  // namespace
}  // namespace kvfolio
