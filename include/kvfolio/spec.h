// SPDX-License-Identifier: Apache-2.0
#pragma once

// CacheSpec says what a cache holds: groups of layers, their shapes, element types and sizes.
// plan_layouts() computes the byte sizes of the library's own layouts and checks them for overflow,
// in one place. This header knows no memory and no ids. A CacheSpec is plain data and may hold
// anything; calls that take one validate it, except unit_of().
//
//   CacheSpec spec{.groups = {{.num_layers = 32, .num_kv_heads = 8, .head_dim_k = 128,
//                              .head_dim_v = 128, .num_blocks = 4096}}};
//   Result<std::vector<GroupLayout>> layouts = plan_layouts(spec);
//
// Thread safety: values.

#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "kvfolio/dtype.h"
#include "kvfolio/export.h"
#include "kvfolio/status.h"

namespace kvfolio {

enum class AttentionKind : std::int32_t {
  kFull = 0,           // a query reads every earlier token
  kSlidingWindow = 1,  // a query reads itself, the window-1 tokens before it, and the sinks
  // A query reads its chunk up to itself, and the sinks. Chunks begin at the multiples of `window`.
  // Of AttentionParams only: no group of a manager is kept so yet. A full one holds what it reads.
  kChunked = 2,
};

// How the tokens of a block lie in memory. Kernels know only strides; the format chooses them. HND
// is the default. attend() on a CPU is fastest with kGranule, above all for bf16 and int8.
enum class Format : std::int32_t {
  kHnd = 0,  // [layer][block][kv_head][K: block_size x head_dim_k | V: block_size x head_dim_v]
  kNhd = 1,  // [layer][block][K: block_size x kv_heads x head_dim_k | V: the same with head_dim_v]
  // [layer][block][kv_head][K | V] in tiles of 16 tokens, in the order that the dot products of
  // CPUs take without a shuffle. Four bytes of a row are a granule: g = 1 element of f32, 2 of
  // bf16, 4 of int8; f16 counts as g = 1 of 2 bytes. A tile of K is [head_dim_k / g][16 tokens][g],
  // of V [16 / g][head_dim_v][g tokens]. int8 K is stored with 128 added, since these dot products
  // multiply unsigned by signed bytes. Requires: f32, f16, bf16 or int8; block_size is a multiple
  // of 16, head dims are multiples of 8; V is not a prefix of K.
  kGranule = 2,
};

struct GroupSpec {
  std::int32_t num_layers = 1;    // 1 .. 2^16
  std::int32_t num_kv_heads = 1;  // 1 .. 2^20
  std::int32_t head_dim_k = 0;    // elements of a row of K, 1 .. 2^20
  // Elements of a row of V, 0 .. 2^20. 0: there is no V, only one vector per token.
  std::int32_t head_dim_v = 0;
  // Latent caches: V is the first head_dim_v elements of K and is stored once, in K.
  bool v_is_prefix_of_k = false;
  std::int32_t block_size = 16;  // tokens, 1 .. 1024; in format granule a multiple of 16
  DType dtype = DType::kF32;
  Format format = Format::kHnd;
  AttentionKind kind = AttentionKind::kFull;
  std::int32_t window = 0;     // kSlidingWindow: tokens a query reads, itself included; >= 1
  std::int32_t num_sinks = 0;  // kSlidingWindow: leading tokens that every query reads too
  // >= 1; fit() fills it in. num_blocks * block_size slots fit int32. A sequence of a window group
  // that appends n tokens in a step holds up to (window - 1 + rewind + n) / block_size + 2 blocks,
  // and those of its sinks: a long prompt in one append needs blocks for all of it.
  std::int32_t num_blocks = 0;
  // kSlidingWindow: tokens that a running sequence keeps behind its window, so that truncate() can
  // take back as many (SequenceInfo::rewind_from). A stop string of n tokens is taken back with n -
  // 1 (its last token was sampled, not appended), one more for each step that may be in flight
  // behind it (max_steps_in_flight - 1), and the tokens behind it that accept() let stand. Hits
  // neither need nor hold what is kept, and no identity or layout knows of it.
  std::int32_t rewind = 0;

  friend bool operator==(const GroupSpec&, const GroupSpec&) = default;
};

struct CacheSpec {
  // 1 .. kMaxGroups groups. Every block size is a multiple of the smallest, the unit.
  std::vector<GroupSpec> groups{};

  friend bool operator==(const CacheSpec&, const CacheSpec&) = default;
};

inline constexpr std::int32_t kMaxGroups = 16;
inline constexpr std::int32_t kMaxBlockSize = 1024;
// Tokens of a tile of format granule.
inline constexpr std::int32_t kGranuleTokens = 16;
// Positions and lengths are int32 in every plan array.
inline constexpr std::int32_t kMaxSequenceTokens = 1 << 30;

// Where the bytes of a group lie, in bytes from its base. Layer-major: one layer's blocks are
// contiguous. Token t of a block, KV head h, layer l:
//   K: block*block_stride + l*layer_stride + h*k_head_stride + t*k_token_stride
//   V: v_offset + block*block_stride + l*layer_stride + h*v_head_stride + t*v_token_stride
// In format granule use t / 16, the tile, in place of t. Scales, one f32 for each row of a type
// with scales (has_scales()):
//   K: k_scale_offset + block*block_stride + l*layer_stride + h*scale_head_stride +
//      t*scale_token_stride; V: the same from v_scale_offset.
// Scales follow the rows of a head (HND, granule) or of a block (NHD), those of K first, aligned to
// 4 bytes. A row of opaque bytes has none, and is head_dim bytes.
struct GroupLayout {
  std::int64_t block_stride = 0;
  std::int64_t layer_stride = 0;
  std::int64_t k_head_stride = 0;
  std::int64_t k_token_stride = 0;
  std::int64_t v_offset = 0;
  std::int64_t v_head_stride = 0;
  std::int64_t v_token_stride = 0;
  std::int64_t k_scale_offset = 0;  // the four of scales are 0 unless the type has_scales()
  std::int64_t v_scale_offset = 0;  // that of K if V is a prefix of K, 0 if there is no V
  std::int64_t scale_head_stride = 0;
  std::int64_t scale_token_stride = 0;
  std::int64_t payload_bytes_per_token = 0;  // all layers and heads, K, V and scales, no padding
  std::int64_t bytes_per_block = 0;          // all layers, rounded up to 64 per layer
  std::int64_t total_bytes = 0;              // bytes_per_block * num_blocks

  friend bool operator==(const GroupLayout&, const GroupLayout&) = default;
};

// kInvalidArgument with the group, the field, the value and what is allowed.
KVFOLIO_API Status validate(const CacheSpec& spec);
// Calls validate() and returns the layout of every group, in order. Overflow of 63 bits is an
// error.
KVFOLIO_API Result<std::vector<GroupLayout>> plan_layouts(const CacheSpec& spec);
// The smallest block size. Requires: validate(spec).ok().
[[nodiscard]] KVFOLIO_API std::int32_t unit_of(const CacheSpec& spec) noexcept;

// The spec with num_blocks filled in, so that the groups together take at most `bytes` as
// plan_layouts() counts them, and one more block of any group would exceed that (or the 2^31 - 1
// slots of a group). Each group gets at least one block.
// num_blocks of `spec` are weights: the groups get blocks in their ratio, rounded down, and what
// is left over goes to the groups with the largest blocks first. Good weights are the blocks that
// one sequence of the expected length needs: length / block_size in a full group; in a window group
// (window - 1 + rewind + n) / block_size + 2 for appends of n tokens, and those of its sinks. If
// num_blocks is 0 in every group, all groups get room for equally many tokens, which gives a window
// group far more than it needs. kInvalidArgument: another field, see validate(); a weight below 1
// among others; `bytes` is less than one block of each group takes (names both).
KVFOLIO_API Result<CacheSpec> fit(const CacheSpec& spec, std::int64_t bytes);

[[nodiscard]] KVFOLIO_API const char* to_string(AttentionKind kind) noexcept;
[[nodiscard]] KVFOLIO_API const char* to_string(Format format) noexcept;
// Each field by its name: "num_layers 32, num_kv_heads 8, ..."; of a cache "group 0: ...; group 1:
// ...".
[[nodiscard]] KVFOLIO_API std::string to_string(const GroupSpec& group);
[[nodiscard]] KVFOLIO_API std::string to_string(const CacheSpec& spec);
// What to_string() gives. A template, so that <iosfwd> is enough here; its caller includes
// <ostream>.
template <typename Traits, typename T>
requires std::same_as<T, GroupSpec> || std::same_as<T, CacheSpec> std::basic_ostream<char, Traits>
&operator<<(std::basic_ostream<char, Traits>& out, const T& spec) { return out << to_string(spec); }

}  // namespace kvfolio
