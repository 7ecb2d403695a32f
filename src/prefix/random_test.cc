// SPDX-License-Identifier: Apache-2.0
//
// Random sequences publish, offer their blocks again, fork, truncate, close and lose blocks; after
// each operation everything that the tree says is compared with a naive model (naive_prefix.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvfolio/prefix_tree.h"
#include "prefix/naive_prefix.h"

namespace kvfolio {
namespace {

using naive::Entry;
using naive::Query;
using naive::Text;

struct Setup {
  const char* name;
  std::vector<TreeGroup> groups;
  std::int32_t alphabet = 2;
  bool media = false;
  // One full group: the longest prefix is found exactly.
  bool exact = false;
  std::int64_t max_index_tokens = 1 << 14;
  std::int32_t max_runs = 1 << 10;
  std::int32_t max_media_extents = 256;
};

// ctest's names of these tests are made of it.
void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.name; }

TreeGroup full_group(std::int32_t block_size, std::int32_t num_blocks) {
  return {.block_size = block_size, .num_blocks = num_blocks};
}

TreeGroup window_group(std::int32_t block_size, std::int32_t window, std::int32_t num_sinks,
                       std::int32_t num_blocks) {
  return {.block_size = block_size,
          .kind = AttentionKind::kSlidingWindow,
          .window = window,
          .num_sinks = num_sinks,
          .num_blocks = num_blocks};
}

MediaSpan span_of(std::int32_t begin, std::int32_t end, int content, bool attends) {
  MediaSpan span{.begin = begin, .end = end, .content_id = {}, .attends_to_itself = attends};
  span.content_id[31] = static_cast<std::byte>(content);
  return span;
}

struct Block {
  std::int32_t refs = 0;
  std::int32_t writer = -1;
  Text text;  // from the root to its last valid token
};

struct Sequence {
  std::int32_t id = 0;
  std::size_t root = 0;
  std::size_t media = 0;
  std::vector<std::int32_t> tokens;
  Place place;
  std::vector<std::vector<std::int32_t>> tables;

  [[nodiscard]] std::int32_t length() const { return static_cast<std::int32_t>(tokens.size()); }
};

class World {
 public:
  World(const Setup& setup, std::uint32_t seed)
      : setup_(setup), random_(seed), model_(setup.groups), tree_(make_tree(setup)) {
    told_.resize(setup.groups.size());
    for (const TreeGroup& group : setup.groups) {
      blocks_.emplace_back(static_cast<std::size_t>(group.num_blocks));
      free_.emplace_back();
      let_go_.emplace_back();
      for (std::int32_t b = 0; b < group.num_blocks; ++b) free_.back().push_back(b);
    }
    media_ = {{}};
    if (setup.media) {
      media_.push_back({span_of(2, 5, 1, false)});
      media_.push_back({span_of(2, 5, 2, false)});
      media_.push_back({span_of(2, 5, 1, true)});
      media_.push_back({span_of(2, 6, 1, true), span_of(6, 7, 1, true), span_of(9, 15, 3, true)});
      media_.push_back({span_of(1, 5, 1, false), span_of(8, 30, 2, false)});
    }
  }

  void step() {
    const int what = pick(0, 99);
    if (what < 20) {
      open();
    } else if (what < 43) {
      if (Sequence* s = any()) append(*s, pick(1, 7));
    } else if (what < 63) {
      if (Sequence* s = any()) publish(*s, pick(0, 3) == 0);
    } else if (what < 68) {
      if (Sequence* s = any()) fork(*s);
    } else if (what < 72) {
      if (Sequence* s = any()) truncate(*s);
    } else if (what < 75) {
      if (Sequence* s = any()) drop_behind_windows(*s);
    } else if (what < 80) {
      if (Sequence* s = any()) drop_some(*s);
    } else if (what < 88) {
      if (!sequences_.empty()) close(static_cast<std::size_t>(pick(0, num_open() - 1)));
    } else if (what < 96) {
      evict_any(static_cast<std::size_t>(pick(0, num_groups() - 1)));
    } else if (what < 98) {
      if (Sequence* s = any()) note_end(*s);
    } else if (pick(0, 3) != 0) {
      unhang_any(static_cast<std::size_t>(pick(0, num_groups() - 1)));
    } else {
      forget_any();
    }
    check();
    for (int i = 0; i < 2; ++i) ask(random_prompt());
  }

  // Everything closed and evicted leaves nothing behind.
  void finish() {
    while (!sequences_.empty()) {
      close(0);
      check();
    }
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      while (evict_any(g)) check();
      EXPECT_EQ(free_[g].size(), blocks_[g].size());
    }
    EXPECT_EQ(tree_.num_runs(), 0);
    EXPECT_EQ(tree_.num_tokens(), 0);
  }

 private:
  struct Unhung {
    std::size_t group;
    std::int32_t block;
    std::int32_t successor;
    Entry entry;
  };

  static PrefixTree make_tree(const Setup& setup) {
    Result<PrefixTree> tree = PrefixTree::create({.groups = setup.groups,
                                                  .max_index_tokens = setup.max_index_tokens,
                                                  .max_runs = setup.max_runs,
                                                  .max_root_keys = 3,
                                                  .max_media_extents = setup.max_media_extents,
                                                  .hash_seed = 7});
    KVFOLIO_CHECK(tree.has_value());
    return std::move(*tree);
  }

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  [[nodiscard]] int num_open() const { return static_cast<int>(sequences_.size()); }
  [[nodiscard]] int num_groups() const { return static_cast<int>(setup_.groups.size()); }
  [[nodiscard]] std::int32_t size_of(std::size_t g) const { return setup_.groups[g].block_size; }
  Sequence* any() {
    if (sequences_.empty()) return nullptr;
    return &sequences_[static_cast<std::size_t>(pick(0, num_open() - 1))];
  }
  Block& block(std::size_t g, std::int32_t b) { return blocks_[g][static_cast<std::size_t>(b)]; }
  static RootKey key(std::size_t root) {
    constexpr std::string_view kTenants[] = {"", "a", "b"};
    return {.model = "m", .tenant_salt = kTenants[root]};
  }

  Text text_of(const std::vector<std::int32_t>& tokens, std::size_t media) const {
    Text text;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(tokens.size()); ++i) {
      std::int64_t medium = 0;
      for (const MediaSpan& span : media_[media]) {
        if (span.begin > i || span.end <= i) continue;
        medium =
            1 +
            (((std::to_integer<std::int64_t>(span.content_id[31]) * 100 + i - span.begin) * 100 +
              span.end - span.begin) *
                 2 +
             (span.attends_to_itself ? 1 : 0));
      }
      text.push_back(medium * 100 + tokens[static_cast<std::size_t>(i)]);
    }
    return text;
  }
  static Text first(Text text, std::int32_t n) {
    text.resize(static_cast<std::size_t>(n));
    return text;
  }

  struct Prompt {
    std::size_t root;
    std::size_t media;
    std::vector<std::int32_t> tokens;
  };
  Prompt random_prompt() {
    Prompt prompt{static_cast<std::size_t>(pick(0, 9) / 5), 0, {}};
    if (!asked_.empty() && pick(0, 3) != 0) {
      prompt = asked_[static_cast<std::size_t>(pick(0, static_cast<int>(asked_.size()) - 1))];
      prompt.tokens.resize(
          static_cast<std::size_t>(pick(0, static_cast<int>(prompt.tokens.size()))));
    } else {
      prompt.media = static_cast<std::size_t>(pick(0, static_cast<int>(media_.size()) - 1));
    }
    for (int n = pick(0, 9); n > 0 && prompt.tokens.size() < 40; --n) {
      prompt.tokens.push_back(pick(0, setup_.alphabet - 1));
    }
    if (prompt.tokens.empty()) prompt.tokens.push_back(0);
    return prompt;
  }

  // ---- the log of the tree ----

  void on_unhung(GroupId group, BlockId block, BlockId successor) {
    const auto g = static_cast<std::size_t>(group.value());
    const auto at = model_.by_block[g].find(block.value());
    ASSERT_NE(at, model_.by_block[g].end()) << "unhung twice";
    told_[g].erase(block.value());  // what is not findable is no candidate
    if (successor.valid()) {
      const Block& next = blocks_[g][static_cast<std::size_t>(successor.value())];
      EXPECT_GT(next.refs, 0);
      EXPECT_EQ(naive::common(at->second.text, next.text), naive::length(at->second.text));
      inherited_[{g, successor.value()}] |= at->second.read;
      if (const auto heir = model_.by_block[g].find(successor.value());
          heir != model_.by_block[g].end()) {
        heir->second.read |= at->second.read;
      }
    }
    unhung_.push_back({g, block.value(), successor.value(), at->second});
    model_.by_block[g].erase(at);
    Block& b = blocks_[g][static_cast<std::size_t>(block.value())];
    if (b.refs == 0) free_[g].push_back(block.value());
  }

  void on_candidate(GroupId group, BlockId block, Candidate candidate) {
    auto& known = told_[static_cast<std::size_t>(group.value())];
    if (candidate == Candidate::kNone) {
      known.erase(block.value());
    } else {
      known[block.value()] = candidate;
    }
  }

  // Whether the block is held is drawn at random, but the same for all of one publication.
  void on_kept(const TreeChange& change, Published& published) {
    const auto g = static_cast<std::size_t>(change.group.value());
    const std::int32_t end = tree_.findable_end(change.group, change.block);
    const auto kept = model_.by_block[g].find(change.block.value());
    ASSERT_NE(kept, model_.by_block[g].end());
    EXPECT_FALSE(kept->second.idle) << "an idle block gives way by itself";
    EXPECT_LT(tree_.findable_end(change.group, change.successor), end);
    if (!draws_held(g, change.block.value())) {
      tree_.replace(change.group, change.block, change.successor);
      ++published.num_hung;
      return;
    }
    published.missed_from = std::min(published.missed_from, (end - 1) / size_of(g) * size_of(g));
    published.missed_to = std::max(published.missed_to, end);
  }
  void drain(Published* published = nullptr) {
    while (tree_.has_changes()) {
      const TreeChange change = tree_.take_change();
      switch (change.kind) {
        case TreeChange::Kind::kHung:
          EXPECT_TRUE(tree_.is_findable(change.group, change.block));
          hung_.push_back({static_cast<std::size_t>(change.group.value()), change.block.value()});
          break;
        case TreeChange::Kind::kUnhung:
          on_unhung(change.group, change.block, change.successor);
          break;
        case TreeChange::Kind::kKept:
          ASSERT_NE(published, nullptr);
          on_kept(change, *published);
          break;
        case TreeChange::Kind::kCandidate:
          on_candidate(change.group, change.block, change.candidate);
          break;
      }
    }
  }

  // ---- references ----

  void hold(std::size_t g, const std::vector<std::int32_t>& table) {
    std::vector<std::int32_t> revived;
    for (const std::int32_t b : table) {
      if (b < 0 || block(g, b).refs++ > 0) continue;
      model_.by_block[g].at(b).idle = false;
      revived.push_back(b);
    }
    in_batches(std::move(revived),
               [&](std::span<const std::int32_t> blocks) { tell_busy(g, blocks); });
  }
  // The tree hears of it in settle().
  void let_go(std::size_t g, std::int32_t b) {
    Block& at = block(g, b);
    if (--at.refs > 0) return;
    at.writer = -1;
    if (model_.by_block[g].count(b) == 0) {
      free_[g].push_back(b);
    } else {
      let_go_[g].push_back(b);
    }
  }
  void settle(std::size_t g) {
    std::vector<std::int32_t> idle;
    for (const std::int32_t b : let_go_[g]) {
      const auto entry = model_.by_block[g].find(b);
      if (entry == model_.by_block[g].end()) continue;  // unhung meanwhile, for what was offered
      entry->second.idle = true;
      idle.push_back(b);
    }
    let_go_[g].clear();
    in_batches(std::move(idle),
               [&](std::span<const std::int32_t> blocks) { tell_idle(g, blocks); });
  }
  void tell_busy(std::size_t g, std::span<const std::int32_t> blocks) {
    tree_.set_busy(id(g), blocks);
    drain();
  }
  void tell_idle(std::size_t g, std::span<const std::int32_t> blocks) {
    tree_.set_idle(id(g), blocks);
    drain();
  }
  // In their order or in any other, all together or a few at a time.
  template <typename Tell>
  void in_batches(std::vector<std::int32_t> blocks, Tell&& tell) {
    if (pick(0, 3) == 0) std::shuffle(blocks.begin(), blocks.end(), random_);
    for (std::span<const std::int32_t> rest = blocks; !rest.empty();) {
      const auto n = static_cast<std::size_t>(pick(1, static_cast<int>(rest.size())));
      tell(rest.first(n));
      rest = rest.subspan(n);
    }
  }
  static GroupId id(std::size_t g) { return GroupId(static_cast<std::int32_t>(g)); }

  // A free block, after an eviction where there is none.
  std::optional<std::int32_t> acquire(std::size_t g, std::int32_t writer) {
    if (free_[g].empty() && !evict_any(g)) return std::nullopt;
    const std::int32_t b = free_[g].back();
    free_[g].pop_back();
    block(g, b) = {1, writer, {}};
    return b;
  }

  // ---- operations ----

  void open() {
    if (sequences_.size() >= 6) return;
    const Prompt prompt = random_prompt();
    Sequence s;
    s.id = next_id_++;
    s.root = prompt.root;
    s.media = prompt.media;
    const std::int32_t root = tree_.make_root(key(s.root));
    if (root < 0) {
      EXPECT_LT(setup_.max_runs, 100);
      return;
    }
    EXPECT_EQ(tree_.find_root(key(s.root)), root);
    s.place = tree_.enter(root, 0);
    const auto n = static_cast<std::int32_t>(prompt.tokens.size());
    const PrefixMatch match = tree_.match(root, prompt.tokens, media_[s.media], n - 1, true);
    const std::int32_t held = match.held_tokens();
    const std::int32_t unit = tree_.unit();
    const std::int32_t kept = std::min(held / unit, match.tokens / unit) * unit;
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      s.tables.emplace_back(static_cast<std::size_t>((held + size_of(g) - 1) / size_of(g)));
      tree_.fill_table(match, id(g), s.tables[g]);
    }
    Place found = tree_.enter(match.run, kept);
    tree_.leave(s.place);
    EXPECT_FALSE(s.place.valid());
    s.place = found;
    s.tokens.assign(prompt.tokens.begin(), prompt.tokens.begin() + held);
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) hold(g, s.tables[g]);
    sequences_.push_back(std::move(s));
    asked_.push_back(prompt);
    if (asked_.size() > 30) asked_.erase(asked_.begin() + pick(0, 29));
    Sequence& opened = sequences_.back();
    append_tokens(opened, {prompt.tokens.begin() + held, prompt.tokens.end()});
  }

  void append(Sequence& s, int n) {
    std::vector<std::int32_t> tokens;
    while (n-- > 0) tokens.push_back(pick(0, setup_.alphabet - 1));
    append_tokens(s, tokens);
  }

  void append_tokens(Sequence& s, const std::vector<std::int32_t>& tokens) {
    for (const std::int32_t token : tokens) {
      if (s.length() >= 40) return;
      for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
        if (free_[g].empty() && !evict_any(g)) return;
      }
      const std::int32_t at = s.length();
      s.tokens.push_back(token);
      for (std::size_t g = 0; g < setup_.groups.size(); ++g) write(s, g, at);
    }
  }

  // In place where that disturbs no reader, else into a copy.
  void write(Sequence& s, std::size_t g, std::int32_t at) {
    const auto logical = static_cast<std::size_t>(at / size_of(g));
    std::vector<std::int32_t>& table = s.tables[g];
    if (logical == table.size()) {
      table.push_back(*acquire(g, s.id));
    } else {
      const std::int32_t tail = table[logical];
      const Block& there = block(g, tail);
      const bool in_place =
          naive::length(there.text) == at && (there.writer == s.id || there.refs == 1);
      if (!in_place) {
        table[logical] = *acquire(g, s.id);
        let_go(g, tail);
        settle(g);
      }
    }
    Block& mine = block(g, table[logical]);
    mine.writer = s.id;
    mine.text = text_of(s.tokens, s.media);
  }

  // What the rules say of a block that is offered, before the tree hears of it.
  struct Offered {
    std::size_t group;
    std::int32_t block;
    std::int32_t begin;
    Entry entry;
    bool behind_gap;
    bool reaches;                         // its own entry
    bool has_equal;                       // another block has an entry with this text
    bool kept_equal;                      // and one that does not give way
    bool covered;                         // by a longer entry that begins with the text
    std::vector<std::int32_t> gives_way;  // blocks with equal entries
    std::vector<std::int32_t> shorter;    // blocks whose entries the text begins with

    [[nodiscard]] bool may_hang() const { return !behind_gap && !reaches; }
    [[nodiscard]] bool must_hang() const { return may_hang() && !kept_equal && !covered; }
  };
  [[nodiscard]] bool draws_held(std::size_t g, std::int32_t b) const {
    const std::uint32_t drawn = held_salt_ + static_cast<std::uint32_t>(g) * 7919u +
                                static_cast<std::uint32_t>(b) * 2654435761u;
    return blocks_[g][static_cast<std::size_t>(b)].refs > 0 && (drawn >> 13) % 4 != 0;
  }
  Offered before_offer(const Sequence& s, std::size_t g, std::int32_t b, std::int32_t end) {
    const Text text = first(text_of(s.tokens, s.media), end);
    const auto root = static_cast<std::int32_t>(s.root);
    const auto own = model_.by_block[g].find(b);
    Offered offered{
        .group = g,
        .block = b,
        .begin = model_.logical(g, text) * size_of(g),
        .entry = {root, text, false},
        .behind_gap = false,
        .reaches = own != model_.by_block[g].end() && naive::length(own->second.text) >= end,
        .has_equal = false,
        .kept_equal = false,
        .covered = false,
        .gives_way = {},
        .shorter = {}};
    for (const auto& [other, e] : model_.by_block[g]) {
      if (e.root != root || model_.logical(g, e.text) != model_.logical(g, text)) continue;
      const std::int32_t same = naive::common(e.text, text);
      offered.covered |= same == end && naive::length(e.text) > end;
      if (e.text == text && other != b) {
        const bool gives_way = e.idle || !draws_held(g, other);
        offered.has_equal = true;
        offered.kept_equal |= !gives_way;
        if (gives_way) offered.gives_way.push_back(other);
      }
      if (same == naive::length(e.text) && same < end && other != b) {
        offered.shorter.push_back(other);
      }
    }
    return offered;
  }
  // The blocks of one group, the first one first: in a full group each waits for the one before it.
  void before_offers(const Sequence& s, std::size_t g, std::int32_t from, std::int32_t target,
                     bool tail, std::vector<Offered>& offers) {
    const std::int32_t size = size_of(g);
    const Text text = text_of(s.tokens, s.media);
    bool is_there = true;  // the whole block before this one
    for (std::int32_t i = from / size; i * size < target; ++i) {
      const std::int32_t end = std::min((i + 1) * size, target);
      if (end != (i + 1) * size && !tail) break;
      if (i > 0 && i == from / size) {
        is_there = model_.keeper(g, static_cast<std::int32_t>(s.root), first(text, i * size)) >= 0;
      }
      const std::int32_t b = s.tables[g][static_cast<std::size_t>(i)];
      if (b >= 0) {
        Offered offered = before_offer(s, g, b, end);
        offered.behind_gap = model_.full(g) && !is_there;
        is_there = offered.reaches || offered.has_equal || offered.may_hang();
        offers.push_back(std::move(offered));
      } else {
        is_there = model_.keeper(g, static_cast<std::int32_t>(s.root), first(text, end)) >= 0;
      }
    }
  }
  void after_offers(const std::vector<Offered>& offers, const Published& published) {
    Published expected;
    std::map<std::pair<std::size_t, std::int32_t>, std::int32_t> must_go;  // to their successors
    std::map<std::pair<std::size_t, std::int32_t>, std::int32_t> may_go;
    for (const Offered& o : offers) {
      const std::int32_t end = naive::length(o.entry.text);
      const bool is_hung = !o.reaches && tree_.findable_end(id(o.group), BlockId(o.block)) == end;
      // A tail that ends inside a unit may hang beside an equal entry or a longer one that begins
      // with it: the path up to a border of units is the same for all, and it ends behind that. A
      // tail of a window group may hang in a gap above a longer one.
      const bool loose = end % tree_.unit() != 0;
      const bool may_be_covered = loose || !model_.full(o.group);
      EXPECT_TRUE(is_hung || !o.must_hang());
      EXPECT_TRUE(!is_hung ||
                  (o.may_hang() && (!o.kept_equal || loose) && (!o.covered || may_be_covered)));
      expected.has_gap |= o.behind_gap;
      if (!is_hung && !o.reaches) {
        expected.missed_from = std::min(expected.missed_from, o.begin);
        continue;
      }
      if (!is_hung) continue;
      ++expected.num_hung;
      EXPECT_EQ(std::count(hung_.begin(), hung_.end(), std::pair(o.group, o.block)), 1);
      Entry entry = o.entry;
      entry.read = inherited_[{o.group, o.block}];
      model_.by_block[o.group].insert_or_assign(o.block, entry);
      for (const std::int32_t b : o.gives_way) {
        (loose ? may_go : must_go)[{o.group, b}] = o.block;
        ++num_gave_way_;
      }
      for (const std::int32_t b : o.shorter) may_go[{o.group, b}] = o.block;
    }
    EXPECT_EQ(published.num_hung, expected.num_hung);
    EXPECT_EQ(hung_.size(), expected.num_hung);
    EXPECT_EQ(published.has_gap, expected.has_gap);
    EXPECT_EQ(published.missed_from, expected.missed_from);
    num_gaps_ += published.has_gap ? 1 : 0;
    for (const Unhung& gone : unhung_) {
      const std::pair key(gone.group, gone.block);
      const auto which = must_go.count(key) != 0 ? must_go.find(key) : may_go.find(key);
      ASSERT_NE(which, may_go.end()) << "block " << gone.block << " gave way for nothing";
      EXPECT_EQ(gone.successor, which->second);
      must_go.erase(key);
    }
    EXPECT_TRUE(must_go.empty());
    // What stays hangs beside.
    for (const auto& [key, successor] : may_go) {
      const auto& entries = model_.by_block[key.first];
      const auto stays = entries.find(key.second);
      EXPECT_TRUE(stays == entries.end() || naive::length(stays->second.text) % tree_.unit() != 0);
    }
  }

  void publish(Sequence& s, bool tail) {
    if (!s.place.valid()) return;
    const std::int32_t unit = tree_.unit();
    const std::int32_t target = tail ? s.length() : s.length() / unit * unit;
    const std::int32_t at = s.place.position;
    const std::int32_t again =
        pick(0, 1) == 0 ? std::numeric_limits<std::int32_t>::max() : pick(0, s.length());
    if (target == at && !tail && again >= at) return;
    held_salt_ = static_cast<std::uint32_t>(random_());
    std::vector<std::span<const std::int32_t>> tables;
    std::vector<Offered> offered;
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      tables.emplace_back(s.tables[g]);
      before_offers(s, g, std::min(at, again), target, tail, offered);
    }
    unhung_.clear();
    inherited_.clear();
    Published published;
    const Place before = s.place;
    const std::span<const std::int32_t> tokens(s.tokens.data() + at,
                                               static_cast<std::size_t>(target - at));
    if (!tree_.extend(s.place, tokens, media_[s.media], {tables, again, tail}, published)) {
      ++num_refused_;
      EXPECT_EQ(published.num_hung, 0u);
      EXPECT_FALSE(tree_.has_changes());
      EXPECT_EQ(s.place.position, before.position);
      if (pick(0, 1) == 0) tree_.leave(s.place);
      return;
    }
    hung_.clear();
    drain(&published);
    after_offers(offered, published);
    EXPECT_EQ(s.place.position, target / unit * unit);
    note_branches(s, at);
  }

  // The tree does by itself what this says. It may see paths part where they did: a place keeps a
  // run that was split in front of it until it is used.
  void note_branches(const Sequence& s, std::int32_t from) {
    std::vector<Text> strings;
    for (const auto& entries : model_.by_block) {
      for (const auto& [b, e] : entries) {
        if (e.root == static_cast<std::int32_t>(s.root)) strings.push_back(e.text);
      }
    }
    const auto add = [&](const Sequence& each) {
      if (each.root != s.root || !each.place.valid()) return;
      strings.push_back(first(text_of(each.tokens, each.media), each.place.position));
    };
    for (const Sequence& each : sequences_) add(each);
    add(s);
    const Text text = first(text_of(s.tokens, s.media), s.place.position);
    const std::int32_t unit = tree_.unit();
    for (std::int32_t q = from; q <= s.place.position; q += unit) {
      const bool part = naive::Prefixes::part_at(text, q, unit, strings);
      num_branches_ += part ? 1 : 0;
      model_.note_end(static_cast<std::int32_t>(s.root), first(text, q), q, part);
    }
  }

  // Blocks of a sequence, or any blocks of a group.
  void note_end(const Sequence& s) {
    if (s.place.valid() && pick(0, 2) != 0) {
      const std::int32_t p = pick(0, s.length() + 3);
      tree_.note_end(s.place, p);
      model_.note_end(static_cast<std::int32_t>(s.root),
                      first(text_of(s.tokens, s.media), s.place.position), p, true);
    } else {
      const auto g = static_cast<std::size_t>(pick(0, num_groups() - 1));
      std::vector<std::int32_t> some = {-1};
      for (int n = pick(0, 3); n > 0; --n) some.push_back(pick(0, setup_.groups[g].num_blocks - 1));
      tree_.note_read(id(g), some);
      for (auto& [b, e] : model_.by_block[g]) {
        const bool is_whole = naive::length(e.text) % size_of(g) == 0 && !model_.full(g);
        e.read |= is_whole && std::find(some.begin(), some.end(), b) != some.end();
      }
    }
    drain();
  }

  void fork(const Sequence& parent) {
    if (sequences_.size() >= 6) return;
    Sequence child = parent;
    child.id = next_id_++;
    if (parent.place.valid()) {
      Place place = parent.place;
      child.place = tree_.copy(place);
    }
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) hold(g, child.tables[g]);
    sequences_.push_back(std::move(child));
  }

  void give_back(Sequence& s, std::size_t g, std::size_t logical) {
    std::int32_t& b = s.tables[g][logical];
    if (b < 0) return;
    let_go(g, b);
    b = -1;
  }

  void truncate(Sequence& s) {
    const std::int32_t n = pick(0, s.length());
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      if (n > 0 && s.tables[g][static_cast<std::size_t>((n - 1) / size_of(g))] < 0) return;
    }
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      const auto keep = static_cast<std::size_t>((n + size_of(g) - 1) / size_of(g));
      while (s.tables[g].size() > keep) {
        give_back(s, g, s.tables[g].size() - 1);
        s.tables[g].pop_back();
      }
      settle(g);
    }
    s.tokens.resize(static_cast<std::size_t>(n));
    if (s.place.valid() && s.place.position > n)
      tree_.climb(s.place, n / tree_.unit() * tree_.unit());
  }

  void drop_behind_windows(Sequence& s) {
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      if (model_.full(g)) continue;
      const std::int32_t begin = model_.window_begin(g, s.length(), 1);
      for (std::int32_t i = 0; (i + 1) * size_of(g) <= begin; ++i) {
        if (i * size_of(g) >= setup_.groups[g].num_sinks) {
          give_back(s, g, static_cast<std::size_t>(i));
        }
      }
      settle(g);
    }
  }

  // As a trim does, which leaves holes in the table of a full group too: what is dropped there lies
  // above busy blocks.
  void drop_some(Sequence& s) {
    const auto g = static_cast<std::size_t>(pick(0, num_groups() - 1));
    const auto size = static_cast<int>(s.tables[g].size());
    if (size < 2) return;
    for (int i = pick(0, size - 2), n = pick(1, 3); n > 0 && i < size - 1; ++i, --n) {
      give_back(s, g, static_cast<std::size_t>(i));
    }
    settle(g);
  }

  void close(std::size_t index) {
    Sequence s = std::move(sequences_[index]);
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(index));
    publish(s, pick(0, 4) != 0);
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      for (std::size_t i = s.tables[g].size(); i-- > 0;) give_back(s, g, i);
      settle(g);
    }
    if (s.place.valid()) tree_.leave(s.place);
  }

  // Any of those that eviction may take.
  bool evict_any(std::size_t g) {
    if (told_[g].empty()) return false;
    const auto [victim, candidate] =
        *std::next(told_[g].begin(), pick(0, static_cast<int>(told_[g].size()) - 1));
    num_heads_ += candidate == Candidate::kHead ? 1 : 0;
    unhang(g, victim);
    // A leaf goes alone, in its group.
    if (candidate == Candidate::kLeaf) {
      for (const Unhung& gone : unhung_) EXPECT_TRUE(gone.group != g || gone.block == victim);
    } else {
      for (const Unhung& gone : unhung_) {
        EXPECT_TRUE(gone.group != g || gone.block == victim || !gone.entry.idle);
      }
    }
    return true;
  }

  void unhang_any(std::size_t g) {
    const auto& entries = model_.by_block[g];
    if (entries.empty()) return;
    unhang(g, std::next(entries.begin(), pick(0, static_cast<int>(entries.size()) - 1))->first);
  }

  // All that begins with a string, and nothing else.
  void forget_any() {
    Prompt prompt = random_prompt();
    if (pick(0, 9) == 0) prompt.tokens.clear();
    const std::int32_t root = tree_.find_root(key(prompt.root));
    if (root < 0) return;
    const Text text = text_of(prompt.tokens, prompt.media);
    std::set<std::pair<std::size_t, std::int32_t>> must_go;
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      for (const auto& [b, e] : model_.by_block[g]) {
        const bool goes = e.root == static_cast<std::int32_t>(prompt.root) &&
                          naive::common(e.text, text) == naive::length(text);
        EXPECT_EQ(tree_.begins_with(id(g), BlockId(b), root, prompt.tokens, media_[prompt.media]),
                  goes);
        if (goes) must_go.insert({g, b});
      }
    }
    unhung_.clear();
    Place kept = tree_.enter(root, 0);
    tree_.forget(root, prompt.tokens, media_[prompt.media]);
    drain();
    tree_.leave(kept);
    for (const Unhung& gone : unhung_) {
      EXPECT_EQ(must_go.erase({gone.group, gone.block}), 1u) << "block " << gone.block;
    }
    EXPECT_TRUE(must_go.empty());
  }

  void unhang(std::size_t g, std::int32_t b) {
    const Entry out = model_.by_block[g].at(b);
    std::set<std::pair<std::size_t, std::int32_t>> must_go = {{g, b}};
    std::set<std::pair<std::size_t, std::int32_t>> may_go;
    for (std::size_t h = 0; h < setup_.groups.size(); ++h) {
      for (const auto& [other, e] : model_.by_block[h]) {
        if (h == g && other == b) continue;
        const auto along = model_.along(g, out, h, e, tree_.unit());
        if (along == naive::Prefixes::Along::kYes) must_go.insert({h, other});
        if (along == naive::Prefixes::Along::kMaybe) may_go.insert({h, other});
      }
    }
    unhung_.clear();
    tree_.unhang(id(g), BlockId(b));
    drain();
    ASSERT_FALSE(unhung_.empty());
    EXPECT_EQ(unhung_.back().block, b);
    for (const Unhung& gone : unhung_) {
      EXPECT_EQ(gone.successor, -1);
      const std::pair key(gone.group, gone.block);
      EXPECT_EQ(must_go.erase(key) + may_go.count(key), 1u) << "block " << gone.block;
      // No prompt reaches it: the full group serves nothing of its last unit.
      if (key != std::pair(g, b)) expect_unreachable(g, model_.logical(g, out.text), gone);
    }
    EXPECT_TRUE(must_go.empty());
  }

  void expect_unreachable(std::size_t g, std::int32_t logical, const Unhung& gone) {
    const std::int32_t unit = tree_.unit();
    const Query q{gone.entry.root, gone.entry.text, {}};
    EXPECT_GE(model_.logical(gone.group, q.text) * size_of(gone.group), logical * size_of(g));
    EXPECT_LT(model_.reach(g, q, logical, false) / unit * unit,
              std::min((logical + 1) * size_of(g), (naive::length(q.text) - 1) / unit * unit + 1));
  }

  // ---- checks ----

  void check() {
    const Status ok = tree_.check_invariants();
    ASSERT_TRUE(ok.ok()) << ok.message();
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      const auto& entries = model_.by_block[g];
      std::int32_t num_idle = 0;
      for (const auto& [b, e] : entries) {
        num_idle += e.idle ? 1 : 0;
        const auto at = told_[g].find(b);
        const Candidate told = at == told_[g].end() ? Candidate::kNone : at->second;
        const Candidate expected = model_.candidate(g, e);
        if (told == expected) continue;
        // A tail that ends inside a unit may hang on one path while others begin with it: what
        // the tree sees below it is less than what its text says.
        const bool loose = e.idle && naive::length(e.text) % tree_.unit() != 0;
        ASSERT_TRUE(loose && expected != Candidate::kLeaf && told != Candidate::kNone)
            << "block " << b;
      }
      for (const auto& [b, candidate] : told_[g]) ASSERT_EQ(entries.count(b), 1u);
      for (auto& [b, e] : model_.by_block[g]) {
        const bool is_read = tree_.is_read(id(g), BlockId(b));
        ASSERT_TRUE(is_read == e.read || e.maybe_read)
            << "block " << b << " of group " << g << " that ends at " << e.text.size();
        num_read_ += is_read && !e.read ? 1 : 0;
        e.read = is_read;
        e.maybe_read = false;
      }
      ASSERT_EQ(tree_.num_idle(id(g)), num_idle);
      check_no_gaps(g);
      for (std::int32_t b = 0; b < setup_.groups[g].num_blocks; ++b) {
        const auto entry = entries.find(b);
        const std::int32_t end = entry == entries.end() ? 0 : naive::length(entry->second.text);
        ASSERT_EQ(tree_.findable_end(id(g), BlockId(b)), end) << "group " << g << " block " << b;
      }
    }
    for (const Sequence& s : sequences_) {
      if (!s.place.valid()) continue;
      std::vector<std::int32_t> kept(static_cast<std::size_t>(s.place.position));
      tree_.copy_tokens(s.place, 0, kept);
      ASSERT_TRUE(std::equal(kept.begin(), kept.end(), s.tokens.begin()));
    }
    if (const Sequence* s = any(); s != nullptr && s->place.valid()) check_entries_at(*s);
  }

  void check_no_gaps(std::size_t g) {
    if (!model_.full(g)) return;
    for (const auto& [b, e] : model_.by_block[g]) {
      const std::int32_t begin = model_.logical(g, e.text) * size_of(g);
      ASSERT_TRUE(begin == 0 || model_.keeper(g, e.root, first(e.text, begin)) >= 0)
          << "block " << b << " of group " << g;
    }
  }

  void check_entries_at(const Sequence& s) {
    const Text text = text_of(s.tokens, s.media);
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      for (std::int32_t i = 0; (i + 1) * size_of(g) <= s.place.position; ++i) {
        ASSERT_EQ(
            tree_.entry_at(s.place, id(g), i).value(),
            model_.keeper(g, static_cast<std::int32_t>(s.root), first(text, (i + 1) * size_of(g))));
      }
    }
  }

  void ask(const Prompt& prompt) {
    const std::int32_t root = tree_.find_root(key(prompt.root));
    if (root < 0) return;
    const Query q{static_cast<std::int32_t>(prompt.root), text_of(prompt.tokens, prompt.media),
                  media_[prompt.media]};
    const auto n = static_cast<std::int32_t>(prompt.tokens.size());
    const bool allow_whole = pick(0, 1) == 0;
    const std::int32_t limit = allow_whole ? n - 1 : pick(0, n);
    const PrefixMatch match = tree_.match(root, prompt.tokens, q.media, limit, allow_whole);
    const bool may_be_whole = allow_whole && model_.longest(q, n, 1, false) == n &&
                              !naive::Prefixes::inside_span(q, n - 1);
    const bool must_be_whole = may_be_whole && model_.longest(q, n, 1, true) == n;
    ASSERT_LE(match.whole, may_be_whole);
    ASSERT_GE(match.whole, must_be_whole);
    if (match.whole) {
      ASSERT_EQ(match.tokens, n - 1);
    } else {
      ASSERT_LE(match.tokens, model_.longest(q, limit, 0, false));
      ASSERT_GE(match.tokens, model_.longest(q, limit, 0, true));
      if (setup_.exact) {
        ASSERT_EQ(match.tokens, model_.longest(q, limit, 0, false));
        ASSERT_EQ(match.whole, may_be_whole);
      }
    }
    hits_ += match.tokens > 0 ? 1 : 0;
    whole_ += match.whole ? 1 : 0;
    check_tables(q, match);
  }

  void check_tables(const Query& q, const PrefixMatch& match) {
    const std::int32_t held = match.held_tokens();
    for (std::size_t g = 0; g < setup_.groups.size(); ++g) {
      const std::int32_t size = size_of(g);
      std::vector<std::int32_t> table(static_cast<std::size_t>((held + size - 1) / size), 12345);
      tree_.fill_table(match, id(g), table);
      const std::int32_t begin = model_.window_begin(g, held, match.whole ? 1 : 0);
      for (std::int32_t i = 0; i * size < held; ++i) {
        const std::int32_t b = table[static_cast<std::size_t>(i)];
        const std::int32_t end = (i + 1) * size;
        const bool sinks = !model_.full(g) && i * size < setup_.groups[g].num_sinks;
        if (!sinks && end <= begin) {
          ASSERT_EQ(b, -1);
          continue;
        }
        ASSERT_EQ(model_.by_block[g].count(b), 1u) << "logical " << i << " of group " << g;
        const Entry& entry = model_.by_block[g].at(b);
        ASSERT_EQ(entry.root, q.root);
        ASSERT_EQ(model_.logical(g, entry.text), i);
        ASSERT_GE(naive::common(entry.text, q.text), std::min(end, held));
      }
    }
  }

 public:
  int hits_ = 0;
  int whole_ = 0;
  int num_refused_ = 0;
  int num_gaps_ = 0;
  int num_gave_way_ = 0;
  int num_heads_ = 0;
  int num_branches_ = 0;
  int num_read_ = 0;  // where the model was not sure

 private:
  Setup setup_;
  std::mt19937 random_;
  naive::Prefixes model_;
  PrefixTree tree_;
  std::vector<std::vector<MediaSpan>> media_;
  std::vector<std::vector<Block>> blocks_;  // per group
  std::vector<std::vector<std::int32_t>> free_;
  std::vector<std::vector<std::int32_t>> let_go_;        // the tree takes them for busy
  std::vector<std::map<std::int32_t, Candidate>> told_;  // candidates, by the tree
  std::vector<Sequence> sequences_;
  std::vector<Prompt> asked_;
  std::vector<Unhung> unhung_;
  std::vector<std::pair<std::size_t, std::int32_t>> hung_;
  std::map<std::pair<std::size_t, std::int32_t>, bool> inherited_;  // by successors
  std::uint32_t held_salt_ = 0;
  std::int32_t next_id_ = 0;
};

// KVFOLIO_TREE_SEEDS: more worlds, by hand.
std::uint32_t num_seeds() {
  const char* seeds = std::getenv("KVFOLIO_TREE_SEEDS");
  return seeds == nullptr ? 10 : static_cast<std::uint32_t>(std::strtoul(seeds, nullptr, 10));
}

class PrefixTreeAgainstNaive : public ::testing::TestWithParam<Setup> {};

TEST_P(PrefixTreeAgainstNaive, AnswersCandidatesAndCountsAgreeAfterEachOperation) {
  int hits = 0;
  int refused = 0;
  int gaps = 0;
  int gave_way = 0;
  int heads = 0;
  int branches = 0;
  int unsure = 0;
  for (std::uint32_t seed = 1; seed <= num_seeds(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(GetParam(), seed);
    for (int i = 0; i < 1000; ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      world.step();
      if (HasFailure()) return;
    }
    world.finish();
    if (HasFailure()) return;
    hits += world.hits_;
    refused += world.num_refused_;
    gaps += world.num_gaps_;
    gave_way += world.num_gave_way_;
    heads += world.num_heads_;
    branches += world.num_branches_;
    unsure += world.num_read_;
  }
  EXPECT_GT(hits, 1000);
  if (GetParam().max_index_tokens < 1000 || GetParam().max_media_extents < 10) {
    EXPECT_GT(refused, 10);
  }
  EXPECT_GT(gave_way, 20);
  const auto& groups = GetParam().groups;
  const bool full = std::any_of(groups.begin(), groups.end(), [](const TreeGroup& group) {
    return group.kind == AttentionKind::kFull;
  });
  EXPECT_EQ(heads > 0, full);
  EXPECT_GT(branches, 100);
  EXPECT_LT(unsure, branches / 10);
  EXPECT_TRUE(full ? gaps > 10 : gaps == 0);
}

INSTANTIATE_TEST_SUITE_P(
    Groups, PrefixTreeAgainstNaive,
    ::testing::Values(
        Setup{.name = "OneFullGroupIsExact", .groups = {full_group(4, 40)}, .exact = true},
        Setup{.name = "OneFullGroup", .groups = {full_group(4, 40)}, .alphabet = 3, .media = true},
        Setup{.name = "OneFullGroupOfBlockOne", .groups = {full_group(1, 60)}, .alphabet = 3},
        Setup{.name = "OneWindowGroup", .groups = {window_group(2, 5, 3, 40)}},
        Setup{.name = "OneWindowOfOneToken", .groups = {window_group(2, 1, 0, 40)}},
        Setup{.name = "FullAndWindow", .groups = {full_group(4, 40), window_group(2, 6, 0, 60)}},
        Setup{.name = "FullAndWindowWithMediaAndSinks",
              .groups = {window_group(2, 6, 3, 60), full_group(4, 40)},
              .media = true},
        Setup{.name = "LargeBlocksOverASmallUnit",
              .groups = {full_group(8, 30), window_group(2, 1, 1, 80), full_group(4, 40)}},
        Setup{.name = "FewMediaExtents",
              .groups = {full_group(4, 40), window_group(2, 4, 0, 60)},
              .media = true,
              .max_media_extents = 5},
        Setup{.name = "TinyIndex",
              .groups = {full_group(4, 40), window_group(2, 6, 0, 60)},
              .max_index_tokens = 96,
              .max_runs = 12}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace kvfolio
