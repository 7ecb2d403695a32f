// SPDX-License-Identifier: Apache-2.0
#pragma once

// A cache whose bytes follow from its tokens: what a model would compute, without one. Each element
// of K and V of a token is a hash of all tokens up to it and of its place, so a byte that comes
// back under the wrong tokens shows. For tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kvfolio/byte_stream.h"
#include "kvfolio/identity.h"
#include "kvfolio/manager.h"
#include "kvfolio/storage.h"
#include "offload/test_token_rows.h"

namespace kvfolio::test {

inline const ModelIdentity kToy = {.model = "toy",
                                   .weights = "1",
                                   .tokenizer = "ids",
                                   .model_dtype = "f32",
                                   .positions = "none",
                                   .engine = "test"};

inline GroupSpec group_of(std::int32_t num_blocks) {
  return {.num_layers = 2,
          .num_kv_heads = 1,
          .head_dim_k = 4,
          .head_dim_v = 4,
          .block_size = 8,
          .num_blocks = num_blocks};
}
inline CacheSpec full(std::int32_t num_blocks) { return {.groups = {group_of(num_blocks)}}; }
inline CacheSpec window(std::int32_t num_blocks) {
  CacheSpec spec = full(num_blocks);
  spec.groups[0].kind = AttentionKind::kSlidingWindow;
  spec.groups[0].window = 12;
  spec.groups[0].num_sinks = 2;
  return spec;
}
// A full group with larger blocks and a window group.
inline CacheSpec mixed(std::int32_t full_blocks, std::int32_t window_blocks) {
  CacheSpec spec = full(full_blocks);
  spec.groups[0].block_size = 16;
  spec.groups.push_back(window(window_blocks).groups[0]);
  return spec;
}
// The model as the groups of this spec have it.
inline ModelIdentity toy_of(const CacheSpec& spec, ModelIdentity model = kToy) {
  const std::size_t groups = spec.groups.size();
  if (groups > 1 && model.layers.empty()) model.layers = groups == 2 ? "0-1;2-3" : "0-1;2-3;4-5";
  return model;
}

inline std::vector<std::int32_t> prompt_of(int number, std::int32_t length) {
  std::mt19937 random(static_cast<std::uint32_t>(number) + 1000);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 50'000);
  return tokens;
}

class MemoryFile final : public ByteSink, public ByteSource {
 public:
  std::vector<std::byte> bytes;

  Status write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return {};
  }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(bytes.size());
  }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    EXPECT_LE(offset + static_cast<std::int64_t>(out.size()), size());
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return {};
  }
};

struct Cache {
  KVCacheManager manager;

  // `memory` fills what it gives.
  explicit Cache(const CacheSpec& spec, ManagerOptions options = {.max_sequences = 16},
                 MemoryResource* memory = nullptr)
      : manager(*KVCacheManager::create(*KVStorage::create(spec, memory), listed(options))) {
    EXPECT_TRUE(memory != nullptr || manager.storage()->fill(std::byte{0xff}).ok());
  }
  static ManagerOptions listed(ManagerOptions options) {
    options.list_findable = true;
    return options;
  }

  // Opens the prompt, checks what was found, computes the rest, and leaves it open.
  SequenceId start(std::span<const std::int32_t> tokens, const OpenOptions& options = {}) {
    const auto opened = manager.open(tokens, options);
    EXPECT_TRUE(opened) << opened.error();
    if (!opened) return {};
    check_sequence(opened->sequence, tokens.first(std::size_t(opened->cached_tokens)));
    go_on(opened->sequence, tokens, opened->cached_tokens);
    return opened->sequence;
  }
  void go_on(SequenceId id, std::span<const std::int32_t> tokens, std::int32_t from) {
    const Ticket ticket = *manager.begin_step();
    const Status status = manager.append(id, tokens.subspan(std::size_t(from)));
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(manager.plan());
    ASSERT_TRUE(manager.run_copies().ok());
    write_tokens(id, tokens, from);
    ASSERT_TRUE(manager.finish(ticket).ok());
  }
  void compute(std::span<const std::int32_t> tokens, const OpenOptions& options = {}) {
    EXPECT_TRUE(manager.close(start(tokens, options)).ok());
  }
  std::int32_t hit(std::span<const std::int32_t> tokens, const OpenOptions& options = {}) {
    const auto found = manager.probe(tokens, options);
    EXPECT_TRUE(found) << found.error();
    return found ? *found : 0;
  }
  // Opens the prompt and checks each byte of what was found; returns how much that was.
  std::int32_t check_hit(std::span<const std::int32_t> tokens) {
    const auto opened = manager.open(tokens);
    EXPECT_TRUE(opened) << opened.error();
    if (!opened) return -1;
    check_sequence(opened->sequence, tokens.first(std::size_t(opened->cached_tokens)));
    EXPECT_TRUE(manager.close(opened->sequence).ok());
    return opened->cached_tokens;
  }
  // All bytes that the next token of the sequence reads are those of its tokens.
  void check_sequence(SequenceId id, std::span<const std::int32_t> tokens) {
    int wrong = 0;
    for_each_row(id, tokens, 0, [&](std::byte* row, std::size_t bytes, std::uint32_t seed) {
      for (std::size_t i = 0; i < bytes; ++i) wrong += row[i] == value(seed, i) ? 0 : 1;
    });
    EXPECT_EQ(wrong, 0) << "bytes of " << to_string(id);
  }
  // The image of a block of group 0 with these tokens of a prompt.
  std::vector<std::byte> image(std::span<const std::int32_t> tokens, std::int32_t begin,
                               std::int32_t end) {
    const auto opened = manager.open(tokens);
    const std::int32_t block =
        (*manager.block_table(opened->sequence, GroupId(0)))[std::size_t(begin / (end - begin))];
    std::vector<std::byte> bytes(std::size_t(manager.storage()->block_image_bytes(GroupId(0))));
    EXPECT_TRUE(manager.storage()->read_blocks(GroupId(0), std::span(&block, 1), bytes).ok());
    EXPECT_TRUE(manager.close(opened->sequence).ok());
    return bytes;
  }

 private:
  static std::byte value(std::uint32_t seed, std::size_t i) {
    return static_cast<std::byte>((seed * 2654435761u + i * 40503u) >> 13 & 0x3f);
  }
  void write_tokens(SequenceId id, std::span<const std::int32_t> tokens, std::int32_t from) {
    for_each_row(id, tokens, from, [](std::byte* row, std::size_t bytes, std::uint32_t seed) {
      for (std::size_t i = 0; i < bytes; ++i) row[i] = value(seed, i);
    });
  }
  // visit(row, bytes, seed) for each row of K and V that is in the tables.
  template <typename Visit>
  void for_each_row(SequenceId id, std::span<const std::int32_t> tokens, std::int32_t from,
                    Visit&& visit) {
    const std::vector<GroupSpec>& groups = manager.spec().groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const GroupId group(static_cast<std::int32_t>(g));
      const auto table = *manager.block_table(id, group);
      std::uint32_t prefix = 17 + std::uint32_t(g);
      for (std::int32_t p = 0; p < std::int32_t(tokens.size()); ++p) {
        prefix = (prefix ^ std::uint32_t(tokens[std::size_t(p)])) * 16777619u;
        if (p < from) continue;
        const std::int32_t block = table[std::size_t(p / groups[g].block_size)];
        if (block < 0) continue;
        const std::int32_t at = p % groups[g].block_size;
        for (std::int32_t layer = 0; layer < groups[g].num_layers; ++layer) {
          const TokenRows rows = token_rows(*manager.storage(), group, layer, block, at);
          visit(rows.k, 16, prefix + 2 * std::uint32_t(layer));
          visit(rows.v, 16, prefix + 2 * std::uint32_t(layer) + 1);
        }
      }
    }
  }
};

}  // namespace kvfolio::test
