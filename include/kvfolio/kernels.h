// SPDX-License-Identifier: Apache-2.0
#pragma once

// The data plane: free functions over views of memory that the caller owns. They know strides and
// int32 arrays; they know no pool, no manager, no sequence, and they take no memory (an error that
// they report owns a sentence, nothing else does).
//
// Rules that hold for all of them:
// - Every argument is checked before the first byte is written; a call that fails wrote nothing.
//   What is not checked is the size of the memory behind a view (KVStorage checks it), nor that
//   arguments do not overlap.
// - Strides are in bytes; pointers and strides are multiples of the element, in format granule of
//   64. Rows may have any strides, those that are written must not overlap each other or any other
//   argument. Rows are f64, f32, f16 or bf16; int8 is a type of caches alone.
// - A slot is block * block_size + offset. A block table entry is read only when a token of that
//   block is needed, so entries of dropped blocks may be -1 or 0; one that is needed is checked.
// - Slots past the length of a sequence hold anything (NaN too) and reach no result.
// - Conversions are those of dtype.h: round to nearest even, NaN stays NaN. Equal element types
//   are copied bit for bit. A token written to an int8 cache gets its scales with it; one that is
//   read is element * scale in f32, then the type that is wanted. The bytes of a token depend on
//   its own rows alone: not on its neighbours, the rest of the call or the processor.
// Thread safety: no state; calls may run at the same time where none writes what another reads or
// writes. attend() reads whole tiles of 16 slots, those of a last block that no row sees among
// them, and uses nothing of these.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvfolio/executor.h"
#include "kvfolio/export.h"
#include "kvfolio/status.h"
#include "kvfolio/view.h"

namespace kvfolio {

// ---- append, gather, copy ----------------------------------------------------------------------

// Writes token t of `k` and `v` to slots[t] of one layer.
//   k      [tokens, num_kv_heads, head_dim_k], any element type
//   v      [tokens, num_kv_heads, head_dim_v], any element type; an empty view (null data) when the
//          cache stores no V of its own (head_dim_v is 0 or V is a prefix of K)
//   slots  [tokens], each -1 (the token is skipped) or in 0 .. num_blocks*block_size - 1
// Tokens are written in order, so of equal slots the last one wins.
// kInvalidArgument with the numbers for every other shape, slot or layer.
KVFOLIO_API Status append(const KVView& cache, std::int32_t layer, const ConstRowsView& k,
                          const ConstRowsView& v, std::span<const std::int32_t> slots);

// What gather() reads and where it goes. k and v say the heads: k.num_heads heads from first_head
// on; a view with null data is not wanted.
struct GatherArgs {
  KVView cache = {};
  // Of one sequence: entry i holds positions [i*block_size, (i+1)*block_size).
  std::span<const std::int32_t> block_table = {};
  std::int32_t length = 0;  // tokens of the sequence
  // Positions [first, first + count), within [0, length).
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t first_layer = 0;
  std::int32_t num_layers = 1;
  std::int32_t first_head = 0;
  // [count, heads, head_dim] of first_layer. Where V is a prefix of K, v gets K's first elements.
  RowsView k = {};
  RowsView v = {};
  // Bytes from one layer's rows to the next one's; not used for one layer.
  std::int64_t k_layer_stride = 0;
  std::int64_t v_layer_stride = 0;
};

// Copies a range of a sequence to contiguous or strided rows. kInvalidArgument: a range past the
// length, a table too short, an entry in the range that names no block (a dropped one is -1), a
// shape that does not fit, a V that the cache does not have.
KVFOLIO_API Status gather(const GatherArgs& args);

// One vector of one token.
struct TokenPlace {
  std::int32_t layer = 0;
  std::int32_t head = 0;
  std::int32_t slot = 0;  // 0 .. num_blocks*block_size - 1
};

// k [1, 1, head_dim_k] and v [1, 1, head_dim_v], any element types. Either may be empty (null
// data): it is not written or read then. A V that is a prefix of K can be read, not written.
KVFOLIO_API Status write_token(const KVView& cache, const TokenPlace& place, const ConstRowsView& k,
                               const ConstRowsView& v);
KVFOLIO_API Status read_token(const KVView& cache, const TokenPlace& place, const RowsView& k,
                              const RowsView& v);

// Copies block src[i] to block dst[i], all layers, K, V and scales, in the order of i; src[i] ==
// dst[i] is nothing. All pairs are checked before the first byte moves.
KVFOLIO_API Status copy_blocks(const KVView& cache, std::span<const std::int32_t> src,
                               std::span<const std::int32_t> dst);

// Copies block src[i] of `from` to block dst[i] of `to`, all layers, into its format and element
// type, in the order of i: between an engine's rows and tiles, say. Layers, heads, head dims and
// block sizes are equal; V may be a prefix of K in `from` alone; a row has at most 4096 elements;
// the two share no memory. Equal element types are copied bit for bit, int8 with its scales; others
// go as gather() and append() would, one token at a time. All is checked before the first byte
// moves.
KVFOLIO_API Status convert_blocks(const KVView& from, const KVView& to,
                                  std::span<const std::int32_t> src,
                                  std::span<const std::int32_t> dst);

// dst = src, element by element; equal shapes, any element types.
KVFOLIO_API Status convert(const ConstRowsView& src, const RowsView& dst);

// ---- attention ---------------------------------------------------------------------------------

// Which implementation computes. Results of one target never depend on batch, chunk, block size,
// format, block ids, slices or threads, but for the sign and payload of a NaN; targets differ from
// each other by rounding. Most compute in f32. With a bf16 cache kAvx512Bf16 rounds weights, and
// queries of other types, to bf16; with an int8 cache all but kReference round both to 8 bits:
// docs/kernels.md says what that costs.
enum class KernelTarget : std::int32_t {
  // What the environment variable KVFOLIO_KERNEL names, read at each call; else the fastest that
  // this CPU runs and that takes the cache: the reference for f64 and for head dims that are no
  // multiple of 8 or above 256. Shapes that attend() refuses are not refused here.
  kAuto = -1,
  kReference = 0,   // plain loops in f64: defines what the others compute
  kPortable = 1,    // 128-bit vectors of the compiler, any machine but Arm
  kAvx2 = 2,        // AVX2, FMA and F16C
  kAvx512 = 3,      // x86-64-v4: F, BW, DQ, VL
  kAvx512Bf16 = 4,  // and the dot products of BF16 and VNNI
  kNeon = 5,        // Armv8
};

// "auto", "reference", "portable", "avx2", "avx512", "avx512-bf16", "neon".
[[nodiscard]] KVFOLIO_API const char* to_string(KernelTarget target) noexcept;
// kInvalidArgument lists the names.
KVFOLIO_API Result<KernelTarget> parse_kernel_target(std::string_view name);
// What this build has and this CPU runs, slowest first.
[[nodiscard]] KVFOLIO_API std::span<const KernelTarget> kernel_targets() noexcept;
// What computes when `wanted` is asked for on this cache: `wanted` itself, or the choice of kAuto.
// kUnsupported: this machine does not run it, or it does not take the element type or head dims;
// kInvalidArgument: KVFOLIO_KERNEL names no target.
KVFOLIO_API Result<KernelTarget> choose_kernel_target(const KVView& cache,
                                                      KernelTarget wanted = KernelTarget::kAuto);

// A ragged batch of n sequences: decode (one query), chunked prefill (some) and whole prompts in
// any mixture. The arrays are those of a StepPlan.
struct AttentionBatch {
  // [n + 1]: rows [query_start[i], query_start[i+1]) of q belong to sequence i. Starts at 0.
  std::span<const std::int32_t> query_start = {};
  // [n]: tokens of sequence i in the cache, its queries' own tokens included. The queries are its
  // last query_start[i+1] - query_start[i] positions; without `causal` and `window` positions say
  // nothing, and there may be more queries than tokens.
  std::span<const std::int32_t> kv_lens = {};
  // [n, block_table_stride]: the physical block of each logical block; -1 or 0 where it is not
  // needed.
  std::span<const std::int32_t> block_table = {};
  std::int32_t block_table_stride = 0;
  // [n] or both empty: position p is visible iff p < trim_sinks[i] or p >= trim_first_kept[i];
  // trim_sinks[i] >= 0, trim_first_kept[i] 0 to kv_lens[i].
  std::span<const std::int32_t> trim_sinks = {};
  std::span<const std::int32_t> trim_first_kept = {};
};

struct AttentionParams {
  // Scores are scale * (q . k); finite and > 0, usually 1/sqrt(head_dim_k). All targets but
  // kReference keep scale, q, scale * q, scores and sums of V over up to 1024 tokens, weighted with
  // up to 2^8, in f32: where one of these overflows, the row may be infinite or NaN; where scale or
  // scale * q underflows, scores are 0.
  double scale = 0.0;
  bool causal = true;  // position p reads positions <= p; else all of its sequence
  // Tokens that a query reads, itself included: p reads positions > p - window. 0: no window.
  std::int32_t window = 0;
  // Leading positions that every query reads whatever the window is; without one it says nothing.
  std::int32_t num_sinks = 0;
};

// A share of the work, so that a caller's threads can split a call; no split changes a bit. Only
// the rows and heads of the slice are written, and only what they read is checked in the table. A
// slice of no rows or no heads is nothing.
struct AttentionSlice {
  std::int32_t first_row = 0;  // of q
  std::int32_t num_rows = -1;  // -1: to the last row
  std::int32_t first_kv_head = 0;
  std::int32_t num_kv_heads = -1;  // -1: to the last head
};

struct AttentionArgs {
  KVView cache = {};  // head_dim_v > 0
  std::int32_t layer = 0;
  AttentionBatch batch = {};
  AttentionParams params = {};
  // [query_start[n], q_heads, head_dim_k]; q_heads is a multiple of num_kv_heads: query head h
  // reads KV head h / (q_heads / num_kv_heads).
  ConstRowsView q = {};
  RowsView out = {};  // [query_start[n], q_heads, head_dim_v]
  // [query_start[n], q_heads, 1], f32 or f64, or null data: natural logarithm of the sum of
  // exp(score). A row that sees no token gives 0 in out and -inf here, never NaN.
  RowsView lse = {};
  // At least attention_workspace_bytes(); one for each call that runs at the same time. Contents
  // on entry do not matter.
  std::span<std::byte> workspace = {};
  AttentionSlice slice = {};
  KernelTarget target = KernelTarget::kAuto;
  // Threads that the caller lends; null: the calling one alone. The work is cut over sequences,
  // heads, rows and positions, so that one long sequence uses all of them.
  const Executor* executor = nullptr;
};

// Bytes of workspace that a call on this cache needs for sequences of up to max_kv_len tokens, with
// this target and an executor of num_threads. Several threads need more than so many times that of
// one: long sequences are cut between them, and what they made of the parts waits to be merged.
// kInvalidArgument: the shapes, and num_threads below 1 or above 2^16.
// The errors of choose_kernel_target().
KVFOLIO_API Result<std::int64_t> attention_workspace_bytes(
    const KVView& cache, std::int32_t num_q_heads, std::int32_t max_kv_len,
    KernelTarget target = KernelTarget::kAuto, std::int32_t num_threads = 1);

// softmax(scale * q k^T + mask) v for every row and head of the slice.
// kInvalidArgument: a shape, an array, a parameter, an entry of the table that is read and names no
// block, a workspace that is too small. The errors of choose_kernel_target().
KVFOLIO_API Status attend(const AttentionArgs& args);

// ---- merge -------------------------------------------------------------------------------------

// What attend() wrote for some of the tokens that its rows read.
struct AttentionState {
  ConstRowsView out = {};  // [tokens, heads, head_dim]
  // [tokens, heads, 1], f32 or f64; natural logarithm. -inf: the row read no token, and its `out`
  // is not read.
  ConstRowsView lse = {};
};

// Merges two states over disjoint sets of tokens into that over their union:
//   lse = log(exp(a.lse) + exp(b.lse))
//   out = exp(a.lse - lse) * a.out + exp(b.lse - lse) * b.out
// So a prefix that many sequences share is attended once, by the queries of all of them in one
// sequence that is not causal and has no window (a cascade), and each sequence's own tokens apart:
// with a table that begins behind the prefix and kv_lens without it, or, where a window or sinks
// need positions, with the whole table and trim_sinks 0, trim_first_kept at the prefix's end. A
// trim goes with the first form alone, both its numbers less the prefix's tokens. With a window all
// this is right only for queries whose window and sinks reach over the whole prefix. Merged states
// have not the bits of one call over everything.
//   out  [tokens, heads, head_dim], as in a and b; each of the three has its own element type
//   lse  [tokens, heads, 1], f32 or f64, or null data
// Computed in f64. The order of a and b changes no bit but those of a NaN; that of several merges
// only the rounding. Where one state is empty the other is copied (converted); where both are, out
// is 0, lse -inf. Of two that are not, an lse of NaN or +inf gives NaN. In place: out may be
// exactly a.out or b.out (equal data, strides and type), and lse exactly a.lse or b.lse; no other
// overlap. kInvalidArgument: the shapes.
KVFOLIO_API Status merge_states(const AttentionState& a, const AttentionState& b,
                                const RowsView& out, const RowsView& lse = {});

}  // namespace kvfolio
