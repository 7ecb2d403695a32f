// SPDX-License-Identifier: Apache-2.0

// PrefixTree alone: how fast prompts are compared with what is known, in random order over a tree
// that no cache holds. The queries themselves are warm, as a prompt is that was just read.

#include <algorithm>
#include <cstring>
#include <fstream>

#include "family.h"
#include "kvfolio/prefix_tree.h"
#include "prompts.h"

namespace kvfolio::bench {

// A virtual machine's CPUID may count the caches of all sockets; the kernel knows this core's.
std::int32_t blocks_beyond_cache() {
  std::int64_t kib = 0;
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  if (!(file >> kib) || kib <= 0) kib = std::int64_t{32} << 10;
  kib = std::min(kib, std::int64_t{256} << 10);
  return static_cast<std::int32_t>(4 * 1024 * kib / (kBlockSize * 4));
}

namespace {

constexpr std::int32_t kSide = 1 << 30;  // prompts that branch off, so that runs end

class Forest {
 public:
  // `num_prompts` of `blocks` blocks each; every run_blocks blocks another prompt branches off.
  Forest(std::int32_t num_prompts, std::int32_t blocks, std::int32_t run_blocks)
      : prompts_(num_prompts), blocks_(blocks), run_blocks_(run_blocks) {
    const std::int32_t branches = (blocks - 1) / run_blocks;
    const std::int32_t num_blocks = num_prompts * (blocks + branches);
    PrefixTreeOptions options;
    options.groups = {{.block_size = kBlockSize, .num_blocks = num_blocks}};
    options.max_index_tokens = std::int64_t{2} * num_blocks * kBlockSize;
    options.max_runs = 2 * num_prompts * (branches + 1) + 16;
    options.max_root_keys = 1;
    tree_.push_back(take(PrefixTree::create(options), "a tree"));
    root_ = tree().make_root({});
    anchor_ = tree().enter(root_, 0);
    std::int32_t next_block = 0;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(blocks) * kBlockSize);
    for (std::int32_t p = 0; p < num_prompts; ++p) {
      write_prompt(p, tokens);
      insert(tokens, 0, next_block);
    }
    // Later requests branch off anywhere, so the runs of one prompt do not lie side by side.
    for (const std::int32_t i : shuffled(num_prompts * branches, 3)) {
      const std::int32_t p = i / branches;
      const std::int32_t at = (i % branches + 1) * run_blocks;
      tokens.resize(static_cast<std::size_t>(at + 1) * kBlockSize);
      write_prompt(p, tokens);
      write_block(kSide + p, at, tokens.data() + std::size_t(at) * kBlockSize);
      insert(tokens, at, next_block);
    }
    require(next_block == num_blocks, "every block hangs on the tree");
  }

  PrefixTree& tree() { return tree_[0]; }
  [[nodiscard]] std::int32_t root() const { return root_; }
  [[nodiscard]] std::int32_t prompts() const { return prompts_; }
  [[nodiscard]] std::int32_t blocks() const { return blocks_; }

  void check() {
    require(tree().num_runs() == 1 + prompts_ * (1 + 2 * ((blocks_ - 1) / run_blocks_)),
            "the tree has as many runs as were meant");
    Random random(4);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(blocks_) * kBlockSize + 1);
    for (int i = 0; i < 100; ++i) {
      // The prompt goes on otherwise from a random position on.
      const auto p = static_cast<std::int32_t>(random.below(prompts_));
      write_prompt(p, {tokens.data(), tokens.size() - 1});
      tokens.back() = 0;
      const std::int64_t same = random.below(static_cast<std::int64_t>(tokens.size()));
      tokens[static_cast<std::size_t>(same)] ^= 0x20000000;
      const PrefixMatch found = tree().match(root_, tokens, {}, 1 << 30, false);
      // Sharing less than its first tokens with the prompts that branch off.
      require(found.tokens == same,
              "match finds " + std::to_string(found.tokens) + " tokens of " + std::to_string(same));
    }
  }

 private:
  void insert(std::span<const std::int32_t> tokens, std::int32_t first_new,
              std::int32_t& next_block) {
    table_.assign(tokens.size() / kBlockSize, -1);
    for (std::size_t i = static_cast<std::size_t>(first_new); i < table_.size(); ++i) {
      table_[i] = next_block++;
    }
    Place place = tree().enter(root_, 0);
    const std::span<const std::int32_t> tables[] = {table_};
    Published published;
    require(tree().extend(place, tokens, {}, {.tables = tables}, published), "room in the tree");
    tree().leave(place);
    tree().clear_changes();
    tree().set_idle(GroupId(0), std::span(table_).subspan(static_cast<std::size_t>(first_new)));
    tree().clear_changes();
  }

  std::int32_t prompts_;
  std::int32_t blocks_;
  std::int32_t run_blocks_;
  std::vector<PrefixTree> tree_;
  std::int32_t root_ = -1;
  Place anchor_;
  std::vector<std::int32_t> table_;
};

// All prompts once in random order, some at a time: written out (not timed), then looked up.
class Queries {
 public:
  Queries(std::int32_t prompts, std::int32_t blocks)
      : order_(shuffled(prompts, 5)),
        size_(static_cast<std::size_t>(blocks) * kBlockSize),
        at_once_(std::max<std::size_t>(1, (std::size_t{256} << 10) / (size_ * 4))),
        tokens_(at_once_ * size_) {}

  // ns per block of what `look_up(prompt, tokens)` takes, over a share of the prompts.
  template <typename LookUp>
  double time(LookUp&& look_up) {
    Stopwatch watch;
    std::size_t done = 0;
    const std::size_t share = std::max(at_once_, order_.size() / 4);
    while (done < share) {
      const std::size_t n = std::min(at_once_, order_.size());
      for (std::size_t i = 0; i < n; ++i) {
        write_prompt(order_[(next_ + i) % order_.size()], {tokens_.data() + i * size_, size_});
      }
      watch.start();
      for (std::size_t i = 0; i < n; ++i) {
        look_up(order_[(next_ + i) % order_.size()],
                std::span<const std::int32_t>(tokens_.data() + i * size_, size_));
      }
      watch.stop();
      next_ = (next_ + n) % order_.size();
      done += n;
    }
    const auto blocks = done * size_ / kBlockSize;
    return watch.nanoseconds() / static_cast<double>(blocks);
  }

 private:
  std::vector<std::int32_t> order_;
  std::size_t size_;
  std::size_t at_once_;
  std::size_t next_ = 0;
  std::vector<std::int32_t> tokens_;
};

void measure_match(Session& session, const char* shape, std::int32_t run_blocks, Promise promise) {
  const std::int32_t total = session.size(blocks_beyond_cache(), 1 << 12);
  // Short runs: half of the blocks hang on prompts that branch off.
  const std::int32_t blocks = run_blocks == 1 ? 64 : 256;
  const std::int32_t prompts = total / blocks / (run_blocks == 1 ? 2 : 1);
  Forest forest(prompts, blocks, run_blocks == 0 ? blocks : run_blocks);
  forest.check();
  Queries queries(prompts, blocks);
  // The tokens of the same prompts, back to back.
  const std::size_t prompt_bytes = static_cast<std::size_t>(blocks) * kBlockSize * 4;
  const Buffer plain(static_cast<std::int64_t>(prompt_bytes) * prompts);
  for (std::int32_t p = 0; p < prompts; ++p) {
    auto* to =
        reinterpret_cast<std::int32_t*>(plain.data() + static_cast<std::size_t>(p) * prompt_bytes);
    write_prompt(p, {to, prompt_bytes / 4});
  }
  bool all = true;
  session.measure(
      {.name = "tree.match",
       .facts = {{"runs", shape},
                 {"blocks", std::int64_t{total}},
                 {"prompt_blocks", std::int64_t{blocks}}},
       .promise = promise,
       .promise_is_ratio = true,
       .note = "per block of 16 tokens; ceiling: memcmp with the same prompts back to back"},
      [&] {
        return queries.time([&](std::int32_t, std::span<const std::int32_t> tokens) {
          all &= forest.tree().match(forest.root(), tokens, {}, 1 << 30, true).whole;
        });
      },
      [&] {
        return queries.time([&](std::int32_t p, std::span<const std::int32_t> tokens) {
          all &= std::memcmp(plain.data() + static_cast<std::size_t>(p) * prompt_bytes,
                             tokens.data(), prompt_bytes) == 0;
        });
      });
  require(all, "every prompt is found whole");
}

void measure_tree(Session& session) {
  measure_match(session, "one", 0, {0.4, 0.8});
  measure_match(session, "of 64 blocks", 64, {0.25, 0.5});
  measure_match(session, "of 1 block", 1, {0.025, 0.06});
}

}  // namespace

Family tree_family() { return {{"tree.match"}, measure_tree}; }

}  // namespace kvfolio::bench
