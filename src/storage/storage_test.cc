// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "storage/test_rows.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;
using testing_rows::Engine;
using testing_rows::expect_pattern;
using testing_rows::for_each_row;
using testing_rows::pattern;
using testing_rows::Row;
using testing_rows::shapes;
using testing_rows::write_pattern;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// Memory of the test, with a record of what was asked of it.
class TestMemory final : public MemoryResource {
 public:
  [[nodiscard]] MemoryKind kind() const noexcept override { return kind_; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    if (num_allocated == fail_at) {
      return Status(ErrorCode::kResourceExhausted, "the arena is full");
    }
    ++num_allocated;
    if (gives_null) return static_cast<std::byte*>(nullptr);
    taken.push_back(host_.allocate(bytes + 1).value_or(nullptr));
    return taken.back() + offset;
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    if (memory == nullptr) return;
    ++num_deallocated;
    host_.deallocate(memory - offset, bytes + 1);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    ++num_copies;
    return host_.copy(dst, src, bytes);
  }

  MemoryKind kind_ = MemoryKind::kHost;
  int fail_at = -1;
  bool gives_null = false;
  int offset = 0;
  int num_allocated = 0;
  int num_deallocated = 0;
  int num_copies = 0;
  std::vector<std::byte*> taken;

 private:
  HostMemory host_;
};

CacheSpec two_groups() {
  return {.groups = {{.num_layers = 2, .head_dim_k = 4, .head_dim_v = 4, .num_blocks = 3},
                     {.num_layers = 1, .head_dim_k = 8, .head_dim_v = 2, .num_blocks = 7}}};
}

TEST(KVStorage, GroupsThatDoNotExistHaveNoView) {
  Result<KVStorage> storage = KVStorage::create(two_groups());
  ASSERT_TRUE(storage);
  EXPECT_EQ(storage->num_groups(), 2);
  EXPECT_TRUE(storage->view(GroupId(1)));
  for (const std::int32_t group : {-1, 2, 1 << 30}) {
    const Result<KVView> view = storage->view(GroupId(group));
    ASSERT_FALSE(view);
    EXPECT_EQ(view.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(view.error().message(), HasSubstr(std::to_string(group)));
  }
}

TEST(KVStorage, OwnMemoryIsWhatTheLayoutSaysForEveryElementType) {
  for (const GroupSpec& group : shapes()) {
    const CacheSpec spec{.groups = {group}};
    Result<KVStorage> storage = KVStorage::create(spec);
    ASSERT_TRUE(storage);
    const GroupLayout layout = (*plan_layouts(spec))[0];
    EXPECT_EQ(storage->memory_bytes(), layout.total_bytes);
    EXPECT_TRUE(storage->owns_memory());
    EXPECT_EQ(storage->spec(), spec);
    const KVView view = *storage->view(GroupId(0));
    std::int64_t payload = 0;
    std::byte* const begin = view.k;
    for_each_row(view, [&](Row row, int, int, int, int, int) {
      payload += row.bytes;
      EXPECT_GE(row.data, begin);
      EXPECT_LE(row.data + row.bytes, begin + layout.total_bytes);
    });
    EXPECT_EQ(payload, layout.payload_bytes_per_token * group.num_blocks * group.block_size);
    // Every row is its own: writing them all leaves each as written.
    write_pattern(view);
    expect_pattern(view, {0, 1, 2, 3, 4});
  }
}

TEST(KVStorage, CopiesRunInOrderAndMoveWholeBlocksOnly) {
  for (const GroupSpec& group : shapes()) {
    Result<KVStorage> storage = KVStorage::create({.groups = {group}});
    ASSERT_TRUE(storage);
    const KVView view = *storage->view(GroupId(0));
    write_pattern(view);
    // 0 -> 3, then 3 -> 1 carries 0 on; 2 -> 2 is nothing.
    const std::int32_t src[] = {0, 3, 2, 4};
    const std::int32_t dst[] = {3, 1, 2, 0};
    ASSERT_TRUE(storage->copy_blocks(GroupId(0), src, dst).ok());
    expect_pattern(view, {4, 0, 2, 0, 4});
  }
}

// `hole`: bytes behind each row, and behind the scales of a head.
void copy_named_blocks(std::int64_t hole) {
  for (const GroupSpec& group : shapes()) {
    const CacheSpec spec{.groups = {group}};
    Result<KVStorage> source = KVStorage::create(spec);
    Result<KVStorage> target = KVStorage::create(spec);
    ASSERT_TRUE(source && target);
    write_pattern(*source->view(GroupId(0)));
    // Memory of an engine: [block][layer][token][head] rows of K, then of V.
    const std::int64_t tokens = group.format == Format::kGranule ? 16 : 1;
    const std::int64_t row_bytes = 8 * dtype_bytes(group.dtype) * tokens + hole;
    const std::int64_t num_rows = group.block_size / tokens;
    const std::int64_t k_bytes = 5 * 3 * num_rows * 2 * row_bytes;
    // Scales have the order [block][layer][head][token] too.
    const std::int64_t scales = 5 * 3 * 2 * (4 * group.block_size + hole);
    Engine memory(2 * k_bytes + 2 * scales);
    const KVStrides strides{2 * row_bytes * num_rows, 6 * row_bytes * num_rows, row_bytes,
                            2 * row_bytes};
    const std::int64_t head = 4 * group.block_size + hole;
    const KVStrides scale_strides{2 * head, 6 * head, head, 4};
    const bool own_v = group.head_dim_v > 0 && !group.v_is_prefix_of_k;
    const bool scaled = has_scales(group.dtype);
    BorrowedGroup lent;
    lent.k = memory.data();
    lent.k_bytes = k_bytes;
    lent.k_strides = strides;
    if (own_v) {
      lent.v = lent.k + k_bytes;
      lent.v_bytes = k_bytes;
      lent.v_strides = strides;
    }
    if (scaled) {
      lent.k_scale = lent.k + 2 * k_bytes;
      lent.k_scale_bytes = scales;
      lent.k_scale_strides = scale_strides;
    }
    if (scaled && own_v) {
      lent.v_scale = lent.k_scale + scales;
      lent.v_scale_bytes = scales;
      lent.v_scale_strides = scale_strides;
    }
    Result<KVStorage> engine = KVStorage::borrow(spec, {{lent}});
    ASSERT_TRUE(engine) << engine.error().message();

    const std::int32_t all[] = {0, 1, 2, 3, 4};
    ASSERT_TRUE(engine->copy_blocks_from(*source, GroupId(0), all).ok());
    expect_pattern(*engine->view(GroupId(0)), {0, 1, 2, 3, 4});
    ASSERT_TRUE(target->fill(std::byte{0xff}).ok());
    const std::int32_t some[] = {4, 1};
    ASSERT_TRUE(target->copy_blocks_from(*engine, GroupId(0), some).ok());
    int others = 0;
    for_each_row(*target->view(GroupId(0)), [&](Row row, int l, int b, int h, int t, int kind) {
      const bool named = b == 4 || b == 1;
      const std::byte want = named ? pattern(l, b, h, t, kind) : std::byte{0xff};
      others += std::count(row.data, row.data + row.bytes, want) != row.bytes;
    });
    EXPECT_EQ(others, 0);
    ASSERT_TRUE(target->copy_blocks_from(*source, GroupId(0), all).ok());
    expect_pattern(*target->view(GroupId(0)), {0, 1, 2, 3, 4});
  }
}

TEST(KVStorage, NamedBlocksOfAnotherStorageComeToTheSameIdsWhateverTheStrides) {
  copy_named_blocks(64);
}

// Both sides are one run of bytes then, in different orders.
TEST(KVStorage, NamedBlocksOfAnotherStorageComeToTheSameHeadsAndTokensWithoutHoles) {
  copy_named_blocks(0);
}

TEST(KVStorage, BlocksOfAnotherStorageAreCheckedBeforeTheFirstByteMoves) {
  const CacheSpec spec{.groups = {shapes()[0]}};
  Result<KVStorage> source = KVStorage::create(spec);
  Result<KVStorage> target = KVStorage::create(spec);
  ASSERT_TRUE(source && target);
  write_pattern(*source->view(GroupId(0)));
  ASSERT_TRUE(target->fill(std::byte{0}).ok());
  const std::int32_t bad[] = {1, 5};
  Status status = target->copy_blocks_from(*source, GroupId(0), bad);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("block 5: group 0 has blocks 0 to 4"));
  for_each_row(*target->view(GroupId(0)), [](Row row, int, int, int, int, int) {
    EXPECT_EQ(std::count(row.data, row.data + row.bytes, std::byte{0}), row.bytes);
  });
  EXPECT_EQ(target->copy_blocks_from(*source, GroupId(1), {}).code(), ErrorCode::kInvalidArgument);

  CacheSpec larger = spec;
  larger.groups[0].num_blocks = 6;
  Result<KVStorage> other = KVStorage::create(larger);
  ASSERT_TRUE(other);
  EXPECT_EQ(target->copy_blocks_from(*other, GroupId(0), {}).code(), ErrorCode::kInvalidArgument);
}

TEST(KVStorage, DeviceMemoryIsCopiedByTheResourceThatBothShareOrNotAtAll) {
  TestMemory device;
  device.kind_ = MemoryKind::kDevice;
  const CacheSpec spec{.groups = {shapes()[0]}};
  Result<KVStorage> host = KVStorage::create(spec);
  Result<KVStorage> first = KVStorage::create(spec, &device);
  Result<KVStorage> second = KVStorage::create(spec, &device);
  ASSERT_TRUE(host && first && second);
  const std::int32_t block[] = {2};
  EXPECT_TRUE(second->copy_blocks_from(*first, GroupId(0), block).ok());
  EXPECT_GT(device.num_copies, 0);
  EXPECT_EQ(host->copy_blocks_from(*first, GroupId(0), block).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(first->copy_blocks_from(*host, GroupId(0), block).code(), ErrorCode::kUnsupported);
}

TEST(KVStorage, AContiguousBlockIsOneCopyPerLayer) {
  for (const Format format : {Format::kHnd, Format::kNhd}) {
    TestMemory memory;
    Result<KVStorage> storage = KVStorage::create({.groups = {{.num_layers = 3,
                                                               .num_kv_heads = 4,
                                                               .head_dim_k = 8,
                                                               .head_dim_v = 6,
                                                               .format = format,
                                                               .num_blocks = 2}}},
                                                  &memory);
    ASSERT_TRUE(storage);
    const std::int32_t src[] = {0};
    const std::int32_t dst[] = {1};
    ASSERT_TRUE(storage->copy_blocks(GroupId(0), src, dst).ok());
    EXPECT_EQ(memory.num_copies, 3);
  }
}

TEST(KVStorage, FillReachesEveryByteOfEveryRow) {
  for (const GroupSpec& group : shapes()) {
    Result<KVStorage> storage = KVStorage::create({.groups = {group}});
    ASSERT_TRUE(storage);
    ASSERT_TRUE(storage->fill(std::byte{0xff}).ok());
    for_each_row(*storage->view(GroupId(0)), [](Row row, int, int, int, int, int) {
      for (std::int64_t i = 0; i < row.bytes; ++i) EXPECT_EQ(row.data[i], std::byte{0xff});
    });
  }
}

TEST(KVStorage, MovesKeepTheMemoryAndFreeItOnce) {
  TestMemory memory;
  {
    Result<KVStorage> storage = KVStorage::create(two_groups(), &memory);
    ASSERT_TRUE(storage);
    std::byte* const data = storage->view(GroupId(1))->k;
    KVStorage moved = *std::move(storage);
    EXPECT_EQ(moved.view(GroupId(1))->k, data);
    // NOLINTNEXTLINE(bugprone-use-after-move): what a moved-from storage answers is the question.
    EXPECT_EQ(storage->num_groups(), 0);
    EXPECT_EQ(storage->memory_bytes(), 0);
    EXPECT_FALSE(storage->view(GroupId(0)));
    EXPECT_EQ(storage->memory_kind(), MemoryKind::kHost);
    EXPECT_EQ(memory.num_deallocated, 0);

    Result<KVStorage> other = KVStorage::create(two_groups(), &memory);
    ASSERT_TRUE(other);
    moved = *std::move(other);
    EXPECT_EQ(memory.num_deallocated, 2);  // what `moved` held before
    EXPECT_EQ(moved.num_groups(), 2);
  }
  EXPECT_EQ(memory.num_allocated, 4);
  EXPECT_EQ(memory.num_deallocated, 4);
}

TEST(KVStorage, ARefusedGroupGivesTheEarlierGroupsBack) {
  TestMemory memory;
  memory.fail_at = 1;
  const Result<KVStorage> storage = KVStorage::create(two_groups(), &memory);
  ASSERT_FALSE(storage);
  EXPECT_EQ(storage.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(storage.error().message(), HasSubstr("group 1"));
  EXPECT_THAT(storage.error().message(), HasSubstr("the arena is full"));
  EXPECT_EQ(memory.num_allocated, 1);
  EXPECT_EQ(memory.num_deallocated, 1);
}

TEST(KVStorage, AResourceThatGivesNullOrMisalignedMemoryIsAnError) {
  TestMemory null;
  null.gives_null = true;
  const Result<KVStorage> first = KVStorage::create(two_groups(), &null);
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code(), ErrorCode::kOutOfMemory);

  TestMemory misaligned;
  misaligned.offset = 1;
  const Result<KVStorage> second = KVStorage::create(two_groups(), &misaligned);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(misaligned.num_deallocated, misaligned.num_allocated);
}

TEST(KVStorage, DeviceMemoryIsCopiedByItsResourceAndNeverFilled) {
  TestMemory device;
  device.kind_ = MemoryKind::kDevice;
  Result<KVStorage> storage = KVStorage::create(two_groups(), &device);
  ASSERT_TRUE(storage);
  EXPECT_EQ(storage->memory_kind(), MemoryKind::kDevice);
  EXPECT_EQ(storage->view(GroupId(1))->memory_kind, MemoryKind::kDevice);
  EXPECT_EQ(storage->fill(std::byte{0}).code(), ErrorCode::kUnsupported);
  const std::int32_t src[] = {0};
  const std::int32_t dst[] = {1};
  ASSERT_TRUE(storage->copy_blocks(GroupId(0), src, dst).ok());
  EXPECT_GT(device.num_copies, 0);
}

// Fault J3.
TEST(KVStorage, SizesThatNoMachineHasAreErrorsWithTheNumbers) {
  // 2^20 blocks x 16 tokens x 64 heads x 2 x 1024 x 8 bytes x 64 layers = 2^50 bytes.
  GroupSpec huge{.num_layers = 64,
                 .num_kv_heads = 64,
                 .head_dim_k = 1024,
                 .head_dim_v = 1024,
                 .dtype = DType::kF64,
                 .num_blocks = 1 << 20};
  const Result<KVStorage> large = KVStorage::create({.groups = {huge}});
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(large.error().message(), HasSubstr(std::to_string(std::int64_t{1} << 50)));

  huge.num_layers = 1 << 16;
  huge.num_kv_heads = 1 << 20;
  huge.head_dim_k = 1 << 20;
  const Result<KVStorage> overflow = KVStorage::create({.groups = {huge}});
  ASSERT_FALSE(overflow);
  EXPECT_EQ(overflow.error().code(), ErrorCode::kInvalidArgument);
}

// Faults B4, J4 (vectors of no elements) and B17 (blocks of no tokens).
TEST(KVStorage, NoLayersNoBlocksOrNoTokensPerBlockAreErrorsAtCreation) {
  const GroupSpec good{.head_dim_k = 4, .head_dim_v = 4, .num_blocks = 2};
  for (std::int32_t GroupSpec::*field :
       {&GroupSpec::num_layers, &GroupSpec::block_size, &GroupSpec::num_blocks,
        &GroupSpec::num_kv_heads, &GroupSpec::head_dim_k}) {
    for (const std::int32_t value : {0, -1}) {
      GroupSpec bad = good;
      bad.*field = value;
      const Result<KVStorage> storage = KVStorage::create({.groups = {bad}});
      ASSERT_FALSE(storage);
      EXPECT_EQ(storage.error().code(), ErrorCode::kInvalidArgument);
    }
  }
}

// Fault L17.
TEST(KVStorage, AStorageCopiesNothingWhenOneBlockIsBad) {
  Result<KVStorage> storage = KVStorage::create(two_groups());
  ASSERT_TRUE(storage);
  write_pattern(*storage->view(GroupId(0)));
  const std::vector<std::int32_t> bad = {-1, 3, std::numeric_limits<std::int32_t>::max(),
                                         std::numeric_limits<std::int32_t>::min()};
  for (const std::int32_t block : bad) {
    // The first pair is good: it must not move either.
    for (const bool in_src : {true, false}) {
      const std::int32_t src[] = {0, in_src ? block : 0};
      const std::int32_t dst[] = {1, in_src ? 2 : block};
      const Status status = storage->copy_blocks(GroupId(0), src, dst);
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(block)));
    }
  }
  const std::int32_t two[] = {0, 1};
  EXPECT_EQ(storage->copy_blocks(GroupId(0), two, std::span(two, 1)).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(storage->copy_blocks(GroupId(2), two, two).code(), ErrorCode::kInvalidArgument);
  expect_pattern(*storage->view(GroupId(0)), {0, 1, 2});
}

// ---- borrowed memory ---------------------------------------------------------------------------

// Strides for axes given from the outermost to the innermost; the innermost steps over `row`.
struct Order {
  std::string name;
  // Sets the strides of k and v, and v's offset, for rows of rk and rv bytes; answers all bytes.
  std::function<std::int64_t(const GroupSpec&, std::int64_t rk, std::int64_t rv, BorrowedGroup&,
                             std::int64_t& v_offset)>
      lay_out;
};

std::vector<Order> orders() {
  using S = const GroupSpec&;
  using I = std::int64_t;
  return {
      {"K and V apart, [layer][block][token][head]",
       [](S s, I rk, I rv, BorrowedGroup& g, I& v_offset) {
         const I h = s.num_kv_heads, t = s.block_size, b = s.num_blocks, l = s.num_layers;
         g.k_strides = {b * t * h * rk, t * h * rk, rk, h * rk};
         g.v_strides = {b * t * h * rv, t * h * rv, rv, h * rv};
         v_offset = l * b * t * h * rk;
         return l * b * t * h * (rk + rv);
       }},
      {"[block][2][layer][head][token]: K and V interleaved by block, block-major",
       [](S s, I rk, I rv, BorrowedGroup& g, I& v_offset) {
         const I h = s.num_kv_heads, t = s.block_size, b = s.num_blocks, l = s.num_layers;
         const I block = l * h * t * (rk + rv);
         g.k_strides = {h * t * rk, block, t * rk, rk};
         g.v_strides = {h * t * rv, block, t * rv, rv};
         v_offset = l * h * t * rk;
         return b * block;
       }},
      {"[layer][block][token][K of all heads | V of all heads]",
       [](S s, I rk, I rv, BorrowedGroup& g, I& v_offset) {
         const I h = s.num_kv_heads, t = s.block_size, b = s.num_blocks, l = s.num_layers;
         const I token = h * (rk + rv);
         g.k_strides = {b * t * token, t * token, rk, token};
         g.v_strides = {b * t * token, t * token, rv, token};
         v_offset = h * rk;
         return l * b * t * token;
       }},
      {"[layer][block][head][token][K | V] with 64 bytes between rows",
       [](S s, I rk, I rv, BorrowedGroup& g, I& v_offset) {
         const I h = s.num_kv_heads, t = s.block_size, b = s.num_blocks, l = s.num_layers;
         const I token = rk + rv + 64;
         g.k_strides = {b * h * t * token, h * t * token, t * token, token};
         g.v_strides = g.k_strides;
         v_offset = rk;
         return l * b * h * t * token;
       }},
      {"[token][head][block][layer]: inside out",
       [](S s, I rk, I rv, BorrowedGroup& g, I& v_offset) {
         const I h = s.num_kv_heads, b = s.num_blocks, l = s.num_layers, t = s.block_size;
         g.k_strides = {rk, l * rk, b * l * rk, h * b * l * rk};
         g.v_strides = {rv, l * rv, b * l * rv, h * b * l * rv};
         v_offset = t * h * b * l * rk;
         return t * h * b * l * (rk + rv);
       }},
  };
}

TEST(BorrowedStorage, AnyNestedOrderOfTheAxesWorksAndOnlyRowsAreTouched) {
  for (const Order& order : orders()) {
    for (GroupSpec spec : shapes()) {
      SCOPED_TRACE(order.name);
      const bool own_v = spec.head_dim_v > 0 && !spec.v_is_prefix_of_k;
      const bool scaled = has_scales(spec.dtype);
      const std::int32_t tokens = spec.format == Format::kGranule ? 16 : 1;
      const std::int64_t element = dtype_bytes(spec.dtype) * std::int64_t{tokens};
      const std::int64_t rk = spec.head_dim_k * element;
      const std::int64_t rv = own_v ? spec.head_dim_v * element : 0;
      BorrowedGroup borrowed;
      std::int64_t v_offset = 0;
      GroupSpec of_rows = spec;
      of_rows.block_size /= tokens;
      const std::int64_t bytes = order.lay_out(of_rows, rk, rv, borrowed, v_offset);
      // Scales behind it all, [layer][block][head][token], K's and V's in turn for each head.
      const std::int64_t line = 4 * spec.block_size;
      const KVStrides scale_strides{2 * line * 2 * 5, 2 * line * 2, 2 * line, 4};
      const std::int64_t scales = scaled ? 3 * 5 * 2 * 2 * line : 0;
      Engine engine(bytes + scales + 64);
      const std::int64_t scales_at = (bytes + 63) / 64 * 64;
      if (scaled) {
        borrowed.k_scale = engine.data() + scales_at;
        borrowed.k_scale_bytes = scales;
        borrowed.k_scale_strides = scale_strides;
      }
      if (scaled && own_v) {
        borrowed.v_scale = borrowed.k_scale + line;
        borrowed.v_scale_bytes = scales - line;
        borrowed.v_scale_strides = scale_strides;
      }
      borrowed.k = engine.data();
      borrowed.k_bytes = bytes;
      if (own_v) {
        borrowed.v = engine.data() + v_offset;
        borrowed.v_bytes = bytes - v_offset;
      }
      Result<KVStorage> storage = KVStorage::borrow({.groups = {spec}}, {{borrowed}});
      ASSERT_TRUE(storage) << storage.error().message();
      EXPECT_FALSE(storage->owns_memory());
      EXPECT_EQ(storage->memory_bytes(), 0);
      const KVView view = *storage->view(GroupId(0));
      EXPECT_EQ(view.v_is_prefix_of_k, spec.v_is_prefix_of_k);
      EXPECT_EQ(view.v, own_v ? borrowed.v : spec.v_is_prefix_of_k ? view.k : nullptr);

      write_pattern(view);
      const std::int32_t src[] = {0, 3};
      const std::int32_t dst[] = {3, 1};
      ASSERT_TRUE(storage->copy_blocks(GroupId(0), src, dst).ok());
      expect_pattern(view, {0, 0, 2, 0, 4});
      // What is between the rows is as the engine left it.
      ASSERT_TRUE(storage->fill(std::byte{0x11}).ok());
      std::int64_t rows = 0;
      for_each_row(view, [&](Row row, int, int, int, int, int) {
        rows += std::count(row.data, row.data + row.bytes, std::byte{0x11});
      });
      const auto all = std::ranges::count(engine.memory, std::byte{0x11});
      EXPECT_EQ(rows, all);
      const std::int64_t scale_bytes = !scaled ? 0 : own_v ? 8 : 4;
      EXPECT_EQ(rows, spec.num_layers * spec.num_blocks * spec.num_kv_heads * spec.block_size *
                          ((rk + rv) / tokens + scale_bytes));
    }
  }
}

// A good borrowed group over f32 [2 layers][3 blocks][4 tokens][2 heads][4], K and V apart.
struct Borrowing {
  CacheSpec spec{.groups = {{.num_layers = 2,
                             .num_kv_heads = 2,
                             .head_dim_k = 4,
                             .head_dim_v = 4,
                             .block_size = 4,
                             .num_blocks = 3}}};
  Engine engine{2 * kPlane};
  BorrowedGroup group{engine.data(),          kPlane, {384, 128, 16, 32},
                      engine.data() + kPlane, kPlane, {384, 128, 16, 32}};

  static constexpr std::int64_t kPlane = 768;

  Status error() {
    Result<KVStorage> storage = KVStorage::borrow(spec, {{group}});
    return storage ? Status() : std::move(storage).error();
  }
};

TEST(BorrowedStorage, TheGoodGroupOfTheNextTestsIsAccepted) {
  EXPECT_TRUE(Borrowing().error().ok());
}

TEST(BorrowedStorage, EachHostileFieldIsAnErrorThatNamesIt) {
  struct Case {
    const char* says;
    std::function<void(Borrowing&)> spoil;
  };
  const Case cases[] = {
      {"k is null", [](Borrowing& b) { b.group.k = nullptr; }},
      {"v is null", [](Borrowing& b) { b.group.v = nullptr; }},
      {"k is at an address", [](Borrowing& b) { b.group.k += 2; }},
      {"v is at an address", [](Borrowing& b) { b.group.v += 1; }},
      {"k_bytes is -1", [](Borrowing& b) { b.group.k_bytes = -1; }},
      {"k_bytes is 9223372036854775807", [](Borrowing& b) { b.group.k_bytes = kMax; }},
      {"k ends 768 bytes behind its start, k_bytes is 767",
       [](Borrowing& b) { b.group.k_bytes = 767; }},
      {"v ends 768 bytes behind its start, v_bytes is 0",
       [](Borrowing& b) { b.group.v_bytes = 0; }},
      {"k_strides.layer is -384", [](Borrowing& b) { b.group.k_strides.layer = -384; }},
      {"k_strides.token is 34", [](Borrowing& b) { b.group.k_strides.token = 34; }},
      {"v_strides.head is 18", [](Borrowing& b) { b.group.v_strides.head = 18; }},
      {"k ends", [](Borrowing& b) { b.group.k_strides.layer = 388; }},
      {"overflows", [](Borrowing& b) { b.group.k_strides.layer = kMax - 3; }},
      {"overflows", [](Borrowing& b) { b.group.v_strides.block = kMax / 2 - 3; }},
      {"rows of k overlap", [](Borrowing& b) { b.group.k_strides.token = 0; }},
      {"rows of k overlap", [](Borrowing& b) { b.group.k_strides.token = 16; }},
      {"rows of k overlap", [](Borrowing& b) { b.group.k_strides.head = 12; }},
      {"rows of v overlap", [](Borrowing& b) { b.group.v_strides.block = 124; }},
      {"rows of v overlap", [](Borrowing& b) { b.group.v_strides.layer = 380; }},
      {"rows of v overlap rows of k", [](Borrowing& b) { b.group.v = b.group.k; }},
      {"rows of v overlap rows of k", [](Borrowing& b) { b.group.v -= 4; }},
      {"head_dim_v is 0", [](Borrowing& b) { b.spec.groups[0].head_dim_v = 0; }},
      {"prefix of K", [](Borrowing& b) { b.spec.groups[0].v_is_prefix_of_k = true; }},
      {"block_size", [](Borrowing& b) { b.spec.groups[0].block_size = 0; }},
  };
  for (const Case& c : cases) {
    Borrowing borrowing;
    c.spoil(borrowing);
    const Status status = borrowing.error();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << c.says;
    EXPECT_THAT(status.message(), HasSubstr(c.says));
  }
}

// The same of int8 in format granule: tiles [16][8] bytes of K and of V, scales of both.
struct GranuleBorrowing {
  CacheSpec spec;
  // [layer][block][head][K: 2 tiles | V: 2 tiles | scales of K | of V]
  static constexpr std::int64_t kHead = 4 * 128 + 2 * 128;
  static constexpr std::int64_t kBytes = 12 * kHead;
  Engine engine{kBytes};
  BorrowedGroup group;

  GranuleBorrowing() {
    spec.groups.resize(1);
    spec.groups[0] = {.num_layers = 2,
                      .num_kv_heads = 2,
                      .head_dim_k = 8,
                      .head_dim_v = 8,
                      .block_size = 32,
                      .dtype = DType::kInt8,
                      .format = Format::kGranule,
                      .num_blocks = 3};
    const KVStrides tiles{6 * kHead, 2 * kHead, kHead, 128};
    const KVStrides scales{6 * kHead, 2 * kHead, kHead, 4};
    group = {engine.data(),       kBytes,       tiles,  engine.data() + 256, kBytes - 256, tiles,
             engine.data() + 512, kBytes - 512, scales, engine.data() + 640, kBytes - 640, scales};
  }
  Status error() {
    Result<KVStorage> storage = KVStorage::borrow(spec, {{group}});
    return storage ? Status() : std::move(storage).error();
  }
};

TEST(BorrowedStorage, EachHostileFieldOfGranuleAndOfScalesIsAnErrorThatNamesIt) {
  using B = GranuleBorrowing;
  EXPECT_TRUE(B().error().ok()) << B().error().message();
  struct Case {
    const char* says;
    std::function<void(B&)> spoil;
  };
  const Case cases[] = {
      {"k is at an address that is not a multiple of a line, 64 bytes",
       [](B& b) { b.group.k += 32; }},
      {"v is at an address", [](B& b) { b.group.v += 4; }},
      {"k_scale is at an address", [](B& b) { b.group.k_scale += 4; }},
      {"k_strides.token is 96, allowed: multiples of a line",
       [](B& b) { b.group.k_strides.token = 96; }},
      {"v_strides.head is 776", [](B& b) { b.group.v_strides.head += 8; }},
      {"rows of k overlap", [](B& b) { b.group.k_strides.token = 64; }},
      {"k_scale is null", [](B& b) { b.group.k_scale = nullptr; }},
      {"v_scale is null", [](B& b) { b.group.v_scale = nullptr; }},
      {"k_scale_strides.token is 8, allowed in format granule: 4",
       [](B& b) {
         b.group.k_scale_strides.token = 8;
         b.group.v_scale = b.group.k_scale;  // not reached
       }},
      {"k_scale_strides.head is 772", [](B& b) { b.group.k_scale_strides.head += 4; }},
      {"v_scale_strides.block is -1536", [](B& b) { b.group.v_scale_strides.block *= -1; }},
      {"v_scale_bytes is -1", [](B& b) { b.group.v_scale_bytes = -1; }},
      {"k_scale ends 8576 bytes behind its start, k_scale_bytes is 8575",
       [](B& b) { b.group.k_scale_bytes = 8575; }},
      {"rows of k_scale overlap rows of k", [](B& b) { b.group.k_scale = b.group.k + 128; }},
      {"rows of v_scale overlap rows of k_scale",
       [](B& b) { b.group.v_scale = b.group.k_scale + 64; }},
      {"overflows", [](B& b) { b.group.k_scale_strides.layer = kMax - 63; }},
      {"k_scale is given, but the element type is bf16: allowed is null",
       [](B& b) { b.spec.groups[0].dtype = DType::kBF16; }},
      {"v_scale is given, but head_dim_v is 0",
       [](B& b) {
         b.spec.groups[0].head_dim_v = 0;
         b.group.v = nullptr;
       }},
      {"dtype is f64", [](B& b) { b.spec.groups[0].dtype = DType::kF64; }},
      {"block_size is 24, allowed: multiples of 16",
       [](B& b) { b.spec.groups[0].block_size = 24; }},
  };
  for (const Case& c : cases) {
    B borrowing;
    c.spoil(borrowing);
    const Status status = borrowing.error();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << c.says;
    EXPECT_THAT(status.message(), HasSubstr(c.says));
  }
}

TEST(BorrowedStorage, TheNumberOfGroupsIsTheSpecs) {
  Borrowing borrowing;
  EXPECT_FALSE(KVStorage::borrow(borrowing.spec, {}));
  const std::vector<BorrowedGroup> two(2, borrowing.group);
  EXPECT_FALSE(KVStorage::borrow(borrowing.spec, two));
}

TEST(BorrowedStorage, StridesOfAxesWithOneEntryAreNotUsed) {
  CacheSpec spec{.groups = {{.head_dim_k = 4, .block_size = 1, .num_blocks = 1}}};
  Engine engine(16);
  const BorrowedGroup group{engine.data(), 16, {-1, kMax, 3, -7}, nullptr, 0, {}};
  EXPECT_TRUE(KVStorage::borrow(spec, {{group}}));
}

TEST(BorrowedStorage, GroupsMayInterleaveButNotOverlap) {
  // One buffer [2 pairs of layers][group][3 blocks][2 tokens][4]: groups alternate by layer.
  const GroupSpec one{.num_layers = 2, .head_dim_k = 4, .block_size = 2, .num_blocks = 3};
  const CacheSpec spec{.groups = {one, one}};
  Engine engine(4 * 96);
  BorrowedGroup first{engine.data(), 4 * 96, {192, 32, 0, 16}, nullptr, 0, {}};
  BorrowedGroup second = first;
  second.k += 96;
  second.k_bytes -= 96;
  EXPECT_TRUE(KVStorage::borrow(spec, {{first, second}}));
  EXPECT_TRUE(KVStorage::borrow(spec, {{second, first}}));
  second.k -= 16;
  second.k_bytes += 16;
  const Result<KVStorage> bad = KVStorage::borrow(spec, {{first, second}});
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message(), HasSubstr("group 1"));
}

TEST(BorrowedStorage, WhatIsAcceptedNeverOverlapsForRandomStrides) {
  std::mt19937 random(20261121);
  const auto pick = [&](int low, int high) {
    return static_cast<std::int32_t>(
        low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
  };
  int accepted = 0;
  for (int round = 0; round < 200000; ++round) {
    GroupSpec spec{.num_layers = pick(1, 2),
                   .num_kv_heads = pick(1, 2),
                   .head_dim_k = pick(1, 2),
                   .head_dim_v = pick(1, 2),
                   .block_size = pick(1, 3),
                   .dtype = DType::kF16,
                   .num_blocks = pick(1, 3)};
    constexpr std::int64_t kBytes = 256;
    std::vector<int> owner(kBytes, 0);
    static std::byte memory[kBytes + 64];
    std::byte* base = memory + (64 - reinterpret_cast<std::uintptr_t>(memory) % 64) % 64;
    const auto stride = [&] { return std::int64_t{2} * pick(0, 12); };
    BorrowedGroup group;
    const std::int64_t v_offset = 2 * pick(0, 60);
    group.k = base;
    group.k_bytes = kBytes;
    group.k_strides = {stride(), stride(), stride(), stride()};
    group.v = base + v_offset;
    group.v_bytes = kBytes - v_offset;
    group.v_strides =
        pick(0, 3) == 0 ? KVStrides{stride(), stride(), stride(), stride()} : group.k_strides;
    Result<KVStorage> storage = KVStorage::borrow({.groups = {spec}}, {{group}});
    if (!storage) continue;
    ++accepted;
    for_each_row(*storage->view(GroupId(0)), [&](Row row, int, int, int, int, int) {
      ASSERT_GE(row.data, base);
      ASSERT_LE(row.data + row.bytes, base + kBytes);
      for (std::int64_t i = 0; i < row.bytes; ++i) {
        ASSERT_EQ(owner[static_cast<std::size_t>(row.data - base + i)]++, 0) << "round " << round;
      }
    });
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace kvfolio
