// SPDX-License-Identifier: Apache-2.0
#pragma once

// A manager of ids only, with what the benchmarks do to it again and again.

#include <span>
#include <vector>

#include "kvfolio/manager.h"
#include "prompts.h"

namespace kvfolio::bench {

class Cache {
 public:
  Cache(std::int32_t num_blocks, std::int32_t max_sequences, std::int32_t max_pins = 0,
        bool prefix_cache = true)
      : manager_(take(
            KVCacheManager::create(CacheSpec{.groups = {{.head_dim_k = 1,
                                                         .block_size = kBlockSize,
                                                         .num_blocks = num_blocks}}},
                                   ManagerOptions{.max_sequences = max_sequences,
                                                  .max_pins = max_pins,
                                                  .prefix_cache = prefix_cache,
                                                  .max_sequence_tokens = num_blocks * kBlockSize}),
            "a manager")) {}

  KVCacheManager& operator*() { return manager_; }
  KVCacheManager* operator->() { return &manager_; }

  SequenceId open(std::span<const std::int32_t> tokens) {
    return take(manager_.open(tokens), "open").sequence;
  }
  // One step that appends these tokens to one sequence.
  void append(SequenceId sequence, std::span<const std::int32_t> tokens) {
    const Ticket ticket = take(manager_.begin_step(), "begin_step");
    require(manager_.append(sequence, tokens), "append");
    require(manager_.finish(ticket), "finish");
  }
  // Computes the prompt and closes: its full blocks stay cached.
  void cache(std::span<const std::int32_t> tokens) {
    const Opened opened = take(manager_.open(tokens), "open");
    append(opened.sequence, tokens.subspan(static_cast<std::size_t>(opened.cached_tokens)));
    close(opened.sequence);
  }
  void close(SequenceId sequence) { require(manager_.close(sequence), "close"); }

  // Leaves the free list in an order that has nothing to do with memory.
  void shuffle_free_blocks() {
    const std::int32_t blocks = usage().free;
    const std::int32_t at_once = std::min(manager_.options().max_sequences, 1024);
    std::vector<SequenceId> sequences;
    sequences.reserve(static_cast<std::size_t>(at_once));
    for (std::int32_t i = 0; i < at_once; ++i) {
      sequences.push_back(take(manager_.open({}, {.prefix_cache = false}), "open").sequence);
    }
    for (std::int32_t i = 0; i < blocks / at_once; ++i) {
      const Ticket ticket = take(manager_.begin_step(), "begin_step");
      for (const SequenceId sequence : sequences) {
        require(manager_.append_unnamed(sequence, kBlockSize), "append_unnamed");
      }
      require(manager_.finish(ticket), "finish");
    }
    for (const std::int32_t i : shuffled(at_once, 11)) {
      close(sequences[static_cast<std::size_t>(i)]);
    }
  }

  [[nodiscard]] GroupUsage usage() const { return take(manager_.usage(GroupId(0)), "usage"); }
  void check() const { require(manager_.check_invariants(), "the manager"); }

 private:
  KVCacheManager manager_;
};

}  // namespace kvfolio::bench
