// SPDX-License-Identifier: Apache-2.0

// Ours and FlashInfer's kernels over the same caches, for beside.py, which sets torch's beside
// them. A library with C functions: Python loads it, so that all are in one process, over one
// memory, and are replayed in turn.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "flashinfer.h"
#include "timing.h"

namespace kvfolio::cuda {
namespace {

struct Side {
  Timed timed;
  const void* out = nullptr;  // of the first problem; null for a read
  double difference = -1.0;
};

}  // namespace

struct Beside {
  TimedShape shape;
  ProblemSet set;
  std::vector<Side> sides;  // ours is the first
  PeerMemory memory;
  cudaStream_t stream = nullptr;
  cudaEvent_t before = nullptr, after = nullptr;
};

namespace {

std::vector<TimedShape> shapes_beside(bool quick) {
  std::vector<TimedShape> shapes = decode_shapes(quick);
  for (TimedShape& shape : prefill_shapes(quick)) shapes.push_back(std::move(shape));
  std::erase_if(shapes, [](const TimedShape& shape) {
    return shape.element != Element::kBF16 || shape.mask.rule != Rule::kFull;
  });
  return shapes;
}

std::vector<float> read_bf16(const void* from, std::size_t n) {
  std::vector<std::uint16_t> raw(n);
  CHECK_CUDA(cudaMemcpy(raw.data(), from, n * 2, cudaMemcpyDeviceToHost));
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(raw[i]) << 16;
    std::memcpy(&values[i], &bits, 4);
  }
  return values;
}

// Relative, in the L2 norm. A NaN is never small.
double difference(const std::vector<float>& x, const std::vector<float>& ours) {
  double num = 0, den = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(ours[i]);
    num += d * d;
    den += static_cast<double>(ours[i]) * static_cast<double>(ours[i]);
  }
  return std::sqrt(num / den);
}

#ifdef KVFOLIO_FLASHINFER
using MakePeer = std::optional<Peer> (*)(Arena&, const PeerMemory&, const Problem&);
void add_peer(Beside& b, const char* name, MakePeer make, int launches) {
  auto peers = std::make_shared<std::vector<Peer>>();
  for (const auto& problem : b.set.problems) {
    std::optional<Peer> peer = make(b.set.arena, b.memory, *problem);
    if (!peer) return;
    peers->push_back(std::move(*peer));
  }
  Side side;
  side.out = peers->front().out;
  side.timed.name = name;
  side.timed.launches = launches;
  side.timed.launch = [peers, name](cudaStream_t stream, int i) {
    const cudaError_t error = (*peers)[static_cast<std::size_t>(i) % peers->size()].launch(stream);
    if (error != cudaSuccess) {
      std::printf("%s: %s\n", name, cudaGetErrorString(error));
      std::fflush(stdout);
      std::exit(1);
    }
  };
  b.sides.push_back(std::move(side));
}
#endif

void add_sides(Beside& b) {
  const bool decode = b.shape.queries.empty();
  const double bytes = b.set.problems[0]->kv_bytes;
  const int launches =
      decode ? std::max(static_cast<int>(b.set.problems.size()), bytes > 1e9 ? 2 : 4) : 2;
  int sms = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  b.sides.push_back(
      {attend_of(b.set, "kvfolio", {.num_sms = sms}, launches), b.set.problems[0]->call.out});
  if (!decode && b.shape.dim == 64)
    b.sides.push_back({attend_of(b.set, "kvfolio wgmma tiles", {.wgmma_tiles = true}, launches),
                       b.set.problems[0]->call.out});
  if (decode) {
    uint32_t* sink = static_cast<uint32_t*>(b.set.arena.bytes(256));
    for (const int each : {4, 8, 16})
      b.sides.push_back({probe_of(b.set, each * sms, sink, launches)});
    b.sides.push_back({leaf_probe_of(b.set, sink, launches)});
  }
#ifdef KVFOLIO_FLASHINFER
  b.memory.float_bytes = std::size_t{384} << 20;
  b.memory.floats = b.set.arena.bytes(b.memory.float_bytes);
  CHECK_CUDA(cudaMallocHost(&b.memory.pinned, kPeerIntegers));
  if (decode) add_peer(b, "FlashInfer decode", flashinfer_decode, launches);
  add_peer(b, "FlashInfer FA2", flashinfer_fa2, launches);
  if (!decode) add_peer(b, "FlashInfer FA3", flashinfer_fa3, launches);
#endif
}

void compare(Beside& b) {
  const Problem& problem = *b.set.problems[0];
  const auto n = static_cast<std::size_t>(problem.rows) *
                 static_cast<std::size_t>(problem.call.out_token_stride / 2);
  std::vector<float> ours;
  for (Side& side : b.sides) {
    if (side.out == nullptr) continue;
    side.timed.launch(b.stream, 0);
    CHECK_CUDA(cudaStreamSynchronize(b.stream));
    if (ours.empty()) {
      ours = read_bf16(side.out, n);
    } else {
      side.difference = difference(read_bf16(side.out, n), ours);
    }
  }
}

}  // namespace

extern "C" {

// What beside.py declares too.
struct BesideProblem {
  const void *k, *v, *q, *out;
  const std::int32_t *table, *kv_lens, *query_start;  // the table is on the device
  std::int64_t table_stride;
  std::int32_t blocks, heads, group_size, dim, block_size, nhd, sequences, rows;
};

int beside_shapes(int quick) { return static_cast<int>(shapes_beside(quick != 0).size()); }

Beside* beside_open(int quick, int shape) {
  auto b = std::make_unique<Beside>();
  b->shape = shapes_beside(quick != 0)[static_cast<std::size_t>(shape)];
  build_sets(b->shape, b->set);
  CHECK_CUDA(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreate(&b->before));
  CHECK_CUDA(cudaEventCreate(&b->after));
  add_sides(*b);
  compare(*b);
  for (Side& side : b->sides) capture(b->stream, side.timed);
  return b.release();
}

void beside_name(const Beside* b, char* to, int size) {
  std::snprintf(to, static_cast<std::size_t>(size), "%s", name_of(b->shape).c_str());
}
double beside_kv_bytes(const Beside* b) { return b->set.problems[0]->kv_bytes; }
double beside_flop(const Beside* b) { return flop_of(b->shape); }
int beside_launches(const Beside* b) { return b->sides[0].timed.launches; }

int beside_sides(const Beside* b) { return static_cast<int>(b->sides.size()); }
const char* beside_side(const Beside* b, int side) {
  return b->sides[static_cast<std::size_t>(side)].timed.name.c_str();
}
// From ours, relative; below zero where there is nothing to compare.
double beside_difference(const Beside* b, int side) {
  return b->sides[static_cast<std::size_t>(side)].difference;
}
// us of one launch, in one replay of the graph.
double beside_time(const Beside* b, int side) {
  return replay(b->stream, b->before, b->after, b->sides[static_cast<std::size_t>(side)].timed);
}

int beside_problems(const Beside* b) { return static_cast<int>(b->set.problems.size()); }
void beside_problem(const Beside* b, int index, BesideProblem* to) {
  const Problem& p = *b->set.problems[static_cast<std::size_t>(index)];
  *to = {p.call.cache.k,
         p.call.cache.v,
         p.call.q,
         p.call.out,
         p.call.block_table,
         p.lens.data(),
         p.start.data(),
         p.call.block_table_stride,
         p.call.cache.num_blocks,
         p.spec.heads,
         p.spec.group_size,
         p.spec.dim_k,
         p.spec.block_size,
         p.spec.nhd ? 1 : 0,
         static_cast<std::int32_t>(p.lens.size()),
         p.rows};
}

void beside_close(Beside* b) {
  for (Side& side : b->sides) CHECK_CUDA(cudaGraphExecDestroy(side.timed.graph));
  if (b->memory.pinned != nullptr) CHECK_CUDA(cudaFreeHost(b->memory.pinned));
  CHECK_CUDA(cudaEventDestroy(b->before));
  CHECK_CUDA(cudaEventDestroy(b->after));
  CHECK_CUDA(cudaStreamDestroy(b->stream));
  delete b;
}

}  // extern "C"

}  // namespace kvfolio::cuda
