// SPDX-License-Identifier: Apache-2.0
// Const calls of the manager: several threads may make them at the same time, they take no heap
// memory (but for the text of describe()), and they need little of the stack.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "engine.h"
#include "heap_calls/heap_calls.h"
#include "heap_calls/stack_depth.h"
#include "kvfolio/storage.h"

namespace kvfolio::testing_engine {
namespace {

constexpr std::int32_t kNumGroups = 2;

// What const calls answer, as numbers. It takes no memory when it is filled again.
class Answers {
 public:
  Answers() { values_.reserve(std::size_t{1} << 14); }
  void clear() { values_.clear(); }
  template <typename... T>
  void add(T... values) {
    (values_.push_back(static_cast<std::int64_t>(values)), ...);
  }
  void add_all(std::span<const std::int32_t> values) {
    for (const std::int32_t value : values) add(value);
  }
  bool operator==(const Answers& other) const { return values_ == other.values_; }
  // Heap calls of errors, which have a text.
  void add_sentences(std::uint64_t heap_calls) { heap_calls_of_sentences_ += heap_calls; }
  [[nodiscard]] std::uint64_t heap_calls_of_sentences() const { return heap_calls_of_sentences_; }

 private:
  std::vector<std::int64_t> values_;
  std::uint64_t heap_calls_of_sentences_ = 0;
};

// A manager in the middle of everything: prompts that are cached, a sequence that found one, one
// with media, a fork, drafts, a trim, a pin, a heap of victims; without storage also a step in
// flight and an open one.
class Busy {
 public:
  explicit Busy(bool with_storage) : manager(make(with_storage)) {
    cache(prompt);
    const Opened found = must(manager.open(prompt, {.caller_id = kName}));
    parent = found.sequence;
    hit = found.cached_tokens;
    feed(parent, tokens(prompt.back(), 1));
    child = must(manager.fork(parent, {.caller_id = kName + 1}));
    must(manager.pin(prompt));
    picture = must(manager.open(other, media())).sequence;
    feed(picture, other);
    feed(child, tokens(300, 3), 2);  // it copies the last block
    trimmed = must(manager.open(tokens(500, 1))).sequence;
    feed(trimmed, tokens(500, 30));
    must(manager.trim(trimmed, {.num_sinks = 3, .window = 5}));
    announcer = must(manager.open(announced, {.announce = true})).sequence;
    feed(announcer, tokens(700, 9));
    // The first search looks at each sequence, the second makes a heap.
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(manager.select_victim(VictimPolicy::kLru).has_value());
    if (with_storage) return;
    must(manager.accept(child, 1));
    Ticket ticket = must(manager.begin_step());
    must(manager.append(parent, tokens(400, 2)));
    must(manager.append_unnamed(trimmed, 3));
    must(manager.commit(ticket));
    ticket = must(manager.begin_step());
    must(manager.append(must(manager.fork(child)), tokens(600, 9)));
    must(manager.plan());
  }

  static KVCacheManager make(bool with_storage) {
    const CacheSpec spec{{full_group(4, 64), window_group(2, 128, 6)}};
    // No byte is looked at here, so no copy has to run.
    const ManagerOptions options{.max_sequences = 8, .max_pins = 4, .copies_by_host = true};
    if (!with_storage) return must(KVCacheManager::create(spec, options));
    return must(KVCacheManager::create(must(KVStorage::create(spec)), options));
  }
  [[nodiscard]] OpenOptions media() const { return {.root = {.model = "m"}, .media = spans}; }

  static constexpr std::uint64_t kName = 7;
  Tokens prompt = tokens(1, 38);
  Tokens other = tokens(100, 20);
  Tokens picture_and_more = tokens(100, 28);
  Tokens announced = tokens(700, 250);
  std::array<MediaSpan, 1> spans{MediaSpan{.begin = 3, .end = 11, .content_id = {std::byte{1}}}};
  KVCacheManager manager;
  SequenceId parent;
  SequenceId child;
  SequenceId picture;
  SequenceId trimmed;
  SequenceId announcer;
  std::int32_t hit = 0;

 private:
  void feed(SequenceId sequence, const Tokens& more, std::int32_t draft = 0) {
    const Ticket ticket = must(manager.begin_step());
    must(manager.append(sequence, more, {.draft = draft}));
    must(manager.finish(ticket));
  }
  void cache(const Tokens& tokens) {
    const SequenceId sequence = must(manager.open(tokens)).sequence;
    feed(sequence, tokens);
    must(manager.close(sequence));
  }
};

template <typename... T>
struct Arguments {};

// One const call, made for each thing that it can be asked about.
struct Call {
  std::string_view name;
  void (*make)(const Busy& busy, KVCacheManager& target, Answers& out);
};

void soon(const Busy& busy, KVCacheManager&, Answers& out) {
  for (const std::size_t n : {0U, 8U, 13U, 250U}) {
    const Soon soon = must(busy.manager.soon(std::span(busy.announced).first(n)));
    out.add(soon.tokens, soon.by.value());
  }
  out.add(must(busy.manager.soon(busy.other, busy.media())).tokens);
}

void probe(const Busy& busy, KVCacheManager&, Answers& out) {
  for (std::size_t n = 1; n <= busy.prompt.size(); ++n) {
    out.add(must(busy.manager.probe(std::span(busy.prompt).first(n))));
  }
  out.add(must(busy.manager.probe(busy.other)));
  out.add(must(busy.manager.probe(busy.other, busy.media())));
}

void info(const Busy& busy, KVCacheManager&, Answers& out) {
  for (const SequenceId id : {busy.parent, busy.child, busy.picture, busy.trimmed}) {
    const SequenceInfo info = must(busy.manager.info(id));
    out.add(info.length, info.accepted_length, info.published_length, info.trim_first_kept,
            info.in_open_step, info.caller_id.value_or(0), info.last_use, info.use_count);
  }
}

void block_table(const Busy& busy, KVCacheManager&, Answers& out) {
  for (std::int32_t g = 0; g < kNumGroups; ++g) {
    for (const SequenceId id : {busy.parent, busy.child, busy.picture, busy.trimmed}) {
      out.add_all(must(busy.manager.block_table(id, GroupId(g))));
    }
  }
}

void slot_mapping(const Busy& busy, KVCacheManager&, Answers& out) {
  std::array<std::int32_t, 15> slots;
  for (std::int32_t g = 0; g < kNumGroups; ++g) {
    must(busy.manager.slot_mapping(busy.parent, GroupId(g), 7, slots));
    out.add_all(slots);
    must(busy.manager.slot_mapping(busy.trimmed, GroupId(g), 1, slots));
    out.add_all(slots);
  }
}

void find(const Busy& busy, KVCacheManager&, Answers& out) {
  out.add(must(busy.manager.find(Busy::kName)).value());
  out.add(must(busy.manager.find(Busy::kName + 1)).value());
}

void admit(const Busy& busy, KVCacheManager&, Answers& out) {
  for (const std::int64_t more : {0, 3, 100000}) {
    const Result<Admission> answer = busy.manager.admit(busy.prompt, {}, more);
    out.add(answer.has_value() ? answer->cached_tokens : -1);
    if (answer.has_value()) out.add(answer->blocks[0], answer->blocks[1]);
    if (!answer.has_value()) out.add(answer.error().shortage()->needed);
  }
}

void sequences(const Busy& busy, KVCacheManager&, Answers& out) {
  std::array<SequenceId, 8> ids;
  const std::int32_t count = busy.manager.sequences(ids);
  for (const SequenceId id : std::span(ids).first(static_cast<std::size_t>(count))) {
    out.add(id.value());
  }
  out.add(count, busy.manager.num_sequences(), busy.manager.num_rows());
}

void usage(const Busy& busy, KVCacheManager&, Answers& out) {
  for (std::int32_t g = 0; g < kNumGroups; ++g) {
    const GroupUsage usage = must(busy.manager.usage(GroupId(g)));
    out.add(usage.num_blocks, usage.free, usage.held, usage.cached, usage.retiring, usage.evictable,
            usage.reserved, must(busy.manager.widest(GroupId(g))));
  }
  out.add(busy.manager.utilization() * 1000, busy.manager.needs_eviction(),
          busy.manager.bytes_total(), busy.manager.bytes_used(), busy.manager.metadata().used);
}

// Asks about each block.
template <typename Ask>
void each_block(const Busy& busy, const Ask& ask) {
  for (std::int32_t g = 0; g < kNumGroups; ++g) {
    const std::int32_t blocks = busy.manager.spec().groups[static_cast<std::size_t>(g)].num_blocks;
    for (std::int32_t b = 0; b < blocks; ++b) ask(GroupId(g), BlockId(b));
  }
}

void ref_count(const Busy& busy, KVCacheManager&, Answers& out) {
  each_block(busy, [&](GroupId g, BlockId b) { out.add(must(busy.manager.ref_count(g, b))); });
}

void is_findable(const Busy& busy, KVCacheManager&, Answers& out) {
  each_block(busy, [&](GroupId g, BlockId b) {
    out.add(must(busy.manager.is_findable(g, b)), must(busy.manager.findable_end(g, b)));
    out.add(static_cast<int>(must(busy.manager.block_state(g, b))));
  });
}

void prefix_of(const Busy& busy, KVCacheManager&, Answers& out) {
  std::array<std::int32_t, 64> path;
  std::array<MediaSpan, 2> media;
  each_block(busy, [&](GroupId g, BlockId b) {
    if (!must(busy.manager.is_findable(g, b))) return;
    const auto end = static_cast<std::size_t>(must(busy.manager.findable_end(g, b)));
    const auto tokens = std::span(path).first(std::min(end, path.size()));
    const BlockPrefix prefix = must(busy.manager.prefix_of(g, b, 0, tokens, media));
    out.add_all(tokens);
    out.add(prefix.num_media, prefix.root.model.size(), must(busy.manager.entry_serial(g, b)));
    if (end >= 4) out.add(must(busy.manager.block_at(g, b, GroupId(0), 4)).value());
  });
}

void loadable(const Busy& busy, KVCacheManager&, Answers& out) {
  std::array<std::uint8_t, 7> full{0, 0, 0, 0, 0, 1, 1};
  std::array<std::uint8_t, 14> window{};
  window[12] = window[13] = 1;
  const std::array<std::span<std::uint8_t>, 2> has = {full, window};
  const Loadable answer = must(busy.manager.loadable(busy.picture, busy.picture_and_more, 28, has));
  out.add(answer.begin, answer.end, answer.blocks);
}

void counters(const Busy& busy, KVCacheManager&, Answers& out) {
  const Counters& counters = busy.manager.counters();
  out.add(counters.blocks_allocated, counters.blocks_freed, counters.forks, counters.tokens_reused,
          counters.block_copies, counters.blocks_used_peak, busy.manager.options().max_runs);
}

void check_invariants(const Busy& busy, KVCacheManager&, Answers& out) {
  must(busy.manager.check_invariants());
  out.add(1);
}

void copy_to(const Busy& busy, KVCacheManager& target, Answers& out) {
  must(busy.manager.copy_to(target));
  out.add(target.counters().blocks_allocated, target.num_sequences());
  out.add_all(must(target.block_table(busy.child, GroupId(0))));
}

// What a question answers, if it is a number; others have a call of their own above.
template <typename Ask>
void note(const Ask& ask, Answers& out) {
  const std::uint64_t before = testing_heap::num_heap_calls();
  const auto answer = ask();
  out.add(answer.has_value());
  if (!answer.has_value()) return out.add_sentences(testing_heap::num_heap_calls() - before);
  using Value = std::remove_cvref_t<decltype(*answer)>;
  if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) out.add(*answer);
}

// Values for arguments of questions: each sequence, each group and each of its blocks, some
// numbers.
template <typename Ask, typename... Given>
void ask_of(const Busy&, GroupId, const Ask& ask, Arguments<>, const Given&... given) {
  ask(given...);
}
template <typename Ask, typename First, typename... Others, typename... Given>
void ask_of(const Busy& busy, GroupId of, const Ask& ask, Arguments<First, Others...>,
            const Given&... given) {
  const auto with = [&](First value, GroupId group) {
    ask_of(busy, group, ask, Arguments<Others...>(), given..., value);
  };
  if constexpr (std::is_same_v<First, SequenceId>) {
    for (const SequenceId id : {busy.parent, busy.child, busy.picture, busy.trimmed}) with(id, of);
  } else if constexpr (std::is_same_v<First, GroupId>) {
    for (std::int32_t g = 0; g < kNumGroups; ++g) with(GroupId(g), GroupId(g));
  } else if constexpr (std::is_same_v<First, BlockId>) {
    const std::int32_t blocks =
        busy.manager.spec().groups[static_cast<std::size_t>(of.value())].num_blocks;
    for (std::int32_t b = 0; b < blocks; ++b) with(BlockId(b), of);
  } else {
    for (const First number : {First{4}, First{7}, First{8}}) with(number, of);
  }
}

constexpr std::array kCalls = {
#define CALL(name, types, is_const)
#define QUESTION(name, ...)                                                                   \
  Call{#name, [](const Busy& busy, KVCacheManager&, Answers& out) {                           \
         ask_of(                                                                              \
             busy, GroupId(),                                                                 \
             [&](const auto&... of) { note([&] { return busy.manager.name(of...); }, out); }, \
             Arguments<__VA_ARGS__>());                                                       \
       }},
#include "manager_calls.inc"
#undef CALL
#undef QUESTION
    Call{"probe", probe},
    Call{"soon", soon},
    Call{"admit", admit},
    Call{"info", info},
    Call{"block_table", block_table},
    Call{"slot_mapping", slot_mapping},
    Call{"find", find},
    Call{"sequences", sequences},
    Call{"usage", usage},
    Call{"ref_count", ref_count},
    Call{"is_findable", is_findable},
    Call{"prefix_of", prefix_of},
    Call{"loadable", loadable},
    Call{"counters", counters},
    Call{"check_invariants", check_invariants},
    Call{"copy_to", copy_to},
};

void make_all(const Busy& busy, KVCacheManager& target, Answers& out, std::string& text) {
  out.clear();
  for (const Call& call : kCalls) call.make(busy, target, out);
  text = busy.manager.describe();
}

TEST(ManagerConst, TheManagerThatIsAskedIsInTheMiddleOfEverything) {
  const Busy busy(false);
  EXPECT_EQ(busy.hit, 37);
  EXPECT_GT(busy.manager.counters().block_copies, 0u);
  EXPECT_GT(must(busy.manager.usage(GroupId(0))).cached, 0);
  EXPECT_GT(must(busy.manager.info(busy.trimmed)).trim_first_kept, 3);
  EXPECT_EQ(must(busy.manager.probe(busy.prompt)), 37);
  EXPECT_GT(must(busy.manager.probe(busy.other, busy.media())), 0);
  EXPECT_EQ(must(busy.manager.probe(busy.other)), 0);
  EXPECT_EQ(must(busy.manager.soon(busy.announced)), (Soon{248, busy.announcer}));
}

TEST(ManagerConst, SeveralThreadsMayAskAtTheSameTime) {
  for (const bool with_storage : {false, true}) {
    const Busy busy(with_storage);
    Answers expected;
    std::string text;
    KVCacheManager first = Busy::make(with_storage);
    make_all(busy, first, expected, text);
    struct Asker {
      KVCacheManager target;
      Answers answers;
      std::string text;
    };
    std::vector<Asker> askers;
    askers.reserve(4);
    for (int i = 0; i < 4; ++i) askers.push_back({Busy::make(with_storage), {}, {}});
    std::vector<std::thread> threads;
    threads.reserve(askers.size());
    for (Asker& asker : askers) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) make_all(busy, asker.target, asker.answers, asker.text);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Asker& asker : askers) {
      EXPECT_EQ(asker.answers, expected);
      EXPECT_EQ(asker.text, text);
      EXPECT_TRUE(asker.target.check_invariants());
    }
  }
}

TEST(ManagerConst, NoCallTakesHeapMemory) {
  if (!testing_heap::kCountsHeapCalls) GTEST_SKIP() << "clang's thread sanitizer counts none";
  for (const bool with_storage : {false, true}) {
    const Busy busy(with_storage);
    KVCacheManager target = Busy::make(with_storage);
    Answers out;
    for (const Call& call : kCalls) {
      const std::uint64_t before = testing_heap::num_heap_calls() - out.heap_calls_of_sentences();
      call.make(busy, target, out);
      EXPECT_EQ(testing_heap::num_heap_calls() - out.heap_calls_of_sentences(), before)
          << call.name;
    }
  }
}

#if defined(NDEBUG) && !defined(KVFOLIO_TEST_SANITIZED)
TEST(ManagerConst, EachCallNeedsAtMost8KiBOfTheStack) {
  for (const bool with_storage : {false, true}) {
    const Busy busy(with_storage);
    KVCacheManager target = Busy::make(with_storage);
    Answers out;
    const std::size_t nothing = testing_heap::stack_of([&] { out.add(1); });
    for (const Call& call : kCalls) {
      const std::size_t asked = testing_heap::stack_of([&] { call.make(busy, target, out); });
      EXPECT_LE(asked - nothing, std::size_t{8} << 10) << call.name;
      RecordProperty(std::string(call.name), static_cast<int>(asked - nothing));
    }
    const std::size_t described =
        testing_heap::stack_of([&] { out.add(busy.manager.describe().size()); });
    EXPECT_LE(described - nothing, std::size_t{8} << 10) << "describe";
  }
}
#endif

}  // namespace
}  // namespace kvfolio::testing_engine
