// SPDX-License-Identifier: Apache-2.0
// Bad input gives a clear error with the numbers and changes nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr ErrorCode kNotFound = ErrorCode::kNotFound;

Status create_error(std::vector<GroupSpec> groups, const ManagerOptions& options = {}) {
  Result<KVCacheManager> made = KVCacheManager::create(CacheSpec{std::move(groups)}, options);
  return made.has_value() ? Status() : made.error();
}

TEST(BadInput, SpecsThatCannotBe) {
  EXPECT_EQ(create_error({}).code(), kInvalid);
  const auto refused = [](auto change, const char* value) {
    GroupSpec group = full_group(4, 8);
    change(group);
    const Status error = create_error({full_group(4, 8), group});
    EXPECT_EQ(error.code(), kInvalid);
    EXPECT_THAT(error.message(), HasSubstr("group 1"));
    EXPECT_THAT(error.message(), HasSubstr(value));
  };
  refused([](GroupSpec& g) { g.num_layers = 0; }, "0");
  refused([](GroupSpec& g) { g.num_kv_heads = -1; }, "-1");
  refused([](GroupSpec& g) { g.head_dim_k = 0; }, "0");
  refused([](GroupSpec& g) { g.head_dim_v = -5; }, "-5");
  refused([](GroupSpec& g) { g.block_size = 0; }, "0");
  refused([](GroupSpec& g) { g.block_size = 1025; }, "1025");
  refused([](GroupSpec& g) { g.num_blocks = 0; }, "0");
  refused([](GroupSpec& g) { g.num_blocks = std::numeric_limits<std::int32_t>::max(); },
          "2147483647");
  // Named before anything of that size is written, which would be 12 GB.
  refused(
      [](GroupSpec& g) {
        g.block_size = 1;
        g.num_blocks = (1 << 29) + 1;
      },
      "which makes 536870921 together with the groups before, allowed: at most 536870912");
  refused([](GroupSpec& g) { g.window = 7; }, "7");
  refused([](GroupSpec& g) { g.kind = AttentionKind::kSlidingWindow; }, "0");
  refused([](GroupSpec& g) { g.block_size = 6; }, "6");  // no multiple of 4
}

TEST(BadInput, OptionsThatCannotBe) {
  for (const std::int32_t bad : {0, -1, std::numeric_limits<std::int32_t>::min()}) {
    EXPECT_EQ(create_error({full_group(4, 8)}, {.max_sequences = bad}).code(), kInvalid) << bad;
    EXPECT_EQ(create_error({full_group(4, 8)}, {.max_steps_in_flight = bad}).code(), kInvalid)
        << bad;
  }
  EXPECT_EQ(create_error({full_group(4, 8)}, {.max_pins = -1}).code(), kInvalid);
  EXPECT_EQ(create_error({full_group(4, 8)}, {.max_index_tokens = -1}).code(), kInvalid);
  EXPECT_EQ(create_error({full_group(4, 8)}, {.max_table_entries = -1}).code(), kInvalid);
  // Sizes that no machine has are refused, not tried.
  EXPECT_THAT(create_error({full_group(4, 8)}, {.max_table_entries = kHuge}).code(),
              AnyOf(kInvalid, ErrorCode::kOutOfMemory));
  EXPECT_THAT(create_error({full_group(4, 8)}, {.max_index_tokens = kHuge}).code(),
              AnyOf(kInvalid, ErrorCode::kOutOfMemory));
}

TEST(BadInput, UnknownStaleAndForeignIdsAreNotFound) {
  Engine e({full_group(4, 8)}, {.id_tag = 1});
  Engine other({full_group(4, 8)}, {.id_tag = 2});
  const SequenceId foreign = other.say(tokens(1, 4));
  const SequenceId stale = e.say(tokens(1, 4));
  must(e.manager.close(stale));
  const SequenceId open = e.say(tokens(1, 4));
  must(e.manager.begin_step());
  for (const SequenceId id : {SequenceId(), SequenceId(1), SequenceId(~std::uint64_t{0}), stale,
                              foreign, SequenceId(open.value() + 1)}) {
    EXPECT_EQ(e.manager.close(id).code(), kNotFound);
    EXPECT_EQ(e.manager.preempt(id).code(), kNotFound);
    EXPECT_EQ(e.manager.fork(id).error().code(), kNotFound);
    EXPECT_EQ(e.manager.truncate(id, 0).code(), kNotFound);
    EXPECT_EQ(e.manager.trim(id, {}).error().code(), kNotFound);
    EXPECT_EQ(e.manager.append(id, Tokens{1}).code(), kNotFound);
    EXPECT_EQ(e.manager.append_unnamed(id, 1).code(), kNotFound);
    EXPECT_EQ(e.manager.set_tokens(id, Tokens{1}).code(), kNotFound);
    EXPECT_EQ(e.manager.undo(id).code(), kNotFound);
    EXPECT_EQ(e.manager.accept(id, 0).code(), kNotFound);
    EXPECT_EQ(e.manager.clear(id).code(), kNotFound);
    EXPECT_EQ(e.manager.adopt(id, {}, 0).code(), kNotFound);
    EXPECT_EQ(e.manager.set_priority(id, 1).code(), kNotFound);
    EXPECT_EQ(e.manager.admit(id, 1).code(), kNotFound);
    EXPECT_EQ(e.manager.info(id).error().code(), kNotFound);
    EXPECT_EQ(e.manager.block_table(id, GroupId(0)).error().code(), kNotFound);
    Tokens out(1);
    EXPECT_EQ(e.manager.slot_mapping(id, GroupId(0), 0, out).code(), kNotFound);
  }
  for (const PinId id : {PinId(), PinId(5), PinId(open.value())}) {
    EXPECT_EQ(e.manager.unpin(id).code(), kNotFound);
  }
  EXPECT_EQ(e.info(open).length, 4);
  must(e.manager.check_invariants());
}

TEST(BadInput, ReusedSlotsMakeNewIds) {
  Engine e({full_group(4, 8)}, {.max_sequences = 1});
  std::vector<SequenceId> seen;
  for (int i = 0; i < 50; ++i) {
    const SequenceId s = e.open({}).sequence;
    EXPECT_THAT(seen, testing::Not(testing::Contains(s)));
    seen.push_back(s);
    must(e.manager.close(s));
  }
}

TEST(BadInput, NegativeTokensAreRefusedWithTheirValue) {
  Engine e({full_group(4, 8)});
  const Tokens bad = {1, 2, -5};
  const Status opened = e.manager.open(bad).error();
  EXPECT_EQ(opened.code(), kInvalid);
  EXPECT_THAT(opened.message(), HasSubstr("-5"));
  EXPECT_EQ(e.manager.probe(bad).error().code(), kInvalid);
  EXPECT_EQ(e.manager.pin(bad).error().code(), kInvalid);
  const SequenceId s = e.open({}).sequence;
  must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(s, bad).code(), kInvalid);
  EXPECT_EQ(e.info(s).length, 0);
  must(e.manager.append_unnamed(s, 2));
  EXPECT_EQ(e.manager.set_tokens(s, Tokens{-1}).code(), kInvalid);
}

// A host that fills in the positions alone would let a prompt hit that of another image.
TEST(BadInput, AMediaSpanWithoutAContentIdIsRefused) {
  Engine e({full_group(4, 8)});
  const Tokens prompt = tokens(1, 4);
  const std::vector<MediaSpan> media = {{.begin = 0, .end = 1, .content_id = {std::byte{1}}},
                                        {.begin = 2, .end = 3}};
  const OpenOptions options{.media = media};
  const auto refused = [](std::string_view call, const Status& status) {
    EXPECT_EQ(status.code(), kInvalid);
    EXPECT_EQ(status.message(),
              std::string(call) +
                  ": media span 1 has a content_id of zeros, allowed: a digest of "
                  "its content");
  };
  refused("open", e.manager.open(prompt, options).error());
  refused("probe", e.manager.probe(prompt, options).error());
  refused("admit", e.manager.admit(prompt, options, 0).error());
  refused("pin", e.manager.pin(prompt, options).error());
  refused("soon", e.manager.soon(prompt, options).error());
  EXPECT_EQ(e.manager.num_sequences(), 0);
  const MediaSpan last{.begin = 2, .end = 3, .content_id = {}};
  EXPECT_EQ(e.manager.open(prompt, {.media = std::span(&last, 1)}).error().code(), kInvalid);
  EXPECT_TRUE(e.manager.open(prompt, {.media = std::span(media).first(1)}));
}

TEST(BadInput, MalformedMediaIsRefused) {
  Engine e({full_group(4, 8)});
  const auto refused = [&](std::vector<MediaSpan> media) {
    for (MediaSpan& span : media) span.content_id = {std::byte{1}};
    EXPECT_EQ(e.manager.open(tokens(1, 4), {.media = media}).error().code(), kInvalid);
    EXPECT_EQ(e.manager.probe(tokens(1, 4), {.media = media}).error().code(), kInvalid);
  };
  refused({{.begin = 2, .end = 2}});
  refused({{.begin = 3, .end = 2}});
  refused({{.begin = -1, .end = 2}});
  refused({{.begin = 0, .end = 3}, {.begin = 2, .end = 4}});
  refused({{.begin = 4, .end = 5}, {.begin = 0, .end = 2}});
  EXPECT_EQ(e.manager.num_sequences(), 0);
}

TEST(BadInput, RootKeysOver64KiBAreRefused) {
  Engine e({full_group(4, 8)});
  const std::string half(40000, 'x');
  const OpenOptions options{.root = {.model = half, .adapter = half}};
  EXPECT_EQ(e.manager.open(tokens(1, 4), options).error().code(), kInvalid);
  EXPECT_TRUE(e.manager.open(tokens(1, 4), {.root = {.model = half}}).has_value());
}

TEST(BadInput, FullTablesSayTheirSize) {
  Engine e({full_group(4, 8)}, {.max_sequences = 2, .max_pins = 1});
  const SequenceId s = e.open({}).sequence;
  e.open({});
  for (const Status& full : {e.manager.open(tokens(1, 2)).error(), e.manager.fork(s).error()}) {
    EXPECT_EQ(full.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(full.message(), HasSubstr("2"));
  }
  must(e.manager.pin(tokens(1, 2)));
  EXPECT_EQ(e.manager.pin(tokens(1, 2)).error().code(), ErrorCode::kResourceExhausted);
}

TEST(BadInput, CountsThatCannotBe) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 6));
  must(e.manager.begin_step());
  EXPECT_THAT(e.manager.append_unnamed(s, -1).message(), HasSubstr("append_unnamed"));
  EXPECT_EQ(e.manager.append_unnamed(s, -1).code(), kInvalid);
  EXPECT_EQ(e.manager.admit(s, -1).code(), kInvalid);
  EXPECT_EQ(e.manager.append(s, Tokens{1}, {.draft = 2}).code(), kInvalid);
  EXPECT_EQ(e.manager.append(s, Tokens{1}, {.draft = -1}).code(), kInvalid);
  for (const std::int64_t n : {kHuge, kHuge - 6, std::int64_t{1} << 40, std::int64_t{1} << 31}) {
    const Status huge = e.manager.append_unnamed(s, n);
    EXPECT_THAT(huge.code(), AnyOf(kInvalid, ErrorCode::kNoBlocks));
    EXPECT_THAT(e.manager.admit(s, n).code(), AnyOf(kInvalid, ErrorCode::kNoBlocks));
  }
  const Status beyond = e.manager.truncate(s, 7);
  EXPECT_EQ(beyond.code(), kInvalid);
  EXPECT_THAT(beyond.message(), HasSubstr("7"));
  EXPECT_THAT(beyond.message(), HasSubstr("6"));
  EXPECT_EQ(e.manager.truncate(s, -1).code(), kInvalid);
  EXPECT_EQ(e.manager.evict(GroupId(0), -1).error().code(), kInvalid);
  EXPECT_EQ(e.info(s).length, 6);
}

TEST(BadInput, GroupsAndBlocksOutOfRange) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 6));
  const auto out_of_range = AnyOf(kInvalid, kNotFound);
  for (const std::int32_t g : {-1, 1, std::numeric_limits<std::int32_t>::max()}) {
    const GroupId group(g);
    Tokens out(1);
    EXPECT_THAT(e.manager.usage(group).error().code(), out_of_range);
    EXPECT_THAT(e.manager.block_table(s, group).error().code(), out_of_range);
    EXPECT_THAT(e.manager.slot_mapping(s, group, 0, out).code(), out_of_range);
    EXPECT_THAT(e.manager.evict(group, 1).error().code(), out_of_range);
    EXPECT_THAT(e.manager.ref_count(group, BlockId(0)).error().code(), out_of_range);
    EXPECT_THAT(e.manager.is_findable(group, BlockId(0)).error().code(), out_of_range);
  }
  for (const std::int32_t b : {-1, 8, std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_THAT(e.manager.ref_count(GroupId(0), BlockId(b)).error().code(), out_of_range);
    EXPECT_THAT(e.manager.is_findable(GroupId(0), BlockId(b)).error().code(), out_of_range);
  }
}

TEST(BadInput, SlotsOutsideTheSequenceAreRefusedWithBothNumbers) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 6));
  Tokens out(3);
  const Status beyond = e.manager.slot_mapping(s, GroupId(0), 5, out);
  EXPECT_EQ(beyond.code(), kInvalid);
  EXPECT_THAT(beyond.message(), HasSubstr("6"));
  EXPECT_EQ(e.manager.slot_mapping(s, GroupId(0), -1, out).code(), kInvalid);
  EXPECT_EQ(
      e.manager.slot_mapping(s, GroupId(0), std::numeric_limits<std::int32_t>::max(), out).code(),
      kInvalid);
  must(e.manager.slot_mapping(s, GroupId(0), 3, out));
  must(e.manager.slot_mapping(s, GroupId(0), 6, std::span<std::int32_t>()));
}

TEST(BadInput, MoreNamesThanUnnamedTokens) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 4));
  EXPECT_FALSE(e.manager.set_tokens(s, Tokens{1}).ok());
  must(e.manager.begin_step());
  must(e.manager.append_unnamed(s, 2));
  EXPECT_FALSE(e.manager.set_tokens(s, Tokens{1, 2, 3}).ok());
  must(e.manager.set_tokens(s, Tokens{5, 6}));
}

TEST(BadInput, AcceptOfMoreThanTheDraft) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 4));
  e.feed(s, {5, 6}, 2);
  EXPECT_EQ(e.manager.accept(s, 3).code(), kInvalid);
  EXPECT_EQ(e.manager.accept(s, -1).code(), kInvalid);
  EXPECT_EQ(e.info(s).length, 6);
  must(e.manager.accept(s, 2));
}

TEST(BadInput, EveryErrorHasASentence) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 4));
  for (const Status& error :
       {e.manager.close(SequenceId(99)), e.manager.truncate(s, 99), e.manager.commit(Ticket(99)),
        e.manager.append(s, Tokens{1}), e.manager.open(Tokens{-7}).error()}) {
    EXPECT_FALSE(error.ok());
    EXPECT_GT(error.message().size(), 10u) << error.message();
  }
}

// A sequence that could not be opened is none of those that hold blocks, and its call has a name.
TEST(BadInput, OpenByCountSpeaksOfItself) {
  Engine e({full_group(4, 4)});
  EXPECT_THAT(e.manager.open_unnamed(4).error().message(), HasSubstr("open_unnamed: no step"));
  const Ticket t = must(e.manager.begin_step());
  EXPECT_THAT(e.manager.open_unnamed(-1).error().message(), HasSubstr("open_unnamed of -1 tokens"));
  const Status full = e.manager.open_unnamed(20).error();
  EXPECT_EQ(
      full.message(),
      "group 0: need 5 blocks, 4 free, 0 evictable (0 pinned, 0 retiring; open: 0 sequences); "
      "never: the group has 4 blocks");
  must(e.manager.drop(t));
}

TEST(BadInput, TheErrorNamesTheCall) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 4));
  EXPECT_THAT(e.manager.open(Tokens{-1}).error().message(), HasSubstr("open: token 0 is -1"));
  EXPECT_THAT(e.manager.probe(Tokens{-1}).error().message(), HasSubstr("probe: token 0"));
  EXPECT_THAT(e.manager.usage(GroupId(3)).error().message(), HasSubstr("usage: group 3"));
  EXPECT_THAT(e.manager.ref_count(GroupId(0), BlockId(8)).error().message(),
              HasSubstr("ref_count: block 8 of group 0"));
  must(e.manager.begin_step());
  must(e.manager.append(s, tokens(5, 1)));
  EXPECT_THAT(e.manager.clear(s).message(), HasSubstr("clear: sequence 0.1 is in the open step"));
}

TEST(BadInput, AShortageDoesNotSayThatIdleSequencesHoldBlocks) {
  Engine e({full_group(4, 4)});
  e.say(tokens(1, 16));
  SequenceId idle;
  for (int i = 0; i < 5; ++i) idle = e.open({}).sequence;
  must(e.manager.begin_step());
  EXPECT_EQ(e.manager.append(idle, tokens(1, 1)).message(),
            "group 0: need 1 block, 0 free, 0 evictable (4 pinned, 0 retiring; open: 6 sequences)");
}

// A scheduler that appends to many has nothing else to tell them apart by.
TEST(BadInput, TheErrorNamesTheSequence) {
  Engine e({full_group(4, 16)});
  const SequenceId first = e.say(tokens(1, 10));
  must(e.manager.close(first));
  const Opened opened = e.open(tokens(1, 15), {.max_tokens = 30});
  ASSERT_EQ(opened.cached_tokens, 10);
  const SequenceId s = opened.sequence;
  const std::string name = to_string(s);
  const auto says = [](const Status& status, const std::string& text) {
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  says(e.manager.undo(s), "undo: " + name + " is not in an open step");
  must(e.manager.begin_step());
  says(e.manager.append(s, Tokens{-1}), "append to " + name + ": token 0 is -1, allowed:");
  says(e.manager.append(s, tokens(1, 15)), "append of 15 tokens to " + name + " of 10: they begin");
  says(e.manager.append(s, tokens(1, 21)), "append of 21 tokens to " + name + ": full: 10 of 30");
  says(e.manager.append(s, Tokens{1}, {.draft = 2}), "append of 1 tokens to " + name + " with a");
  says(e.manager.append_prompt(s, tokens(1, 9), 9).error(), "append_prompt to " + name + ": the");
  must(e.manager.append(s, tokens(11, 2), {.draft = 1}));
  says(e.manager.append(s, Tokens{1}), "append: " + name + " is in the open step 2");
  says(e.manager.set_tokens(s, Tokens{-2}), "set_tokens to " + name + ": token 0 is -2");
}

TEST(BadInput, AShortageSaysWhetherPinsHoldBlocks) {
  Engine e({full_group(4, 4)});
  e.cache(tokens(1, 12));
  const Pinned pinned = must(e.manager.pin(tokens(1, 12)));
  const Ticket t = must(e.manager.begin_step());
  const Status full = e.manager.open_unnamed(12).error();
  EXPECT_EQ(full.message(),
            "group 0: need 3 blocks, 1 free, 0 evictable (3 pinned, 0 retiring; open: 0 "
            "sequences and 1 pin)");
  EXPECT_EQ(full.shortage()->pins, 1);
  must(e.manager.unpin(pinned.pin));
  must(e.manager.open_unnamed(12));
  must(e.manager.drop(t));
}

}  // namespace
}  // namespace kvfolio::testing_engine
