// SPDX-License-Identifier: Apache-2.0
#pragma once

// A cache full of made-up tokens, calls of attend() over it, and the same blocks only read.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "context.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::bench {

struct CaseShape {
  DType dtype = DType::kF32;
  Format format = Format::kGranule;
  std::int32_t block_size = 16;
  bool shuffled = true;  // blocks in random order, else one behind the other
  std::int32_t num_layers = 1;
  std::vector<std::int32_t> lengths;  // tokens of each sequence
};

inline constexpr std::int32_t kKvHeads = 4;
inline constexpr std::int32_t kHeadDim = 128;
inline constexpr std::int32_t kMostQueriesPerKv = 16;

// Bytes of one row of K or V.
[[nodiscard]] inline std::size_t row_bytes(DType dtype) {
  return std::size_t{kHeadDim} * static_cast<std::size_t>(dtype_bytes(dtype));
}
// What the queries of a cache of this type are made of.
[[nodiscard]] DType query_dtype(DType cache);
// Largest error of an output row that is right, relative to its length.
[[nodiscard]] double tolerance(DType cache);

// Which tile of 16 tokens comes next: layer by layer, sequence by sequence, 1024 tokens by 1024
// tokens, and within these
enum class ReadOrder {
  kByHead,   // head by head
  kByToken,  // 64 tokens by 64 tokens, and head by head within them
  kMemory,   // no: the memory of the cache from its first byte to its last
};
[[nodiscard]] const char* to_string(ReadOrder order);

// How far ahead of its reading a probe asks for memory, and into which level of the caches.
struct Distance {
  std::int32_t tiles = 0;  // of 16 tokens; 0: it does not
  std::int32_t level = 2;
};

// Every sequence full, with numbers that depend on (sequence, layer, position, head, element) only,
// whatever the format and the blocks are.
class CachedCase {
 public:
  explicit CachedCase(CaseShape shape);

  [[nodiscard]] const CaseShape& shape() const { return shape_; }
  [[nodiscard]] const KVView& view() const { return view_; }
  [[nodiscard]] std::int32_t num_sequences() const {
    return static_cast<std::int32_t>(shape_.lengths.size());
  }
  [[nodiscard]] const std::vector<std::int32_t>& table() const { return table_; }
  [[nodiscard]] std::int32_t table_stride() const { return table_stride_; }
  [[nodiscard]] std::int32_t slot(std::int32_t sequence, std::int32_t position) const;
  // Bytes of all layers: K and V of every token, scales included.
  [[nodiscard]] double bytes() const;
  // Bytes of the memory of the cache, padding included.
  [[nodiscard]] double memory_bytes() const { return static_cast<double>(memory_bytes_); }
  // What read_blocks() reads, counted as it walks.
  [[nodiscard]] double bytes_read(ReadOrder order) const;
  // Tokens times KV heads, of all layers.
  [[nodiscard]] double token_heads() const;

  // Reads all of it, a share for each thread, in an order that attention may take.
  void read_blocks(const Context& context, std::int32_t threads, ReadOrder order,
                   Distance ahead) const;
  // Reads the memory of the cache from its first byte to its last.
  void read_in_order(const Context& context, std::int32_t threads, Distance ahead) const;

 private:
  void fill();

  CaseShape shape_;
  KVStorage storage_;
  KVView view_;
  std::int64_t memory_bytes_ = 0;
  std::vector<std::int32_t> table_;  // [sequences, table_stride]
  std::int32_t table_stride_ = 0;
  TileShape tile_shape_;
};

// Reading a cache as a ceiling: in several ways in every round, and the one whose median is best is
// the one that counts. Its blocks: in both orders, at several distances ahead, by way of the
// first level of the caches and of the second.
class ReadProbe {
 public:
  struct Way {
    ReadOrder order = ReadOrder::kByHead;
    Distance ahead;
    std::size_t piece = 0;  // of the panel
  };

  static ReadProbe of_blocks(Panel& panel, const Context& context, const CachedCase& cache,
                             std::int32_t threads);
  static ReadProbe of_memory(Panel& panel, const Context& context, const CachedCase& cache,
                             std::int32_t threads);
  // After the rounds.
  [[nodiscard]] const Way& best(const Panel& panel) const;
  [[nodiscard]] std::size_t piece(const Panel& panel) const { return best(panel).piece; }
  [[nodiscard]] const std::vector<Way>& ways() const { return ways_; }

 private:
  std::vector<Way> ways_;
};

// attend() over a case: the last `queries` positions of each sequence, `q_per_kv` query heads for
// each KV head. Query head g of a KV head has the same numbers whatever the q_per_kv is.
class AttentionCall {
 public:
  AttentionCall(const Context& context, const CachedCase& cache, std::int32_t q_per_kv,
                std::int32_t queries);

  // A copy of layer 0 on the calling thread, memory included.
  [[nodiscard]] AttentionArgs args();
  // All layers, one call for each.
  void run(std::int32_t threads);
  // Multiplications and additions of one run, only what the mask lets through.
  [[nodiscard]] double operations() const;
  // One output row, of the last layer.
  [[nodiscard]] const float* row(std::int32_t row, std::int32_t kv_head, std::int32_t g) const {
    return out_.data() + (static_cast<std::size_t>(row) * num_heads() +
                          static_cast<std::size_t>(kv_head * q_per_kv_ + g)) *
                             kHeadDim;
  }
  [[nodiscard]] std::int32_t num_rows() const { return query_start_.back(); }
  [[nodiscard]] std::int32_t q_per_kv() const { return q_per_kv_; }
  [[nodiscard]] const std::vector<float>& out() const { return out_; }

  // The reference over one row and one KV head of the last layer.
  void run_reference(std::int32_t row, std::int32_t kv_head);

 private:
  [[nodiscard]] std::size_t num_heads() const {
    return std::size_t{kKvHeads} * static_cast<std::size_t>(q_per_kv_);
  }
  const Context& context_;
  const CachedCase& cache_;
  std::int32_t q_per_kv_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::byte> q_;
  ConstRowsView q_rows_;
  std::vector<float> out_;  // [rows, heads, head_dim]
  std::vector<std::byte> workspace_;
};

// Rows that the reference computed, to compare calls with: a few of them, each with all of its
// query heads.
class Expected {
 public:
  // Some (row, KV head) of a case; `most` of them.
  Expected(const Context& context, const CachedCase& cache, std::int32_t queries,
           std::int32_t most);
  // Throws WrongResult with what differs. Also where the same call over another format, or on other
  // threads, gave other bits.
  void check(AttentionCall& call, const Context& context, const CaseShape& shape);

 private:
  struct Row {
    std::int32_t row = 0;
    std::int32_t kv_head = 0;
    std::vector<float> out;  // [kMostQueriesPerKv, head_dim]
  };
  std::vector<Row> rows_;
  std::vector<std::pair<std::int32_t, std::uint64_t>> hashes_;  // of whole outputs, by q_per_kv
};

}  // namespace kvfolio::bench
