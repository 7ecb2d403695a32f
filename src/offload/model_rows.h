// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of K and V that follow from a text: those of a token are noise whose seed is a hash of all
// tokens up to it, of its root and of its media. For tests of every type and format.

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kvfolio/kernels.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/root_key.h"
#include "kvfolio/storage.h"

namespace kvfolio::test {

// What decides the rows of a sequence.
struct Text {
  std::string salt, adapter;
  std::vector<std::int32_t> tokens{};
  std::vector<MediaSpan> media{};
  Publish publish = Publish::kAll;

  [[nodiscard]] RootKey root() const { return {.adapter = adapter, .tenant_salt = salt}; }
  // A seed for each token.
  [[nodiscard]] std::vector<std::uint32_t> seeds() const {
    const std::string name = salt + "/" + adapter;
    std::seed_seq of_root(name.begin(), name.end());
    std::vector<std::uint32_t> seed(1);
    of_root.generate(seed.begin(), seed.end());
    std::vector<std::uint32_t> seeds;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::vector<std::uint32_t> all = {seed[0], static_cast<std::uint32_t>(tokens[i])};
      for (const MediaSpan& span : media) {
        const auto at = static_cast<std::int32_t>(i);
        if (at >= span.begin && at < span.end) all.push_back(std::uint32_t(span.content_id[0]) + 7);
      }
      std::seed_seq next(all.begin(), all.end());
      next.generate(seed.begin(), seed.end());
      seeds.push_back(seed[0]);
    }
    return seeds;
  }
};

// Writes tokens with these seeds to slots of a group, all layers.
inline void append_rows(const KVStorage& storage, GroupId group,
                        const std::vector<std::uint32_t>& seeds,
                        const std::vector<std::int32_t>& slots) {
  const KVView view = *storage.view(group);
  const bool has_v = view.head_dim_v > 0 && !view.v_is_prefix_of_k;
  const auto num_tokens = static_cast<std::int32_t>(seeds.size());
  for (std::int32_t layer = 0; layer < view.num_layers; ++layer) {
    std::vector<float> k, v;
    for (const std::uint32_t seed : seeds) {
      std::minstd_rand random(seed + static_cast<std::uint32_t>(layer) * 97u +
                              static_cast<std::uint32_t>(group.value()) * 1009u);
      const auto value = [&] { return static_cast<float>(random() % 2000) / 500.0f - 2.0f; };
      for (int i = 0; i < view.num_kv_heads * view.head_dim_k; ++i) k.push_back(value());
      if (!has_v) continue;
      for (int i = 0; i < view.num_kv_heads * view.head_dim_v; ++i) v.push_back(value());
    }
    const auto rows = [&](const std::vector<float>& of, std::int32_t head_dim) {
      return ConstRowsView(reinterpret_cast<const std::byte*>(of.data()),
                           std::int64_t{4} * view.num_kv_heads * head_dim,
                           std::int64_t{4} * head_dim, num_tokens, view.num_kv_heads, head_dim,
                           DType::kF32);
    };
    const Status status = append(view, layer, rows(k, view.head_dim_k),
                                 has_v ? rows(v, view.head_dim_v) : ConstRowsView(), slots);
    ASSERT_TRUE(status.ok()) << status;
  }
}

// The image of a block with such tokens and zeros behind them.
inline std::vector<std::byte> image_of(const GroupSpec& group, GroupId id,
                                       const std::vector<std::uint32_t>& seeds) {
  CacheSpec spec;
  spec.groups.assign(static_cast<std::size_t>(id.value()) + 1, group);
  for (GroupSpec& one : spec.groups) one.num_blocks = 1;
  KVStorage storage = *KVStorage::create(spec);
  EXPECT_TRUE(storage.fill(std::byte{0}).ok());
  std::vector<std::int32_t> slots(seeds.size());
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(i);
  append_rows(storage, id, seeds, slots);
  std::vector<std::byte> image(static_cast<std::size_t>(storage.block_image_bytes(id)));
  const std::int32_t block = 0;
  EXPECT_TRUE(storage.read_blocks(id, std::span(&block, 1), image).ok());
  return image;
}

}  // namespace kvfolio::test
