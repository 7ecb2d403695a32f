// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes a padded plan on the device: the bytes that padded.cc writes for the same lengths, from
// lengths that lie in device memory. One block, whose threads are sequences while these are
// counted, and then warps of a sequence's nodes, or blocks of the stream.
//
// The text knows nothing of plan.cc. What plan.cc finds by walking leaves in order is computed here
// from where a piece begins and ends, so that no thread waits for another one's walk.

#include "cuda/attention/device.cuh"
#include "cuda/attention/padded_args.h"

namespace kvfolio::cuda {

inline constexpr int kPlanThreads = 256;

struct PlanMemory {
  int64_t wide[32];  // of a warp each
  int32_t sums[2][32];
  int32_t first_leaf[kMostStreamSequences + 1];  // of the stream: leaves of all sequences before
  int32_t number[kMostStreamSequences + 1];      // how many of these have rows
  int32_t states[kMostStreamBlocks + 1];         // states of all blocks before
};

// ---- a block's sums
// ------------------------------------------------------------------------------

__device__ __forceinline__ int32_t scan_of_warp(int32_t x, int lane) {  // with its own
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t y = __shfl_sync(0xffffffffu, x, lane >= step ? lane - step : lane);
    if (lane >= step) x += y;
  }
  return x;
}

// The sum of all threads before, and of all.
struct Scan {
  int32_t before;
  int32_t all;
};
template <int kThreads>
__device__ __forceinline__ Scan scan_of_block(int32_t x, int32_t* sums, int thread) {
  const int lane = thread & 31, warp = thread >> 5;
  const int32_t with_own = scan_of_warp(x, lane);
  if (lane == 31) sums[warp] = with_own;
  __syncthreads();
  Scan scan = {with_own - x, 0};
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) scan.before += sums[w];
    scan.all += sums[w];
  }
  __syncthreads();
  return scan;
}

template <int kThreads>
__device__ __forceinline__ int64_t sum_of_block(int64_t x, int64_t* sums, int thread) {
#pragma unroll
  for (int k = 1; k < 32; k *= 2) {
    const uint32_t low = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(x), k);
    const uint32_t high = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(x >> 32), k);
    x += static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
  }
  if ((thread & 31) == 0) sums[thread >> 5] = x;
  __syncthreads();
  int64_t all = 0;
  for (int w = 0; w < kThreads / 32; ++w) all += sums[w];
  __syncthreads();
  return all;
}

template <int kThreads>
__device__ __forceinline__ int32_t least_of_block(int32_t x, int32_t* least, int thread) {
#pragma unroll
  for (int k = 1; k < 32; k *= 2)
    x = min(x, static_cast<int32_t>(__shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(x), k)));
  if ((thread & 31) == 0) least[thread >> 5] = x;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) x = min(x, least[w]);
  __syncthreads();
  return x;
}

// ---- what rows see
// -------------------------------------------------------------------------------

struct PlanSequence {
  int32_t rows, queries, kv_len, trim_sinks, first_kept;
  __device__ __forceinline__ PlanSequence(const PaddedArgs& a, int i)
      : queries(a.query_start[i + 1] - a.query_start[i]),
        kv_len(a.kv_lens[i]),
        trim_sinks(a.trim_sinks == nullptr ? 0 : a.trim_sinks[i]),
        first_kept(a.trim_first_kept == nullptr ? 0 : a.trim_first_kept[i]) {
    rows = queries * a.group_size;
  }
  __device__ __forceinline__ Sight sight(const PaddedArgs& a, int first, int count) const {
    const int base = kv_len - queries;
    return sight_of_any(a.mask, base + first / a.group_size,
                        base + (first + count - 1) / a.group_size, kv_len, trim_sinks, first_kept);
  }
};

// Calls visit(first, last) for each run of nodes of which some position is seen, in order.
template <typename Visit>
__device__ __forceinline__ void for_each_run(const Sight& sight, Visit&& visit) {
  int32_t done = -1;
  for (int32_t p = sight.next(0); p <= sight.high;) {
    int32_t end = sight.high;  // of the positions from p on that are seen without a gap
    if (p < sight.low && sight.sinks < sight.low) end = min(end, sight.sinks - 1);
    if (p < sight.first_kept && sight.trim_sinks < sight.first_kept)
      end = min(end, sight.trim_sinks - 1);
    const int32_t first = max(p / kNodeTokens, done + 1), last = end / kNodeTokens;
    if (first <= last) {
      visit(first, last);
      done = last;
    }
    if (end >= sight.high) break;
    p = sight.next(end + 1);
  }
}

// ---- nodes
// ---------------------------------------------------------------------------------------

// of_empty: the sequence of empty items, kNoRows: none fits.
template <int kThreads>
__device__ void plan_nodes(const PaddedArgs& a, int n, int of_empty, PlanMemory& memory, int thread) {
  const int lane = thread & 31, warp = thread >> 5;
  Item* const items = reinterpret_cast<Item*>(a.image);
  Group* const groups = reinterpret_cast<Group*>(items + a.room.items);
  int32_t num_groups = 0, num_items = 0;
  for (int chunk = 0; chunk < n; chunk += kThreads) {
    int32_t my_groups = 0, my_items = 0;
    if (chunk + thread < n) {
      const PlanSequence sequence(a, chunk + thread);
      for (int first = 0; first < sequence.rows; first += a.group_rows) {
        const int count = min(a.group_rows, sequence.rows - first);
        int32_t nodes = 0;
        for_each_run(sequence.sight(a, first, count),
                     [&](int32_t from, int32_t to) { nodes += to - from + 1; });
        my_items += max(nodes, 1);
        ++my_groups;
      }
    }
    const Scan of_groups = scan_of_block<kThreads>(my_groups, memory.sums[0], thread);
    const Scan of_items = scan_of_block<kThreads>(my_items, memory.sums[1], thread);
    for (int l = 0; l < 32 && chunk + 32 * warp + l < n; ++l) {  // a sequence for all lanes
      const int i = chunk + 32 * warp + l;
      int32_t group = num_groups + __shfl_sync(0xffffffffu, of_groups.before, l);
      int32_t item = num_items + __shfl_sync(0xffffffffu, of_items.before, l);
      const PlanSequence sequence(a, i);
      for (int first = 0; first < sequence.rows; first += a.group_rows) {
        const int count = min(a.group_rows, sequence.rows - first);
        int32_t nodes = 0;
        for_each_run(sequence.sight(a, first, count), [&](int32_t from, int32_t to) {
          for (int32_t node = from + lane; node <= to; node += 32) {
            const int32_t at = item + nodes + node - from;
            if (at < a.room.items) items[at] = {i, first, node, group};
          }
          nodes += to - from + 1;
        });
        if (lane == 0) {
          if (nodes == 0 && item < a.room.items) items[item] = {i, first, 0, group};
          if (group < a.room.groups) groups[group] = {i, first, item, max(nodes, 1)};
        }
        item += max(nodes, 1);
        ++group;
      }
    }
    num_groups += of_groups.all;
    num_items += of_items.all;
  }
  const int32_t rows = of_empty != kNoRows ? PlanSequence(a, of_empty).rows : 0;
  const Item none = empty_item(of_empty != kNoRows ? of_empty : 0, rows, a.room.groups);
  for (int i = num_items + thread; i < a.room.items; i += kThreads) items[i] = none;
  for (int i = num_groups + thread; i < a.room.groups; i += kThreads) groups[i] = empty_group();
  if (thread == 0) groups[a.room.groups] = group_of_empty_items();
}

// ---- the stream
// ----------------------------------------------------------------------------------

// A sequence's leaves and tiles; without anything to see, one leaf that is not seen.
struct PlanStream {
  Sight sight;
  int32_t first_leaf = 0, last_leaf = 0, first_tile = 0, last_tile = 0;
  __device__ __forceinline__ explicit PlanStream(const PaddedArgs& a, const PlanSequence& sequence)
      : sight(sequence.sight(a, 0, a.group_size)) {
    const int32_t low = max(sight.low, 0);
    if (low > sight.high) return;
    first_leaf = low / kLeafTokens;
    last_leaf = sight.high / kLeafTokens;
    first_tile = low / kTileTokens;
    last_tile = sight.high / kTileTokens;
  }
};

// States that a piece [from, to] of a group of leaves [first, last] leaves behind, as the kernel
// writes them: leaves up to the end of the node that began in another piece; each whole node; the
// node that ends in another piece. What lies before a whole node from the group's begin on is one.
struct PieceStates {
  int32_t apart = 0;  // leaves
  int32_t whole = 0;
  int32_t part = 0;            // 0 or 1
  bool apart_ends = false;     // the last of the apart leaves ends its node
  __device__ __forceinline__ PieceStates(int32_t first, int32_t last, int32_t from, int32_t to) {
    if (from == first && to == last) return;
    const bool ends = to % kLeavesPerNode == kLeavesPerNode - 1 || to == last;
    if (from == first) {
      whole = (to + 1) / kLeavesPerNode > first / kLeavesPerNode ? 1 : 0;
      part = ends ? 0 : 1;
      return;
    }
    int32_t rest = from;
    if (from % kLeavesPerNode != 0) {
      const int32_t node_end = min(from / kLeavesPerNode * kLeavesPerNode + kLeavesPerNode - 1, last);
      apart = min(to, node_end) - from + 1;
      apart_ends = to >= node_end;
      if (to <= node_end) return;
      rest = node_end + 1;
    }
    whole = (to + 1) / kLeavesPerNode - rest / kLeavesPerNode;
    if (to % kLeavesPerNode != kLeavesPerNode - 1) (to == last ? whole : part) += 1;
  }
  __device__ __forceinline__ int32_t count() const { return apart + whole + part; }
};

// The stream's leaves in order: sequences, their heads, their leaves.
struct PlanLeaves {
  const PlanMemory& memory;
  int n, heads;
  int64_t leaves, blocks;

  // The sequence of a leaf. Those without rows have none.
  __device__ __forceinline__ int sequence_of(int32_t leaf) const {
    int low = 0, high = n - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (memory.first_leaf[middle] <= leaf)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  __device__ __forceinline__ int32_t leaves_of(int sequence) const {
    return (memory.first_leaf[sequence + 1] - memory.first_leaf[sequence]) / heads;
  }
  __device__ __forceinline__ int32_t begin_of(int64_t block) const {
    return static_cast<int32_t>(leaves * block / blocks);
  }
  __device__ __forceinline__ int32_t block_of(int64_t leaf) const {
    return static_cast<int32_t>(((leaf + 1) * blocks - 1) / leaves);
  }
};

// A run of leaves of one sequence and head; leaves count from the first of the sequence's.
struct PlanPiece {
  int sequence, head;
  int32_t of_group, from, to;
};
template <typename Visit>
__device__ __forceinline__ void for_each_piece(const PlanLeaves& all, int block, Visit&& visit) {
  const int32_t end = all.begin_of(block + 1);
  int32_t at = all.begin_of(block);
  while (at < end) {
    PlanPiece piece;
    piece.sequence = all.sequence_of(at);
    piece.of_group = all.leaves_of(piece.sequence);
    const int32_t inside = at - all.memory.first_leaf[piece.sequence];
    piece.head = inside / piece.of_group;
    piece.from = inside - piece.head * piece.of_group;
    piece.to = min(piece.from + (end - at), piece.of_group) - 1;
    visit(piece);
    at += piece.to - piece.from + 1;
  }
}

__device__ __forceinline__ void write_segment(const PaddedArgs& a, const PlanLeaves& all,
                                              const PlanPiece& piece, int32_t state,
                                              Segment* segment, int32_t* flags) {
  const PlanSequence sequence(a, piece.sequence);
  const PlanStream stream(a, sequence);
  const int32_t first = stream.first_leaf, last = stream.last_leaf;
  const int32_t from = first + piece.from, to = first + piece.to;
  Segment s;
  s.sequence = piece.sequence;
  s.first_token = a.query_start[piece.sequence];
  s.head = piece.head;
  s.first_tile = max(from * kTilesPerLeaf, stream.first_tile);
  s.num_tiles = min((to + 1) * kTilesPerLeaf, stream.last_tile + 1) - s.first_tile;
  s.group_first_tile = stream.first_tile;
  s.group_last_leaf = last;
  s.whole = from == first && to == last ? 1 : 0;
  s.group = all.memory.number[piece.sequence] * all.heads + piece.head;
  s.state = s.group_state = state;
  s.group_segments = 1;
  if (s.whole == 0) {
    const int32_t begin = all.memory.first_leaf[piece.sequence] + piece.head * piece.of_group;
    const int32_t first_block = all.block_of(begin);
    const int32_t last_block = all.block_of(int64_t{begin} + piece.of_group - 1);
    const PieceStates in_first(first, last, first, first + all.begin_of(first_block + 1) - 1 - begin);
    const PieceStates in_last(first, last, first + all.begin_of(last_block) - begin, last);
    s.group_state = all.memory.states[first_block + 1] - in_first.count();
    s.group_states = all.memory.states[last_block] + in_last.count() - s.group_state;
    s.group_segments = last_block - first_block + 1;
  }
  s.first_sure_tile = (max(stream.sight.low, stream.sight.first_kept) + kTileTokens - 1) / kTileTokens;
  s.end_sure_tile = (stream.sight.high + 1) / kTileTokens;
  s.sight = stream.sight;
  *segment = s;

  const PieceStates states(first, last, from, to);
  for (int32_t i = 0; i < states.count() && state + i < a.room.states; ++i) {
    int32_t flag = kPartOfNode;
    if (i < states.apart) {
      if (states.apart_ends && i == states.apart - 1) flag = kEndsNode;
    } else if (i < states.apart + states.whole) {
      flag = kWholeNodes;
    }
    flags[state + i] = flag;
  }
}

template <int kThreads>
__device__ void plan_stream_of(const PaddedArgs& a, int n, PlanMemory& memory, int thread) {
  Segment* const segments = reinterpret_cast<Segment*>(a.image);
  const int32_t num_segments = a.room.stream_blocks * a.room.segments_per_block;
  int32_t* const flags = reinterpret_cast<int32_t*>(segments + num_segments);
  int32_t leaves = 0, with_rows = 0;
  for (int chunk = 0; chunk < n; chunk += kThreads) {
    const int i = chunk + thread;
    int32_t mine = 0, is_row = 0;
    if (i < n) {
      const PlanSequence sequence(a, i);
      if (sequence.queries > 0) {
        const PlanStream stream(a, sequence);
        mine = (stream.last_leaf - stream.first_leaf + 1) * a.num_heads;
        is_row = 1;
      }
    }
    const Scan of_leaves = scan_of_block<kThreads>(mine, memory.sums[0], thread);
    const Scan of_rows = scan_of_block<kThreads>(is_row, memory.sums[1], thread);
    if (i < n) {
      memory.first_leaf[i] = leaves + of_leaves.before;
      memory.number[i] = with_rows + of_rows.before;
    }
    leaves += of_leaves.all;
    with_rows += of_rows.all;
  }
  if (thread == 0) memory.first_leaf[n] = leaves;
  // Segments of nothing, then those of work over them.
  static_assert(offsetof(Segment, sight) == 60 && offsetof(Sight, high) == 4);
  for (int i = thread; i < num_segments * 5; i += kThreads)
    reinterpret_cast<int4*>(segments)[i] = int4{i % 5 == 4 ? -1 : 0, 0, 0, 0};
  __syncthreads();

  const int blocks = min(leaves, a.room.stream_blocks);
  const PlanLeaves all{memory, n, a.num_heads, leaves, blocks};
  int32_t states = 0;
  for (int chunk = 0; chunk < blocks; chunk += kThreads) {
    int32_t mine = 0;
    if (chunk + thread < blocks) {
      for_each_piece(all, chunk + thread, [&](const PlanPiece& piece) {
        const PlanStream stream(a, PlanSequence(a, piece.sequence));
        mine += PieceStates(stream.first_leaf, stream.last_leaf, stream.first_leaf + piece.from,
                            stream.first_leaf + piece.to)
                    .count();
      });
    }
    const Scan of_states = scan_of_block<kThreads>(mine, memory.sums[0], thread);
    if (chunk + thread < blocks) memory.states[chunk + thread] = states + of_states.before;
    states += of_states.all;
  }
  if (thread == 0) memory.states[blocks] = states;
  __syncthreads();
  for (int block = thread; block < blocks; block += kThreads) {
    int32_t state = memory.states[block];
    int at = 0;
    for_each_piece(all, block, [&](const PlanPiece& piece) {
      const PlanStream stream(a, PlanSequence(a, piece.sequence));
      if (at < a.room.segments_per_block)
        write_segment(a, all, piece, state, segments + block * a.room.segments_per_block + at, flags);
      ++at;
      state += PieceStates(stream.first_leaf, stream.last_leaf, stream.first_leaf + piece.from,
                           stream.first_leaf + piece.to)
                   .count();
    });
  }
  for (int i = states + thread; i < a.room.states; i += kThreads) flags[i] = kPartOfNode;
}

// ---- the kernel
// ----------------------------------------------------------------------------------

template <int kThreads>
__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ PaddedArgs a) {
  KVFOLIO_CUDA_SHARED_MEMORY(shared);
  PlanMemory& memory = *reinterpret_cast<PlanMemory*>(shared);
  const int thread = threadIdx.x;
  int n = a.num_sequences == nullptr ? a.max_sequences : *a.num_sequences;
  int32_t wrong = n < 0 || n > a.max_sequences ? a.max_sequences : kNoRows;
  // Where the number is wrong, the arrays still have max_sequences entries.
  const bool counted = wrong == kNoRows;
  const int num_read = counted ? n : a.max_sequences;
  const int64_t most_rows = int64_t{a.max_sequences} * a.max_queries;  // of q
  // The sequence of empty items: the first one with rows, else the first one, of those whose own
  // lengths are in range. The kernels read its lengths and a row of q even if others are wrong.
  int32_t of_empty = kNoRows;
  int64_t tokens = 0;
  for (int i = thread; i < num_read; i += kThreads) {
    const int32_t start = a.query_start[i], kv_len = a.kv_lens[i];
    const int64_t queries = int64_t{a.query_start[i + 1]} - start;
    const bool fits = kv_len >= 0 && kv_len <= a.max_sequence_tokens && queries >= 0 &&
                      queries <= a.max_queries;
    if (counted && !fits) wrong = min(wrong, i);
    if (counted) tokens += kv_len;
    if (fits && start >= 0 && start + (queries > 0 ? queries : 1) <= most_rows)
      of_empty = min(of_empty, queries > 0 ? i : a.max_sequences + i);
  }
  tokens = sum_of_block<kThreads>(tokens, memory.wide, thread);
  wrong = least_of_block<kThreads>(wrong, memory.sums[0], thread);
  of_empty = least_of_block<kThreads>(of_empty, memory.sums[1], thread);
  if (of_empty >= a.max_sequences && of_empty != kNoRows) of_empty -= a.max_sequences;
  if (wrong == kNoRows && tokens > a.max_tokens) wrong = a.max_sequences;
  if (wrong != kNoRows) {  // an empty plan
    n = 0;
    const auto word = static_cast<unsigned long long>(wrong);
    if (thread == 0 && a.fault != nullptr && word < *a.fault) *a.fault = word;
  }
  for (int i = thread; i < a.num_arrivals; i += kThreads) a.arrivals[i] = 0;
  if (a.room.stream_blocks > 0) {
    plan_stream_of<kThreads>(a, n, memory, thread);
  } else {
    plan_nodes<kThreads>(a, n, of_empty, memory, thread);
  }
}

}  // namespace kvfolio::cuda
