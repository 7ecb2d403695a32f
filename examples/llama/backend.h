// SPDX-License-Identifier: Apache-2.0
#pragma once

// Backend is what the scheduler and the engine ask of a cache. It exists so that one engine can run
// over kvfolio (PagedBackend) and over plain arrays (ContiguousBackend, the twin of --contiguous
// and
// --verify). The calls are those of KVCacheManager; an engine that needs no twin calls the manager.
//
// A step: begin_step -> append for each sequence -> prepare -> Attention::layer for each layer ->
// finish_step. Rows of the batch come in the order of the appends.

#include <cstdint>
#include <span>
#include <string>

#include "kvfolio/manager_types.h"
#include "kvfolio/offload.h"
#include "model.h"

namespace kvfolio::llama {

// What the sequences hold at a moment.
struct CacheUsage {
  std::int64_t blocks = 0;  // held by sequences or steps, all groups together
  std::int64_t bytes = 0;
};

struct OpenLimits {
  std::int32_t max_tokens = 0;  // the most that the sequence will ever hold: the twin reserves it
  bool prefix_cache = true;     // false: neither looks for a prefix nor leaves one
  bool look_up = true;          // false: looks for none, and leaves one
};

class Backend : public Attention {
 public:
  // pending: more of its tokens is on its way, and poll() says when that is over. Until then,
  // others go on.
  virtual Result<OffloadOpened> open(std::span<const std::int32_t> tokens,
                                     const OpenLimits& limits) = 0;
  // The open sequence that computes what this prompt begins with, at least a block more than is
  // there now. Not valid(): there is none, and to wait gains nothing.
  virtual Result<SequenceId> worth_waiting_for(std::span<const std::int32_t> tokens,
                                               const OpenLimits& limits) = 0;
  // Once for each step, before it: the sequences that were pending and are ready now.
  virtual std::span<const SequenceReady> poll() = 0;
  virtual Result<SequenceId> fork(SequenceId parent) = 0;
  virtual Status close(SequenceId sequence) = 0;
  virtual Status preempt(SequenceId sequence) = 0;

  virtual Status begin_step() = 0;
  // kNoBlocks: nothing changed, the step goes on without it.
  virtual Status append(SequenceId sequence, std::span<const std::int32_t> tokens) = 0;
  virtual Status prepare() = 0;
  virtual Status finish_step() = 0;
  // Ends a step that nothing was appended to.
  virtual Status drop_step() = 0;

  // Is there room for so many tokens of this sequence, if no step appends more than most_per_step
  // of them? kNoBlocks: no.
  virtual Status admit(SequenceId sequence, std::int64_t num_tokens,
                       std::int64_t most_per_step) = 0;
  // The tokens of a step that fill the blocks which this shortage lacks, if blocks of its group
  // come back while a sequence grows, so that steps with fewer tokens need fewer blocks. Else 0.
  [[nodiscard]] virtual std::int64_t tokens_too_many(const Shortage& shortage) const = 0;
  // Whether one sequence of this many tokens fits into an empty cache, `num_branches` of them that
  // share the first `num_shared` tokens. Says why not.
  virtual Status can_ever_hold(std::int32_t num_shared, std::int32_t num_tokens,
                               std::int32_t num_branches) const = 0;

  [[nodiscard]] virtual CacheUsage usage() const = 0;
  [[nodiscard]] virtual const Counters& counters() const = 0;
};

}  // namespace kvfolio::llama
