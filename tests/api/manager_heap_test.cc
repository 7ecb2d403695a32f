// SPDX-License-Identifier: Apache-2.0
// Nothing is allocated after creation: every call of the manager that succeeds, and a shortage,
// take no memory from the heap; neither do the parts that work alone. (Steady decode over many
// steps is in tests/model_check/steady_heap_test.cc.)

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "heap_calls/heap_calls.h"
#include "kvfolio/block_pool.h"
#include "kvfolio/lru_order.h"
#include "kvfolio/manager.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/storage.h"

namespace kvfolio {
namespace {

using testing_heap::num_heap_calls;

using Tokens = std::vector<std::int32_t>;

// Heap calls of 20 rounds, after two in which buffers reach their size.
template <typename Round>
std::uint64_t heap_calls_of(Round&& round) {
  round();
  round();
  const std::uint64_t before = num_heap_calls();
  for (int i = 0; i < 20; ++i) round();
  return num_heap_calls() - before;
}

CacheSpec two_groups() {
  GroupSpec full{.head_dim_k = 8, .head_dim_v = 8, .block_size = 4};
  full.num_blocks = 32;
  GroupSpec window = full;
  window.kind = AttentionKind::kSlidingWindow;
  window.window = 6;
  window.block_size = 2;
  window.num_blocks = 64;
  return {{full, window}};
}

KVCacheManager make(Order order) {
  Result<KVStorage> storage = KVStorage::create(two_groups());
  if (!storage) std::abort();
  Result<KVCacheManager> made = KVCacheManager::create(
      std::move(*storage),
      {.max_sequences = 8, .max_steps_in_flight = 2, .order = order, .list_findable = true});
  if (!made) std::abort();
  return std::move(*made);
}

constexpr int kTokens = 24;

// What every round of a test needs, made before anything is counted.
struct Prepared {
  Prepared() {
    for (std::int32_t i = 0; i < kTokens; ++i) {
      prompt.push_back(i);
      other.push_back(100 + i);
    }
    media[0].begin = 3;
    media[0].end = 5;
    media[0].content_id[0] = std::byte{1};
  }
  Tokens prompt;
  Tokens other;
  Tokens too_many = Tokens(200, 1);
  Tokens slots = Tokens(4);
  std::vector<SequenceId> list = std::vector<SequenceId>(8);
  std::array<MediaSpan, 1> media{};
};

// The line of the first call that failed stays.
#define MUST(call) failed = (call).operator bool() ? failed : (failed == 0 ? __LINE__ : failed)
#define MUST_BE(condition) failed = (condition) ? failed : (failed == 0 ? __LINE__ : failed)

int sequences_and_steps(KVCacheManager& m, Prepared& with) {
  int failed = 0;
  const GroupId g(0);
  const std::span<const std::int32_t> prompt(with.prompt);

  // A hit or a miss, a fork, drafts, copies, every array of a plan.
  const Result<Opened> a = m.open(prompt, {.caller_id = 7});
  MUST(a);
  Result<Ticket> t = m.begin_step();
  MUST(m.admit(a->sequence, 4));
  MUST(m.append(a->sequence, prompt.subspan(static_cast<std::size_t>(a->cached_tokens))));
  MUST(m.plan({.changed_entries = true, .flashinfer = true, .shared_prefixes = true}));
  MUST(m.run_copies());
  MUST(m.commit(*t));
  MUST(m.complete(*t));
  const Result<SequenceId> child = m.fork(a->sequence, {.caller_id = 8});
  MUST(child);
  MUST(m.truncate(*child, kTokens - 1));
  t = m.begin_step();
  MUST(m.append(*child, std::span(with.other).first(3), {.draft = 2}));
  MUST(m.append(a->sequence, std::span(with.other).first(1)));
  MUST(m.undo(a->sequence));
  MUST_BE(m.append(a->sequence, with.too_many).code() == ErrorCode::kNoBlocks);
  MUST(m.plan());
  MUST(m.run_copies());
  MUST(m.finish(*t));
  MUST(m.accept(*child, 1));
  t = m.begin_step();
  MUST(m.append(*child, std::span(with.other).first(1)));
  MUST(m.drop(*t));

  // Unnamed tokens, media, a trim, a step that fails.
  const Result<Opened> b = m.open(with.other, {.media = with.media, .max_tokens = 100});
  MUST(b);
  t = m.begin_step();
  MUST(m.append_unnamed(b->sequence, 9));
  const Result<SequenceId> counted = m.open_unnamed(5);
  MUST(counted);
  MUST(m.commit(*t));
  MUST(m.set_tokens(b->sequence, std::span(with.other).first(9)));
  MUST(m.complete(*t));
  MUST(m.trim(b->sequence, {.num_sinks = 2, .window = 3}));
  MUST(m.clear(*counted));
  MUST(m.set_priority(b->sequence, 3));
  t = m.begin_step();
  MUST(m.append(*counted, std::span(with.other).first(2)));
  MUST(m.commit(*t));
  MUST(m.fail(*t));

  // A decode step in one call.
  const std::array<SequenceId, 2> both = {a->sequence, *child};
  std::int32_t done = 0;
  t = m.begin_step();
  MUST(m.append_unnamed_each(std::span(both).first(1), &done));
  MUST(m.append_each(std::span(both).last(1), std::span(with.other).first(1), &done));
  MUST(m.commit(*t));
  MUST(m.set_tokens_each(std::span(both).first(1), std::span(with.other).first(1), &done));
  MUST(m.complete(*t));

  // Room that is asked for and kept; names that come late.
  MUST(m.admit(prompt, {}, 3));
  MUST_BE(m.admit(prompt, {}, 5000).error().code() == ErrorCode::kNoBlocks);
  const Result<Opened> late = m.open({}, {.caller_id = 9, .late_names = true});
  MUST(late);
  MUST(m.reserve(late->sequence, 9, {.most_per_step = 4}));
  MUST_BE(m.reserve(late->sequence, 5000).code() == ErrorCode::kNoBlocks);
  t = m.begin_step();
  MUST(m.append_unnamed(late->sequence, 4));
  MUST(m.undo(late->sequence));
  MUST(m.append_unnamed(late->sequence, 3));
  MUST(m.finish(*t));
  MUST(m.set_tokens(late->sequence, prompt.first(3)));
  MUST(m.truncate(late->sequence, 1));
  MUST(m.close(late->sequence));
  const Result<Opened> leader = m.open(with.other, {.announce = true});
  MUST(leader);
  MUST(m.soon(with.other));
  t = m.begin_step();
  MUST(m.append(leader->sequence,
                std::span(with.other).subspan(static_cast<std::size_t>(leader->cached_tokens))));
  MUST(m.plan());
  MUST(m.run_copies());
  MUST(m.finish(*t));
  MUST(m.close(leader->sequence));

  // Questions, pins, room.
  MUST(m.probe(prompt));
  const Result<Pinned> pin = m.pin(prompt);
  MUST(pin);
  MUST(m.info(a->sequence));
  MUST(m.find(7));
  MUST(m.usage(g));
  MUST(m.block_table(a->sequence, g));
  MUST(m.ref_count(g, BlockId(0)));
  MUST(m.is_findable(g, BlockId(0)));
  MUST(m.findable_end(g, BlockId(0)));
  MUST(m.block_state(g, BlockId(0)));
  MUST(m.widest(g));
  MUST(m.slot_mapping(a->sequence, g, 1, with.slots));
  MUST_BE(m.sequences(with.list) == m.num_sequences());
  MUST_BE(m.bytes_used() <= m.bytes_total() && m.utilization() <= 1.0 && !m.needs_eviction());
  for (const VictimPolicy policy : {VictimPolicy::kLru, VictimPolicy::kLfu, VictimPolicy::kLongest,
                                    VictimPolicy::kLowestPriority}) {
    MUST_BE(m.select_victim(policy).has_value());
  }
  MUST(m.close(b->sequence));
  // Closed while its step is in flight: its tail waits for it without order.
  t = m.begin_step();
  MUST(m.append(*child, std::span(with.other).first(1)));
  MUST(m.commit(*t));
  MUST(m.close(*child));
  MUST(m.complete(*t));
  MUST(m.unpin(pin->pin));
  MUST(m.preempt_to(0.0));
  const Result<Opened> last = m.open(prompt);
  MUST(last);
  MUST(m.preempt(last->sequence));
  MUST(m.evict(GroupId(1), 3, with.slots));
  MUST(m.forget(prompt));
  MUST_BE(m.forget(RootKey{}).pins == 0 && m.reset().pins == 0);
  MUST_BE(m.num_sequences() == 0);
  return failed;
}

// Fault J8: a batch append took memory.
TEST(ManagerHeap, NoCallThatSucceedsAllocatesNorDoesAShortage) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    KVCacheManager manager = make(order);
    Prepared with;
    int failed = 0;
    EXPECT_EQ(
        heap_calls_of([&] { failed = failed != 0 ? failed : sequences_and_steps(manager, with); }),
        0);
    EXPECT_EQ(failed, 0) << "the line of the first call that failed";
    EXPECT_TRUE(manager.check_invariants());
  }
}

// Loads of a prompt that was evicted, in part and in vain, and a hold of what they leave.
int transfers(KVCacheManager& m, Prepared& with) {
  int failed = 0;
  const std::span<const std::int32_t> prompt(with.prompt);
  MUST(m.evict(GroupId(0), 32));
  const Result<Opened> a = m.open(prompt);
  MUST(a);
  std::array<LoadBlock, 32> blocks;
  std::array<std::uint8_t, 6> full{1, 1, 1, 1, 1, 1};
  std::array<std::uint8_t, 12> window{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const std::array<std::span<std::uint8_t>, 2> has = {full, window};
  MUST(m.loadable(a->sequence, prompt, kTokens, has));
  const Result<Load> first = m.begin_load(a->sequence, prompt, 12);
  MUST(first);
  MUST(m.blocks_to_load(first->id, GroupId(0), blocks));
  MUST(m.finish_load(first->id, 12));
  const Result<Load> second = m.begin_load(a->sequence, prompt, kTokens);
  MUST(second);
  MUST(m.finish_load(second->id, 0));
  const std::int32_t block = (*m.block_table(a->sequence, GroupId(0)))[0];
  const Result<HoldId> hold = m.hold_blocks(GroupId(0), {&block, 1});
  MUST(hold);
  std::array<FindableBlock, 16> findable;
  MUST_BE(m.take_findable(findable) > 0);
  std::array<std::int32_t, 4> tokens;
  std::array<MediaSpan, 1> media;
  MUST(m.prefix_of(GroupId(0), BlockId(block), 0, tokens, media));
  MUST(m.entry_serial(GroupId(0), BlockId(block)));
  MUST(m.block_at(GroupId(0), BlockId(block), GroupId(0), 4));
  MUST(m.close(a->sequence));
  MUST(m.release_hold(*hold));
  return failed;
}

TEST(ManagerHeap, LoadsAndHoldsAllocateNothing) {
  for (const Order order : {Order::kInOrder, Order::kUnordered}) {
    KVCacheManager manager = make(order);
    Prepared with;
    int failed = 0;
    EXPECT_EQ(heap_calls_of([&] { failed = failed != 0 ? failed : transfers(manager, with); }), 0u);
    EXPECT_EQ(failed, 0) << "the call in this line failed";
  }
}

TEST(ManagerHeap, AdoptAndCopyToAllocateNothing) {
  KVCacheManager manager = make(Order::kInOrder);
  KVCacheManager target = make(Order::kInOrder);
  Prepared with;
  const Result<Opened> first = manager.open(with.prompt);
  const Result<Opened> second = manager.open(with.other);
  const Result<Ticket> ticket = manager.begin_step();
  ASSERT_TRUE(first && second && ticket);
  ASSERT_TRUE(manager.append(first->sequence, std::span(with.prompt).first(6)));
  ASSERT_TRUE(manager.finish(*ticket));
  std::array<Tokens, 2> tables;
  std::array<std::span<const std::int32_t>, 2> spans;
  for (std::int32_t g = 0; g < 2; ++g) {
    const auto at = static_cast<std::size_t>(g);
    const auto blocks = *manager.block_table(first->sequence, GroupId(g));
    tables[at].assign(blocks.begin(), blocks.end());
    spans[at] = tables[at];
  }
  int failed = 0;
  EXPECT_EQ(heap_calls_of([&] {
              MUST(manager.adopt(second->sequence, spans, 6));
              MUST(manager.copy_to(target));
              MUST(manager.clear(second->sequence));
            }),
            0);
  EXPECT_EQ(failed, 0) << "the line of the first call that failed";
}

TEST(PartsHeap, PoolOrderTreeAndArenaAllocateNothingAfterTheirCreation) {
  Result<BlockPool> pool = BlockPool::create(64);
  const std::int32_t num_blocks = 64;
  Result<LruOrder> order = LruOrder::create({&num_blocks, 1});
  Result<SpanArena> arena = SpanArena::create(4096);
  PrefixTreeOptions options;
  options.groups = {{.block_size = 4, .num_blocks = 64}};
  options.max_index_tokens = 1024;
  options.max_runs = 64;
  options.max_root_keys = 4;
  Result<PrefixTree> tree = PrefixTree::create(options);
  ASSERT_TRUE(pool && order && arena && tree);
  const Prepared with;
  const Tokens table = {5, 6, 7, 8, 9, 10};
  const std::array<std::span<const std::int32_t>, 1> tables = {table};
  Tokens out(6);
  bool ok = true;
  EXPECT_EQ(heap_calls_of([&] {
              const BlockId block = pool->acquire();
              pool->hold(block);
              ok = !pool->release(block) && pool->release(block) && ok;
              pool->make_retiring(block, 1);
              ok = pool->oldest_retiring(2) == block && ok;
              pool->make_cached(block);
              order->touch(GroupId(0), block);
              order->set_turn(GroupId(0), block, EvictionTurn::kNormal);
              ok = order->victim(GroupId(0)) == block && ok;
              order->forget(GroupId(0), block);
              pool->make_free(block);

              ArenaSpan span;
              ok = arena->reserve(span, 100, 0) && arena->reserve(span, 1000, 100) && ok;
              arena->shrink(span, 9);
              arena->release(span);

              const std::int32_t root = tree->make_root({.model = "m"});
              Place place = tree->enter(root, 0);
              Published published;
              ok = tree->extend(place, with.prompt, with.media, {tables, 0, true}, published) && ok;
              ok = published.num_hung == table.size() && ok;
              ok = tree->entry_at(place, GroupId(0), 5) == BlockId(10) && ok;
              Place copy = tree->copy(place);
              tree->climb(copy, 8);
              tree->leave(copy);
              const PrefixMatch match =
                  tree->match(root, std::span(with.prompt).first(11), with.media, 10, true);
              ok = match.tokens == 10 && ok;
              tree->fill_table(match, GroupId(0), std::span(out).first(3));
              ok = tree->find_root({.model = "m"}) == root && ok;
              ok = tree->check_invariants().ok() && ok;
              tree->clear_changes();
              tree->set_idle(GroupId(0), table);
              tree->leave(place);
              while (tree->has_changes()) ok = tree->take_change().block.valid() && ok;
              tree->unhang(GroupId(0), BlockId(table.back()));
              tree->clear_changes();
              tree->unhang(GroupId(0), BlockId(table.front()));  // and all below it
              ok = tree->num_idle(GroupId(0)) == 0 && tree->num_runs() == 0 && ok;
            }),
            0);
  EXPECT_TRUE(ok);
}

TEST(ManagerHeap, TheHookCounts) {
  const std::uint64_t before = num_heap_calls();
  ::operator delete(::operator new(4));
  EXPECT_EQ(num_heap_calls(), before + 1);
#ifndef KVFOLIO_TEST_SANITIZED
  FixedArray<std::int32_t> array;
  ASSERT_TRUE(array.allocate_zeroed(1000));
  asm volatile("" : : "g"(array.data()) : "memory");  // or clang takes the calloc away
  EXPECT_EQ(num_heap_calls(), before + 2);
#endif
}

}  // namespace
}  // namespace kvfolio
