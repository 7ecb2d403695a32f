// SPDX-License-Identifier: Apache-2.0
#pragma once

// The naive model that the random check compares the manager with: what each sequence has said, and
// what each slot of memory holds. It knows no tree and no reference counts; what it knows of the
// order of eviction stands in harness_order.cc.
//
// Content of a slot is a node of Trie: one number per (root key, media, tokens, trims so far). Two
// slots hold the same keys and values iff they hold the same node, without any hash to trust. The
// device knows a node by its digest: what the bytes of such a token would be.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "fake_device/fake_device.h"
#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"

namespace kvfolio::model_check {

template <typename Container>
int isize(const Container& container) {
  return static_cast<int>(container.size());
}

class CheckFailed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The text is made on failure only.
#define KVFOLIO_REQUIRE(condition, what)                               \
  do {                                                                 \
    if (!(condition)) throw ::kvfolio::model_check::CheckFailed(what); \
  } while (false)

// splitmix64.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // 0 .. n-1. Requires: n >= 1.
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <typename T>
  const T& pick(const std::vector<T>& values) {
    return values[next() % values.size()];
  }

 private:
  std::uint64_t state_;
};

inline constexpr int kPoison = -1;

class Trie {
 public:
  int root(int root_key) { return intern({-2 - root_key, 0, 0, 0}, true); }
  // `extra`: media at the position, 0 for none. `hole`: what trims had dropped when the token was
  // computed and where its step cut a span that attends to itself, 0 for nothing.
  int child(int parent, int token, int extra, int hole) {
    return intern({parent, token, extra, hole},
                  exact_[static_cast<std::size_t>(parent)] && hole == 0);
  }
  [[nodiscard]] std::uint64_t digest_of(int node) const {
    return digests_[static_cast<std::size_t>(node)];
  }
  // Neither a trim nor a cut span stands behind it: such content may be findable.
  [[nodiscard]] bool exact(int node) const { return exact_[static_cast<std::size_t>(node)]; }
  // A token's position; -1 for a root.
  [[nodiscard]] int position_of(int node) const {
    return positions_[static_cast<std::size_t>(node)];
  }
  // The token at an earlier position of the same path, or at this one.
  [[nodiscard]] int before(int node, int position) const {
    while (position_of(node) > position) node = parents_[static_cast<std::size_t>(node)];
    return node;
  }

 private:
  using Key = std::tuple<int, int, int, int>;
  int intern(const Key& key, bool exact) {
    const auto [found, is_new] = nodes_.try_emplace(key, isize(exact_));
    if (is_new) {
      exact_.push_back(exact);
      const int above = std::get<0>(key);
      parents_.push_back(above);
      positions_.push_back(above < 0 ? -1 : position_of(above) + 1);
      const auto [parent, token, extra, hole] = key;
      // A root has no parent but its key: -2 and below.
      std::uint64_t digest = parent < 0 ? static_cast<std::uint64_t>(parent) : digest_of(parent);
      for (const int part : {token, extra, hole}) {
        digest = Rng(digest ^ static_cast<std::uint32_t>(part)).next();
      }
      digests_.push_back(digest);
    }
    return found->second;
  }
  std::map<Key, int> nodes_;
  std::vector<bool> exact_;
  std::vector<int> parents_;
  std::vector<int> positions_;
  std::vector<std::uint64_t> digests_;
};

// Root keys that only framing and types keep apart.
inline constexpr std::array<RootKey, 6> kRoots = {
    RootKey{.model = "m", .adapter = {}, .adapter_version = {}, .tenant_salt = {}, .epoch = 0},
    RootKey{.model = "m", .adapter = "ab", .adapter_version = {}, .tenant_salt = {}, .epoch = 0},
    RootKey{.model = "m", .adapter = "a", .adapter_version = "b", .tenant_salt = {}, .epoch = 0},
    RootKey{.model = "m", .adapter = {}, .adapter_version = {}, .tenant_salt = "ab", .epoch = 0},
    RootKey{.model = "m", .adapter = {}, .adapter_version = {}, .tenant_salt = {}, .epoch = 1},
    RootKey{.model = {}, .adapter = {}, .adapter_version = {}, .tenant_salt = {}, .epoch = 0},
};

// The callers' own ids that sequences are opened under: few, so that they meet.
inline constexpr std::array<std::uint64_t, 8> kCallerIds = {
    0, 1, 2, 3, 0x7fffffffffffffffull, 0x8000000000000000ull, ~1ull, ~0ull};

// What a prompt is: tokens under a root key with media behind some of them.
struct Prompt {
  int root = 0;
  std::vector<MediaSpan> media;
  bool prefix_cache = true;
  bool look_up = true;
  Publish publish = Publish::kAll;
  bool late_names = false;
  std::vector<std::int32_t> tokens;

  [[nodiscard]] OpenOptions options() const {
    return {.root = kRoots[static_cast<std::size_t>(root)],
            .media = media,
            .prefix_cache = prefix_cache,
            .look_up = look_up,
            .publish = publish,
            .late_names = late_names};
  }
  [[nodiscard]] bool looks() const { return prefix_cache && look_up; }
  [[nodiscard]] bool publishes() const { return prefix_cache && publish != Publish::kNothing; }
  // Another one may look for these tokens, and leave them behind.
  void be_plain() {
    prefix_cache = look_up = true;
    publish = Publish::kAll;
  }
};

// The media at position p as one number: content and offset in the span.
inline int extra_at(const std::vector<MediaSpan>& media, int p) {
  for (const MediaSpan& span : media) {
    if (p >= span.begin && p < span.end) {
      return 1 + static_cast<int>(span.content_id[0]) * 64 + (p - span.begin);
    }
  }
  return 0;
}

// A hit of p tokens ends between p-1 and p.
inline bool splits_self_attending_span(const std::vector<MediaSpan>& media, int p) {
  for (const MediaSpan& span : media) {
    if (span.attends_to_itself && p > span.begin && p < span.end) return true;
  }
  return false;
}

inline std::vector<int> nodes_of(Trie& trie, const Prompt& prompt) {
  std::vector<int> nodes;
  int node = trie.root(prompt.root);
  for (int p = 0; p < isize(prompt.tokens); ++p) {
    node =
        trie.child(node, prompt.tokens[static_cast<std::size_t>(p)], extra_at(prompt.media, p), 0);
    nodes.push_back(node);
  }
  return nodes;
}

// Does the query at position q of this group read position p <= q?
inline bool reads(const GroupSpec& group, int q, int p) {
  return fake_device::attends(group, q, p);
}

// A window group of a sequence of `accepted` tokens keeps position p: a query at some position that
// it may be cut back to reads it, or a later one.
inline bool keeps(const GroupSpec& group, int accepted, int p) {
  const int oldest = std::max(0, accepted - group.rewind);
  return p >= oldest || reads(group, oldest, p);
}

using Tables = std::vector<std::vector<std::int32_t>>;  // [group][logical block]

// One sequence as its owner knows it.
struct Seq {
  SequenceId id;
  int number = 0;                      // of the log
  Prompt prompt;                       // .tokens: what the owner means to say, at least at first
  std::vector<std::int32_t> tokens;    // said so far, with those of the open step
  std::vector<char> named;             // 1: the manager knows it, 0: it waits, 2: it never will
  std::vector<int> nodes;              // content of each position
  std::vector<std::uint64_t> tickets;  // step that computed each position; 0: found
  int committed = 0;
  int accepted = 0;
  int open_draft = 0;
  // Appends that accept() has yet to decide on, the oldest first: where each ends, and how many of
  // its last tokens are guesses.
  struct Undecided {
    int end;
    int draft;
  };
  std::vector<Undecided> drafts;
  bool in_step = false;
  bool fresh = true;             // opened, not appended to
  bool windows_moved = false;    // committed or accepted once
  bool used = false;             // what it lets go of becomes the warmest
  bool maybe_used = false;       // it was cut to its length, and may have given up its last token
  bool maybe_whole = false;      // its prompt may have been found whole, and no token came since
  bool forgotten = false;        // it runs on a path that was forgotten: it publishes nothing more
  bool maybe_forgotten = false;  // the same, if its prompt was found whole
  // reserve(): tokens that are still promised, and at most in a step. Not certain after what may
  // need blocks that the promise does not have.
  int promised = 0;
  std::vector<char> of_promise;  // by position: 1, the token used one up
  int most_per_step = 0;
  bool certain = false;
  bool adopted = false;  // its first tokens came as blocks: nothing of it is findable
  // What the manager knows of its prompt: which tokens it has, and that the sequence has what
  // open(), or loads behind it, found of it; -1: a step came since.
  std::vector<std::int32_t> known_prompt;
  int stands = 0;
  int cached = 0;               // cached_tokens of open()
  int prompt_end = 0;           // the last position of its prompt; 0 once it was cut back before
  std::uint64_t last_step = 0;  // newest step that it, or what it was forked from, took part in
  bool publishes_late = true;   // closed, waits for its step, and is among the first that do
  int published_at_close = 0;   // tokens that stood on the tree then; its blocks were let go
  int sinks = 0;                // positions [sinks, first_kept) are trimmed away
  int first_kept = 0;
  int rewinds = 0;               // how often committed tokens were cut
  int rewind_base = 0;           // what open(), adopt() or a load gave, or the cut since
  std::uint64_t row_ticket = 0;  // newest committed step whose plan has its row
  Tables tables;                 // as last seen
  // Closed, and waits for its step: the blocks of its border, which it took back into its tables.
  Tables taken_back;
  std::optional<std::uint64_t> caller_id;
  int max_tokens = 0;  // 0: no limit of its own
  std::int32_t priority = 0;
  std::uint64_t last_use = 0;  // tick
  std::uint64_t use_count = 0;
  // What it announces of its prompt; empty: nothing any more. It may have stopped, if some
  // publication was skipped since.
  std::vector<std::int32_t> announced;
  bool maybe_silent = false;

  [[nodiscard]] int length() const { return isize(tokens); }
  [[nodiscard]] int undecided() const { return committed - accepted; }
  // Guesses that accept() decides on next.
  [[nodiscard]] int next_draft() const { return drafts.empty() ? 0 : drafts.front().draft; }
  // Tokens of the promise that went to positions from n on.
  [[nodiscard]] int spent_behind(int n) const {
    int count = 0;
    for (int p = n; p < isize(of_promise); ++p) count += of_promise[static_cast<std::size_t>(p)];
    return count;
  }
  // There is a promise: something is left of it, or may come back with a draft that is rejected.
  [[nodiscard]] bool has_promise() const { return promised > 0 || spent_behind(accepted) > 0; }
  // `count` tokens more are too many.
  [[nodiscard]] bool is_full_for(int count) const {
    return max_tokens > 0 && count > max_tokens - length();
  }
  [[nodiscard]] bool dropped(int p) const { return p >= sinks && p < first_kept; }
  [[nodiscard]] int hole() const { return first_kept > sinks ? sinks * 65536 + first_kept : 0; }
  [[nodiscard]] int unnamed() const {
    int count = 0;
    for (const char is_named : named) count += is_named == 0 ? 1 : 0;
    return count;
  }
  // Unnamed tokens lie in stretches. One more token without a name needs a new one, unless the last
  // token waits too.
  [[nodiscard]] bool has_room_for_unnamed(int most_stretches) const {
    int stretches = 0;
    for (int p = 0; p < length(); ++p) {
      const auto at = static_cast<std::size_t>(p);
      if (named[at] == 0 && (p == 0 || named[at - 1] != 0)) ++stretches;
    }
    return stretches < most_stretches || (!named.empty() && named.back() == 0);
  }
  [[nodiscard]] int first_unnamed() const {
    int p = 0;
    while (p < length() && named[static_cast<std::size_t>(p)] != 0) ++p;
    return p;
  }
  // Tokens of `ticket`, which ended, that have no name by now never get one.
  void lose_names(std::uint64_t ticket, bool failed) {
    if (prompt.late_names && !failed) return;
    for (std::size_t p = 0; p < named.size(); ++p) {
      if (tickets[p] == ticket && named[p] == 0) named[p] = 2;
    }
  }
  void say(Trie& trie, std::int32_t token, bool is_named, std::uint64_t ticket) {
    const int parent = nodes.empty() ? trie.root(prompt.root) : nodes.back();
    nodes.push_back(trie.child(parent, token, extra_at(prompt.media, length()), hole()));
    tokens.push_back(token);
    named.push_back(is_named ? 1 : 0);
    tickets.push_back(ticket);
  }
  // A step computed [begin, length()): what it holds of a span that attends to itself, but not all
  // of, is content of its own.
  void cut_spans(Trie& trie, int begin) {
    for (int p = begin; p < length(); ++p) {
      int cut = 0;
      for (const MediaSpan& span : prompt.media) {
        const bool whole = begin <= span.begin && span.end <= length();
        if (span.attends_to_itself && p >= span.begin && p < span.end && !whole) cut = length();
      }
      const auto at = static_cast<std::size_t>(p);
      const int parent = p == 0 ? trie.root(prompt.root) : nodes[at - 1];
      nodes[at] = trie.child(parent, tokens[at], extra_at(prompt.media, p), hole() + (cut << 23));
    }
  }
  void forget_from(int n) {
    const auto keep = static_cast<std::size_t>(n);
    tokens.resize(keep);
    named.resize(keep);
    nodes.resize(keep);
    tickets.resize(keep);
    if (of_promise.size() > keep) of_promise.resize(keep);
    committed = std::min(committed, n);
    accepted = std::min(accepted, n);
    // An append that loses its last guesses is decided, unless it stands behind others.
    while (!drafts.empty() && drafts.back().end > n) {
      Undecided& last = drafts.back();
      const int begin = drafts.size() > 1 ? drafts[drafts.size() - 2].end : 0;
      last.draft = std::max(0, last.draft - (last.end - n));
      last.end = n;
      if (n > begin && (last.draft > 0 || drafts.size() > 1)) break;
      drafts.pop_back();
    }
    if (n < stands) stands = -1;
    // The hole is gone when nothing behind it is left.
    if (n <= sinks || first_kept <= sinks) sinks = first_kept = 0;
    if (n == 0) adopted = false;
  }
};

// What a hit that ends before position q holds: where that lies inside a block the token before it,
// read or not.
inline bool hit_needs(const GroupSpec& group, int q, int p) {
  return reads(group, q, p) || (p == q - 1 && q % group.block_size != 0);
}

// Nothing that the query at position n reads lies in logical block j of this group.
inline bool droppable(const GroupSpec& group, const Seq& seq, int n, int j) {
  for (int p = j * group.block_size; p < (j + 1) * group.block_size; ++p) {
    if (!seq.dropped(p) && (p >= n || reads(group, n, p))) return false;
  }
  return true;
}

// What a slot of memory holds, and the step that wrote it.
struct Cell {
  int node = kPoison;
  std::uint64_t ticket = 0;
};

// What the model has to know of a step until it is complete.
struct StepWork {
  struct Row {
    std::shared_ptr<Seq> seq;
    int begin = 0;  // positions [begin, end) are computed
    int end = 0;
    std::vector<int> nodes;  // expected content of positions [0, end)
    Tables tables;
    // [group]: the block of the last token of a full hit, when another token came; or -1.
    std::vector<std::int32_t> displaced;
    std::int32_t row = -1;  // of the plan
  };
  struct Group {
    std::vector<std::int32_t> slots;
    std::vector<std::int32_t> copy_src;
    std::vector<std::int32_t> copy_dst;
    std::vector<char> touched;  // [num_blocks]
  };
  std::uint64_t ticket = 0;
  std::vector<Row> rows;
  std::vector<Group> groups;
};

}  // namespace kvfolio::model_check
