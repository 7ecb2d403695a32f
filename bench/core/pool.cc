// SPDX-License-Identifier: Apache-2.0

// BlockPool alone: taking and giving back, holding and letting go.

#include <set>

#include "family.h"
#include "kvfolio/block_pool.h"

namespace kvfolio::bench {
namespace {

// Every block once, then none; all come back.
void check(BlockPool& pool) {
  std::set<std::int32_t> seen;
  for (BlockId block; (block = pool.acquire()).valid();) seen.insert(block.value());
  require(static_cast<std::int32_t>(seen.size()) == pool.num_blocks() && pool.num_free() == 0,
          "the pool gives each block once");
  for (const std::int32_t block : seen) {
    require(pool.release(BlockId(block)), "the last reference");
    pool.make_free(BlockId(block));
  }
  require(pool.num_free() == pool.num_blocks(), "all blocks are free again");
  require(pool.check_invariants(), "the pool");
}

double take_and_give(BlockPool& pool, std::vector<BlockId>& taken, int repeats) {
  const double time = nanoseconds_of([&] {
    for (int i = 0; i < repeats; ++i) {
      for (BlockId& block : taken) block = pool.acquire();
      keep(taken.data());
      for (const BlockId block : taken) {
        if (pool.release(block)) pool.make_free(block);
      }
    }
  });
  return time / repeats;
}

// The least that a pool can do: a stack of ids.
double push_and_pop(std::vector<std::int32_t>& stack, std::vector<BlockId>& taken, int repeats) {
  const double time = nanoseconds_of([&] {
    for (int i = 0; i < repeats; ++i) {
      for (BlockId& block : taken) {
        block = BlockId(stack.back());
        stack.pop_back();
      }
      keep(taken.data());
      for (const BlockId block : taken) stack.push_back(block.value());
      keep(stack.data());
    }
  });
  return time / repeats;
}

void measure_pool(Session& session) {
  const std::int32_t num_blocks = session.size(100'000, 1'000);
  BlockPool pool = take(BlockPool::create(num_blocks), "a pool");
  check(pool);
  std::vector<std::int32_t> stack = shuffled(num_blocks, 1);

  const auto bulk = static_cast<std::size_t>(session.size(1'024, 64));
  std::vector<BlockId> taken(bulk);
  const int repeats = session.quick() ? 1 : 200;
  const auto per_block = static_cast<double>(bulk);
  session.measure(
      {.name = "pool.take_give",
       .facts = {{"blocks", std::int64_t{num_blocks}},
                 {"at_once", static_cast<std::int64_t>(bulk)}},
       .promise = Promise{0.25, 0.7},
       .promise_is_ratio = true,
       .note = "ceiling: pop and push of a plain stack of ids"},
      [&] { return take_and_give(pool, taken, repeats) / per_block; },
      [&] { return push_and_pop(stack, taken, repeats) / per_block; });

  std::vector<BlockId> ten(10);
  const int many = session.quick() ? 1 : 20'000;
  session.measure(
      {.name = "pool.take_give_10",
       .facts = {{"blocks", std::int64_t{num_blocks}}},
       .note = "ceiling: pop and push of a plain stack of ids"},
      [&] { return take_and_give(pool, ten, many); },
      [&] { return push_and_pop(stack, ten, many); });

  const BlockId block = pool.acquire();
  const int holds = session.quick() ? 10 : 1'000'000;
  bool last = false;
  session.measure({.name = "pool.hold_release"}, [&] {
    return nanoseconds_of([&] {
             for (int i = 0; i < holds; ++i) {
               pool.hold(block);
               keep(&pool);
               last |= pool.release(block);
               keep(&pool);
             }
           }) /
           holds;
  });
  require(!last && pool.refs(block) == 1, "holds and releases cancel");
}

}  // namespace

Family pool_family() {
  return {{"pool.take_give", "pool.take_give_10", "pool.hold_release"}, measure_pool};
}

}  // namespace kvfolio::bench
