// SPDX-License-Identifier: Apache-2.0
//
// What leaves a window group first: blocks that windows have passed and that no end reads. So a
// tight pool of window blocks serves the next turn of a chat, however many chats take turns.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::int32_t kChunk = 16;

// Opens, computes what was not found in chunks, and says how much was found.
Opened prefill(Engine& e, const Tokens& prompt) {
  const Opened opened = e.open(prompt);
  const auto size = static_cast<std::int32_t>(prompt.size());
  for (std::int32_t at = opened.cached_tokens; at < size; at += kChunk) {
    const std::int32_t end = std::min(at + kChunk, size);
    e.feed(opened.sequence, Tokens(prompt.begin() + at, prompt.begin() + end));
  }
  return opened;
}

// A full group without shortage beside a window of 16 in blocks of 4.
std::vector<GroupSpec> groups(std::int32_t full_size, std::int32_t window_blocks) {
  return {full_group(full_size, 4096), window_group(4, window_blocks, 16)};
}

// Chats of `tokens` tokens take turns, without answers: what each finds from its second turn on.
Tokens found_in_turn(std::int32_t num_chats, std::int32_t num_tokens, std::int32_t full_size,
                     std::int32_t window_blocks) {
  Engine e(groups(full_size, window_blocks));
  Tokens found;
  for (int turn = 0; turn < 4; ++turn) {
    for (std::int32_t chat = 0; chat < num_chats; ++chat) {
      const Opened opened = prefill(e, tokens(10000 * (chat + 1), num_tokens));
      if (turn > 0) found.push_back(opened.cached_tokens);
      must(e.manager.close(opened.sequence));
    }
  }
  must(e.manager.check_invariants());
  return found;
}

TEST(Ends, TwoChatsInTurnFindAllOfTheirPromptsIn22WindowBlocks) {
  EXPECT_THAT(found_in_turn(2, 160, 16, 22), Each(159));
}

TEST(Ends, EightChatsInTurnFindAllOfTheirPromptsIn58WindowBlocks) {
  EXPECT_THAT(found_in_turn(8, 160, 16, 58), Each(159));
}

// A chat keeps what its next turn reads, of however long a prompt: four blocks for a window of 16,
// beside the eight that a chunk of the running one needs.
TEST(Ends, AChatThatWaitsNeedsOneWindowOfBlocks) {
  for (const std::int32_t num_tokens : {160, 640}) {
    for (const std::int32_t num_chats : {2, 3, 8, 20}) {
      EXPECT_THAT(found_in_turn(num_chats, num_tokens, 16, 4 * num_chats + 8), Each(num_tokens - 1))
          << num_chats << " chats of " << num_tokens;
    }
  }
}

TEST(Ends, APromptIsFoundAgainAfterALongAnswer) {
  Engine e(groups(8, 16));
  const Tokens prompt = tokens(1, 101);
  const Opened first = prefill(e, prompt);
  for (std::int32_t i = 0; i < 80; ++i) e.feed(first.sequence, {5000 + i});
  must(e.manager.close(first.sequence));
  const Opened again = e.open(prompt);
  EXPECT_EQ(again.cached_tokens, 100);
  must(e.manager.close(again.sequence));
  // And so is all of the chat: the next question stands behind the answer.
  EXPECT_GE(e.probe(joined(joined(prompt, tokens(5000, 80)), {7})), 176);
  must(e.manager.check_invariants());
}

// Questions and answers in turn, each prompt the whole chat so far.
TEST(Ends, ChatsThatGrowFindTheirLastTurn) {
  constexpr std::int32_t kChats = 4;
  Engine e(groups(16, 80));
  std::vector<Tokens> chats;
  chats.reserve(kChats);
  for (std::int32_t chat = 0; chat < kChats; ++chat) chats.push_back(tokens(10000 * chat + 1, 120));
  for (int turn = 0; turn < 6; ++turn) {
    for (Tokens& chat : chats) {
      const Opened opened = prefill(e, chat);
      EXPECT_GE(opened.cached_tokens, turn == 0 ? 0 : static_cast<int>(chat.size()) - 20 - 16);
      for (std::int32_t i = 0; i < 40; ++i) {
        const std::int32_t token = chat.front() + 5000 + 100 * turn + i;
        e.feed(opened.sequence, {token});
        chat.push_back(token);
      }
      must(e.manager.close(opened.sequence));
      chat = joined(chat, tokens(chat.front() + 8000 + 100 * turn, 20));  // the next question
    }
  }
  must(e.manager.check_invariants());
}

TEST(Ends, ASystemPromptIsFoundOnceTwoQuestionsHaveFollowedIt) {
  Engine e(groups(16, 24));
  const Tokens shared = tokens(1, 96);
  Tokens found;
  for (std::int32_t question = 0; question < 8; ++question) {
    const Opened opened = prefill(e, joined(shared, tokens(1000 * (question + 1), 100)));
    found.push_back(opened.cached_tokens);
    must(e.manager.close(opened.sequence));
  }
  // The first one passed the end of the shared part and left nothing there.
  EXPECT_THAT(found, ElementsAre(0, 0, 96, 96, 96, 96, 96, 96));
}

TEST(Ends, APinnedPrefixIsAnEndWhenItIsUnpinned) {
  for (const bool pinned : {false, true}) {
    Engine e(groups(16, 64));
    const SequenceId s = e.say(tokens(1, 96));
    if (pinned) {
      const Pinned pin = must(e.manager.pin(tokens(1, 48)));
      EXPECT_EQ(pin.pinned_tokens, 48);
      must(e.manager.unpin(pin.pin));
    }
    must(e.manager.close(s));
    e.evict(16, 1);
    EXPECT_EQ(e.probe(joined(tokens(1, 48), {7})), pinned ? 48 : 16);
    EXPECT_EQ(e.probe(tokens(1, 96)), 95);
  }
}

// The sequence may go on otherwise in front of the place where its prompt would be found again.
TEST(Ends, APromptThatIsCutBackIsNoEnd) {
  const auto left_of = [](std::int32_t cut_to) {
    Engine e({full_group(8, 64), window_group(4, 64, 16)});
    const SequenceId s = e.open(tokens(1, 40)).sequence;
    e.feed(s, tokens(1, 24));
    must(e.manager.truncate(s, cut_to));
    e.feed(s, tokens(1 + cut_to, 64 - cut_to));
    must(e.manager.close(s));
    e.evict(8, 1);
    return e.probe(joined(tokens(1, 39), {7}));
  };
  EXPECT_EQ(left_of(24), 39);
  EXPECT_EQ(left_of(23), 24);
}

// The mark stays where another computes the same again.
TEST(Ends, TheBlockThatTakesAnEntryIsReadByTheSameEnds) {
  Engine e(groups(16, 64));
  e.cache(tokens(1, 64));
  const SequenceId copy = e.say(tokens(1, 96), {.look_up = false});
  must(e.manager.close(copy));
  EXPECT_EQ(e.evict(16, 1), 16);  // of 24: what neither 63, 64, 95 nor 96 reads
  EXPECT_EQ(e.probe(tokens(1, 64)), 63);
  EXPECT_EQ(e.probe(tokens(1, 96)), 95);
}

TEST(Ends, ACopyEvictsAlikeAndTheHashKnowsTheEnds) {
  Engine source(groups(16, 64));
  Engine target(groups(16, 64));
  Engine other(groups(16, 64));
  for (Engine* e : {&source, &other}) {
    const SequenceId s = e->open({}).sequence;
    e->feed(s, tokens(1, 64));
    if (e == &source) must(e->manager.unpin(must(e->manager.pin(tokens(1, 24))).pin));
    if (e == &other) must(e->manager.unpin(must(e->manager.pin(tokens(1, 40))).pin));
    must(e->manager.close(s));
  }
  must(source.manager.copy_to(target.manager));
  EXPECT_EQ(must(source.manager.state_hash()), must(target.manager.state_hash()));
  EXPECT_NE(must(source.manager.state_hash()), must(other.manager.state_hash()));
  EXPECT_EQ(source.evict(6, 1), 6);
  EXPECT_EQ(target.evict(6, 1), 6);
  EXPECT_EQ(must(source.manager.state_hash()), must(target.manager.state_hash()));
  EXPECT_EQ(target.probe(joined(tokens(1, 24), {7})), 24);
}

}  // namespace
}  // namespace kvfolio::testing_engine
