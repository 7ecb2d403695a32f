// SPDX-License-Identifier: Apache-2.0
//
// Mistakes of a host that were silent once and spoiled what others find: the manager knows enough
// to refuse them. Copies that did not run, a plan that lacks a sequence, the whole prompt behind a
// hit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// A manager whose storage is one f32 for K and one for V of each token, in memory of its own or of
// the test.
class Bytes {
 public:
  explicit Bytes(bool borrowed, ManagerOptions options = {}) : memory_(borrowed ? 128 : 0) {
    GroupSpec group = full_group(4, 16);
    group.head_dim_k = group.head_dim_v = 1;
    group.dtype = DType::kF32;
    const CacheSpec spec{{group}};
    const std::int64_t bytes = std::int64_t{group.num_blocks} * group.block_size * 4;
    BorrowedGroup lent;
    lent.k = reinterpret_cast<std::byte*>(memory_.data());
    lent.v = borrowed ? lent.k + bytes : nullptr;
    lent.k_bytes = lent.v_bytes = bytes;
    lent.k_strides.token = 4;
    lent.k_strides.block = 16;
    lent.v_strides = lent.k_strides;
    manager.emplace(must(KVCacheManager::create(
        must(borrowed ? KVStorage::borrow(spec, {&lent, 1}) : KVStorage::create(spec)), options)));
    // What a fresh slot holds is no number.
    std::vector<std::int32_t> slots(64);
    std::iota(slots.begin(), slots.end(), 0);
    for (const std::int32_t slot : slots) write(slot, std::nanf(""));
  }

  void write(std::int32_t slot, float value) {
    const ConstRowsView rows(reinterpret_cast<const std::byte*>(&value), 4, 4, 1, 1, 1,
                             DType::kF32);
    must(write_token(must(manager->storage()->view(GroupId(0))), {.slot = slot}, rows, rows));
  }
  float read(std::int32_t slot) {
    float k = 0;
    float v = 0;
    RowsView rows{.token_stride = 4,
                  .head_stride = 4,
                  .num_tokens = 1,
                  .num_heads = 1,
                  .head_dim = 1,
                  .dtype = DType::kF32};
    RowsView k_rows = rows;
    RowsView v_rows = rows;
    k_rows.data = reinterpret_cast<std::byte*>(&k);
    v_rows.data = reinterpret_cast<std::byte*>(&v);
    must(read_token(must(manager->storage()->view(GroupId(0))), {.slot = slot}, k_rows, v_rows));
    return k;
  }
  // What a model would compute: the token itself.
  void write_step(const StepPlan& plan, const Tokens& said) {
    std::size_t i = 0;
    for (const std::int32_t slot : plan.groups[0].slot_mapping) {
      if (slot >= 0) write(slot, static_cast<float>(said[i]));
      ++i;
    }
  }
  // The rows of all tokens of a sequence.
  std::vector<float> rows_of(SequenceId sequence) {
    Tokens slots(static_cast<std::size_t>(must(manager->info(sequence)).length));
    must(manager->slot_mapping(sequence, GroupId(0), 0, slots));
    std::vector<float> rows;
    for (const std::int32_t slot : slots) rows.push_back(read(slot));
    return rows;
  }
  // A whole step as it should be.
  SequenceId say(const Tokens& prompt) {
    const Opened opened = must(manager->open(prompt));
    const Ticket ticket = must(manager->begin_step());
    const Tokens rest(prompt.begin() + opened.cached_tokens, prompt.end());
    must(manager->append(opened.sequence, rest));
    const StepPlan& plan = *must(manager->plan());
    must(manager->run_copies());
    write_step(plan, rest);
    must(manager->finish(ticket));
    return opened.sequence;
  }

 private:
  std::vector<float> memory_;

 public:
  std::optional<KVCacheManager> manager;
};

std::vector<float> as_rows(const Tokens& said) { return {said.begin(), said.end()}; }

// ---- copies that did not run ----

// M1.
TEST(Mistakes, AStepWhoseCopiesDidNotRunIsRefusedWithTheirNumber) {
  for (const bool borrowed : {false, true}) {
    Bytes cache(borrowed);
    KVCacheManager& m = *cache.manager;
    const SequenceId parent = cache.say(tokens(1, 6));
    const SequenceId a = must(m.fork(parent));
    const SequenceId b = must(m.fork(parent));
    const Ticket ticket = must(m.begin_step());
    must(m.append(a, Tokens{7}));
    must(m.append(b, Tokens{8}));
    const StepPlan& plan = *must(m.plan());
    EXPECT_THAT(plan.groups[0].copy_src, SizeIs(2));
    for (const Status& refused : {m.commit(ticket), m.finish(ticket)}) {
      EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
      EXPECT_THAT(refused.message(), HasSubstr("2 copies that have not run"));
      EXPECT_THAT(refused.message(), HasSubstr("run_copies()"));
    }
    // The step is open still, and takes what makes it right.
    EXPECT_TRUE(must(m.info(a)).in_open_step);
    must(m.check_invariants());
    must(m.run_copies());
    cache.write_step(plan, {7, 8});
    must(m.finish(ticket));
    EXPECT_EQ(cache.rows_of(a), as_rows(tokens(1, 7)));
    EXPECT_EQ(cache.rows_of(b), as_rows(joined(tokens(1, 6), {8})));
  }
}

// M1. What it was about: 40 tokens are served, a prompt that shares 30 of them comes and its step
// is committed without copies, and the next prompt found rows that were never written.
TEST(Mistakes, WithoutItsCopiesNothingOfAStepIsFound) {
  Bytes cache(false);
  KVCacheManager& m = *cache.manager;
  const Tokens first = tokens(1, 40);
  const Tokens second = joined(tokens(1, 30), tokens(90, 10));
  must(m.close(cache.say(first)));
  const Opened opened = must(m.open(second));
  EXPECT_EQ(opened.cached_tokens, 30);
  const Ticket ticket = must(m.begin_step());
  const Tokens rest(second.begin() + 30, second.end());
  must(m.append(opened.sequence, rest));
  cache.write_step(*must(m.plan()), rest);
  EXPECT_EQ(m.finish(ticket).code(), ErrorCode::kFailedPrecondition);
  must(m.drop(ticket));
  must(m.close(opened.sequence));
  // The next prompt finds what was there, and every row of it is right.
  for (const Tokens& prompt : {second, first}) {
    const Opened next = must(m.open(prompt));
    EXPECT_EQ(cache.rows_of(next.sequence),
              as_rows({prompt.begin(), prompt.begin() + next.cached_tokens}));
    EXPECT_GE(next.cached_tokens, 30);
    must(m.close(next.sequence));
  }
}

TEST(Mistakes, AStepThatHasNothingToCopyNeedsNoRunCopies) {
  Bytes cache(false);
  KVCacheManager& m = *cache.manager;
  const SequenceId parent = cache.say(tokens(1, 6));
  const SequenceId child = must(m.fork(parent));
  const Ticket ticket = must(m.begin_step());
  must(m.append(parent, Tokens{7}));
  must(m.append(child, Tokens{8}));
  EXPECT_EQ(m.commit(ticket).code(), ErrorCode::kFailedPrecondition);
  must(m.undo(child));  // who needed the copy has left
  must(m.plan());
  must(m.finish(ticket));
  EXPECT_EQ(must(m.info(parent)).length, 7);
}

TEST(Mistakes, AHostThatCopiesItselfSaysSoAndIsNotAsked) {
  for (const bool has_storage : {false, true}) {
    // Without storage the copies are the host's anyway.
    KVCacheManager m =
        has_storage
            ? must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{full_group(4, 8)}})),
                                          {.copies_by_host = true}))
            : must(KVCacheManager::create(CacheSpec{{full_group(4, 8)}}));
    EXPECT_EQ(m.options().copies_by_host, has_storage);
    const SequenceId parent = must(m.open({})).sequence;
    Ticket ticket = must(m.begin_step());
    must(m.append(parent, tokens(1, 6)));
    must(m.commit(ticket));
    // The next step copies behind one that is in flight, which run_copies() refuses.
    const SequenceId child = must(m.fork(parent));
    ticket = must(m.begin_step());
    must(m.append(child, Tokens{7}));
    EXPECT_THAT(must(m.plan())->groups[0].copy_src, SizeIs(1));
    EXPECT_FALSE(m.run_copies().ok());
    must(m.commit(ticket));
    must(m.complete(ticket));
    must(m.check_invariants());
  }
}

// ---- a plan that lacks a sequence ----

// M2.
TEST(Mistakes, ASequenceThatThePlanLacksIsNeverCommitted) {
  Bytes cache(false);
  KVCacheManager& m = *cache.manager;
  const SequenceId early = must(m.open(tokens(1, 6))).sequence;
  const SequenceId late = must(m.open(tokens(50, 6))).sequence;
  const Ticket ticket = must(m.begin_step());
  must(m.append(early, tokens(1, 6)));
  cache.write_step(*must(m.plan()), tokens(1, 6));
  must(m.append(late, tokens(50, 6)));
  for (const Status& refused : {m.commit(ticket), m.finish(ticket)}) {
    EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("1 of the 2 sequences of step 1"));
    EXPECT_THAT(refused.message(), HasSubstr("plan() again"));
  }
  EXPECT_TRUE(must(m.info(late)).in_open_step);
  // Planned again it is right.
  cache.write_step(*must(m.plan()), joined(tokens(1, 6), tokens(50, 6)));
  must(m.finish(ticket));
  must(m.close(late));
  const Opened next = must(m.open(tokens(50, 7)));
  EXPECT_EQ(next.cached_tokens, 6);
  EXPECT_EQ(cache.rows_of(next.sequence), as_rows(tokens(50, 6)));
}

// M2, M8. What left behind a plan makes that one wrong, however many they are; what no plan had
// does not.
TEST(Mistakes, AStepIsCommittedAsItWasPlanned) {
  Engine e({full_group(4, 16)});
  KVCacheManager& m = e.manager;
  std::vector<SequenceId> s;
  s.reserve(6);
  for (int i = 0; i < 6; ++i) s.push_back(e.open({}).sequence);
  const Ticket ticket = must(m.begin_step());
  const auto append = [&](int i) {
    must(m.append(s[static_cast<std::size_t>(i)], tokens(10 * i, 3)));
  };
  const auto commits = [&] { return m.commit(ticket); };
  for (int i = 0; i < 4; ++i) append(i);
  must(m.plan());
  append(4);
  append(5);
  EXPECT_THAT(commits().message(), HasSubstr("2 of the 6"));
  must(m.undo(s[0]));
  must(m.undo(s[1]));
  must(m.undo(s[4]));
  EXPECT_THAT(commits().message(), HasSubstr("1 of the 3"));
  must(m.undo(s[2]));  // so many gaps that the step closes ranks
  EXPECT_THAT(commits().message(), HasSubstr("1 of the 2"));
  must(m.preempt(s[5]));
  // One that left and came back is not in the plan as it is now.
  append(0);
  EXPECT_THAT(commits().message(), HasSubstr("1 of the 2"));
  must(m.undo(s[0]));
  EXPECT_THAT(commits().message(), HasSubstr("with 3 sequences that were taken out since"));
  must(m.plan());
  must(commits());
  EXPECT_EQ(e.info(s[3]).length, 3);
  EXPECT_EQ(e.info(s[0]).length, 0);
}

// M8. Its blocks are free, and the device may be about to write to them by the plan that it has.
TEST(Mistakes, AStepWhosePlanHasASequenceThatLeftIsNotCommitted) {
  for (const int how : {0, 1, 2}) {
    Engine e({full_group(4, 16)});
    KVCacheManager& m = e.manager;
    const SequenceId goes = e.open({}).sequence;
    const SequenceId stays = e.open({}).sequence;
    const Ticket ticket = must(m.begin_step());
    must(m.append(goes, tokens(1, 6)));
    must(m.append(stays, tokens(20, 6)));
    must(m.plan());
    must(how == 0 ? m.undo(goes) : how == 1 ? m.preempt(goes) : m.cancel(goes));
    for (const Status& refused : {m.commit(ticket), m.finish(ticket)}) {
      EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
      EXPECT_THAT(refused.message(), HasSubstr("with 1 sequence that was taken out since"));
      EXPECT_THAT(refused.message(), HasSubstr("plan() again"));
    }
    must(m.plan());
    must(m.finish(ticket));
    EXPECT_EQ(e.info(stays).length, 6);
    must(m.check_invariants());
  }
}

// The same of a step that nothing is left of, and after one that was dropped or has no plan.
TEST(Mistakes, WhoLeftAStepWithoutAPlanDoesNotMatter) {
  Engine e({full_group(4, 16)});
  KVCacheManager& m = e.manager;
  const SequenceId s = e.open({}).sequence;
  const Ticket dropped = must(m.begin_step());
  must(m.append(s, tokens(1, 3)));
  must(m.plan());
  must(m.undo(s));
  EXPECT_EQ(m.commit(dropped).code(), ErrorCode::kFailedPrecondition);
  must(m.drop(dropped));
  const Ticket unplanned = must(m.begin_step());
  must(m.append(s, tokens(1, 3)));
  must(m.undo(s));
  must(m.finish(unplanned));
  must(m.check_invariants());
}

TEST(Mistakes, AStepWithoutAnyPlanIsTheEnginesAffair) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 3)));
  EXPECT_FALSE(e.manager.plan({.pad = 7}).has_value());  // is none
  must(e.manager.finish(ticket));
  // A plan of one step says nothing of the next.
  const Ticket second = must(e.manager.begin_step());
  must(e.manager.plan());
  must(e.manager.drop(second));
  e.feed_count(s, 2);
  EXPECT_EQ(e.info(s).length, 5);
}

// M2. An empty step is planned too, such as one that a scheduler fills while it goes.
TEST(Mistakes, AnEmptyPlanIsAPlan) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.open({}).sequence;
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.plan());
  must(e.manager.append(s, tokens(1, 3)));
  EXPECT_THAT(e.manager.commit(ticket).message(), HasSubstr("1 of the 1"));
  must(e.manager.drop(ticket));
}

TEST(Mistakes, ACopyOfTheManagerKnowsWhatThePlanHas) {
  const ManagerOptions options{.max_steps_in_flight = 3};
  Engine a({full_group(4, 8)}, options);
  Engine b({full_group(4, 8)}, options);
  Engine unplanned({full_group(4, 8)}, options);
  for (Engine* e : {&a, &unplanned}) {
    const SequenceId one = e->open({}).sequence;
    const SequenceId other = e->open({}).sequence;
    must(e->manager.begin_step());
    must(e->manager.append(one, tokens(1, 3)));
    if (e == &a) must(e->manager.plan());
    must(e->manager.append(other, tokens(7, 2)));
  }
  // The mark decides what commit() answers, so it counts.
  EXPECT_NE(must(a.manager.state_hash()), must(unplanned.manager.state_hash()));
  must(a.manager.copy_to(b.manager));
  EXPECT_EQ(must(a.manager.state_hash()), must(b.manager.state_hash()));
  for (Engine* e : {&a, &b}) {
    EXPECT_EQ(e->manager.commit(Ticket(1)).code(), ErrorCode::kFailedPrecondition);
    must(e->manager.plan());
    must(e->manager.commit(Ticket(1)));
  }
  must(unplanned.manager.commit(Ticket(1)));
  EXPECT_EQ(must(a.manager.state_hash()), must(unplanned.manager.state_hash()));
  EXPECT_EQ(must(a.manager.state_hash()), must(b.manager.state_hash()));
}

// ---- the whole prompt behind a hit ----

// M3.
TEST(Mistakes, TheWholePromptBehindAHitIsRefused) {
  Engine e({full_group(16, 16), window_group(8, 16, 12)});
  const Tokens prompt = tokens(1, 40);
  e.cache(prompt);
  const Opened opened = e.open(prompt);
  ASSERT_EQ(opened.cached_tokens, 39);
  const Ticket ticket = must(e.manager.begin_step());
  for (const Tokens& again : {prompt, joined(prompt, {77, 78})}) {
    const Status refused = e.manager.append(opened.sequence, again);
    EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("the 39 that it has of its prompt of 40"));
    EXPECT_FALSE(e.info(opened.sequence).in_open_step);
    EXPECT_EQ(e.info(opened.sequence).length, 39);
  }
  must(e.manager.append(opened.sequence, Tokens{40}));
  must(e.manager.finish(ticket));
  EXPECT_EQ(e.info(opened.sequence).length, 40);
  must(e.manager.check_invariants());
}

// M6. All prompts of up to 5 tokens, all beginnings that may be found, and all appends that are
// as long as the prompt or longer: also those that repeat themselves, whose rest and what follows
// (a draft, or a text that is known) look like the whole prompt.
TEST(Mistakes, WhatBeginsWithTheRestOfThePromptIsNeverRefused) {
  const auto text_of = [](std::int32_t bits, std::int32_t size) {
    Tokens text;
    for (std::int32_t i = 0; i < size; ++i) text.push_back(1 + (bits >> i & 1));
    return text;
  };
  int refused = 0;
  int looked_like_it = 0;
  const auto try_all = [&](const Tokens& prompt, std::int32_t found, Publish publish) {
    Engine e({full_group(4, 16)});
    e.cache(Tokens(prompt.begin(), prompt.begin() + found));
    const Opened opened = e.open(prompt, {.publish = publish});
    ASSERT_EQ(opened.cached_tokens, found);
    const auto size = static_cast<std::int32_t>(prompt.size());
    for (std::int32_t count = size; count <= size + 1; ++count) {
      for (std::int32_t more = 0; more < 1 << count; ++more) {
        const Tokens text = text_of(more, count);
        const bool is_rest = std::equal(prompt.begin() + found, prompt.end(), text.begin());
        const bool is_prompt = std::equal(prompt.begin(), prompt.end(), text.begin());
        const Ticket ticket = must(e.manager.begin_step());
        const Status status = e.manager.append(opened.sequence, text);
        must(e.manager.drop(ticket));
        const bool is_mistake = is_prompt && !is_rest;
        ASSERT_EQ(status.code(), is_mistake ? ErrorCode::kInvalidArgument : ErrorCode::kOk)
            << status.message();
        refused += is_mistake ? 1 : 0;
        looked_like_it += is_prompt && is_rest ? 1 : 0;
      }
    }
  };
  for (std::int32_t size = 2; size <= 5; ++size) {
    for (std::int32_t bits = 0; bits < 1 << size; ++bits) {
      for (std::int32_t found = 1; found < size; ++found) {
        for (const Publish publish : {Publish::kAll, Publish::kNothing}) {
          try_all(text_of(bits, size), found, publish);
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(looked_like_it, 100);
}

// M3. As long as it stands where open() left it, also after an append that was taken back.
TEST(Mistakes, ThePromptIsKnownUntilTheFirstStep) {
  Engine e({full_group(4, 16)});
  const Tokens prompt = joined(tokens(1, 9), tokens(50, 3));
  e.cache(tokens(1, 9));
  const SequenceId s = e.open(prompt).sequence;
  const auto appends = [&](SequenceId id, const Tokens& more) {
    const Ticket ticket = must(e.manager.begin_step());
    const Status status = e.manager.append(id, more);
    must(e.manager.drop(ticket));
    return status.code();
  };
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  EXPECT_EQ(appends(s, prompt), kInvalid);
  EXPECT_EQ(appends(s, tokens(50, 3)), ErrorCode::kOk);
  EXPECT_EQ(appends(s, prompt), kInvalid);
  // A child of it stands there as well.
  const SequenceId child = must(e.manager.fork(s));
  EXPECT_EQ(appends(child, prompt), kInvalid);
  // Fewer tokens than the prompt has, or others: a text may say such a thing.
  EXPECT_EQ(appends(s, Tokens(prompt.begin(), prompt.end() - 1)), ErrorCode::kOk);
  Tokens other = prompt;
  other[8] = 99;
  EXPECT_EQ(appends(s, other), ErrorCode::kOk);
  // What was cut is said anew, by whatever way; tokens that were adopted are not those of open().
  const SequenceId cut = e.open(prompt, {.publish = Publish::kNothing}).sequence;
  const Tokens table = e.table(s);
  must(e.manager.clear(cut));
  const std::span<const std::int32_t> tables[] = {table};
  must(e.manager.adopt(cut, tables, 9));
  EXPECT_EQ(appends(cut, prompt), ErrorCode::kOk);
  // Elsewhere it is a text that says the same again.
  must(e.manager.truncate(child, 8));
  EXPECT_EQ(appends(child, prompt), ErrorCode::kOk);
  e.feed(s, tokens(50, 3));
  EXPECT_EQ(appends(s, prompt), ErrorCode::kOk);
  must(e.manager.truncate(s, 9));
  EXPECT_EQ(appends(s, prompt), ErrorCode::kOk);
  EXPECT_EQ(appends(must(e.manager.fork(s)), prompt), ErrorCode::kOk);
  // Nothing was found: the whole prompt is what is left of it.
  EXPECT_EQ(appends(e.open(tokens(200, 5)).sequence, tokens(200, 5)), ErrorCode::kOk);
}

// M3. Who publishes nothing has no place in the tree, and still it is told.
TEST(Mistakes, ASequenceThatPublishesNothingKnowsItsPromptToo) {
  Engine e({full_group(4, 32)});
  const Tokens prompt = tokens(1, 40);
  e.cache(prompt);
  const auto refuses = [&](SequenceId id) {
    const Ticket ticket = must(e.manager.begin_step());
    const Status status = e.manager.append(id, prompt);
    must(e.manager.drop(ticket));
    return status.code() == ErrorCode::kInvalidArgument;
  };
  const SequenceId silent = e.open(prompt, {.publish = Publish::kNothing}).sequence;
  EXPECT_EQ(e.info(silent).length, 39);
  EXPECT_TRUE(refuses(silent));
  // One that stops in the midst of its first step stands there again when that is taken back.
  const SequenceId undone = e.open(prompt).sequence;
  must(e.manager.begin_step());
  must(e.manager.append(undone, Tokens{40}));
  const SequenceId speaks = e.open(prompt).sequence;
  const SequenceId child = must(e.manager.fork(speaks));
  e.manager.reset();  // they stop publishing
  must(e.manager.drop(Ticket(3)));
  EXPECT_TRUE(refuses(undone));
  EXPECT_TRUE(refuses(silent));
  EXPECT_TRUE(refuses(speaks));
  EXPECT_TRUE(refuses(child));
}

// M3.
TEST(Mistakes, ALoadBehindTheHitMovesWhereThePromptIsKnown) {
  Engine e({full_group(4, 32)});
  const Tokens prompt = tokens(1, 40);
  e.cache(tokens(1, 8));
  const auto code = [&](SequenceId id, const Tokens& more) {
    const Ticket ticket = must(e.manager.begin_step());
    const Status status = e.manager.append(id, more);
    must(e.manager.drop(ticket));
    return status.code();
  };
  for (const Publish publish : {Publish::kNothing, Publish::kAll}) {
    const Opened opened = e.open(prompt, {.publish = publish});
    EXPECT_EQ(opened.cached_tokens, 8);
    const Load load = must(e.manager.begin_load(opened.sequence, prompt, 36));
    EXPECT_EQ(must(e.manager.finish_load(load.id, load.end - load.begin)), 28);
    EXPECT_EQ(e.info(opened.sequence).length, 36);
    EXPECT_EQ(code(opened.sequence, prompt), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(opened.sequence, tokens(37, 4)), ErrorCode::kOk);
  }
  // A host that has the prompt from elsewhere opens nothing and loads.
  const SequenceId empty = e.open({}).sequence;
  const Load load = must(e.manager.begin_load(empty, joined({7}, tokens(1, 20)), 21));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 20)), 20);
  EXPECT_EQ(code(empty, joined({7}, tokens(1, 20))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(empty, Tokens{7}), ErrorCode::kOk);
}

// M3.
TEST(Mistakes, ALoadThatArrivesInPartMovesWhereThePromptIsKnown) {
  Engine e({full_group(4, 32)});
  const Tokens prompt = tokens(1, 40);
  e.cache(tokens(1, 8));
  for (const Publish publish : {Publish::kNothing, Publish::kAll}) {
    const SequenceId id = e.open(prompt, {.publish = publish}).sequence;
    const Load load = must(e.manager.begin_load(id, prompt, 36));
    EXPECT_EQ(must(e.manager.finish_load(load.id, 12)), 12);
    EXPECT_EQ(e.info(id).length, 20);
    const Ticket ticket = must(e.manager.begin_step());
    EXPECT_EQ(e.manager.append(id, prompt).code(), ErrorCode::kInvalidArgument);
    must(e.manager.append(id, tokens(21, 20)));
    must(e.manager.finish(ticket));
  }
}

// M3. It found nothing and stopped publishing before the load.
TEST(Mistakes, ALoadIntoASequenceThatFoundNothingAndPublishesNoMoreTellsItsPrompt) {
  Engine e({full_group(4, 32)});
  const Tokens prompt = tokens(1, 20);
  const SequenceId id = e.open(prompt).sequence;
  e.manager.reset();
  const Load load = must(e.manager.begin_load(id, prompt, 16));
  EXPECT_EQ(must(e.manager.finish_load(load.id, 8)), 8);
  must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(id, prompt).code(), ErrorCode::kInvalidArgument);
  must(e.manager.append(id, tokens(9, 12)));
}

// M3.
TEST(Mistakes, TheLongerPromptOfALoadIsThePromptOnceTheLoadBringsSomething) {
  Engine e({full_group(4, 32)});
  const Tokens opened = tokens(1, 12);
  const Tokens longer = tokens(1, 20);
  e.cache(tokens(1, 8));
  for (const Publish publish : {Publish::kNothing, Publish::kAll}) {
    const SequenceId id = e.open(opened, {.publish = publish}).sequence;
    const auto code = [&](const Tokens& more) {
      const Ticket ticket = must(e.manager.begin_step());
      const Status status = e.manager.append(id, more);
      must(e.manager.drop(ticket));
      return status.code();
    };
    const Load nothing = must(e.manager.begin_load(id, longer, 16));
    EXPECT_EQ(must(e.manager.finish_load(nothing.id, 0)), 0);
    EXPECT_EQ(code(opened), ErrorCode::kInvalidArgument);
    const Load some = must(e.manager.begin_load(id, longer, 16));
    EXPECT_EQ(must(e.manager.finish_load(some.id, 4)), 4);
    EXPECT_EQ(code(opened), ErrorCode::kOk);  // a text that begins so again, as far as is known
    EXPECT_EQ(code(longer), ErrorCode::kInvalidArgument);
    // A shorter one says less than is known.
    const Load shorter = must(e.manager.begin_load(id, tokens(1, 16), 16));
    EXPECT_EQ(must(e.manager.finish_load(shorter.id, 4)), 4);
    EXPECT_EQ(code(longer), ErrorCode::kInvalidArgument);
    must(e.manager.close(id));
    must(e.manager.forget(longer));
    e.cache(tokens(1, 8));
  }
}

// M3.
TEST(Mistakes, BehindALoadThePromptFromTheHitOnIsRefused) {
  for (const Publish publish : {Publish::kNothing, Publish::kAll}) {
    Engine e({full_group(4, 32)});
    const Tokens prompt = joined(tokens(1, 16), tokens(50, 4));
    e.cache(tokens(1, 4));
    const Opened opened = e.open(prompt, {.publish = publish});
    ASSERT_EQ(opened.cached_tokens, 4);
    const Load load = must(e.manager.begin_load(opened.sequence, prompt, 16));
    ASSERT_EQ(must(e.manager.finish_load(load.id, 12)), 12);
    const Tokens stale(prompt.begin() + opened.cached_tokens, prompt.end());
    const Ticket ticket = must(e.manager.begin_step());
    for (const Tokens& again : {stale, joined(stale, {77}), prompt}) {
      EXPECT_EQ(e.manager.append(opened.sequence, again).code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(e.info(opened.sequence).length, 16);
    }
    EXPECT_THAT(e.manager.append(opened.sequence, stale).message(),
                HasSubstr("the 12 that it has of its prompt of 20 from 4 on"));
    must(e.manager.append(opened.sequence, tokens(50, 4)));
    must(e.manager.finish(ticket));
  }
}

TEST(Mistakes, ThePromptIsPartOfTheState) {
  Engine a({full_group(4, 16)});
  Engine b({full_group(4, 16)});
  Tokens other = tokens(1, 9);
  other.back() = 77;
  for (Engine* e : {&a, &b}) e->cache(tokens(1, 8));
  const SequenceId of_a = a.open(tokens(1, 9)).sequence;
  const SequenceId of_b = b.open(other).sequence;
  EXPECT_NE(must(a.manager.state_hash()), must(b.manager.state_hash()));
  must(b.manager.begin_step());
  EXPECT_EQ(b.manager.append(of_b, other).code(), ErrorCode::kInvalidArgument);
  must(b.manager.append(of_b, tokens(1, 9)));
  must(a.manager.begin_step());
  must(a.manager.append(of_a, other));
}

TEST(Mistakes, TheLengthOfThePromptIsPartOfTheState) {
  Engine a({full_group(4, 16)});
  Engine b({full_group(4, 16)});
  for (Engine* e : {&a, &b}) e->cache(tokens(1, 8));
  // Both find eight tokens of prompts that differ in length alone.
  const SequenceId of_a = a.open(tokens(1, 9)).sequence;
  const SequenceId of_b = b.open(tokens(1, 12)).sequence;
  EXPECT_EQ(a.info(of_a).length, b.info(of_b).length);
  EXPECT_NE(must(a.manager.state_hash()), must(b.manager.state_hash()));
  Engine copy({full_group(4, 16)});
  must(a.manager.copy_to(copy.manager));
  EXPECT_EQ(must(a.manager.state_hash()), must(copy.manager.state_hash()));
  must(copy.manager.begin_step());
  EXPECT_EQ(copy.manager.append(of_a, tokens(1, 9)).code(), ErrorCode::kInvalidArgument);
}

// Their first step can be dropped, and then they stand where open() left them.
TEST(Mistakes, TheLengthOfThePromptIsPartOfTheStateInAnOpenStep) {
  for (const Publish publish : {Publish::kNothing, Publish::kAll}) {
    Engine a({full_group(4, 16)});
    Engine b({full_group(4, 16)});
    for (Engine* e : {&a, &b}) e->cache(tokens(1, 8));
    const SequenceId of_a = a.open(tokens(1, 9), {.publish = publish}).sequence;
    const SequenceId of_b = b.open(tokens(1, 12), {.publish = publish}).sequence;
    const Ticket in_a = must(a.manager.begin_step());
    const Ticket in_b = must(b.manager.begin_step());
    must(a.manager.append(of_a, Tokens{9}));
    must(b.manager.append(of_b, Tokens{9}));
    EXPECT_NE(must(a.manager.state_hash()), must(b.manager.state_hash()));
    must(a.manager.drop(in_a));
    must(b.manager.drop(in_b));
    must(a.manager.begin_step());
    must(b.manager.begin_step());
    EXPECT_EQ(a.manager.append(of_a, tokens(1, 9)).code(), ErrorCode::kInvalidArgument);
    must(b.manager.append(of_b, tokens(1, 9)));
    must(a.manager.append(of_a, Tokens{9}));
    must(a.manager.undo(of_a));
    EXPECT_EQ(a.manager.append(of_a, tokens(1, 9)).code(), ErrorCode::kInvalidArgument);
  }
  // A committed step cannot be dropped: from then on they answer alike.
  Engine a({full_group(4, 16)});
  Engine b({full_group(4, 16)});
  for (Engine* e : {&a, &b}) e->cache(tokens(1, 8));
  a.feed(a.open(tokens(1, 9)).sequence, Tokens{9});
  b.feed(b.open(tokens(1, 12)).sequence, Tokens{9});
  EXPECT_EQ(must(a.manager.state_hash()), must(b.manager.state_hash()));
}

// A load behind open() keeps the longer one of two prompts.
TEST(Mistakes, TheLengthOfAPromptThatFoundNothingIsPartOfTheStateWhereLoadsAre) {
  const auto opened = [](std::int32_t max_transfers, std::int32_t prompt) {
    const ManagerOptions options{.max_transfers = max_transfers};
    auto e = std::make_unique<Engine>(std::vector<GroupSpec>{full_group(4, 16)}, options);
    const SequenceId id = e->open(tokens(1, prompt)).sequence;
    return std::pair(std::move(e), id);
  };
  const auto [a, of_a] = opened(1, 9);
  const auto [b, of_b] = opened(1, 12);
  EXPECT_NE(must(a->manager.state_hash()), must(b->manager.state_hash()));
  for (const auto& [e, id] : {std::pair(a.get(), of_a), std::pair(b.get(), of_b)}) {
    const Load load = must(e->manager.begin_load(id, tokens(1, 9), 8));
    EXPECT_EQ(must(e->manager.finish_load(load.id, 8)), 8);
    must(e->manager.begin_step());
  }
  EXPECT_EQ(a->manager.append(of_a, tokens(1, 9)).code(), ErrorCode::kInvalidArgument);
  must(b->manager.append(of_b, tokens(1, 9)));
  // Without loads it decides nothing.
  EXPECT_EQ(must(opened(0, 9).first->manager.state_hash()),
            must(opened(0, 12).first->manager.state_hash()));
}

}  // namespace
}  // namespace kvfolio::testing_engine
