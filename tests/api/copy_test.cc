// SPDX-License-Identifier: Apache-2.0
// copy_to: an equal of a manager, and independent of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine.h"
#include "kvfolio/memory.h"
#include "kvfolio/memory_kind.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "storage/failing_memory.h"

namespace kvfolio::testing_engine {
namespace {

using testing::HasSubstr;

// A manager in the middle of everything: a shared tail, a cached prompt, a pin, steps.
struct Busy {
  explicit Busy(Order order = Order::kInOrder) : engine({full_group(4, 16)}, {.order = order}) {
    engine.cache(tokens(50, 6));
    parent = engine.say(tokens(1, 6));
    child = must(engine.manager.fork(parent));
    must(engine.manager.pin(tokens(50, 7)));
    engine.launch(parent, tokens(7, 3));
    open = must(engine.manager.begin_step());
    must(engine.manager.append(child, tokens(90, 2)));
  }
  Engine engine;
  SequenceId parent;
  SequenceId child;
  Ticket open;
};

// What one does next with such a manager, and all it answers.
Tokens go_on(Engine& engine, const Busy& busy) {
  Tokens said;
  const auto keep = [&](const Tokens& more) { said.insert(said.end(), more.begin(), more.end()); };
  const Planned planned = engine.plan();
  keep(planned.slots);
  keep(planned.copy_src);
  keep(planned.copy_dst);
  must(engine.manager.commit(busy.open));
  must(engine.manager.complete(busy.open));
  const Opened again = engine.open(tokens(50, 9));
  said.push_back(again.cached_tokens);
  said.push_back(static_cast<std::int32_t>(again.sequence.value()));
  keep(engine.feed(again.sequence, tokens(70, 20)).slots);
  must(engine.manager.close(busy.parent));
  said.push_back(engine.evict(1));
  keep(engine.table(again.sequence));
  keep(engine.table(busy.child));
  keep(engine.feed(busy.child, tokens(200, 9)).slots);
  must(engine.manager.check_invariants());
  return said;
}

TEST(CopyTo, TheSameCallsGiveTheSameIdsAndPlansAfterwards) {
  Busy busy;
  Engine copy({full_group(4, 16)});
  copy.cache(tokens(300, 30));  // what the target held is gone
  must(busy.engine.manager.copy_to(copy.manager));
  must(copy.manager.check_invariants());
  EXPECT_EQ(copy.probe(tokens(300, 30)), 0);
  EXPECT_EQ(copy.table(busy.parent), busy.engine.table(busy.parent));
  EXPECT_EQ(copy.counters().blocks_allocated, busy.engine.counters().blocks_allocated);
  EXPECT_EQ(go_on(copy, busy), go_on(busy.engine, busy));
}

TEST(CopyTo, NeitherSideNoticesWhatHappensToTheOther) {
  Busy busy;
  Engine copy({full_group(4, 16)});
  must(busy.engine.manager.copy_to(copy.manager));
  const Tokens parent = copy.table(busy.parent);
  const Tokens expected = go_on(busy.engine, busy);
  EXPECT_EQ(copy.table(busy.parent), parent);  // closed over there
  must(copy.manager.check_invariants());
  EXPECT_EQ(go_on(copy, busy), expected);

  Busy other;
  must(other.engine.manager.copy_to(copy.manager));
  must(copy.manager.preempt(busy.child));
  must(copy.manager.fail(Ticket(other.open.value() - 1)));
  must(other.engine.manager.check_invariants());
  EXPECT_EQ(go_on(other.engine, other), expected);
}

TEST(CopyTo, ItselfIsAnEqualAlready) {
  Busy busy;
  Busy same;
  must(busy.engine.manager.copy_to(busy.engine.manager));
  EXPECT_EQ(go_on(busy.engine, busy), go_on(same.engine, same));
}

KVCacheManager with_bytes(std::int32_t num_blocks = 8) {
  return must(
      KVCacheManager::create(must(KVStorage::create(CacheSpec{{full_group(4, num_blocks)}}))));
}

TEST(CopyTo, BytesOfBlocksThatAreNotFreeAreCopied) {
  KVCacheManager from = with_bytes();
  KVCacheManager to = with_bytes();
  const SequenceId sequence = must(from.open(tokens(1, 6))).sequence;
  const Ticket ticket = must(from.begin_step());
  must(from.append(sequence, tokens(1, 6)));
  must(from.finish(ticket));

  const auto view_from = must(from.storage()->view(GroupId(0)));
  const auto view_to = must(to.storage()->view(GroupId(0)));
  const auto table = must(from.block_table(sequence, GroupId(0)));
  ASSERT_EQ(table.size(), 2U);
  constexpr std::size_t kBytes = 8;
  for (const std::int32_t block : table)
    std::memset(view_from.k_at(0, block, 0, 0), 7 + block, kBytes);
  must(from.copy_to(to));
  for (const std::int32_t block : table) {
    EXPECT_EQ(std::memcmp(view_from.k_at(0, block, 0, 0), view_to.k_at(0, block, 0, 0), kBytes), 0);
  }
  std::memset(view_from.k_at(0, table[0], 0, 0), 99, kBytes);  // deep: the copy keeps its own
  EXPECT_NE(std::memcmp(view_from.k_at(0, table[0], 0, 0), view_to.k_at(0, table[0], 0, 0), kBytes),
            0);
}

void expect_refused(const KVCacheManager& from, KVCacheManager& to, ErrorCode code,
                    const char* what) {
  const std::uint64_t opened = to.counters().sequences_opened;
  const Status status = from.copy_to(to);
  EXPECT_EQ(status.code(), code);
  EXPECT_THAT(status.message(), HasSubstr(what));
  EXPECT_EQ(to.counters().sequences_opened, opened);
  must(to.check_invariants());
}

TEST(CopyTo, OtherSpecsAndOptionsAreRefusedWithBothValues) {
  Engine from({full_group(4, 16)});
  from.cache(tokens(1, 8));
  Engine more_blocks({full_group(4, 17)});
  expect_refused(from.manager, more_blocks.manager, ErrorCode::kInvalidArgument,
                 "num_blocks is 16, the target's is 17");
  Engine two_groups({full_group(4, 16), full_group(4, 16)});
  expect_refused(from.manager, two_groups.manager, ErrorCode::kInvalidArgument,
                 "the number of groups is 1, the target's is 2");
  Engine fewer({full_group(4, 16)}, {.max_sequences = 7});
  expect_refused(from.manager, fewer.manager, ErrorCode::kInvalidArgument,
                 "max_sequences is 1024, the target's is 7");
  Engine unordered({full_group(4, 16)}, {.order = Order::kUnordered});
  expect_refused(from.manager, unordered.manager, ErrorCode::kInvalidArgument,
                 "order is 0, the target's is 1");
}

TEST(CopyTo, StorageOnOneSideAloneIsRefused) {
  Engine ids({full_group(4, 8)});
  KVCacheManager bytes = with_bytes();
  expect_refused(ids.manager, bytes, ErrorCode::kInvalidArgument, "this manager has no storage");
  expect_refused(bytes, ids.manager, ErrorCode::kInvalidArgument, "the target has no storage");
}

TEST(CopyTo, WithStorageAStepThatIsNotCompleteIsRefused) {
  KVCacheManager from = with_bytes();
  KVCacheManager to = with_bytes();
  for (const bool target : {false, true}) {
    KVCacheManager& busy = target ? to : from;
    const Ticket ticket = must(busy.begin_step());
    expect_refused(from, to, ErrorCode::kFailedPrecondition, "is open; finish or drop it");
    must(busy.commit(ticket));
    expect_refused(from, to, ErrorCode::kFailedPrecondition, "is in flight; complete it first");
    must(busy.complete(ticket));
  }
  must(from.copy_to(to));
}

// Memory that only it may touch, and a count of what it copied.
class DeviceMemory final : public MemoryResource {
 public:
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kDevice; }
  Result<std::byte*> allocate(std::int64_t bytes) override { return host_.allocate(bytes); }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    host_.deallocate(memory, bytes);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    bytes_copied += bytes;
    return host_.copy(dst, src, bytes);
  }
  std::int64_t bytes_copied = 0;

 private:
  HostMemory host_;
};

KVCacheManager with_memory(DeviceMemory& memory) {
  return must(
      KVCacheManager::create(must(KVStorage::create(CacheSpec{{full_group(4, 64)}}, &memory))));
}

// Fault J1: a clone copied every reserved block.
TEST(CopyTo, OfStorageOnlyBlocksThatAreNotFreeAreCopied) {
  DeviceMemory memory;
  KVCacheManager from = with_memory(memory);
  KVCacheManager to = with_memory(memory);
  const SequenceId sequence = must(from.open(tokens(1, 10))).sequence;
  const Ticket ticket = must(from.begin_step());
  must(from.append(sequence, tokens(1, 10)));
  must(from.finish(ticket));
  must(from.copy_to(to));
  EXPECT_EQ(memory.bytes_copied, 3 * 4 * (8 + 8) * 4);  // blocks, tokens, K and V, bytes
  EXPECT_EQ(must(to.info(sequence)).length, 10);
}

// Some of the target's blocks have other bytes then, and it cannot be said which.
TEST(CopyTo, MemoryThatFailsHalfWayLeavesNothingInTheTargetAndAllInTheSource) {
  bool fails = true;
  for (std::int64_t at = 1; fails; ++at) {
    test::FailingMemory memory;
    const auto filled = [&](std::int32_t first) {
      KVCacheManager manager = must(
          KVCacheManager::create(must(KVStorage::create(CacheSpec{{full_group(4, 64)}}, &memory))));
      for (const std::int32_t length : {10, 6}) {
        const SequenceId sequence = must(manager.open(tokens(first + length, length))).sequence;
        const Ticket ticket = must(manager.begin_step());
        must(manager.append(sequence, tokens(first + length, length)));
        must(manager.finish(ticket));
        if (length == 6) must(manager.close(sequence));
      }
      return manager;
    };
    KVCacheManager from = filled(100);
    KVCacheManager to = filled(300);
    const std::uint64_t forgets = to.forget_count();
    memory.fail_run(at);
    const Status status = from.copy_to(to);
    memory.fail_run(0);
    fails = !status.ok();
    EXPECT_EQ(must(from.probe(tokens(106, 6))), 5);
    if (fails) {
      EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
      EXPECT_EQ(to.num_sequences(), 0);
      EXPECT_EQ(must(to.usage(GroupId(0))).free, 64);
      EXPECT_EQ(must(to.probe(tokens(310, 10))), 0);
      EXPECT_GT(to.forget_count(), forgets);
      must(to.check_invariants());
      must(from.copy_to(to));
    }
    EXPECT_EQ(to.num_sequences(), 1);
    EXPECT_EQ(must(to.probe(tokens(106, 6))), 5);
    must(to.check_invariants());
  }
}

TEST(CopyTo, MemoryOfTwoDevicesIsUnsupportedAndChangesNothing) {
  DeviceMemory one;
  DeviceMemory another;
  KVCacheManager from = with_memory(one);
  KVCacheManager to = with_memory(another);
  static_cast<void>(must(from.open({})));
  expect_refused(from, to, ErrorCode::kUnsupported, "memory of another resource");
}

TEST(CopyTo, BytesOfCachedBlocksAreThereForAHitInTheTarget) {
  KVCacheManager from = with_bytes();
  KVCacheManager to = with_bytes();
  const SequenceId sequence = must(from.open(tokens(1, 6))).sequence;
  const Ticket ticket = must(from.begin_step());
  must(from.append(sequence, tokens(1, 6)));
  must(from.finish(ticket));
  const auto held = must(from.block_table(sequence, GroupId(0)));
  const Tokens table(held.begin(), held.end());
  const KVView source = must(from.storage()->view(GroupId(0)));
  const KVView target = must(to.storage()->view(GroupId(0)));
  for (const std::int32_t block : table) std::memset(source.k_at(0, block, 0, 0), 60 + block, 8);
  must(from.close(sequence));
  EXPECT_EQ(must(from.usage(GroupId(0))).cached, 2);
  must(from.copy_to(to));
  const Opened hit = must(to.open(tokens(1, 7)));
  EXPECT_EQ(hit.cached_tokens, 6);
  const auto found = must(to.block_table(hit.sequence, GroupId(0)));
  ASSERT_EQ(Tokens(found.begin(), found.end()), table);
  for (const std::int32_t block : table) {
    EXPECT_EQ(std::memcmp(source.k_at(0, block, 0, 0), target.k_at(0, block, 0, 0), 8), 0);
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
