// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tokens of K and V in rows of an engine, and a cache whose blocks they reach in random order. For
// the rows storage.* of `kvfolio bench core` and for storage_bench.

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "harness.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"

namespace kvfolio::bench {

struct StorageFixture {
  static constexpr std::int32_t kHeads = 8;
  static constexpr std::int32_t kDim = 128;

  // `dtype` is the cache's; rows have it too, f32 where it is int8.
  StorageFixture(Format format, DType dtype, std::int32_t num_tokens, std::int32_t block_size,
                 bool in_order = false, std::int32_t num_layers = 1)
      : tokens(num_tokens),
        row_dtype(dtype == DType::kInt8 ? DType::kF32 : dtype),
        plane_bytes(std::int64_t{num_tokens} * kHeads * kDim * dtype_bytes(row_dtype)),
        rows(2 * plane_bytes),
        back(2 * plane_bytes),
        storage(take(KVStorage::create({.groups = {{.num_layers = num_layers,
                                                    .num_kv_heads = kHeads,
                                                    .head_dim_k = kDim,
                                                    .head_dim_v = kDim,
                                                    .block_size = block_size,
                                                    .dtype = dtype,
                                                    .format = format,
                                                    .num_blocks = num_tokens / block_size}}}),
                     "storage")),
        cache(take(storage.view(GroupId(0)), "a view")) {
    require(storage.fill(std::byte{0}), "fill");
    const std::int32_t num_blocks = num_tokens / block_size;
    table.resize(static_cast<std::size_t>(num_blocks));
    std::iota(table.begin(), table.end(), 0);
    if (!in_order) table = shuffled(num_blocks, 1);
    for (std::int32_t t = 0; t < tokens; ++t) {
      slots.push_back(table[static_cast<std::size_t>(t / block_size)] * block_size +
                      t % block_size);
    }
    write_rows(2);
    std::memset(back.data(), 0, back.size());
  }

  void write_rows(std::uint64_t seed) const {
    Random random(seed);
    for (std::size_t i = 0; i < rows.size(); i += 8) {
      // Small numbers in every element type, no NaN.
      const std::uint64_t bits = random() & 0x3f7f3f7f3f7f3f7fu;
      std::memcpy(rows.data() + i, &bits, 8);
    }
    if (cache.dtype == DType::kInt8) {
      // What is quantized is computed with: no subnormals.
      for (std::size_t i = 0; i < rows.size(); i += 4) {
        const float value = static_cast<float>(random() % 8192) * 0x1p-11f - 2.0f;
        std::memcpy(rows.data() + i, &value, 4);
      }
    }
  }

  [[nodiscard]] RowsView view_of(const Buffer& buffer, int plane) const {
    const std::int64_t row = kDim * dtype_bytes(row_dtype);
    return {
        buffer.data() + plane * plane_bytes, kHeads * row, row, tokens, kHeads, kDim, row_dtype};
  }
  void append_to(const KVView& target, std::int32_t layer = 0) const {
    const Status done = append(target, layer, view_of(rows, 0), view_of(rows, 1), slots);
    if (!done.ok()) require(done, "append");
  }
  void run_append() const { append_to(cache); }
  // The same by a call for each token.
  void run_append_tokens() const {
    const auto row_of = [&](int plane, std::int32_t token) {
      RowsView row = view_of(rows, plane);
      row.data = row.at(token, 0);
      row.num_tokens = 1;
      return row;
    };
    for (std::int32_t t = 0; t < tokens; ++t) {
      const auto slot = std::span(slots).subspan(static_cast<std::size_t>(t), 1);
      const Status done = append(cache, 0, row_of(0, t), row_of(1, t), slot);
      if (!done.ok()) require(done, "append");
    }
  }
  void gather_from(const KVView& source) const {
    const Status done = gather({.cache = source,
                                .block_table = table,
                                .length = tokens,
                                .count = tokens,
                                .k = view_of(back, 0),
                                .v = view_of(back, 1)});
    if (!done.ok()) require(done, "gather");
  }
  void run_gather() const { gather_from(cache); }
  // K and V of one head, one behind the other at the front of `back`.
  void gather_head(std::int32_t layer, std::int32_t head) const {
    const std::int64_t row = kDim * dtype_bytes(row_dtype);
    const auto rows_at = [&](std::int64_t at) {
      return RowsView{back.data() + at, row, row, tokens, 1, kDim, row_dtype};
    };
    const Status done = gather({.cache = cache,
                                .block_table = table,
                                .length = tokens,
                                .count = tokens,
                                .first_layer = layer,
                                .first_head = head,
                                .k = rows_at(0),
                                .v = rows_at(tokens * row)});
    if (!done.ok()) require(done, "gather of a head");
  }
  // A cache is created, filled for the first time and given back.
  void first_fill() const {
    const KVStorage fresh = take(KVStorage::create(storage.spec()), "storage");
    append_to(take(fresh.view(GroupId(0)), "a view"));
  }
  // A fresh mapping on huge pages, filled by memset and given back.
  void plain_first_fill() const {
    constexpr std::size_t kHuge = std::size_t{2} << 20;
    const std::size_t bytes = rows.size();
    void* mapped =
        ::mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(mapped != MAP_FAILED, "mmap");
    ::madvise(mapped, bytes + kHuge, MADV_HUGEPAGE);
    void* aligned = mapped;
    std::size_t room = bytes + kHuge;
    require(std::align(kHuge, bytes, aligned, room) != nullptr, "an aligned part of the mapping");
    std::memset(aligned, 1, bytes);
    keep(aligned);
    ::munmap(mapped, bytes + kHuge);
  }
  // What append wrote, gather reads back, and so it does of a fresh cache.
  void check() const {
    run_append();
    run_gather();
    if (cache.dtype == DType::kInt8) return check_near();
    require(std::memcmp(rows.data(), back.data(), rows.size()) == 0, "append and gather");
    std::memset(back.data(), 0, back.size());
    const KVStorage fresh = take(KVStorage::create(storage.spec()), "storage");
    const KVView view = take(fresh.view(GroupId(0)), "a view");
    append_to(view);
    gather_from(view);
    require(std::memcmp(rows.data(), back.data(), rows.size()) == 0, "the first fill");
  }

  void check_tokens() {
    require(storage.fill(std::byte{0}), "fill");
    run_append_tokens();
    run_gather();
    require(std::memcmp(rows.data(), back.data(), rows.size()) == 0, "append token by token");
  }

  // Every layer gets rows of its own: what is gathered of the last one is its own, head by head.
  void check_heads() const {
    for (std::int32_t layer = 0; layer < cache.num_layers; ++layer) {
      write_rows(3 + static_cast<std::uint64_t>(layer));
      append_to(cache, layer);
    }
    const std::int64_t row = kDim * dtype_bytes(row_dtype);
    for (std::int32_t head = 0; head < kHeads; ++head) {
      gather_head(cache.num_layers - 1, head);
      for (const int plane : {0, 1}) {
        for (std::int32_t t = 0; t < tokens; ++t) {
          require(std::memcmp(back.data() + (std::int64_t{plane} * tokens + t) * row,
                              view_of(rows, plane).at(t, head), static_cast<std::size_t>(row)) == 0,
                  "gather of a head");
        }
      }
    }
  }

  // What comes back of int8 is within half a step of its row.
  void check_near() const {
    for (const int plane : {0, 1}) {
      for (std::int64_t row = 0; row < std::int64_t{tokens} * kHeads; ++row) {
        float given[kDim];
        float got[kDim];
        const std::int64_t at = plane * plane_bytes + row * std::int64_t{sizeof given};
        std::memcpy(given, rows.data() + at, sizeof given);
        std::memcpy(got, back.data() + at, sizeof got);
        float amax = 0;
        for (const float x : given) amax = std::max(amax, std::fabs(x));
        for (std::int32_t d = 0; d < kDim; ++d) {
          require(std::fabs(given[d] - got[d]) <= amax * (0.501f / 127), "append and gather");
        }
      }
    }
  }

  std::int32_t tokens;
  DType row_dtype;
  std::int64_t plane_bytes;
  Buffer rows;
  Buffer back;
  KVStorage storage;
  KVView cache;
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> slots;
};

}  // namespace kvfolio::bench
