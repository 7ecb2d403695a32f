// SPDX-License-Identifier: Apache-2.0

// kvfolio for bench/peers: a cache that the caller fills, a step of append and attend over it, and
// the same blocks only read. A narrow C interface for Python's ctypes. A call that fails answers -1
// (create: 0) and kvfolio_peer_error() says why; a number that names no case is an error, and every
// array comes with its number of bytes.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cached_case.h"
#include "guarded.h"
#include "harness.h"
#include "kvfolio/export.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "read_tile.h"

namespace kvfolio::bench {

// As bench/peers/peer_kvfolio.py declares it.
struct PeerShape {
  std::int32_t num_kv_heads;
  std::int32_t q_per_kv;  // query heads for each KV head
  std::int32_t head_dim;
  std::int32_t num_sequences;
  std::int32_t kv_len;   // tokens of each sequence after a step
  std::int32_t queries;  // of each sequence: a step appends and attends its last so many tokens
};

namespace {

constexpr std::int32_t kBlockSize = 16;
// In the order of reading head by head: what one head reads before the next one.
constexpr std::int64_t kRangeBlocks = 64;

void in_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  require(value >= least && value <= most, std::string(name) + " is " + std::to_string(value) +
                                               "; allowed: " + std::to_string(least) + " .. " +
                                               std::to_string(most));
}

DType parse_dtype(const char* name) {
  require(name != nullptr, "dtype is null");
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    if (std::string(to_string(dtype)) == name) return dtype;
  }
  throw WrongResult("dtype is " + std::string(name) + "; allowed: f32, f16, bf16, int8");
}

class PeerCase {
 public:
  PeerCase(const PeerShape& shape, DType dtype)
      : shape_(checked(shape)),
        storage_(take(KVStorage::create({.groups = {spec_of(shape_, dtype)}}), "storage")),
        view_(take(storage_.view(GroupId(0)), "a view")),
        table_(shuffled(view_.num_blocks, 77)),
        kv_lens_(static_cast<std::size_t>(shape_.num_sequences), shape_.kv_len) {
    require(storage_.fill(std::byte{0}), "fill");  // no page is missing when a step is timed
    for (std::int32_t s = 0; s <= shape_.num_sequences; ++s) {
      query_start_.push_back(s * shape_.queries);
    }
    for (std::int32_t s = 0; s < shape_.num_sequences; ++s) {
      for (std::int32_t p = shape_.kv_len - shape_.queries; p < shape_.kv_len; ++p) {
        step_slots_.push_back(slot(s, p));
      }
    }
  }

  [[nodiscard]] DType query_type() const { return query_dtype(view_.dtype); }
  // K and V of every token, scales included.
  [[nodiscard]] std::int64_t bytes() const {
    return std::int64_t{shape_.num_sequences} * shape_.kv_len * shape_.num_kv_heads *
           (2 * row_bytes(view_.dtype) + (view_.k_scale == nullptr ? 0 : 8));
  }
  [[nodiscard]] const char* target() const {
    return to_string(take(choose_kernel_target(view_), "a target"));
  }

  void fill(std::int32_t sequence, std::int32_t first, std::int32_t count, const float* k,
            const float* v, std::int64_t bytes_of_each) {
    in_range("sequence", sequence, 0, shape_.num_sequences - 1);
    in_range("first", first, 0, shape_.kv_len);
    in_range("count", count, 0, shape_.kv_len - first);
    check_bytes("k and v", k != nullptr && v != nullptr, bytes_of_each,
                std::int64_t{count} * shape_.num_kv_heads * row_bytes(DType::kF32));
    std::vector<std::int32_t> slots(static_cast<std::size_t>(count));
    for (std::int32_t t = 0; t < count; ++t) {
      slots[static_cast<std::size_t>(t)] = slot(sequence, first + t);
    }
    require(append(view_, 0, rows_of(k, count, shape_.num_kv_heads, DType::kF32),
                   rows_of(v, count, shape_.num_kv_heads, DType::kF32), slots),
            "append");
  }

  void step(std::int32_t threads, const void* q, std::int64_t q_bytes, const void* k, const void* v,
            std::int64_t kv_bytes, float* out, std::int64_t out_bytes) {
    const std::int32_t rows = query_start_.back();
    const std::int32_t heads = shape_.num_kv_heads * shape_.q_per_kv;
    const DType type = query_type();
    check_bytes("q", q != nullptr, q_bytes, std::int64_t{rows} * heads * row_bytes(type));
    check_bytes("k and v", k != nullptr && v != nullptr, kv_bytes,
                std::int64_t{rows} * shape_.num_kv_heads * row_bytes(type));
    check_bytes("out", out != nullptr, out_bytes,
                std::int64_t{rows} * heads * row_bytes(DType::kF32));
    Threads& lent = threads_of(threads);
    AttentionArgs args;
    args.cache = view_;
    args.batch = {.query_start = query_start_,
                  .kv_lens = kv_lens_,
                  .block_table = table_,
                  .block_table_stride = blocks_per_sequence(shape_)};
    args.params = {.scale = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim))};
    args.q = rows_of(q, rows, heads, type);
    args.out = {reinterpret_cast<std::byte*>(out),
                heads * row_bytes(DType::kF32),
                row_bytes(DType::kF32),
                rows,
                heads,
                shape_.head_dim,
                DType::kF32};
    args.workspace = lent.workspace;
    if (threads > 1) args.executor = &lent.executor;
    // As the peers do it: the new tokens of all sequences are part of the step.
    require(append(view_, 0, rows_of(k, rows, shape_.num_kv_heads, type),
                   rows_of(v, rows, shape_.num_kv_heads, type), step_slots_),
            "append");
    require(attend(args), "attend");
  }

  // Reads all of it, a share for each thread: block by block with all heads of a block, which lie
  // side by side, or head by head; memory is asked for so many tiles of 16 tokens ahead, into that
  // level of the caches.
  void read(std::int32_t threads, bool by_head, std::int32_t ahead, std::int32_t level) {
    in_range("ahead", ahead, 0, 64);
    in_range("level", level, 1, 2);
    const std::int64_t heads = shape_.num_kv_heads;
    const auto blocks = static_cast<std::int64_t>(table_.size());
    const std::int64_t tiles = blocks * heads;
    const auto tile_at = [&](std::int64_t i) {
      std::int64_t block = i / heads;
      std::int64_t head = i % heads;
      if (by_head) {
        const std::int64_t first = i / (kRangeBlocks * heads) * kRangeBlocks;
        const std::int64_t count = std::min(kRangeBlocks, blocks - first);
        head = (i - first * heads) / count;
        block = first + (i - first * heads) % count;
      }
      return tile_of(table_[static_cast<std::size_t>(block)], static_cast<std::int32_t>(head));
    };
    const auto row = static_cast<std::int32_t>(row_bytes(view_.dtype));
    const std::int32_t scales = view_.k_scale == nullptr ? 0 : kBlockSize * 4;
    const TileShape shape{.rows = {1, 1, 1, 1},
                          .row_bytes = {kBlockSize * row, kBlockSize * row, scales, scales}};
    parallel_for(threads_of(threads).executor, threads, [&](std::int32_t part) {
      const std::int64_t end = tiles * (part + 1) / threads;
      std::uint64_t sum = 0;
      for (std::int64_t i = tiles * part / threads; i < end; ++i) {
        const Tile next = tile_at(std::min(i + ahead, end - 1));
        sum += read_tile_(shape, tile_at(i), {ahead == 0 ? nullptr : &next, level});
      }
      keep(sum);
    });
  }

 private:
  struct Threads {
    std::unique_ptr<ThreadPool> pool;
    Executor executor;
    std::vector<std::byte> workspace;
  };

  static const PeerShape& checked(const PeerShape& shape) {
    in_range("num_kv_heads", shape.num_kv_heads, 1, 1024);
    in_range("q_per_kv", shape.q_per_kv, 1, 64);
    in_range("head_dim", shape.head_dim, 8, 256);
    in_range("num_sequences", shape.num_sequences, 1, 4096);
    in_range("kv_len", shape.kv_len, 1, 1 << 24);
    in_range("queries", shape.queries, 1, std::min(shape.kv_len, 1 << 16));
    in_range("the number of blocks", std::int64_t{shape.num_sequences} * blocks_per_sequence(shape),
             1, 1 << 26);
    return shape;
  }
  static std::int32_t blocks_per_sequence(const PeerShape& shape) {
    return (shape.kv_len + kBlockSize - 1) / kBlockSize;
  }
  static GroupSpec spec_of(const PeerShape& shape, DType dtype) {
    return {.num_layers = 1,
            .num_kv_heads = shape.num_kv_heads,
            .head_dim_k = shape.head_dim,
            .head_dim_v = shape.head_dim,
            .block_size = kBlockSize,
            .dtype = dtype,
            .format = Format::kGranule,
            .num_blocks = shape.num_sequences * blocks_per_sequence(shape)};
  }
  static void check_bytes(const std::string& name, bool given, std::int64_t got,
                          std::int64_t wanted) {
    require(given, name + ": null");
    require(got == wanted,
            name + ": " + std::to_string(got) + " bytes; wanted: " + std::to_string(wanted));
  }

  // The bytes of one head and token.
  [[nodiscard]] std::int64_t row_bytes(DType dtype) const {
    return std::int64_t{shape_.head_dim} * dtype_bytes(dtype);
  }
  [[nodiscard]] ConstRowsView rows_of(const void* data, std::int32_t tokens, std::int32_t heads,
                                      DType dtype) const {
    return {static_cast<const std::byte*>(data),
            heads * row_bytes(dtype),
            row_bytes(dtype),
            tokens,
            heads,
            shape_.head_dim,
            dtype};
  }
  [[nodiscard]] std::int32_t slot(std::int32_t sequence, std::int32_t position) const {
    const std::int32_t entry = sequence * blocks_per_sequence(shape_) + position / kBlockSize;
    return table_[static_cast<std::size_t>(entry)] * kBlockSize + position % kBlockSize;
  }
  [[nodiscard]] Tile tile_of(std::int32_t block, std::int32_t head) const {
    const auto plane = [](const std::byte* data) {
      return TilePlane{reinterpret_cast<const unsigned char*>(data), 0};
    };
    Tile tile;
    tile.planes[0] = plane(view_.k_at(0, block, head, 0));
    tile.planes[1] = plane(view_.v_at(0, block, head, 0));
    tile.planes[2] = tile.planes[3] = tile.planes[0];  // of no bytes where there are no scales
    if (view_.k_scale != nullptr) {
      tile.planes[2] = plane(view_.k_scale_at(0, block, head, 0));
      tile.planes[3] = plane(view_.v_scale_at(0, block, head, 0));
    }
    return tile;
  }
  Threads& threads_of(std::int32_t threads) {
    const auto known = threads_.find(threads);
    if (known != threads_.end()) return known->second;
    Threads made;
    made.pool = take(ThreadPool::create(threads), "threads");
    made.executor = made.pool->executor();
    made.workspace.resize(static_cast<std::size_t>(
        take(attention_workspace_bytes(view_, shape_.num_kv_heads * shape_.q_per_kv, shape_.kv_len,
                                       KernelTarget::kAuto, threads),
             "a workspace")));
    return threads_.emplace(threads, std::move(made)).first->second;
  }

  PeerShape shape_;
  KVStorage storage_;
  KVView view_;
  std::vector<std::int32_t> table_;  // [num_sequences, blocks_per_sequence]
  std::vector<std::int32_t> kv_lens_;
  std::vector<std::int32_t> query_start_;
  std::vector<std::int32_t> step_slots_;  // of the tokens that a step appends
  std::map<std::int32_t, Threads> threads_;
  ReadTile read_tile_ = widest_read_tile();
};

// One thread calls: Python's.
std::map<std::int64_t, std::unique_ptr<PeerCase>> cases;
std::int64_t last_case = 0;
PeerCase& case_of(std::int64_t number) {
  const auto found = cases.find(number);
  require(found != cases.end(), "there is no case " + std::to_string(number));
  return *found->second;
}

}  // namespace
}  // namespace kvfolio::bench

using kvfolio::bench::case_of;
using kvfolio::bench::guarded;
using kvfolio::bench::PeerCase;
using kvfolio::bench::PeerShape;

extern "C" {

// What the last call that failed said; of the last call, "" if it did not.
KVFOLIO_API const char* kvfolio_peer_error() { return kvfolio::bench::last_error; }

// Answers the number of the case, 0 if there is none. dtype is f32, f16, bf16 or int8, blocks have
// 16 tokens in format granule and lie in random order.
KVFOLIO_API std::int64_t kvfolio_peer_create(const PeerShape* shape, const char* dtype) {
  std::int64_t number = 0;
  guarded([&] {
    kvfolio::bench::require(shape != nullptr, "shape is null");
    auto made = std::make_unique<PeerCase>(*shape, kvfolio::bench::parse_dtype(dtype));
    kvfolio::bench::cases.emplace(kvfolio::bench::last_case + 1, std::move(made));
    number = ++kvfolio::bench::last_case;
  });
  return number;
}

KVFOLIO_API std::int32_t kvfolio_peer_destroy(std::int64_t number) {
  return guarded([&] {
    case_of(number);
    kvfolio::bench::cases.erase(number);
  });
}

// K and V of positions [first, first + count) of a sequence, [count, num_kv_heads, head_dim].
KVFOLIO_API std::int32_t kvfolio_peer_fill(std::int64_t number, std::int32_t sequence,
                                           std::int32_t first, std::int32_t count, const float* k,
                                           const float* v, std::int64_t bytes_of_each) {
  return guarded([&] { case_of(number).fill(sequence, first, count, k, v, bytes_of_each); });
}

// Appends the last `queries` tokens of every sequence, k and v [num_sequences * queries,
// num_kv_heads, head_dim], and attends their queries, q [.., num_kv_heads * q_per_kv, head_dim],
// all of the type that kvfolio_peer_query_dtype() says. out is f32, as q.
KVFOLIO_API std::int32_t kvfolio_peer_step(std::int64_t number, std::int32_t threads, const void* q,
                                           std::int64_t q_bytes, const void* k, const void* v,
                                           std::int64_t kv_bytes, float* out,
                                           std::int64_t out_bytes) {
  return guarded(
      [&] { case_of(number).step(threads, q, q_bytes, k, v, kv_bytes, out, out_bytes); });
}

KVFOLIO_API std::int32_t kvfolio_peer_read(std::int64_t number, std::int32_t threads,
                                           std::int32_t by_head, std::int32_t ahead,
                                           std::int32_t level) {
  return guarded([&] { case_of(number).read(threads, by_head != 0, ahead, level); });
}

// Of K, V and scales; -1 if there is no such case.
KVFOLIO_API std::int64_t kvfolio_peer_bytes(std::int64_t number) {
  std::int64_t bytes = -1;
  guarded([&] { bytes = case_of(number).bytes(); });
  return bytes;
}

// Null if there is no such case.
KVFOLIO_API const char* kvfolio_peer_query_dtype(std::int64_t number) {
  const char* name = nullptr;
  guarded([&] { name = to_string(case_of(number).query_type()); });
  return name;
}

// The kernels that a step runs on. Null if there is no such case, or KVFOLIO_KERNEL names none.
KVFOLIO_API const char* kvfolio_peer_target(std::int64_t number) {
  const char* name = nullptr;
  guarded([&] { name = case_of(number).target(); });
  return name;
}

}  // extern "C"
