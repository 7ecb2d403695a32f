// SPDX-License-Identifier: Apache-2.0
#pragma once

// ContiguousBackend is the twin of PagedBackend: one pair of arrays [layer][head][token][dim] for
// each sequence, reserved for prompt + max_new_tokens when it opens. No table, no sharing, no
// prefix cache; a fork copies the arrays. It has no pool, so it never refuses: it is there to
// compare with, memory included. The same kernel attends, over a view that calls each array a row
// of consecutive blocks.
//
// Thread safety: none.

#include <memory>
#include <unordered_map>
#include <vector>

#include "backend.h"
#include "cache_compute.h"
#include "kvfolio/view.h"
#include "pool_size.h"
#include "resource_bytes.h"

namespace kvfolio::llama {

class ContiguousBackend final : public Backend {
 public:
  // `config` and `compute` outlive the backend.
  ContiguousBackend(const ModelConfig& config, DType dtype, CacheCompute& compute);

  Result<OffloadOpened> open(std::span<const std::int32_t> tokens,
                             const OpenLimits& limits) override;
  Result<SequenceId> worth_waiting_for(std::span<const std::int32_t> /*tokens*/,
                                       const OpenLimits& /*limits*/) override {
    return SequenceId();
  }
  std::span<const SequenceReady> poll() override { return {}; }
  Result<SequenceId> fork(SequenceId parent) override;
  Status close(SequenceId sequence) override;
  Status preempt(SequenceId sequence) override { return close(sequence); }

  Status begin_step() override;
  Status append(SequenceId sequence, std::span<const std::int32_t> tokens) override;
  Status prepare() override { return {}; }
  Status finish_step() override;
  Status drop_step() override;

  Status admit(SequenceId /*sequence*/, std::int64_t /*num_tokens*/,
               std::int64_t /*most_per_step*/) override {
    return {};
  }
  [[nodiscard]] std::int64_t tokens_too_many(const Shortage& /*shortage*/) const override {
    return 0;
  }
  Status can_ever_hold(std::int32_t /*num_shared*/, std::int32_t /*num_tokens*/,
                       std::int32_t /*num_branches*/) const override {
    return {};
  }

  Status layer(std::int32_t layer, const ConstRowsView& q, const ConstRowsView& k,
               const ConstRowsView& v, const RowsView& out) override;

  [[nodiscard]] CacheUsage usage() const override { return {.blocks = 0, .bytes = bytes_}; }
  [[nodiscard]] const Counters& counters() const override { return counters_; }

 private:
  struct Arrays {
    ResourceBytes k;  // [num_layers, num_kv_heads, capacity, head_dim]
    ResourceBytes v;  // the same
    // int8 and e4m3: [num_layers, num_kv_heads, capacity], f32.
    ResourceBytes k_scale;
    ResourceBytes v_scale;
    std::int32_t capacity = 0;  // tokens, a multiple of kRowBlock
    std::int32_t length = 0;    // tokens

    [[nodiscard]] std::int64_t bytes() const {
      return k.size() + v.size() + k_scale.size() + v_scale.size();
    }
  };
  struct Appended {
    Arrays* arrays = nullptr;
    std::int32_t num_tokens = 0;
  };

  Result<Arrays*> find(SequenceId sequence);
  // Makes room in the arrays for `capacity` tokens.
  Status reserve(Arrays& arrays, std::int32_t capacity) const;
  [[nodiscard]] KVView view(const Arrays& arrays) const;

  const ModelConfig& config_;
  DType dtype_;
  CacheCompute& compute_;
  std::unordered_map<SequenceId, std::unique_ptr<Arrays>> sequences_;
  std::uint64_t next_id_ = 1;
  std::int64_t bytes_ = 0;              // of all arrays
  std::vector<Appended> step_;          // in append order
  std::vector<std::int32_t> identity_;  // 0, 1, 2, ...: block i is at place i, token i in slot i
  Counters counters_;                   // stays zero
};

}  // namespace kvfolio::llama
