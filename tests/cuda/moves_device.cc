// SPDX-License-Identifier: Apache-2.0

// moves_device [SECONDS] [--quick] [later | death]: checks the kernels of move.h on a device
// against the CPU's functions, byte for byte, and times them beside cudaMemcpy of the same bytes in
// the same run; random calls take SECONDS (24). `later`: only copies that are submitted. Lines go
// to standard output, those that begin with J| are rows for scripts/gpu; a JSON of them goes to
// $OUT/moves.json
// ($OUT/later.json). A part that fails is named and the next one runs. --quick: fewer rounds, no
// large cache. Exit: 0 if nothing differed and nothing failed; floors that are missed are only
// said; 3: there is no device.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cuda/device_memory.h"
#include "cuda/move_block_cases.h"
#include "cuda/move_cases.h"
#include "cuda/move_module.h"
#include "move_image.h"
#include "move_timing.h"

namespace kvfolio::cuda {
namespace {

using cases::concat;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Report {
 public:
  void line(const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
  void add(const std::string& json) {
    items_.push_back(json);
    line("J|" + json);
  }
  void fail(const std::string& text) {
    ++failures;
    line("FAILED " + text);
    add(concat("{\"failed\": \"", quoted(text), "\"}"));
  }
  void time(const std::string& group, const Timed& t, const Timed& roof, double floor) {
    const double share = t.us > 0 ? roof.us / t.us * (t.bytes / roof.bytes) : 0;
    char text[400];
    std::snprintf(text, sizeof text, "%-34s %-34s %9.2f us %7.0f GB/s  %.3f of %s%s", group.c_str(),
                  t.name.c_str(), t.us, t.bytes / t.us * 1e-3, share, roof.name.c_str(),
                  floor <= 0       ? ""
                  : share >= floor ? "  floor met"
                                   : "  BELOW ITS FLOOR");
    line(text);
    std::snprintf(text, sizeof text,
                  "{\"group\": \"%s\", \"name\": \"%s\", \"us\": %.3f, \"bytes\": %.0f, \"roof\": "
                  "\"%s\", \"share\": %.4f, \"floor\": %.3f}",
                  group.c_str(), t.name.c_str(), t.us, t.bytes, roof.name.c_str(), share, floor);
    add(text);
  }
  void write(const std::string& head, const char* name) const {
    const char* const out = std::getenv("OUT");
    std::ofstream file(std::string(out != nullptr ? out : ".") + "/" + name);
    file << "{" << head << ", \"failures\": " << failures << ", \"results\": [\n";
    for (std::size_t i = 0; i < items_.size(); ++i)
      file << items_[i] << (i + 1 < items_.size() ? ",\n" : "\n");
    file << "]}\n";
  }
  int failures = 0;

 private:
  static std::string quoted(const std::string& text) {
    std::string result;
    for (const char c : text) {
      if (c == '"' || c == '\\') result += '\\';
      result += c == '\n' ? ' ' : c;
    }
    return result;
  }
  std::vector<std::string> items_;
};

// ---- the same bytes ----

void run_cases(Report& report, Queue& queue, std::string_view by, unsigned first_seed,
               double seconds) {
  struct Named {
    const char* name;
    std::string (*run)(cases::Machine&, unsigned);
  };
  const Named all[] = {{"append", cases::append_case},      {"gather", cases::gather_case},
                       {"copy", cases::copy_case},          {"convert", cases::convert_case},
                       {"images, fill", cases::image_case}, {"entries", cases::entries_case}};
  DeviceMachine machine(queue);
  for (const Named& one : all) {
    const auto start = Clock::now();
    unsigned count = 0, wrong = 0;
    std::string first;
    for (; since(start) < seconds / 6 && count < 20000; ++count) {
      const std::string text = one.run(machine, first_seed + count);
      if (text.empty()) continue;
      if (wrong++ == 0) first = concat("seed ", first_seed + count, ": ", text);
      check(cudaDeviceSynchronize(), one.name);
      static_cast<void>(machine.reset());
    }
    check(cudaDeviceSynchronize(), one.name);
    report.line(concat("cases by the ", by, ", ", std::string_view(one.name), ": ", count,
                       " calls, ", wrong, " differ from the CPU"));
    report.add(concat("{\"cases\": \"", std::string_view(one.name), "\", \"calls\": ", count,
                      ", \"wrong\": ", wrong, "}"));
    if (wrong > 0) report.fail(concat(std::string_view(one.name), ": ", first));
  }
}

void run_conversions(Report& report) {
  ConversionFaults f;
  check(compare_conversions(f), "conversions");
  report.line(concat("conversions of all 2^32 f32: f16 ", f.f16, ", bf16 ", f.bf16, ", e4m3 ",
                     f.e4m3, " differ; of all f16: ", f.from_f16));
  report.add(concat("{\"conversions_that_differ\": ", f.f16 + f.bf16 + f.e4m3 + f.from_f16, "}"));
  if (f.f16 + f.bf16 + f.e4m3 + f.from_f16 > 0) report.fail("conversions");
}

// Memory that is given back when a part ends.
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    for (void* memory : device_) cudaFree(memory);
    for (void* memory : pinned_) cudaFreeHost(memory);
  }
  std::byte* device(double bytes) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc");
    device_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  std::byte* pinned(double bytes) {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)), "cudaMallocHost");
    pinned_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  std::int32_t* ints(const std::vector<std::int32_t>& values) {
    std::byte* const memory = device(static_cast<double>(values.size()) * 4);
    check(cudaMemcpy(memory, values.data(), values.size() * 4, cudaMemcpyHostToDevice), "upload");
    return reinterpret_cast<std::int32_t*>(memory);
  }

 private:
  std::vector<void*> device_, pinned_;
};

// A cache of our own layout: HND or NHD, K and V apart.
DeviceCache make_cache(Pool& pool, Element element, bool nhd, std::int32_t layers,
                       std::int32_t blocks) {
  constexpr std::int32_t kHeads = 8, kDim = 128, kBlock = 16;
  cases::CacheShape shape{.layers = layers,
                          .blocks = blocks,
                          .heads = kHeads,
                          .block_size = kBlock,
                          .dim_k = kDim,
                          .dim_v = kDim,
                          .element = element};
  DeviceCache cache;
  KVView& view = cache.view;
  view = {.num_layers = layers,
          .num_blocks = blocks,
          .block_size = kBlock,
          .num_kv_heads = kHeads,
          .head_dim_k = kDim,
          .head_dim_v = kDim,
          .dtype = cases::dtype_of(element)};
  const std::int64_t bytes =
      cases::strides_of(shape, kDim * element_bytes(element), nhd ? 1 : 0, view.k_strides);
  view.v_strides = view.k_strides;
  view.k = pool.device(static_cast<double>(bytes));
  view.v = pool.device(static_cast<double>(bytes));
  view.memory_kind = MemoryKind::kDevice;
  check(cudaMemset(view.k, 0x3c, static_cast<std::size_t>(bytes)), "memset");
  check(cudaMemset(view.v, 0x3c, static_cast<std::size_t>(bytes)), "memset");
  if (has_scales(element)) {
    const std::int64_t scales = cases::strides_of(shape, 4, nhd ? 1 : 0, view.k_scale_strides);
    view.v_scale_strides = view.k_scale_strides;
    view.k_scale = pool.device(static_cast<double>(scales));
    view.v_scale = pool.device(static_cast<double>(scales));
    check(cudaMemset(view.k_scale, 0, static_cast<std::size_t>(scales)), "memset");
    check(cudaMemset(view.v_scale, 0, static_cast<std::size_t>(scales)), "memset");
  }
  return cache;
}

// A cache of one layer beyond 64 GiB, as far as the card has room.
void run_large(Report& report) {
  std::size_t room = 0, total = 0;
  check(cudaMemGetInfo(&room, &total), "memory");
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;  // 8 heads x 512 tokens x 128 x bf16
  const auto blocks = static_cast<std::int32_t>(
      (static_cast<std::int64_t>(room) - (std::int64_t{1} << 31)) / kBlockBytes);
  if (static_cast<std::int64_t>(blocks) * kBlockBytes <= std::int64_t{65} << 30) {
    report.line(concat("large cache: skipped, ", room >> 30, " GiB are free, 67 are needed"));
    return;
  }
  Pool pool;
  DeviceCache cache;
  cache.view = {.k = pool.device(static_cast<double>(blocks) * static_cast<double>(kBlockBytes)),
                .k_strides = {.layer = kBlockBytes * blocks,
                              .block = kBlockBytes,
                              .head = 131072,
                              .token = 256},
                .num_layers = 1,
                .num_blocks = blocks,
                .block_size = 512,
                .num_kv_heads = 8,
                .head_dim_k = 128,
                .dtype = DType::kBF16,
                .memory_kind = MemoryKind::kDevice};
  constexpr std::int32_t kTokens = 64;
  constexpr std::size_t kRows = kTokens * 8 * 256;
  DeviceQueue queue;
  cases::Random random(3);
  std::vector<std::byte> rows(kRows), got(kRows);
  for (std::byte& b : rows) b = static_cast<std::byte>(random() & 0xffu);
  std::byte* const k = pool.device(kRows);
  std::byte* const out = pool.device(kRows);
  check(cudaMemcpy(k, rows.data(), kRows, cudaMemcpyHostToDevice), "upload");
  std::vector<std::int32_t> slots;
  for (std::int32_t t = 0; t < kTokens; ++t) slots.push_back((blocks - 1) * 512 + t);
  check(append(cache, 0,
               contiguous_rows(static_cast<const std::byte*>(k), kTokens, 8, 128, DType::kBF16), {},
               pool.ints(slots), kTokens, queue),
        "append");
  const std::int32_t last = blocks - 1, first = 0;
  check(copy_blocks(cache, {&last, 1}, {&first, 1}, queue), "copy_blocks");
  for (const std::int32_t block : {last, first}) {
    check(cudaMemset(out, 0, kRows), "memset");
    kvfolio::GatherArgs args{.length = kTokens, .count = kTokens};
    args.block_table = {pool.ints({block}), 1};
    args.k = contiguous_rows(out, kTokens, 8, 128, DType::kBF16);
    check(gather(cache, args, queue), "gather");
    check(cudaMemcpy(got.data(), out, kRows, cudaMemcpyDeviceToHost), "download");
    if (got != rows) report.fail(concat("large cache: block ", block, " of ", blocks));
  }
  // And by address, without a kernel.
  std::vector<std::byte> row(256);
  check(
      cudaMemcpy(row.data(), cache.view.k_at(0, last, 7, kTokens - 1), 256, cudaMemcpyDeviceToHost),
      "download");
  if (std::memcmp(row.data(), rows.data() + kRows - 256, 256) != 0)
    report.fail("large cache: address");
  report.line(concat("large cache of ", static_cast<std::int64_t>(blocks) * kBlockBytes >> 30,
                     " GiB in one layer: checked"));
  report.add(
      concat("{\"large_cache_gib\": ", static_cast<std::int64_t>(blocks) * kBlockBytes >> 30, "}"));
}

// ---- times ----

void time_rows(Report& report, std::int32_t tokens, int rounds) {
  Pool pool;
  constexpr std::int32_t kHeads = 8, kDim = 128, kBlock = 16;
  const std::int32_t layers = tokens > 1000 ? 16 : 64, blocks = tokens / kBlock * 2;
  cases::Random random(3);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks)), slots, table;
  for (std::int32_t i = 0; i < blocks; ++i) ids[static_cast<std::size_t>(i)] = i;
  std::shuffle(ids.begin(), ids.end(), random);
  for (std::int32_t t = 0; t < tokens; ++t)
    slots.push_back(ids[static_cast<std::size_t>(t / kBlock)] * kBlock + t % kBlock);
  for (std::int32_t i = 0; i < tokens / kBlock; ++i)
    table.push_back(ids[static_cast<std::size_t>(i)]);
  std::vector<std::int32_t> scattered = slots;
  std::shuffle(scattered.begin(), scattered.end(), random);
  const std::int32_t* const device_slots = pool.ints(slots);
  const std::int32_t* const device_scattered = pool.ints(scattered);
  const std::int32_t* const device_table = pool.ints(table);
  const std::size_t rows = static_cast<std::size_t>(tokens) * kHeads * kDim;
  std::vector<std::uint16_t> init(2 * rows);
  for (std::uint16_t& x : init)
    x = bf16_from_f32(static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 1e-3f);
  struct Set {
    std::byte *in, *out;
  };
  std::vector<Set> sets;
  const double in_bytes = static_cast<double>(rows) * 4;
  for (std::int32_t i = 0; i < layers; ++i) {
    sets.push_back({pool.device(in_bytes), pool.device(in_bytes)});
    check(cudaMemcpy(sets.back().in, init.data(), init.size() * 2, cudaMemcpyHostToDevice),
          "upload");
  }
  const DeviceCache bf = make_cache(pool, Element::kBF16, false, layers, blocks);
  const DeviceCache bf_nhd = make_cache(pool, Element::kBF16, true, layers, blocks);
  const DeviceCache q8 = make_cache(pool, Element::kInt8, false, layers, blocks);
  const DeviceCache q8_nhd = make_cache(pool, Element::kInt8, true, layers, blocks);
  const DeviceCache e4 = make_cache(pool, Element::kE4M3, false, layers, blocks);
  const DeviceCache f32 = make_cache(pool, Element::kF32, false, layers, blocks);
  const auto append_to = [&](const DeviceCache& cache, const std::int32_t* to, Tuning tuning = {}) {
    return [=, &sets](cudaStream_t stream, int n) {
      DeviceQueue queue(stream, tuning);
      const std::int32_t layer = n % layers;
      const std::byte* const in = sets[static_cast<std::size_t>(layer)].in;
      const auto k = contiguous_rows(in, tokens, kHeads, kDim, DType::kBF16);
      const auto v = contiguous_rows(in + rows * 2, tokens, kHeads, kDim, DType::kBF16);
      check(append(cache, layer, k, v, to, static_cast<std::size_t>(tokens), queue), "append");
    };
  };
  const auto gather_from = [&](const DeviceCache& cache, Tuning tuning = {}) {
    return [=, &sets](cudaStream_t stream, int n) {
      DeviceQueue queue(stream, tuning);
      const std::int32_t layer = n % layers;
      std::byte* const out = sets[static_cast<std::size_t>(layer)].out;
      kvfolio::GatherArgs args{.length = tokens, .count = tokens};
      args.first_layer = layer;
      args.block_table = {device_table, static_cast<std::size_t>(tokens / kBlock)};
      args.k = contiguous_rows(out, tokens, kHeads, kDim, DType::kBF16);
      args.v = contiguous_rows(out + rows * 2, tokens, kHeads, kDim, DType::kBF16);
      check(gather(cache, args, queue), "gather");
    };
  };
  const auto memcpy_of = [&](double bytes) {
    return [=, &sets](cudaStream_t stream, int n) {
      const Set& set = sets[static_cast<std::size_t>(n % layers)];
      check(cudaMemcpyAsync(set.out, set.in, static_cast<std::size_t>(bytes),
                            cudaMemcpyDeviceToDevice, stream),
            "memcpy");
    };
  };
  const double q_bytes = static_cast<double>(rows) * 2 + 2.0 * tokens * kHeads * 4;
  std::vector<Timed> all;
  const auto add = [&](std::string name, std::function<void(cudaStream_t, int)> start,
                       double bytes) {
    all.push_back({std::move(name), std::move(start), bytes, layers, 0});
  };
  add("memcpy, bytes of bf16", memcpy_of(in_bytes), 2 * in_bytes);
  add("memcpy, bytes of 8 bit", memcpy_of((in_bytes + q_bytes) / 2), in_bytes + q_bytes);
  add("append bf16", append_to(bf, device_slots), 2 * in_bytes);
  add("append bf16, 1 unit", append_to(bf, device_slots, {.batch = 1}), 2 * in_bytes);
  add("append bf16, 4 units", append_to(bf, device_slots, {.batch = 4}), 2 * in_bytes);
  add("append bf16 NHD", append_to(bf_nhd, device_slots), 2 * in_bytes);
  add("append bf16 scattered", append_to(bf, device_scattered), 2 * in_bytes);
  add("append int8", append_to(q8, device_slots), in_bytes + q_bytes);
  add("append int8, 1 unit", append_to(q8, device_slots, {.units = 1}), in_bytes + q_bytes);
  add("append int8, 4 units", append_to(q8, device_slots, {.units = 4}), in_bytes + q_bytes);
  add("append int8 NHD", append_to(q8_nhd, device_slots), in_bytes + q_bytes);
  add("append e4m3", append_to(e4, device_slots), in_bytes + q_bytes);
  add("append bf16 to f32", append_to(f32, device_slots), 3 * in_bytes);
  add("gather bf16", gather_from(bf), 2 * in_bytes);
  add("gather bf16, 1 unit", gather_from(bf, {.batch = 1}), 2 * in_bytes);
  add("gather bf16, 4 units", gather_from(bf, {.batch = 4}), 2 * in_bytes);
  add("gather bf16 NHD", gather_from(bf_nhd), 2 * in_bytes);
  add("gather int8 to bf16", gather_from(q8), in_bytes + q_bytes);
  add("gather e4m3 to bf16", gather_from(e4), in_bytes + q_bytes);
  time_all(all, rounds);
  const std::string group = concat(tokens, " tokens, 8 heads of 128");
  for (const Timed& t : all) {
    const bool bytes8 = t.bytes < 2 * in_bytes;
    const double floor = tokens < 1000             ? 0
                         : t.name == "append bf16" ? 0.90
                         : t.name == "append int8" ? 0.82
                                                   : 0;
    report.time(group, t, all[bytes8 ? 1 : 0], floor);
  }
}

void time_blocks(Report& report, int rounds) {
  Pool pool;
  constexpr std::int32_t kLayers = 32, kBlocks = 1024;
  const DeviceCache cache = make_cache(pool, Element::kBF16, false, kLayers, kBlocks);
  const DeviceCache q8 = make_cache(pool, Element::kInt8, false, kLayers, kBlocks);
  const double plane_bytes = 32768.0 * kBlocks * kLayers;
  std::vector<std::int32_t> ids(kBlocks);
  for (std::int32_t i = 0; i < kBlocks; ++i) ids[static_cast<std::size_t>(i)] = i;
  cases::Random random(1);
  std::shuffle(ids.begin(), ids.end(), random);
  for (const std::int32_t n : {512, 64, 16, 1}) {
    const std::vector<std::int32_t> src(ids.begin(), ids.begin() + n),
        dst(ids.begin() + 512, ids.begin() + 512 + n);
    const double bytes = 2.0 * n * 2 * kLayers * 32768;
    const int launches = n > 100 ? 2 : 8;
    std::vector<Timed> all;
    all.push_back({"memcpy",
                   [&](cudaStream_t stream, int i) {
                     const std::int64_t at =
                         n > 100 ? 0 : static_cast<std::int64_t>(i) * (100 << 20);
                     check(cudaMemcpyAsync(cache.view.v + at, cache.view.k + at,
                                           static_cast<std::size_t>(bytes / 2),
                                           cudaMemcpyDeviceToDevice, stream),
                           "memcpy");
                   },
                   bytes, launches, 0});
    // Other blocks for each launch, so that the last launch's are not in a cache.
    const auto copies = [&](Tuning tuning) {
      return [&, tuning](cudaStream_t stream, int i) {
        DeviceQueue queue(stream, tuning);
        std::vector<std::int32_t> from = src, to = dst;
        if (n < 100) {
          for (std::size_t j = 0; j < from.size(); ++j) {
            from[j] = ids[j + static_cast<std::size_t>(i * n)];
            to[j] = ids[512 + j + static_cast<std::size_t>(i * n)];
          }
        }
        check(copy_blocks(cache, from, to, queue), "copy_blocks");
      };
    };
    all.push_back({"copy_blocks", copies({}), bytes, launches, 0});
    all.push_back({"copy_blocks, 2 units", copies({.blocks = 2}), bytes, launches, 0});
    all.push_back({"copy_blocks, 8 units", copies({.blocks = 8}), bytes, launches, 0});
    time_all(all, rounds);
    for (const Timed& t : all) {
      report.time(concat(n, " blocks x 32 layers x 64 KiB"), t, all[0],
                  t.name == "copy_blocks" && n == 512 ? 1.0 : 0);
    }
  }
  std::vector<Timed> all;
  all.push_back(
      {"memset",
       [&](cudaStream_t stream, int) {
         check(cudaMemsetAsync(cache.view.k, 0x3c, static_cast<std::size_t>(plane_bytes), stream),
               "memset");
       },
       plane_bytes, 1, 0});
  all.push_back({"fill",
                 [&](cudaStream_t stream, int) {
                   DeviceQueue queue(stream);
                   check(fill(cache, std::byte{0x3c}, queue), "fill");
                 },
                 2 * plane_bytes, 1, 0});
  const std::vector<std::int32_t> some(ids.begin(), ids.begin() + 256),
      others(ids.begin() + 512, ids.begin() + 768);
  all.push_back({"convert_blocks bf16 to int8",
                 [&](cudaStream_t stream, int) {
                   DeviceQueue queue(stream);
                   check(convert_blocks(cache, q8, some, others, queue), "convert_blocks");
                 },
                 256.0 * kLayers * 65536 * (1.5 + 4.0 / 256), 1, 0});
  time_all(all, rounds / 2 + 1);
  for (const Timed& t : all) report.time("32 layers x 1024 blocks", t, all[0], 0);
}

// Blocks of all layers to the host and back: 128 MiB.
void time_swap(Report& report, int rounds) {
  Pool pool;
  constexpr std::int32_t kLayers = 32, kBlocks = 1024;
  const DeviceCache cache = make_cache(pool, Element::kBF16, false, kLayers, kBlocks);
  std::vector<std::int32_t> ids(kBlocks);
  for (std::int32_t i = 0; i < kBlocks; ++i) ids[static_cast<std::size_t>(i)] = i;
  cases::Random random(1);
  std::shuffle(ids.begin(), ids.end(), random);
  const std::vector<std::int32_t> blocks(ids.begin(), ids.begin() + 64);
  const std::int64_t of_one = image_bytes(cache);
  const double total = static_cast<double>(of_one) * 64;
  std::byte* const stage = pool.device(total);
  std::byte* const host = pool.pinned(total);
  cudaStream_t streams[2];
  cudaEvent_t before, after, piece_done;
  for (cudaStream_t& stream : streams)
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  check(cudaEventCreate(&before), "event");
  check(cudaEventCreate(&after), "event");
  check(cudaEventCreateWithFlags(&piece_done, cudaEventDisableTiming), "event");
  const auto time = [&](const std::function<void()>& work) {
    std::vector<double> us;
    for (int r = -1; r < rounds; ++r) {
      check(cudaEventRecord(before, streams[0]), "event");
      work();
      check(cudaEventRecord(after, streams[0]), "event");
      check(cudaEventSynchronize(after), "swap");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, before, after), "event");
      if (r >= 0) us.push_back(static_cast<double>(ms) * 1e3);
    }
    return median(us);
  };
  const auto bytes = static_cast<std::size_t>(total);
  for (const bool out : {true, false}) {
    const std::string group = out ? "swap out 64 blocks, 128 MiB" : "swap in 64 blocks, 128 MiB";
    Timed roof{"one memcpy", {}, total, 1, 0},
        staged{"staging kernel and one memcpy", {}, total, 1, 0},
        pieces{"the same in 8 pieces, 2 streams", {}, total, 1, 0};
    const auto copy = [&](std::size_t at, std::size_t n, cudaStream_t stream) {
      check(cudaMemcpyAsync(out ? host + at : stage + at, out ? stage + at : host + at, n,
                            out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
            "memcpy");
    };
    const auto stage_some = [&](std::size_t first, std::size_t n, cudaStream_t stream) {
      DeviceQueue queue(stream);
      const auto some = std::span(blocks).subspan(first, n);
      std::byte* const at = stage + static_cast<std::int64_t>(first) * of_one;
      check(out ? pack_blocks(cache, Format::kHnd, some, at, queue)
                : unpack_blocks(cache, Format::kHnd, some, at, queue),
            "stage");
    };
    roof.us = time([&] { copy(0, bytes, streams[0]); });
    staged.us = time([&] {
      if (out) stage_some(0, 64, streams[0]);
      copy(0, bytes, streams[0]);
      if (!out) stage_some(0, 64, streams[0]);
    });
    pieces.us = time([&] {
      check(cudaEventRecord(piece_done, streams[0]), "event");
      check(cudaStreamWaitEvent(streams[1], piece_done, 0), "event");
      // The first stream of the two works first: kernels of a store, copies of a load.
      const std::size_t piece = static_cast<std::size_t>(of_one) * 8;
      for (std::size_t i = 0; i < 8; ++i) {
        if (out)
          stage_some(8 * i, 8, streams[1]);
        else
          copy(i * piece, piece, streams[1]);
        check(cudaEventRecord(piece_done, streams[1]), "event");
        check(cudaStreamWaitEvent(streams[0], piece_done, 0), "event");
        if (out)
          copy(i * piece, piece, streams[0]);
        else
          stage_some(8 * i, 8, streams[0]);
      }
    });
    report.time(group, roof, roof, 0);
    report.time(group, staged, roof, 0.95);
    report.time(group, pieces, roof, 0);
  }
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
  cudaEventDestroy(before);
  cudaEventDestroy(after);
  cudaEventDestroy(piece_done);
}

void time_entries(Report& report, int rounds) {
  Pool pool;
  const DeviceTable table{reinterpret_cast<std::int32_t*>(pool.device(1024.0 * 512 * 4)), 1024,
                          512};
  for (const std::size_t count : {std::size_t{64}, std::size_t{1024}}) {
    std::vector<std::int32_t> rows, columns, values;
    cases::Random random(1);
    for (std::size_t i = 0; i < count; ++i) {
      rows.push_back(static_cast<std::int32_t>(i * (1024 / count)));
      columns.push_back(cases::draw(random, 0, 511));
      values.push_back(cases::draw(random, 0, 1 << 19));
    }
    const std::int64_t bytes = changed_entries_bytes(count);
    std::byte* const pinned = pool.pinned(static_cast<double>(bytes));
    std::byte* const there = pool.device(static_cast<double>(bytes));
    const auto start = Clock::now();
    for (int i = 0; i < 100; ++i) {
      check(pack_changed_entries(table, rows, columns, values,
                                 {pinned, static_cast<std::size_t>(bytes)}),
            "pack");
    }
    const double pack_us = since(start) * 1e4;
    std::vector<Timed> all;
    const auto dbytes = static_cast<double>(bytes);
    all.push_back({"whole table, one memcpy",
                   [&](cudaStream_t stream, int) {
                     static std::byte* const whole = pool.pinned(1024.0 * 512 * 4);
                     check(cudaMemcpyAsync(table.entries, whole, 1024 * 512 * 4,
                                           cudaMemcpyHostToDevice, stream),
                           "memcpy");
                   },
                   dbytes, 8, 0});
    if (count != 64) all.clear();
    all.push_back({"memcpy and kernel",
                   [&](cudaStream_t stream, int) {
                     DeviceQueue queue(stream);
                     check(cudaMemcpyAsync(there, pinned, static_cast<std::size_t>(bytes),
                                           cudaMemcpyHostToDevice, stream),
                           "memcpy");
                     check(set_changed_entries(table, there, count, queue), "entries");
                   },
                   dbytes, 32, 0});
    all.push_back({"kernel on pinned memory",
                   [&](cudaStream_t stream, int) {
                     DeviceQueue queue(stream);
                     check(set_changed_entries(table, pinned, count, queue), "entries");
                   },
                   dbytes, 32, 0});
    time_all(all, rounds);
    for (const Timed& t : all) {
      report.line(concat(count, " changed entries, ", std::string_view(t.name), ": ",
                         static_cast<int>(t.us * 1000), " ns (floor 15000)"));
      report.add(concat("{\"entries\": ", count, ", \"way\": \"", std::string_view(t.name),
                        "\", \"ns\": ", static_cast<int>(t.us * 1000), "}"));
    }
    report.line(concat("packing ", count,
                       " entries on the host: ", static_cast<int>(pack_us * 1000), " ns"));
    std::vector<std::int32_t> got(1024 * 512);
    check(cudaMemcpy(got.data(), table.entries, got.size() * 4, cudaMemcpyDeviceToHost),
          "download");
    for (std::size_t i = 0; i < count; ++i) {
      if (got[static_cast<std::size_t>(rows[i] * 512 + columns[i])] != values[i]) {
        report.fail("entries");
        break;
      }
    }
  }
}

// A storage in DeviceMemory, through the driver that this machine has: images in, blocks copied,
// images out, beside a storage of the host; then how fast bytes come and go.
void run_driver(Report& report, bool with_kernels) {
  Result<DriverCalls> calls = load_driver();
  if (!calls) throw std::runtime_error(calls.error().message());
  Result<std::shared_ptr<Device>> device = Device::open(*calls, 0);
  if (!device) throw std::runtime_error(device.error().message());
  staged::DeviceMemoryOptions options;
  if (with_kernels) {
    Result<std::shared_ptr<MoveModule>> module = MoveModule::load(*device, kvfolio_move_image);
    if (!module) throw std::runtime_error(module.error().message());
    options.kernels = *module;
  }
  Result<std::unique_ptr<staged::DeviceMemory>> memory =
      staged::DeviceMemory::create(*device, options);
  if (!memory) throw std::runtime_error(memory.error().message());
  cases::Random random(8);
  const CacheSpec spec = cases::spec_of({.layers = 8,
                                         .blocks = 96,
                                         .heads = 8,
                                         .block_size = 16,
                                         .dim_k = 128,
                                         .dim_v = 128,
                                         .element = Element::kInt8},
                                        Format::kHnd);
  Result<KVStorage> there = KVStorage::create(spec, memory->get());
  if (!there) throw std::runtime_error(there.error().message());
  std::vector<std::int32_t> blocks;
  for (std::int32_t b = 0; b < 64; ++b) blocks.push_back(b);
  const auto bytes = static_cast<std::size_t>(there->block_image_bytes(GroupId(0))) * 64;
  std::vector<std::byte> images(bytes), got(bytes);
  for (std::byte& b : images) b = static_cast<std::byte>(random() & 0xffu);
  check(there->write_blocks(GroupId(0), std::span(blocks).first(8),
                            std::span(images).first(bytes / 8)),
        "write_blocks");
  const auto start = Clock::now();
  check(there->write_blocks(GroupId(0), blocks, images), "write_blocks");
  const double in_s = since(start);
  std::vector<std::int32_t> src, dst, moved = blocks;
  for (std::int32_t b = 0; b < 32; ++b) {
    src.push_back(b);
    dst.push_back(64 + b);
    moved[static_cast<std::size_t>(b)] = 64 + b;
  }
  check(there->copy_blocks(GroupId(0), src, dst), "copy_blocks");
  const auto back = Clock::now();
  check(there->read_blocks(GroupId(0), moved, got), "read_blocks");
  const double out_s = since(back);
  check((*memory)->take_error(), "DeviceMemory");
  if (got != images) report.fail("driver: images differ");
  const auto gb = [&](double seconds) {
    return static_cast<int>(static_cast<double>(bytes) / seconds * 1e-9 * 100);
  };
  report.line(concat("driver: ", std::string_view((*device)->name()),
                     ", a storage in DeviceMemory: ", bytes >> 10, " KiB in at ", gb(in_s),
                     " and out at ", gb(out_s), " hundredths of GB/s"));
  report.add(concat("{\"driver_in_hundredths_gb_s\": ", gb(in_s), ", \"out\": ", gb(out_s), "}"));
  // More than there is: refused with the number, and all goes on.
  const Result<std::byte*> too_much = (*memory)->allocate(std::int64_t{1} << 50);
  if (too_much || too_much.error().code() != ErrorCode::kOutOfMemory)
    report.fail("driver: 2^50 bytes");
  report.line(concat("driver: ", too_much.error().message()));
  check(there->read_blocks(GroupId(0), moved, got), "read_blocks");
}

// Blocks that are submitted one by one behind an engine's stream, as an Offload does, beside one
// memcpy of the same bytes; by the clock of the host, with all polls.
void time_later(Report& report, bool with_kernels, bool is_pinned, int rounds) {
  const DriverCalls calls = *load_driver();
  const std::shared_ptr<Device> device = *Device::open(calls, 0);
  staged::DeviceMemoryOptions options;
  if (with_kernels) options.kernels = *MoveModule::load(device, kvfolio_move_image);
  const auto memory = *staged::DeviceMemory::create(device, options);
  constexpr std::int32_t kBlocks = 64;
  const CacheSpec spec = cases::spec_of({.layers = 32,
                                         .blocks = 2 * kBlocks,
                                         .heads = 8,
                                         .block_size = 16,
                                         .dim_k = 128,
                                         .dim_v = 128,
                                         .element = Element::kBF16},
                                        Format::kHnd);
  KVStorage storage = *KVStorage::create(spec, memory.get());
  const GroupId group(0);
  const auto of_one = static_cast<std::size_t>(storage.block_image_bytes(group));
  const std::size_t bytes = of_one * kBlocks;
  std::vector<std::int32_t> blocks;
  for (std::int32_t b = 0; b < kBlocks; ++b) blocks.push_back(2 * b);
  cases::Random random(5);
  Pool pool;
  std::vector<std::byte> images(bytes), got(bytes), pageable(is_pinned ? 0 : bytes);
  std::byte* const pinned = pool.pinned(static_cast<double>(bytes));
  std::byte* const flat = pool.device(static_cast<double>(bytes));
  const std::span<std::byte> host(is_pinned ? pinned : pageable.data(), bytes);
  cudaStream_t engine;
  check(cudaStreamCreateWithFlags(&engine, cudaStreamNonBlocking), "stream");
  double longest = 0;
  const auto move = [&](bool out) {
    std::vector<CopyTicket> open;
    const auto timed = [&](const auto& call) {
      const auto start = Clock::now();
      auto result = call();
      longest = std::max(longest, since(start));
      check(result ? Status() : Status(result.error()), "later");
      return *result;
    };
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const auto image = host.subspan(i * of_one, of_one);
      open.push_back(timed([&] {
        return out ? storage.submit_read(group, blocks[i], image, engine)
                   : storage.submit_write(group, blocks[i], image, engine);
      }));
    }
    while (!open.empty()) {
      std::erase_if(open, [&](const CopyTicket ticket) {
        return timed([&] { return storage.poll_copy(ticket); });
      });
    }
  };
  for (const bool out : {true, false}) {
    for (std::byte& b : images) b = static_cast<std::byte>(random() & 0xffu);
    if (out) check(storage.write_blocks(group, blocks, images), "write_blocks");
    if (!out) std::memcpy(host.data(), images.data(), bytes);
    std::vector<double> roof_us, us;
    for (int round = -1; round < rounds; ++round) {
      auto start = Clock::now();
      check(cudaMemcpyAsync(out ? pinned : flat, out ? flat : pinned, bytes,
                            out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, engine),
            "memcpy");
      check(cudaStreamSynchronize(engine), "memcpy");
      if (round >= 0) roof_us.push_back(since(start) * 1e6);
      if (round < 0) longest = 0;
      start = Clock::now();
      move(out);
      if (round >= 0) us.push_back(since(start) * 1e6);
    }
    if (!out) check(storage.read_blocks(group, blocks, got), "read_blocks");
    if (std::memcmp(out ? host.data() : got.data(), images.data(), bytes) != 0) {
      report.fail(concat("later: images differ on the way ", std::string_view(out ? "out" : "in")));
    }
    const auto total = static_cast<double>(bytes);
    const Timed roof{"one memcpy", {}, total, 1, median(roof_us)};
    const Timed later{
        with_kernels ? "submitted, by kernels" : "submitted, run by run", {}, total, 1, median(us)};
    const std::string name = concat("later ", std::string_view(out ? "out" : "in"), " 64 blocks, ",
                                    std::string_view(is_pinned ? "pinned" : "pageable"));
    report.time(name, roof, roof, 0);
    report.time(name, later, roof, with_kernels && is_pinned ? 0.95 : 0);
    report.line(concat(name, ": the longest submit() or poll() took ",
                       static_cast<int>(longest * 1e6), " us"));
  }
  check(memory->take_error(), "DeviceMemory");
  cudaStreamDestroy(engine);
}

// In a process of its own: a kernel ends the context, and every later call says so.
int run_death() {
  const DriverCalls calls = *load_driver();
  const std::shared_ptr<Device> device = *Device::open(calls, 0);
  const auto memory = *staged::DeviceMemory::create(device);
  std::byte* const bytes = *memory->allocate(4096);
  std::vector<std::byte> host(4096), back(4096);
  const CopyRun in{bytes, host.data(), 4096}, out{back.data(), bytes, 4096};
  const bool before = memory->copy_in({&in, 1}).ok();
  DeviceQueue queue;
  // A table that is nowhere: the kernel writes to an address that no memory has.
  const DeviceTable nowhere{reinterpret_cast<std::int32_t*>(std::uintptr_t{1} << 46), 1, 1};
  const std::int32_t entry[3] = {0, 0, 7};
  std::byte* const upload = *memory->allocate(12);
  const CopyRun up{upload, reinterpret_cast<const std::byte*>(entry), 12};
  const bool uploaded = memory->copy_in({&up, 1}).ok();
  const Status started = set_changed_entries(nowhere, upload, 1, queue);
  static_cast<void>(cudaDeviceSynchronize());
  const bool first = memory->copy_out({&out, 1}).ok();
  const Status said = memory->take_error();
  const bool second = memory->copy_in({&in, 1}).ok();
  std::printf("death: %d %d %d then %d %d: %s\n", before, uploaded, started.ok(), first, second,
              said.message().c_str());
  const bool right = before && uploaded && started.ok() && !first && !second &&
                     said.code() == ErrorCode::kUnavailable && !device->status().ok();
  std::printf("death: %s\n", right ? "as promised" : "FAILED");
  return right ? 0 : 1;
}

struct Options {
  double seconds = 24;
  bool quick = false, later = false;
};

int run(const Options& options) {
  Report report;
  cudaDeviceProp prop{};
  check(cudaGetDeviceProperties(&prop, 0), "device");
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "driver");
  const std::string head =
      concat("\"device\": \"", std::string_view(prop.name), "\", \"driver\": ", driver,
             ", \"multiprocessors\": ", prop.multiProcessorCount);
  report.line(concat(std::string_view(prop.name), ", CUDA driver ", driver));
  const auto start = Clock::now();
  const auto part = [&](const char* name, const auto& work) {
    try {
      work();
      check(cudaDeviceSynchronize(), name);
    } catch (const std::exception& error) {
      report.fail(concat(std::string_view(name), ": ", std::string_view(error.what())));
    }
    report.line(
        concat("== ", std::string_view(name), " done at ", static_cast<int>(since(start)), " s"));
    report.write(head, options.later ? "later.json" : "moves.json");
  };
  const int rounds = options.quick ? 5 : 15;
  if (options.later) {
    part("later, by kernels", [&] { time_later(report, true, true, rounds / 2); });
    part("later, run by run", [&] { time_later(report, false, true, 3); });
    part("later, pageable", [&] { time_later(report, true, false, 3); });
  } else {
    part("conversions", [&] { run_conversions(report); });
    part("entries", [&] { time_entries(report, rounds); });
    part("rows 8192", [&] { time_rows(report, 8192, rounds); });
    part("rows 256", [&] { time_rows(report, 256, rounds); });
    part("blocks", [&] { time_blocks(report, rounds * 2 / 3); });
    part("swap", [&] { time_swap(report, 5); });
    if (!options.quick) part("large", [&] { run_large(report); });
    part("driver", [&] { run_driver(report, false); });
    part("driver, staged by kernels", [&] { run_driver(report, true); });
    part("kernels by the driver", [&] {
      Result<DriverCalls> calls = load_driver();
      if (!calls) throw std::runtime_error(calls.error().message());
      const std::shared_ptr<Device> opened = *Device::open(*calls, 0);
      Result<std::shared_ptr<MoveModule>> module = MoveModule::load(opened, kvfolio_move_image);
      if (!module) throw std::runtime_error(module.error().message());
      DriverQueue queue(*module, nullptr);
      run_cases(report, queue, "driver", 2000000, options.seconds / 2);
    });
    part("cases", [&] {
      DeviceQueue queue;
      run_cases(report, queue, "run-time", 1000000, options.seconds / 2);
    });
  }
  report.line(concat(report.failures, " failures"));
  return report.failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvfolio::cuda

int main(int argc, char** argv) {
  kvfolio::cuda::Options options;
  bool death = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "death") {
      death = true;
    } else if (word == "later") {
      options.later = true;
    } else if (word == "--quick") {
      options.quick = true;
    } else {
      options.seconds = std::atof(argv[i]);
    }
  }
  try {
    if (const kvfolio::Status none = kvfolio::cuda::available(); !none.ok()) {
      std::printf("no device: %s\n", none.message().c_str());
      return 3;
    }
    return death ? kvfolio::cuda::run_death() : kvfolio::cuda::run(options);
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
