// SPDX-License-Identifier: Apache-2.0

// Padded plans of random batches: of one size for a capacity, with every node or leaf once, none
// over the capacity; and the text of the kernel that makes them on a device, run on the model of a
// GPU, writes the bytes of the host.

#define KVFOLIO_CUDA_HOST_MODEL
#include "cuda/attention/host_model.h"
//
#include "cuda/attention/padded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "cuda/attention/kernels.cuh"
#include "cuda/guarded_memory.h"
#include "cuda/move_args.h"

namespace kvfolio::cuda {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// How many random batches: KVFOLIO_PLANS, or so many.
int batches(int without) {
  const char* const wanted = std::getenv("KVFOLIO_PLANS");
  return wanted == nullptr ? without : std::atoi(wanted);
}

struct Batch {
  std::vector<std::int32_t> start = {0}, lens, sinks, kept;
  bool trims = false;
  Mask mask;
  PlanOptions options;  // as padded_room() leaves it
  AttendCapacity capacity;
  PaddedRoom room;

  [[nodiscard]] BatchLengths lengths() const {
    if (!trims) return {start, lens, {}, {}};
    return {start, lens, sinks, kept};
  }
  [[nodiscard]] std::int32_t queries(std::size_t i) const { return start[i + 1] - start[i]; }
  [[nodiscard]] Sight sight(std::size_t i, std::int32_t first, std::int32_t count) const {
    const std::int32_t base = lens[i] - queries(i);
    return sight_of_any(mask, base + first / options.group_size,
                        base + (first + count - 1) / options.group_size, lens[i],
                        trims ? sinks[i] : 0, trims ? kept[i] : 0);
  }
  [[nodiscard]] std::vector<std::byte> image() const {
    return padded_image(plan_work(lengths(), mask, options), lengths(), options.group_size, room);
  }
};

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int operator()(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
  }

 private:
  std::mt19937 random_;
};

// A batch within a capacity, which is drawn first, so that it is often far from full.
Batch drawn(Draw& draw, bool stream) {
  Batch batch;
  batch.mask.rule = static_cast<Rule>(draw(0, 2));
  batch.mask.window = draw(1, 3000);
  batch.mask.causal = draw(0, 3) == 0 ? 0 : 1;
  if (!stream && batch.mask.rule != Rule::kFull) batch.mask.num_sinks = draw(0, 1) * draw(0, 2500);
  AttendCapacity& capacity = batch.capacity;
  capacity.max_sequences = draw(1, draw(0, 9) == 0 ? 300 : 12);
  capacity.max_sequence_tokens = draw(1, draw(0, 2) == 0 ? 20000 : 1500);
  capacity.max_queries = stream || draw(0, 1) == 0 ? 1 : draw(1, 40);
  const std::int64_t all = std::int64_t{capacity.max_sequences} * capacity.max_sequence_tokens;
  if (draw(0, 1) == 0) capacity.max_tokens = draw(1, static_cast<int>(all));
  capacity = *checked_capacity(capacity);
  batch.options.group_size = draw(1, stream ? 8 : 20);
  batch.options.num_heads = draw(1, 4);
  batch.options.group_rows = batch.options.group_size > 8 ? 16 : 8;
  batch.options.stream_blocks = stream ? draw(1, 400) : 0;
  batch.options.stream_of_any_decode = stream;
  batch.trims = !stream && draw(0, 2) == 0;
  batch.room = *padded_room(capacity, batch.mask, batch.options);

  const bool positions_matter = batch.mask.causal != 0 || batch.mask.rule != Rule::kFull;
  std::int64_t left = capacity.max_tokens;
  for (int i = draw(0, capacity.max_sequences); i > 0; --i) {
    const int most = static_cast<int>(std::min<std::int64_t>(left, capacity.max_sequence_tokens));
    const int len = draw(0, 3) == 0 ? most : draw(0, most);
    const int most_queries =
        positions_matter ? std::min(len, capacity.max_queries) : capacity.max_queries;
    const int queries = draw(0, 5) == 0 ? draw(0, most_queries) : most_queries;
    batch.lens.push_back(len);
    batch.start.push_back(batch.start.back() + queries);
    const bool trimmed = draw(0, 1) == 0;
    batch.sinks.push_back(trimmed ? draw(0, 2500) : 0);
    batch.kept.push_back(trimmed ? draw(0, len) : 0);
    left -= len;
  }
  return batch;
}

// ---- what a device has, and its kernel

struct OnDevice {
  std::vector<std::int32_t> start, lens, sinks, kept;
  std::int32_t num_sequences = 0;
  std::vector<int4> image;
  std::vector<std::int32_t> arrivals;
  unsigned long long fault = kNoFault;
  PaddedArgs args;

  // counted: the number of sequences lies on the device, and garbage behind them.
  OnDevice(const Batch& batch, bool counted)
      : start(batch.start), lens(batch.lens), sinks(batch.sinks), kept(batch.kept) {
    const std::size_t room = index(batch.capacity.max_sequences);
    num_sequences = static_cast<std::int32_t>(lens.size());
    start.resize(std::max(room, lens.size()) + 1, counted ? -77 : start.back());
    lens.resize(std::max(room, lens.size()), counted ? -77 : 0);
    sinks.resize(lens.size());
    kept.resize(lens.size());
    if (num_sequences == 0) start[1] = 0;
    const std::size_t bytes = batch.image().size();
    image.assign((bytes + 15) / 16 + 1, int4{-1, -1, -1, -1});
    arrivals.assign(index(batch.room.stream_groups) + 1, -1);
    args = {.query_start = start.data(),
            .kv_lens = lens.data(),
            .trim_sinks = batch.trims ? sinks.data() : nullptr,
            .trim_first_kept = batch.trims ? kept.data() : nullptr,
            .num_sequences = counted ? &num_sequences : nullptr,
            .max_sequences = batch.capacity.max_sequences,
            .max_sequence_tokens = batch.capacity.max_sequence_tokens,
            .max_tokens = batch.capacity.max_tokens,
            .max_queries = batch.capacity.max_queries,
            .group_size = batch.options.group_size,
            .num_heads = batch.options.num_heads,
            .group_rows = batch.options.group_rows,
            .mask = batch.mask,
            .room = batch.room,
            .image = reinterpret_cast<char*>(image.data()),
            .arrivals = arrivals.data(),
            .num_arrivals = batch.room.stream_groups,
            .fault = &fault};
  }
  template <int kThreads>
  void run() {
    model::launch(1, kThreads, static_cast<int>(sizeof(PlanMemory)), false,
                  [&] { plan_kernel<kThreads>(args); });
  }
  // The first byte that differs from the host's, or -1; behind the image nothing is written.
  [[nodiscard]] std::int64_t different(const std::vector<std::byte>& want) const {
    const auto* const got = reinterpret_cast<const std::byte*>(image.data());
    for (std::size_t i = 0; i < image.size() * 16; ++i) {
      if (got[i] != (i < want.size() ? want[i] : std::byte{0xff})) {
        return static_cast<std::int64_t>(i);
      }
    }
    return -1;
  }
};

// ---- what an image holds

template <typename T>
std::vector<T> values(const std::vector<std::byte>& image, std::size_t from, std::size_t count) {
  std::vector<T> result(count);
  EXPECT_LE(from + count * sizeof(T), image.size());
  if (count > 0) std::memcpy(result.data(), image.data() + from, count * sizeof(T));
  return result;
}

std::set<std::int32_t> seen_units(const Sight& sight, std::int32_t tokens) {
  std::set<std::int32_t> units;
  for (std::int32_t p = 0; p <= sight.high; ++p) {
    if (sight.sees(p)) units.insert(p / tokens);
  }
  return units;
}

// Each node of each group of rows is in one item, and all other items are empty.
void expect_nodes_once(const Batch& batch, const std::vector<std::byte>& image) {
  const auto items = values<Item>(image, 0, index(batch.room.items));
  const auto groups =
      values<Group>(image, items.size() * sizeof(Item), index(batch.room.groups) + 1);
  ASSERT_EQ(image.size(), (items.size() + groups.size()) * 16);
  ASSERT_EQ(groups.back().num_items, 0);
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> nodes;
  for (const Item& item : items) {
    if (item.node == kNoNode) {
      ASSERT_EQ(item.group, batch.room.groups);
      if (batch.start.back() == 0) continue;
      // The row that its block reads is there, and it is one row.
      const std::int32_t rows = batch.queries(index(item.sequence)) * batch.options.group_size;
      ASSERT_EQ(item.first_row, rows - 1);
      continue;
    }
    nodes[{item.sequence, item.first_row}].push_back(item.node);
    const Group& group = groups[index(item.group)];
    ASSERT_EQ(group.sequence, item.sequence);
    ASSERT_EQ(group.first_row, item.first_row);
    const auto at = static_cast<std::int32_t>(&item - items.data());
    ASSERT_TRUE(at >= group.first_item && at < group.first_item + group.num_items);
  }
  std::size_t expected = 0;
  for (std::size_t i = 0; i < batch.lens.size(); ++i) {
    const std::int32_t rows = batch.queries(i) * batch.options.group_size;
    for (std::int32_t first = 0; first < rows; first += batch.options.group_rows) {
      const std::int32_t count = std::min(batch.options.group_rows, rows - first);
      std::set<std::int32_t> want = seen_units(batch.sight(i, first, count), kNodeTokens);
      if (want.empty()) want = {0};
      const std::pair key{static_cast<std::int32_t>(i), first};
      ASSERT_EQ(nodes[key], std::vector<std::int32_t>(want.begin(), want.end())) << i;
      ++expected;
    }
  }
  ASSERT_EQ(nodes.size(), expected);
  std::size_t used = 0;
  for (const Group& group : groups) used += group.first_row != kNoRows ? 1 : 0;
  ASSERT_EQ(used, expected);
}

// Each leaf that is seen is in one segment, blocks differ by one leaf, states have a place each.
void expect_leaves_once(const Batch& batch, const std::vector<std::byte>& image) {
  const PaddedRoom& room = batch.room;
  ASSERT_LE(room.segments_per_block, 24);
  const auto segments =
      values<Segment>(image, 0, index(room.stream_blocks) * index(room.segments_per_block));
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> leaves;
  std::int64_t most = 0, all = 0, least = std::int64_t{1} << 40;
  std::int32_t blocks = 0;
  for (std::int32_t b = 0; b < room.stream_blocks; ++b) {
    std::int64_t mine = 0;
    for (std::int32_t s = 0; s < room.segments_per_block; ++s) {
      const Segment& segment = segments[index(b * room.segments_per_block + s)];
      if (segment.num_tiles == 0) continue;
      const std::int32_t last = segment.first_tile + segment.num_tiles - 1;
      for (std::int32_t l = segment.first_tile / kTilesPerLeaf; l <= last / kTilesPerLeaf; ++l) {
        leaves[{segment.sequence, segment.head}].push_back(l);
        ++mine;
      }
      ASSERT_LE(segment.group_state + segment.group_states, room.states);
      ASSERT_LT(segment.group, room.stream_groups);
    }
    all += mine;
    if (mine > 0) ++blocks;
    most = std::max(most, mine);
    least = std::min(least, mine);
  }
  ASSERT_LE(most - (all < room.stream_blocks ? 0 : least), 1) << "balance";
  ASSERT_EQ(blocks, std::min<std::int64_t>(all, room.stream_blocks));
  for (std::size_t i = 0; i < batch.lens.size(); ++i) {
    for (std::int32_t h = 0; h < batch.options.num_heads; ++h) {
      const auto mine = leaves.find({static_cast<std::int32_t>(i), h});
      if (batch.queries(i) == 0) {
        ASSERT_TRUE(mine == leaves.end());
        continue;
      }
      std::set<std::int32_t> want =
          seen_units(batch.sight(i, 0, batch.options.group_size), kLeafTokens);
      if (want.empty()) want = {0};
      ASSERT_TRUE(mine != leaves.end());
      ASSERT_EQ(mine->second, std::vector<std::int32_t>(want.begin(), want.end()));
    }
  }
}

TEST(CudaPaddedPlan, HasEveryNodeOrLeafOnceAndTheDeviceWritesTheSameBytes) {
  Draw draw(41);
  int streams = 0, full = 0;
  for (int round = 0; round < batches(4000); ++round) {
    const Batch batch = drawn(draw, round % 2 == 0);
    const bool stream = batch.room.stream_blocks > 0;
    const std::vector<std::byte> want = batch.image();
    SCOPED_TRACE(round);
    if (stream) {
      ++streams;
      ASSERT_NO_FATAL_FAILURE(expect_leaves_once(batch, want));
    } else {
      ASSERT_NO_FATAL_FAILURE(expect_nodes_once(batch, want));
      const auto items = values<Item>(want, 0, index(batch.room.items));
      if (items.back().node != kNoNode) ++full;
    }
    OnDevice device(batch, draw(0, 1) == 0);
    model::set_order(round % 8 == 0 ? static_cast<unsigned>(round) + 1 : 0);
    if (round % 16 == 0) {
      device.run<kPlanThreads>();
    } else if (round % 2 == 0) {
      device.run<64>();
    } else {
      device.run<32>();
    }
    ASSERT_EQ(device.different(want), -1)
        << (stream ? "stream" : "nodes") << ", " << batch.lens.size() << " sequences of "
        << batch.capacity.max_sequences;
    ASSERT_EQ(device.fault, kNoFault);
    for (std::size_t i = 0; i < index(batch.room.stream_groups); ++i) {
      ASSERT_EQ(device.arrivals[i], 0);
    }
    ASSERT_EQ(device.arrivals.back(), -1);
  }
  model::set_order(0);
  EXPECT_GT(streams, batches(4000) / 3);
  EXPECT_GT(full, 0) << "batches that fill their capacity";
}

TEST(CudaPaddedPlan, ABatchOverTheCapacityIsRefusedWithBothNumbers) {
  const AttendCapacity capacity =
      *checked_capacity({.max_sequences = 3, .max_sequence_tokens = 500, .max_tokens = 900});
  struct Fault {
    std::vector<std::int32_t> start, lens;
    const char* sentence;
  };
  const Fault faults[] = {
      {{0, 1, 2, 3, 4}, {1, 1, 1, 1}, "the batch has 4 sequences, the capacity is 3"},
      {{0, 1, 3}, {9, 9}, "sequence 1 has 2 queries, the capacity is 1: max_queries"},
      {{0, 1, 2}, {9, 501}, "kv_lens[1] is 501, the capacity is 500: max_sequence_tokens"},
      {{0, 1, 2},
       {450, 451},
       "the batch has 901 tokens of K and V, the capacity is 900: max_tokens"},
  };
  for (const Fault& fault : faults) {
    EXPECT_THAT(check_fits_capacity({fault.start, fault.lens, {}, {}}, capacity).message(),
                HasSubstr(fault.sentence));
  }
  const std::vector<std::int32_t> start = {0, 1, 2}, lens = {450, 450};
  EXPECT_TRUE(check_fits_capacity({start, lens, {}, {}}, capacity).ok());
}

TEST(CudaPaddedPlan, AWrongCapacityIsRefusedByNameAndNumber) {
  const std::pair<AttendCapacity, const char*> faults[] = {
      {{.max_sequences = 0, .max_sequence_tokens = 5}, "capacity.max_sequences is 0, allowed: 1"},
      {{.max_sequences = 5}, "capacity.max_sequence_tokens is 0, allowed: 1 to 1073741824"},
      {{.max_sequences = 5, .max_sequence_tokens = 5, .max_tokens = 26},
       "capacity.max_tokens is 26, allowed: 0 to 25"},
      {{.max_sequences = 5, .max_sequence_tokens = 5, .max_queries = 0},
       "capacity.max_queries is 0, allowed: 1 to 65536"},
  };
  for (const auto& [capacity, sentence] : faults) {
    const Result<AttendCapacity> checked = checked_capacity(capacity);
    ASSERT_FALSE(checked.has_value());
    EXPECT_THAT(checked.error().message(), HasSubstr(sentence));
  }
  const AttendCapacity large =
      *checked_capacity({.max_sequences = 1 << 20, .max_sequence_tokens = 1 << 30});
  PlanOptions options;
  const Result<PaddedRoom> room = padded_room(large, {}, options);
  ASSERT_FALSE(room.has_value());
  EXPECT_THAT(room.error().message(),
              HasSubstr("the capacity makes 1099511627776 items, allowed: 2147483647"));
}

// What no host has seen: the kernel writes nothing outside, reports, and leaves an empty plan.
TEST(CudaPaddedPlan, OnTheDeviceABatchOverTheCapacityIsReportedAndItsPlanIsEmpty) {
  for (const bool stream : {false, true}) {
    Batch batch;
    batch.capacity =
        *checked_capacity({.max_sequences = 3, .max_sequence_tokens = 3000, .max_tokens = 7000});
    batch.options.stream_blocks = stream ? 5 : 0;
    batch.options.stream_of_any_decode = stream;
    batch.room = *padded_room(batch.capacity, batch.mask, batch.options);
    const std::vector<std::byte> empty = batch.image();
    struct Fault {
      std::vector<std::int32_t> start, lens;
      unsigned long long word;
      std::int32_t of_empty = 0;  // the sequence of empty items
    };
    const Fault faults[] = {
        {{0, 1, 2, 3}, {10, 3001, 3002}, 1},  // too long: the first
        {{0, 1, 3}, {10, 20}, 1},             // too many queries
        {{0, 1, 0}, {10, 20}, 1},             // falls
        {{0, 1, 2}, {-1, 20}, 0, 1},
        {{0, 1, 2, 3}, {3000, 3000, 1001}, 3},   // together
        {{0, 1, 2, 3, 4}, {10, 10, 10, 10}, 3},  // too many sequences
    };
    for (const Fault& fault : faults) {
      Batch wrong = batch;
      wrong.start = fault.start;
      wrong.lens = fault.lens;
      wrong.sinks.resize(fault.lens.size());
      wrong.kept.resize(fault.lens.size());
      Batch none = batch;  // for the size of the image
      none.start = {0};
      OnDevice device(none, true);
      device.start = wrong.start;
      device.lens = wrong.lens;
      device.num_sequences = static_cast<std::int32_t>(wrong.lens.size());
      device.args.query_start = device.start.data();
      device.args.kv_lens = device.lens.data();
      device.run<64>();
      EXPECT_EQ(device.fault, fault.word);
      std::vector<std::byte> want = empty;
      for (std::size_t i = 0; i < index(batch.room.items); ++i) {
        const Item none = empty_item(fault.of_empty, 1, batch.room.groups);
        std::memcpy(want.data() + i * sizeof(Item), &none, sizeof(Item));
      }
      EXPECT_EQ(device.different(want), -1);
      device.fault = 0;  // of a launch before: it stays the least
      device.run<32>();
      EXPECT_EQ(device.fault, 0u);
    }
  }
}

// Guarded: what a kernel reads or writes outside of the arrays ends the test.
template <typename T>
struct Guarded {
  GuardedMemory memory;
  explicit Guarded(const std::vector<T>& values)
      : memory(static_cast<std::int64_t>(values.size() * sizeof(T)), true) {
    std::memcpy(memory.data(), values.data(), values.size() * sizeof(T));
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory.data()); }
};

struct Faulty {
  std::vector<std::int32_t> start, lens;  // [max_sequences + 1], [max_sequences]
  std::int32_t num_sequences;
  std::int32_t sequence;  // of the empty items
  bool some_fit = true;
};

void start_on_faulty_batch(const Faulty& faulty, std::int32_t causal) {
  constexpr int kHeadDim = 64, kGroup = 4, kMostTokens = 2048, kBlock = 16;
  Batch batch;
  batch.capacity =
      *checked_capacity({.max_sequences = 4, .max_sequence_tokens = kMostTokens, .max_queries = 2});
  batch.options.group_size = kGroup;
  batch.mask.causal = causal;
  batch.room = *padded_room(batch.capacity, batch.mask, batch.options);
  ASSERT_TRUE(batch.room.merges);
  const Guarded<std::int32_t> start(faulty.start), lens(faulty.lens);
  const Guarded<std::int32_t> table(std::vector<std::int32_t>(4 * kMostTokens / kBlock, 0));
  const std::vector<std::uint16_t> rows(4 * 2 * kGroup * kHeadDim, 0x3f80);
  const Guarded<std::uint16_t> q(rows), out(rows),
      cache(std::vector<std::uint16_t>(kBlock * kHeadDim));
  const Guarded<std::byte> image(std::vector<std::byte>(batch.image().size()));
  const std::size_t states = index(batch.room.items) * 8;
  const Guarded<float> sums(std::vector<float>(states * kHeadDim)),
      totals(std::vector<float>(states * 2));

  OnDevice device(batch, true);
  device.num_sequences = faulty.num_sequences;
  device.args.query_start = start.data();
  device.args.kv_lens = lens.data();
  device.args.image = reinterpret_cast<char*>(image.data());
  device.run<64>();
  ASSERT_NE(device.fault, kNoFault);

  KernelLaunch launch;
  launch.kernel = KernelName::kNode;
  launch.element = Element::kBF16;
  launch.head_dim = kHeadDim;
  launch.grid = batch.room.items;
  AttendArgs& a = launch.args;
  a.cache.k = a.cache.v = reinterpret_cast<const char*>(cache.data());
  a.cache.block_size = kBlock;
  a.cache.num_blocks = a.cache.num_heads = 1;
  a.cache.dim_k = a.cache.dim_v = kHeadDim;
  a.k_steps = a.v_steps = {kBlock * kHeadDim / 8, 0, kHeadDim / 8};
  a.block_shift = 4;
  a.table = table.data();
  a.table_stride = kMostTokens / kBlock;
  a.kv_lens = lens.data();
  a.query_start = start.data();
  a.q = reinterpret_cast<const char*>(q.data());
  a.out = reinterpret_cast<char*>(out.data());
  a.q_token = a.out_token = kGroup * kHeadDim * 2;
  a.q_head = a.out_head = kHeadDim * 2;
  a.group_size = kGroup;
  a.mask = batch.mask;
  a.items = reinterpret_cast<const Item*>(image.data());
  a.groups = reinterpret_cast<const Group*>(a.items + batch.room.items);
  a.num_items = batch.room.items;
  a.num_groups = batch.room.groups;
  a.state_sums = sums.data();
  a.state_totals = totals.data();
  for (std::int32_t i = 0; i < a.num_items; ++i) {
    ASSERT_EQ(a.items[i].sequence, faulty.sequence);
    ASSERT_EQ(a.items[i].node, kNoNode);
  }
  const auto begin = [&](auto kernel, int threads, int shared_bytes) {
    model::launch(launch.grid, threads, shared_bytes, launch.overlaps_previous,
                  [&] { kernel(launch.args); });
  };
  launch.overlaps_previous = true;
  if (faulty.some_fit) {
    ASSERT_TRUE((start_tiles<Element::kBF16, kHeadDim, KernelSet::kSm90a>(launch, begin)));
  }
  launch.kernel = KernelName::kMerge;
  launch.grid = a.num_groups * 8;
  ASSERT_TRUE(start_others(launch, begin));
  EXPECT_EQ(std::memcmp(out.data(), rows.data(), rows.size() * 2), 0) << "rows are not written";
}

TEST(CudaPaddedPlan, TheKernelsOverAFaultyBatchReadOnlyWhatASequenceWithinTheCapacityHas) {
  constexpr std::int32_t kLow = -900'000'000, kHigh = 0x7fffffff;
  const Faulty batches[] = {
      {{kLow, 1, 2, 3, 4}, {10, 20, 30, 40}, 4, 1},       // the row of q is none
      {{0, 1, 2, 3, 4}, {kHigh, 20, 30, 40}, 4, 1},       // the node is one of so many tokens
      {{0, kHigh, kHigh, 3, 4}, {10, 20, 30, 40}, 4, 3},  // the group has so many rows
      {{0, kHigh - 1, kHigh, kHigh, 4}, {10, 20, 30, 40}, 4, 0, false},
      {{0, 1, 2, 3, 4}, {-1, -1, 30, 40}, 7, 2},  // another number of sequences
      {{kLow, 1, 2, 3, 4}, {10, 20, 30, 40}, -3, 1},
      {{kLow, 1, 1, 9, 9}, {10, 20, 30, 40}, 4, 1},  // only one without rows fits
  };
  for (const Faulty& faulty : batches) {
    for (const std::int32_t causal : {0, 1}) {
      SCOPED_TRACE(testing::PrintToString(faulty.start) + testing::PrintToString(faulty.lens));
      ASSERT_NO_FATAL_FAILURE(start_on_faulty_batch(faulty, causal));
    }
  }
}

}  // namespace
}  // namespace kvfolio::cuda
