// SPDX-License-Identifier: Apache-2.0

#include "timing.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "cuda/attention/warp_tile.cuh"

namespace kvfolio::cuda {

void capture(cudaStream_t stream, Timed& timed) {
  cudaGraph_t graph;
  timed.launch(stream, 0);  // loads the module
  CHECK_CUDA(cudaStreamSynchronize(stream));
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < timed.launches; ++i) timed.launch(stream, i);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&timed.graph, graph, 0));
  CHECK_CUDA(cudaGraphDestroy(graph));
}

double replay(cudaStream_t stream, cudaEvent_t before, cudaEvent_t after, const Timed& timed) {
  CHECK_CUDA(cudaEventRecord(before, stream));
  CHECK_CUDA(cudaGraphLaunch(timed.graph, stream));
  CHECK_CUDA(cudaEventRecord(after, stream));
  CHECK_CUDA(cudaEventSynchronize(after));
  float ms;
  CHECK_CUDA(cudaEventElapsedTime(&ms, before, after));
  return static_cast<double>(ms) * 1e3 / timed.launches;
}

void time_all(std::vector<Timed>& all) {
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  cudaEvent_t before, after;
  CHECK_CUDA(cudaEventCreate(&before));
  CHECK_CUDA(cudaEventCreate(&after));
  for (Timed& t : all) capture(stream, t);
  for (int round = -2; round < kRounds; ++round)
    for (Timed& t : all) {
      const double us = replay(stream, before, after, t);
      if (round >= 0) t.us.push_back(us);
    }
  for (Timed& t : all) CHECK_CUDA(cudaGraphExecDestroy(t.graph));
  CHECK_CUDA(cudaEventDestroy(before));
  CHECK_CUDA(cudaEventDestroy(after));
  CHECK_CUDA(cudaStreamDestroy(stream));
}

namespace {

// Reads all that a decode reads: tiles of 64 tokens of K and V of one head, in steps of the grid.
__global__ void __launch_bounds__(128)
    read_probe(CacheArgs cache, const int32_t* table, int64_t table_stride, const ProbeTile* tiles,
               int num_tiles, int row_bytes, uint32_t* sink) {
  const int chunks = row_bytes / 16, each = 128 / chunks;
  const int row = static_cast<int>(threadIdx.x) / chunks,
            chunk = static_cast<int>(threadIdx.x) % chunks;
  uint32_t x = 0;
  for (int i = static_cast<int>(blockIdx.x); i < num_tiles * cache.num_heads;
       i += static_cast<int>(gridDim.x)) {
    const ProbeTile tile = tiles[i / cache.num_heads];
    const int head = i % cache.num_heads;
    uint4 y[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) y[j] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int r = row + j * each;
      if (r < tile.count && r < 64) {
        const int p = tile.first + r;
        const int block = table[tile.sequence * table_stride + p / cache.block_size];
        const int offset = p % cache.block_size;
        const int64_t k = block * cache.k_strides.block + head * cache.k_strides.head +
                          offset * cache.k_strides.token;
        const int64_t v = block * cache.v_strides.block + head * cache.v_strides.head +
                          offset * cache.v_strides.token;
        y[2 * j] = __ldcs(reinterpret_cast<const uint4*>(cache.k + k + chunk * 16));
        y[2 * j + 1] = __ldcs(reinterpret_cast<const uint4*>(cache.v + v + chunk * 16));
      }
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) x ^= y[j].x ^ y[j].y ^ y[j].z ^ y[j].w;
  }
  if (x == 0x12345678u) sink[0] = x;
}

// The same for large problems: a warp for each leaf finds its places first, then asks for 16 of
// them at a time. items: nodes of 1,024 positions.
__global__ void __launch_bounds__(128) read_leaves(AttendArgs a, int row_bytes, uint32_t* sink) {
  __shared__ uint32_t places[4][kLeafTokens];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int head = static_cast<int>(blockIdx.x) % a.cache.num_heads;
  const Item& item = a.items[static_cast<int>(blockIdx.x) / a.cache.num_heads];
  const int first = item.node * kNodeTokens + warp * kLeafTokens;
  const int n = min(kLeafTokens, a.kv_lens[item.sequence] - first);
  if (n <= 0) return;
  const int32_t* table = a.table + item.sequence * a.table_stride;
  for (int i = lane; i < kLeafTokens; i += 32) {
    const BlockPlace place = block_of(a, first + min(i, n - 1));
    places[warp][i] = a.k_steps.place(table[place.number], head, place.offset);
  }
  __syncwarp();
  const int chunks = row_bytes / 16, each = 32 / chunks;
  const int row = lane / chunks, chunk = lane % chunks;
  uint32_t x = 0;
  for (int from = 0; from < n; from += each * 8) {
    uint4 y[16];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int r = min(from + j * each + row, n - 1);
      const uint64_t at = (static_cast<uint64_t>(places[warp][r]) << 4) + chunk * 16;
      y[2 * j] = __ldcs(reinterpret_cast<const uint4*>(a.cache.k + at));
      y[2 * j + 1] = __ldcs(reinterpret_cast<const uint4*>(a.cache.v + at));
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) x ^= y[j].x ^ y[j].y ^ y[j].z ^ y[j].w;
  }
  if (x == 0x12345678u) sink[0] = x;
}

}  // namespace

std::string name_of(const TimedShape& shape) {
  char text[160];
  if (!shape.queries.empty()) {
    std::snprintf(text, sizeof text, "%s G%d D%d, %zu x %d new of %d",
                  std::string(to_string(shape.element)).c_str(), shape.group_size, shape.dim,
                  shape.lens.size(), shape.queries[0], shape.lens[0]);
    return text;
  }
  std::snprintf(text, sizeof text, "%s G%d H%d D%d block %d %s, %zu x %s%s",
                std::string(to_string(shape.element)).c_str(), shape.group_size, shape.heads,
                shape.dim, shape.block_size, shape.nhd ? "NHD" : "HND", shape.lens.size(),
                shape.lens_name.c_str(), shape.mask.rule == Rule::kFull ? "" : ", window");
  return text;
}

namespace {

std::vector<int> equal(int n, int len) {
  return std::vector<int>(static_cast<std::size_t>(n), len);
}

}  // namespace

std::vector<TimedShape> decode_shapes(bool quick) {
  std::vector<TimedShape> shapes;
  auto decode = [&](Element element, int group, int heads, int dim, int block, bool nhd, int n,
                    int len, Mask mask = {}) {
    shapes.push_back(
        {element, group, heads, dim, block, nhd, equal(n, len), std::to_string(len), mask});
  };
  const Element b = Element::kBF16;
  decode(b, 8, 8, 128, 16, false, 64, 8192);
  decode(b, 8, 8, 128, 16, false, 32, 4096);
  decode(b, 8, 8, 128, 16, false, 1, 8192);
  decode(Element::kInt8, 8, 8, 128, 16, false, 64, 8192);
  if (quick) return shapes;
  decode(b, 8, 8, 128, 16, false, 256, 1024);
  decode(b, 8, 8, 128, 16, false, 8, 8192);
  decode(b, 8, 8, 128, 16, false, 1, 131072);
  decode(b, 8, 8, 128, 16, false, 1, 32768);
  std::vector<int> skewed = equal(32, 1024);
  skewed[7] = 65536;
  shapes.push_back({b, 8, 8, 128, 16, false, skewed, "1024, one 65536", {}});
  std::mt19937 random(11);
  std::vector<int> ragged(48);
  for (int& len : ragged) len = 100 + static_cast<int>(random() % 8000);
  shapes.push_back({b, 8, 8, 128, 16, false, ragged, "100 to 8100", {}});
  decode(b, 4, 8, 128, 16, false, 64, 8192);
  decode(b, 1, 32, 128, 16, false, 16, 4096);
  decode(b, 16, 4, 128, 16, false, 64, 8192);
  for (const auto& [n, len] :
       {std::pair{1, 1024}, {1, 2048}, {1, 4096}, {4, 2048}, {8, 1024}, {8, 2048}, {8, 4096}})
    decode(b, 8, 8, 128, 16, false, n, len);
  decode(b, 8, 8, 128, 16, true, 32, 4096);
  decode(b, 8, 8, 128, 1, false, 32, 4096);
  decode(b, 8, 4, 256, 16, false, 32, 4096);
  decode(Element::kInt8, 8, 4, 256, 16, false, 32, 4096);
  decode(b, 8, 8, 64, 16, false, 64, 8192);
  decode(Element::kF16, 8, 8, 128, 16, false, 32, 4096);
  decode(Element::kInt8, 8, 8, 128, 16, false, 32, 4096);
  decode(Element::kInt8, 1, 32, 128, 16, false, 16, 4096);
  decode(Element::kE4M3, 8, 8, 128, 16, false, 64, 8192);
  decode(Element::kInt8, 8, 8, 64, 16, false, 64, 8192);
  decode(b, 8, 8, 128, 16, false, 64, 8192, {Rule::kSlidingWindow, 1024, 4, 1});
  return shapes;
}

std::vector<TimedShape> prefill_shapes(bool quick) {
  std::vector<TimedShape> shapes;
  auto prefill = [&](Element element, int group, int dim, int n, int queries, int len) {
    TimedShape shape = {element, group, 8, dim, 16, false, equal(n, len), "", {}};
    shape.queries = equal(n, queries);
    shapes.push_back(std::move(shape));
  };
  const Element b = Element::kBF16;
  prefill(b, 8, 128, 1, 2048, 8192);
  if (quick) return shapes;
  prefill(b, 8, 128, 1, 512, 4608);
  prefill(b, 8, 128, 16, 64, 8192);
  prefill(b, 8, 128, 1, 8192, 8192);
  prefill(b, 4, 128, 1, 2048, 8192);
  prefill(Element::kF16, 8, 128, 1, 2048, 8192);
  prefill(b, 8, 64, 1, 2048, 8192);
  prefill(b, 8, 256, 1, 512, 4608);
  prefill(Element::kInt8, 8, 128, 1, 2048, 8192);
  prefill(Element::kE4M3, 8, 128, 1, 2048, 8192);
  prefill(Element::kInt8, 8, 64, 1, 2048, 8192);
  return shapes;
}

double flop_of(const TimedShape& shape) {
  double pairs = 0;
  for (std::size_t i = 0; i < shape.queries.size(); ++i) {
    const double queries = shape.queries[i];
    pairs += queries * (shape.lens[i] - queries + (queries + 1) / 2);
  }
  return pairs * shape.heads * shape.group_size * 4.0 * shape.dim;
}

void build_sets(const TimedShape& shape, ProblemSet& set) {
  Spec spec;
  spec.element = shape.element;
  spec.q_element = shape.element == Element::kF16 ? Element::kF16 : Element::kBF16;
  spec.dim_k = spec.dim_v = shape.dim;
  spec.heads = shape.heads;
  spec.group_size = shape.group_size;
  spec.block_size = shape.block_size;
  spec.nhd = shape.nhd;
  spec.mask = shape.mask;
  spec.out_element = spec.q_element;
  double bytes = 0;
  for (const int len : shape.lens)
    bytes += 2.0 * shape.heads * len *
             (shape.dim * element_bytes(shape.element) + (has_scales(shape.element) ? 4 : 0));
  const int sets = shape.queries.empty()
                       ? std::max(1, std::min(48, static_cast<int>(std::ceil(300e6 / bytes))))
                       : 1;  // a prefill waits for its products
  std::uint32_t id = 1;
  for (int i = 0; i < sets; ++i) {
    spec.sequences.clear();
    spec.seed = 100 + static_cast<std::uint32_t>(i);
    for (std::size_t k = 0; k < shape.lens.size(); ++k)
      spec.sequences.push_back({id++, shape.lens[k], shape.queries.empty() ? 1 : shape.queries[k]});
    set.problems.push_back(std::make_unique<Problem>());
    build(set.arena, spec, *set.problems.back());
  }
  std::vector<ProbeTile> tiles;
  for (std::size_t i = 0; i < shape.lens.size(); ++i)
    for (int first = 0; first < shape.lens[i]; first += 64)
      tiles.push_back({static_cast<int>(i), first, std::min(64, shape.lens[i] - first)});
  set.num_tiles = static_cast<int>(tiles.size());
  set.tiles.assign(1, set.arena.put(tiles));
}

Timed probe_of(const ProblemSet& set, int grid, uint32_t* sink, int launches) {
  Timed t;
  t.name = "read " + std::to_string(grid);
  t.launches = launches;
  t.launch = [&set, grid, sink](cudaStream_t stream, int i) {
    const Problem& p = *set.problems[static_cast<std::size_t>(i) % set.problems.size()];
    const int row = p.spec.dim_k * element_bytes(p.spec.element);
    const int all = set.num_tiles * p.spec.heads;
    read_probe<<<static_cast<unsigned>(std::min(all, grid)), 128, 0, stream>>>(
        p.call.cache, p.call.block_table, p.call.block_table_stride, set.tiles[0], set.num_tiles,
        row, sink);
  };
  return t;
}

Timed leaf_probe_of(ProblemSet& set, uint32_t* sink, int launches) {
  auto args = std::make_shared<std::vector<AttendArgs>>();
  for (const auto& p : set.problems) {
    const Planned planned = plan_on_device(set.arena, *p, {.stream = false});
    args->push_back(arguments_of(p->call));
    args->back().items = static_cast<const Item*>(planned.image);
    args->back().num_items = static_cast<std::int32_t>(planned.plan.work.items.size());
  }
  Timed t;
  t.name = "read leaves";
  t.launches = launches;
  t.launch = [args, sink](cudaStream_t stream, int i) {
    const AttendArgs& a = (*args)[static_cast<std::size_t>(i) % args->size()];
    read_leaves<<<static_cast<unsigned>(a.num_items * a.cache.num_heads), 128, 0, stream>>>(
        a, a.cache.dim_k * element_bytes(a.cache.element), sink);
  };
  return t;
}

Timed attend_of(ProblemSet& set, const char* name, const KernelChoice& choice, int launches) {
  auto planned = std::make_shared<std::vector<Planned>>();
  for (const auto& p : set.problems) planned->push_back(plan_on_device(set.arena, *p, choice));
  Timed t;
  t.name = name;
  t.launches = launches;
  t.launch = [&set, planned](cudaStream_t stream, int i) {
    const std::size_t at = static_cast<std::size_t>(i) % planned->size();
    const Status status = attend(set.problems[at]->call, (*planned)[at].plan, (*planned)[at].image,
                                 (*planned)[at].workspace, device_launcher(stream));
    if (!status.ok()) std::printf("attend: %s\n", status.message().c_str());
  };
  return t;
}

}  // namespace kvfolio::cuda
