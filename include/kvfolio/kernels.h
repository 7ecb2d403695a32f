// SPDX-License-Identifier: Apache-2.0
#pragma once

// The data plane: free functions over views of memory that the caller owns. They know strides and
// int32 arrays; they know no pool, no manager and no sequence. They allocate no memory, except for
// the text of an error.
//
// Rules that hold for all of them:
// - Every argument is checked before the first byte is written, so a call that fails wrote nothing.
//   Two things are not checked: the size of the memory behind a view (KVStorage checks it), and
//   that arguments do not overlap.
// - They run on the CPU, so a cache must lie in host memory. A KVView of other memory is
//   kUnsupported. Rows carry no such mark: they must lie in host memory.
// - Strides are in bytes; pointers and strides are multiples of the element size, or of 64 in
//   format granule. Rows may have any strides, but rows that are written must not overlap each
//   other or any other argument. Rows are f64, f32, f16 or bf16. Only caches are of types with
//   scales (has_scales()). Opaque rows go into opaque caches and out of them, byte for byte, and
//   nothing converts or attends to them.
// - A slot is block * block_size + offset. A block table entry is read, and checked, only if a
//   token of that block is needed. So entries of dropped blocks may be -1 or 0.
// - Slots past the length of a sequence may hold anything, NaN too; they reach no result.
// - Conversions are those of dtype.h: round to nearest even, NaN stays NaN. Equal element types
//   are copied bit for bit. A token that is written to a cache of a type with scales (has_scales())
//   gets its scales in the same call. A token that is read from one is element * scale in f32,
//   converted to the wanted type.
//   The bytes of a token depend only on its own rows: not on its neighbours, the rest of the call
//   or the processor.
// Thread safety: no state; calls may run at the same time if none writes what another reads or
// writes. attend() reads whole tiles of 16 slots. So it also reads slots of a last block that no
// row sees, but does not use them.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvfolio/attention_params.h"
#include "kvfolio/executor.h"
#include "kvfolio/export.h"
#include "kvfolio/kernel_target.h"
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

// What gather() reads and where it writes it. k and v each get as many heads as they have, from
// first_head on. A view with null data is not written.
struct GatherArgs {
  KVView cache = {};
  // A sequence's: entry i is the block of positions [i*block_size, (i+1)*block_size).
  std::span<const std::int32_t> block_table = {};
  std::int32_t length = 0;  // tokens of the sequence
  // Positions [first, first + count), within [0, length).
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t first_layer = 0;
  std::int32_t num_layers = 1;
  std::int32_t first_head = 0;
  // [count, heads, head_dim] of first_layer. If V is a prefix of K, v gets the first elements of K.
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

// k [1, 1, head_dim_k] and v [1, 1, head_dim_v], any element types. Either may be empty (null data)
// and is then not written or read. A V that is a prefix of K can be read but not written.
KVFOLIO_API Status write_token(const KVView& cache, const TokenPlace& place, const ConstRowsView& k,
                               const ConstRowsView& v);
KVFOLIO_API Status read_token(const KVView& cache, const TokenPlace& place, const RowsView& k,
                              const RowsView& v);

// Copies block src[i] to block dst[i], all layers, K, V and scales, in the order of i; a pair with
// src[i] == dst[i] does nothing. All pairs are checked before the first byte moves.
KVFOLIO_API Status copy_blocks(const KVView& cache, std::span<const std::int32_t> src,
                               std::span<const std::int32_t> dst);

// Copies block src[i] of `from` to block dst[i] of `to`, all layers, in the order of i, and
// converts it to the format and element type of `to`: from an engine's rows to tiles, for example.
// Layers, heads, head dims and block sizes are equal. V may be a prefix of K in `from` only. A row
// has at most 4096 elements. The two views share no memory. Equal element types are copied bit for
// bit, those with scales (has_scales()) with their scales; others are converted token by token, as
// gather() and append() would. Everything is checked before the first byte moves.
KVFOLIO_API Status convert_blocks(const KVView& from, const KVView& to,
                                  std::span<const std::int32_t> src,
                                  std::span<const std::int32_t> dst);

// dst = src, element by element; equal shapes, any element types.
KVFOLIO_API Status convert(const ConstRowsView& src, const RowsView& dst);

// ---- attention ---------------------------------------------------------------------------------

// The target that computes on this cache if a call asks for `wanted`: `wanted` itself, or the
// choice of kAuto. kUnsupported: this machine does not run the target, or the target does not take
// the element type or head dims, or the cache is not in host memory. kInvalidArgument:
// KVFOLIO_KERNEL names no target. Where a soft cap or ALiBi leaves fewer to choose from, ask with
// AttentionParams (below).
KVFOLIO_API Result<KernelTarget> choose_kernel_target(const KVView& cache,
                                                      KernelTarget wanted = KernelTarget::kAuto);

// choose_kernel_target() for a call with these parameters. kUnsupported, too: the target does not
// compute a soft cap or ALiBi; the message names those of this machine that do.
KVFOLIO_API Result<KernelTarget> choose_kernel_target(const KVView& cache,
                                                      const AttentionParams& params,
                                                      KernelTarget wanted = KernelTarget::kAuto);

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
  // exp(score), learned sinks included. A row that reads no token gives 0 in out and -inf here (its
  // sink's logit if it has one), never NaN.
  RowsView lse = {};
  // At least attention_workspace_bytes(), at any address: it needs no alignment. Calls that run at
  // the same time need one each. Contents on entry do not matter.
  std::span<std::byte> workspace = {};
  AttentionSlice slice = {};
  KernelTarget target = KernelTarget::kAuto;
  // Threads that the caller lends; null: only the calling thread works. The work is cut over
  // sequences, heads, rows and positions, so that one long sequence uses all threads.
  const Executor* executor = nullptr;
};

// Bytes of workspace that a call on this cache needs for sequences of up to max_kv_len tokens, with
// this target and an executor of num_threads. N threads need more than N times the bytes of one,
// since they cut long sequences, and the results of the parts wait to be merged. kInvalidArgument:
// the shapes, or num_threads below 1 or above 2^16.
// The errors of choose_kernel_target().
KVFOLIO_API Result<std::int64_t> attention_workspace_bytes(
    const KVView& cache, std::int32_t num_q_heads, std::int32_t max_kv_len,
    KernelTarget target = KernelTarget::kAuto, std::int32_t num_threads = 1);

// softmax(scale * q k^T + mask) v for every row and head of the slice.
// kInvalidArgument: a shape, an array, a parameter, a table entry that is read and names no block,
// a workspace that is too small. Also the errors of choose_kernel_target().
KVFOLIO_API Status attend(const AttentionArgs& args);

// ---- merge -------------------------------------------------------------------------------------

// What attend() wrote when it read a part of the tokens of its rows.
struct AttentionState {
  ConstRowsView out = {};  // [tokens, heads, head_dim]
  // [tokens, heads, 1], f32 or f64; natural logarithm. -inf: the row read no token, and its `out`
  // is not read.
  ConstRowsView lse = {};
};

// Merges two states over disjoint sets of tokens into that over their union:
//   lse = log(exp(a.lse) + exp(b.lse))
//   out = exp(a.lse - lse) * a.out + exp(b.lse - lse) * b.out
// So a prefix that many sequences share can be attended once (a cascade). One call has the queries
// of all of them in one sequence that is not causal and has no window. A second call attends to
// each sequence's own tokens. It has one of two forms: a table that begins behind the prefix, and
// kv_lens without the prefix; or the whole table, with trim_sinks 0 and trim_first_kept at the end
// of the prefix, if a window or sinks need positions. With trims use the first form, and subtract
// the prefix length from both trim fields. With a window, a cascade is right only for queries whose
// window and sinks cover the whole prefix. Merged states do not have the bits of one call over
// everything.
//   out  [tokens, heads, head_dim], as in a and b; each of the three has its own element type
//   lse  [tokens, heads, 1], f32 or f64, or null data
// Computed in f64. The order of a and b changes only bits of a NaN; the order of several merges
// changes only the rounding. If one state is empty, the other is copied (converted). If both are,
// out is 0 and lse is -inf. If neither is, an lse of NaN or +inf gives NaN. In place: out may be
// exactly a.out or b.out (equal data, strides and type), and lse exactly a.lse or b.lse; no other
// overlap. kInvalidArgument: the shapes.
KVFOLIO_API Status merge_states(const AttentionState& a, const AttentionState& b,
                                const RowsView& out, const RowsView& lse = {});

}  // namespace kvfolio
