// SPDX-License-Identifier: Apache-2.0

#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "cuda/attention/general_kernel.cuh"
#include "cuda/attention/launch.h"
#include "cuda/attention/module.h"
#include "cuda/elements.cuh"

namespace kvfolio::cuda {

Arena::~Arena() {
  for (void* p : all_) cudaFree(p);
}

void* Arena::bytes(std::size_t n, int poison) {
  void* p = nullptr;
  CHECK_CUDA(cudaMalloc(&p, std::max<std::size_t>(n, 256)));
  all_.push_back(p);
  if (poison >= 0) CHECK_CUDA(cudaMemset(p, poison, n));
  return p;
}

namespace {

__device__ __host__ inline uint32_t mixed(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}
// Nearly normal: the sum of four bytes.
__device__ inline float drawn(uint32_t seed) {
  const uint32_t h = mixed(seed);
  const int sum = static_cast<int>(h & 255) + static_cast<int>((h >> 8) & 255) +
                  static_cast<int>((h >> 16) & 255) + static_cast<int>(h >> 24);
  return static_cast<float>(sum - 510) * (1.0f / 147.8f);
}
__device__ inline uint32_t place_hash(uint32_t id, int position, int head, int kind) {
  return mixed(id * 0x9e3779b9u + static_cast<uint32_t>(position)) ^
         mixed(0x51ed270bu + static_cast<uint32_t>(head * 4 + kind));
}

__device__ inline void store_element(char* to, Element element, float x) {
  switch (element) {
    case Element::kF32:
      *reinterpret_cast<float*>(to) = x;
      return;
    case Element::kF16:
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(pack2<true>(x, 0.0f));
      return;
    case Element::kBF16:
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(pack2<false>(x, 0.0f));
      return;
    case Element::kInt8:
      *to = static_cast<char>(max(-127, min(127, __float2int_rn(x * 40.0f))));
      return;
    case Element::kE4M3: {
      *to = static_cast<char>(e4m3x2_of(x * 100.0f, 0.0f) & 0xff);
      return;
    }
  }
}

struct FillSequence {
  uint32_t id;
  int kv_len;
  int table_row;
};
// A block of threads for each position, head and kind, in steps.
__global__ void fill_cache(CacheArgs cache, const FillSequence* sequences, const int32_t* table,
                           int64_t table_stride) {
  const FillSequence s = sequences[blockIdx.y];
  const int64_t count = static_cast<int64_t>(s.kv_len) * cache.num_heads * 2;
  for (int64_t i = blockIdx.x * 4 + threadIdx.x / 32; i < count; i += gridDim.x * 4) {
    const int kind = static_cast<int>(i & 1);
    const int head = static_cast<int>((i >> 1) % cache.num_heads);
    const int position = static_cast<int>((i >> 1) / cache.num_heads);
    const int block = table[s.table_row * table_stride + position / cache.block_size];
    if (block < 0) continue;
    const int offset = position % cache.block_size;
    const Strides& strides = kind ? cache.v_strides : cache.k_strides;
    char* to = const_cast<char*>(kind ? cache.v : cache.k) + place_in(strides, block, head, offset);
    const uint32_t base = place_hash(s.id, position, head, kind);
    const int dims = kind ? cache.dim_v : cache.dim_k;
    for (int d = threadIdx.x % 32; d < dims; d += 32) {
      store_element(to + d * element_bytes(cache.element), cache.element,
                    drawn(base + 0x632be5abu * static_cast<uint32_t>(d + 1)));
    }
    if (has_scales(cache.element) && threadIdx.x % 32 == 0) {
      const float u = static_cast<float>(mixed(base) >> 8) / 16777216.0f;
      char* scales = const_cast<char*>(kind ? cache.v_scales : cache.k_scales);
      const Strides& at = kind ? cache.v_scale_strides : cache.k_scale_strides;
      *reinterpret_cast<float*>(scales + place_in(at, block, head, offset)) =
          (0.5f + u) / (cache.element == Element::kInt8 ? 40.0f : 100.0f);
    }
  }
}
// A NaN or an infinity in dim 5 of V of every head, or in its scale.
__global__ void spoil(CacheArgs cache, int block, int offset, bool nan) {
  const float wrong = nan ? __int_as_float(0x7fc00000) : __int_as_float(0x7f800000);
  const int head = threadIdx.x;
  if (has_scales(cache.element)) {
    *reinterpret_cast<float*>(const_cast<char*>(cache.v_scales) +
                              place_in(cache.v_scale_strides, block, head, offset)) = wrong;
  } else {
    store_element(const_cast<char*>(cache.v) + place_in(cache.v_strides, block, head, offset) +
                      5 * element_bytes(cache.element),
                  cache.element, wrong);
  }
}
struct FillQueries {
  uint32_t id;
  int first_position, queries, first_row;
};
__global__ void fill_queries(char* q, const FillQueries* sequences, int q_heads, int dim,
                             Element element) {
  const FillQueries s = sequences[blockIdx.x];
  const int count = s.queries * q_heads * dim;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int d = i % dim, head = i / dim % q_heads, token = i / dim / q_heads;
    const float x = 1.5f * drawn(place_hash(s.id, s.first_position + token, head, 2) +
                                 0x632be5abu * static_cast<uint32_t>(d + 1));
    const int64_t at = static_cast<int64_t>(s.first_row) * q_heads * dim + i;
    store_element(q + at * element_bytes(element), element, x);
  }
}

__device__ double cache_value(const CacheArgs& cache, bool is_v, int block, int head, int offset,
                              int d) {
  const char* row = (is_v ? cache.v : cache.k) +
                    place_in(is_v ? cache.v_strides : cache.k_strides, block, head, offset);
  const double x = static_cast<double>(element_at(row, d, cache.element));
  if (!has_scales(cache.element)) return x;
  const char* scales = is_v ? cache.v_scales : cache.k_scales;
  const Strides& at = is_v ? cache.v_scale_strides : cache.k_scale_strides;
  return x * static_cast<double>(
                 *reinterpret_cast<const float*>(scales + place_in(at, block, head, offset)));
}
// A block of 128 threads for a row. scores: [grid][longest].
__global__ void exact_kernel(AttendArgs a, int sequences, double scale, double cap,
                             double* all_scores, int longest, double* out, double* lse) {
  const int q_heads = a.cache.num_heads * a.group_size;
  const int token = static_cast<int>(blockIdx.x) / q_heads;
  const int q_head = static_cast<int>(blockIdx.x) % q_heads, head = q_head / a.group_size;
  int sequence = 0;
  while (sequence + 1 < sequences && a.query_start[sequence + 1] <= token) ++sequence;
  const SequenceArgs seq(a, sequence);
  const int at = seq.kv_len - (a.query_start[sequence + 1] - token);
  const Sight sight = sight_of(a.mask, at, seq.kv_len, seq.trim_sinks, seq.first_kept);
  double* s = all_scores + static_cast<int64_t>(blockIdx.x) * longest;
  const char* q = a.q + token * a.q_token + q_head * a.q_head;
  const int32_t* table = a.table + sequence * a.table_stride;
  __shared__ double folded[128];
  const int t = static_cast<int>(threadIdx.x), block_size = a.cache.block_size;
  const double none = -1e300;
  double most = none;
  for (int p = t; p <= sight.high; p += 128) {
    s[p] = none;
    if (!sight.sees(p)) continue;
    double x = 0;
    for (int d = 0; d < a.cache.dim_k; ++d)
      x += static_cast<double>(element_at(q, d, a.q_element)) *
           cache_value(a.cache, false, table[p / block_size], head, p % block_size, d);
    x *= scale;
    if (cap > 0) x = cap * tanh(x / cap);
    if (a.slopes != nullptr) x += static_cast<double>(a.slopes[q_head]) * (p - at);
    s[p] = x;
    most = fmax(most, x);
  }
  folded[t] = most;
  __syncthreads();
  for (int k = 64; k > 0; k /= 2) {
    if (t < k) folded[t] = fmax(folded[t], folded[t + k]);
    __syncthreads();
  }
  most = folded[0];
  __syncthreads();
  double sink = none;
  if (a.sink_logits != nullptr && a.sink_logits[q_head] > -1e30f)
    sink = static_cast<double>(a.sink_logits[q_head]);
  most = fmax(most, sink);
  double total = 0;
  for (int p = t; p <= sight.high; p += 128) {
    s[p] = s[p] == none ? 0.0 : exp(s[p] - most);
    total += s[p];
  }
  folded[t] = total;
  __syncthreads();
  for (int k = 64; k > 0; k /= 2) {
    if (t < k) folded[t] += folded[t + k];
    __syncthreads();
  }
  total = folded[0] + (sink == none ? 0.0 : exp(sink - most));
  for (int d = t; d < a.cache.dim_v; d += 128) {
    double o = 0;
    for (int p = 0; p <= sight.high; ++p)
      if (s[p] != 0.0)
        o += s[p] * cache_value(a.cache, true, table[p / block_size], head, p % block_size, d);
    out[static_cast<int64_t>(blockIdx.x) * a.cache.dim_v + d] = total == 0 ? 0.0 : o / total;
  }
  if (t == 0) lse[blockIdx.x] = total == 0 ? -HUGE_VAL : most + log(total);
}

Strides strides_of(const Spec& spec, int64_t row, int64_t more) {
  Strides strides;
  strides.token = spec.nhd ? row * spec.heads : row;
  strides.head = spec.nhd ? row : row * spec.block_size;
  strides.block = row * spec.heads * spec.block_size + more;
  return strides;
}

void make_cache(Arena& arena, const Spec& spec, int blocks, CacheArgs& cache) {
  const int64_t element = element_bytes(spec.element);
  const int poison = blocks < 8192 ? 0xff : -1;
  cache.element = spec.element;
  cache.block_size = spec.block_size;
  cache.num_blocks = blocks;
  cache.num_heads = spec.heads;
  cache.dim_k = spec.dim_k;
  cache.dim_v = spec.dim_v;
  cache.k_strides = strides_of(spec, spec.dim_k * element, spec.k_beside_v ? 256 : 0);
  cache.v_strides = strides_of(spec, spec.dim_v * element, 0);
  cache.k = static_cast<char*>(
      arena.bytes(static_cast<std::size_t>(cache.k_strides.block * blocks), poison));
  cache.v = static_cast<char*>(
      arena.bytes(static_cast<std::size_t>(cache.v_strides.block * blocks), poison));
  if (!has_scales(spec.element)) return;
  Spec plain = spec;
  plain.nhd = false;
  cache.k_scale_strides = cache.v_scale_strides = strides_of(plain, 4, 0);
  const auto bytes = static_cast<std::size_t>(cache.k_scale_strides.block * blocks);
  cache.k_scales = static_cast<char*>(arena.bytes(bytes, poison));
  cache.v_scales = static_cast<char*>(arena.bytes(bytes, poison));
}

}  // namespace

void build(Arena& arena, const Spec& spec, Problem& problem) {
  problem.spec = spec;
  const auto n = static_cast<int>(spec.sequences.size());
  int stride = 1, blocks = 1;
  for (const Sequence& s : spec.sequences) {
    const int each = (s.kv_len + spec.block_size - 1) / spec.block_size;
    stride = std::max(stride, each);
    if (s.share < 0) blocks += each;
  }
  std::vector<int> ids(static_cast<std::size_t>(blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937 random(spec.seed);
  std::shuffle(ids.begin(), ids.end(), random);
  std::vector<std::int32_t> table(static_cast<std::size_t>(n) * static_cast<std::size_t>(stride),
                                  -1);
  problem.start.assign(1, 0);
  problem.kv_bytes = 0;
  std::size_t next = 0;
  const double token_bytes =
      spec.heads * (static_cast<double>(spec.dim_k + spec.dim_v) * element_bytes(spec.element) +
                    (has_scales(spec.element) ? 8 : 0));
  std::vector<FillSequence> fills;
  std::vector<FillQueries> queries;
  for (int i = 0; i < n; ++i) {
    const Sequence& s = spec.sequences[static_cast<std::size_t>(i)];
    const Sight seen = sight_of_any(spec.mask, s.kv_len - s.queries, s.kv_len - 1, s.kv_len,
                                    s.trim_sinks, s.first_kept);
    const auto row = static_cast<std::size_t>(i) * static_cast<std::size_t>(stride);
    for (int b = 0; b * spec.block_size < s.kv_len; ++b) {
      const auto at = row + static_cast<std::size_t>(b);
      const int first = b * spec.block_size;
      if (s.share >= 0) {
        table[at] = table[static_cast<std::size_t>(s.share) * static_cast<std::size_t>(stride) +
                          static_cast<std::size_t>(b)];
      } else if (!spec.drop ||
                 seen.sees_any(first, std::min(first + spec.block_size, s.kv_len) - 1)) {
        table[at] = ids[next++];
      }
    }
    problem.lens.push_back(s.kv_len);
    problem.trim_sinks.push_back(s.trim_sinks);
    problem.first_kept.push_back(s.first_kept);
    queries.push_back({s.id, s.kv_len - s.queries, s.queries, problem.start.back()});
    problem.start.push_back(problem.start.back() + s.queries);
    if (s.share < 0) fills.push_back({s.id, s.kv_len, i});
    problem.kv_bytes += token_bytes * s.kv_len;
  }
  problem.rows = problem.start.back();
  const int q_heads = spec.heads * spec.group_size;
  AttentionCall& call = problem.call;
  make_cache(arena, spec, blocks, call.cache);
  call.block_table = arena.put(table);
  call.block_table_stride = stride;
  call.device_kv_lens = arena.put(problem.lens);
  call.device_query_start = arena.put(problem.start);
  const bool trimmed = std::any_of(spec.sequences.begin(), spec.sequences.end(),
                                   [](const Sequence& s) { return s.first_kept > 0; });
  if (trimmed) {
    call.device_trim_sinks = arena.put(problem.trim_sinks);
    call.device_trim_first_kept = arena.put(problem.first_kept);
    call.lengths.trim_sinks = problem.trim_sinks;
    call.lengths.trim_first_kept = problem.first_kept;
  }
  call.lengths.query_start = problem.start;
  call.lengths.kv_lens = problem.lens;
  call.q_element = spec.q_element;
  call.q_head_stride = spec.dim_k * element_bytes(spec.q_element);
  call.q_token_stride = call.q_head_stride * q_heads;
  char* q = static_cast<char*>(arena.bytes(static_cast<std::size_t>(call.q_token_stride) *
                                           static_cast<std::size_t>(problem.rows)));
  call.q = q;
  call.out_element = spec.out_element;
  call.out_head_stride = spec.dim_v * element_bytes(spec.out_element);
  call.out_token_stride = call.out_head_stride * q_heads;
  call.out = arena.bytes(static_cast<std::size_t>(call.out_token_stride) *
                         static_cast<std::size_t>(problem.rows));
  const auto rows = static_cast<std::size_t>(problem.rows) * static_cast<std::size_t>(q_heads);
  call.lse = static_cast<float*>(arena.bytes(rows * 4));
  std::vector<float> slopes, logits;
  for (int h = 0; h < q_heads; ++h) {
    slopes.push_back(std::exp2(-static_cast<float>(h % 8 + 1)));
    logits.push_back(0.25f * static_cast<float>(h % 16) - 1.0f);
  }
  if (spec.alibi) call.alibi_slopes = arena.put(slopes);
  if (spec.sinks) call.sink_logits = arena.put(logits);
  call.group_size = spec.group_size;
  call.scale = 1.0 / std::sqrt(static_cast<double>(spec.dim_k));
  call.soft_cap = spec.soft_cap;
  call.mask = spec.mask;
  const FillSequence* device_fills = arena.put(fills);
  for (std::size_t at = 0; at < fills.size(); at += 32768) {
    const std::size_t part = std::min<std::size_t>(32768, fills.size() - at);
    fill_cache<<<dim3(part >= 64 ? 64 : 1024, static_cast<unsigned>(part)), 128>>>(
        call.cache, device_fills + at, call.block_table, stride);
    CHECK_CUDA(cudaGetLastError());
  }
  for (const auto& [sequence, position] : spec.wrong) {
    const int block = table[static_cast<std::size_t>(sequence) * static_cast<std::size_t>(stride) +
                            static_cast<std::size_t>(position / spec.block_size)];
    if (block < 0) continue;
    spoil<<<1, spec.heads>>>(call.cache, block, position % spec.block_size, position % 2 != 0);
    CHECK_CUDA(cudaGetLastError());
  }
  fill_queries<<<static_cast<unsigned>(n), 256>>>(q, arena.put(queries), q_heads, spec.dim_k,
                                                  spec.q_element);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
}

namespace {

// What is wanted, as far as the card has room for it.
KernelChoice fitted(const Problem& problem, KernelChoice wanted) {
  SharedMemory shared;
  int num_sms = 0;
  const std::pair<int*, cudaDeviceAttr> asked[] = {
      {&shared.of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {&shared.of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor},
      {&shared.kept_of_block, cudaDevAttrReservedSharedMemoryPerBlock},
      {&num_sms, cudaDevAttrMultiProcessorCount}};
  for (const auto& [value, attribute] : asked) {
    CHECK_CUDA(cudaDeviceGetAttribute(value, attribute, 0));
  }
  const KernelChoice card =
      choose_kernels(problem.call, launched_set(), shared, num_sms, "the card").choice;
  if (wanted.num_sms == KernelChoice{}.num_sms) wanted.num_sms = num_sms;
  wanted.wgmma &= card.wgmma;
  wanted.wide_tiles &= card.wide_tiles;
  wanted.prefill &= card.prefill;
  wanted.narrow |= card.narrow;
  wanted.stream &= card.stream;
  wanted.stream_blocks_of_sm = card.stream_blocks_of_sm;
  return wanted;
}

}  // namespace

Planned plan_on_device(Arena& arena, const Problem& problem, const KernelChoice& choice) {
  Result<AttentionPlan> plan = plan_attention(problem.call, fitted(problem, choice));
  if (!plan) {
    std::printf("plan: %s\n", plan.error().message().c_str());
    std::exit(1);
  }
  Planned planned;
  planned.plan = std::move(*plan);
  planned.image = arena.put(planned.plan.image);
  planned.workspace = arena.bytes(static_cast<std::size_t>(planned.plan.workspace_bytes),
                                  planned.plan.workspace_bytes < (64 << 20) ? 0xff : -1);
  if (planned.plan.zeroed_bytes > 0)
    CHECK_CUDA(
        cudaMemset(planned.workspace, 0, static_cast<std::size_t>(planned.plan.zeroed_bytes)));
  return planned;
}

Output run(const Problem& problem, const KernelChoice& choice) {
  Arena arena;
  const Planned planned = plan_on_device(arena, problem, choice);
  const Spec& spec = problem.spec;
  const auto rows = static_cast<std::size_t>(problem.rows) *
                    static_cast<std::size_t>(spec.heads * spec.group_size);
  Output output{std::vector<float>(rows * static_cast<std::size_t>(spec.dim_v)),
                std::vector<float>(rows)};
  CHECK_CUDA(cudaMemset(problem.call.out, 0xff, output.out.size() * 4));
  CHECK_CUDA(cudaMemset(problem.call.lse, 0xff, rows * 4));
  const Status status = attend(problem.call, planned.plan, planned.image, planned.workspace,
                               device_launcher(nullptr));
  if (!status.ok()) {
    std::printf("attend: %s\n", status.message().c_str());
    std::exit(1);
  }
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaMemcpy(output.out.data(), problem.call.out, output.out.size() * 4,
                        cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(output.lse.data(), problem.call.lse, rows * 4, cudaMemcpyDeviceToHost));
  return output;
}

void exact(const Problem& problem, std::vector<double>& out, std::vector<double>& lse) {
  Arena arena;
  const Spec& spec = problem.spec;
  const auto rows = static_cast<std::size_t>(problem.rows) *
                    static_cast<std::size_t>(spec.heads * spec.group_size);
  const int longest = *std::max_element(problem.lens.begin(), problem.lens.end()) + 1;
  AttendArgs args = arguments_of(problem.call);
  double* scores = static_cast<double*>(arena.bytes(rows * static_cast<std::size_t>(longest) * 8));
  double* device_out =
      static_cast<double*>(arena.bytes(rows * static_cast<std::size_t>(spec.dim_v) * 8));
  double* device_lse = static_cast<double*>(arena.bytes(rows * 8));
  exact_kernel<<<static_cast<unsigned>(rows), 128>>>(args, static_cast<int>(spec.sequences.size()),
                                                     problem.call.scale, problem.call.soft_cap,
                                                     scores, longest, device_out, device_lse);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  out.resize(rows * static_cast<std::size_t>(spec.dim_v));
  lse.resize(rows);
  CHECK_CUDA(cudaMemcpy(out.data(), device_out, out.size() * 8, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(lse.data(), device_lse, rows * 8, cudaMemcpyDeviceToHost));
}

}  // namespace kvfolio::cuda
