// SPDX-License-Identifier: Apache-2.0
//
// Images of blocks: what is in them, that strides do not show, and that memory of a device is
// reached through its resource.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "storage/test_rows.h"

namespace kvfolio {
namespace {

using testing_rows::write_pattern;

GroupSpec shape(Format format, DType dtype) {
  return {.num_layers = 3,
          .num_kv_heads = 2,
          .head_dim_k = 8,
          .head_dim_v = 16,
          .block_size = 32,
          .dtype = dtype,
          .format = format,
          .num_blocks = 5};
}

std::vector<std::byte> image_of(const KVStorage& storage, std::int32_t block) {
  std::vector<std::byte> image(static_cast<std::size_t>(storage.block_image_bytes(GroupId(0))));
  EXPECT_TRUE(storage.read_blocks(GroupId(0), {&block, 1}, image).ok());
  return image;
}

// The rows of a block in the order that storage.h promises, one by one.
std::vector<std::byte> expected_image(const KVStorage& storage, std::int32_t block) {
  const GroupSpec& spec = storage.spec().groups[0];
  const KVView view = *storage.view(GroupId(0));
  const std::int32_t tile = view.granule ? 16 : 1;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(spec.dtype)) * tile;
  std::vector<std::byte> image;
  const auto put = [&](const std::byte* row, std::int64_t n) {
    image.insert(image.end(), row, row + n);
  };
  const auto put_row = [&](int kind, std::int32_t l, std::int32_t h, std::int32_t t) {
    if (kind == 0) put(view.k_at(l, block, h, t), spec.head_dim_k * bytes);
    if (kind == 1) put(view.v_at(l, block, h, t), spec.head_dim_v * bytes);
    if (kind == 2) put(view.k_scale_at(l, block, h, t), 4);
    if (kind == 3) put(view.v_scale_at(l, block, h, t), 4);
  };
  const int kinds = has_scales(spec.dtype) ? 4 : 2;
  for (std::int32_t l = 0; l < spec.num_layers; ++l) {
    if (spec.format == Format::kNhd) {
      for (int kind = 0; kind < kinds; ++kind) {
        for (std::int32_t t = 0; t < spec.block_size; ++t) {
          for (std::int32_t h = 0; h < spec.num_kv_heads; ++h) put_row(kind, l, h, t);
        }
      }
      continue;
    }
    for (std::int32_t h = 0; h < spec.num_kv_heads; ++h) {
      for (int kind = 0; kind < kinds; ++kind) {
        for (std::int32_t t = 0; t < spec.block_size; t += kind < 2 ? tile : 1) {
          put_row(kind, l, h, t);
        }
      }
    }
  }
  return image;
}

class Image : public ::testing::TestWithParam<std::tuple<Format, DType>> {
 protected:
  GroupSpec spec() const { return shape(std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

TEST_P(Image, HasTheRowsInThePromisedOrderAndNothingElse) {
  KVStorage storage = *KVStorage::create({{spec()}});
  ASSERT_TRUE(storage.fill(std::byte{0xee}).ok());
  write_pattern(*storage.view(GroupId(0)));
  for (const std::int32_t block : {0, 3}) {
    EXPECT_EQ(image_of(storage, block), expected_image(storage, block));
  }
}

TEST_P(Image, OfManyBlocksIsTheImagesOneBehindTheOther) {
  KVStorage storage = *KVStorage::create({{spec()}});
  write_pattern(*storage.view(GroupId(0)));
  const std::vector<std::int32_t> blocks = {4, 0, 4, 2};
  const auto bytes = static_cast<std::size_t>(storage.block_image_bytes(GroupId(0)));
  std::vector<std::byte> images(bytes * blocks.size());
  ASSERT_TRUE(storage.read_blocks(GroupId(0), blocks, images).ok());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto begin = images.begin() + static_cast<std::ptrdiff_t>(i * bytes);
    EXPECT_EQ(image_of(storage, blocks[i]),
              std::vector<std::byte>(begin, begin + static_cast<std::ptrdiff_t>(bytes)));
  }
}

TEST_P(Image, WrittenToAnotherBlockMakesItAnEqual) {
  KVStorage from = *KVStorage::create({{spec()}});
  KVStorage to = *KVStorage::create({{spec()}});
  write_pattern(*from.view(GroupId(0)));
  ASSERT_TRUE(to.fill(std::byte{0}).ok());
  const std::vector<std::byte> before = image_of(to, 1);
  const std::vector<std::byte> image = image_of(from, 3);
  const std::int32_t block = 2;
  ASSERT_TRUE(to.write_blocks(GroupId(0), {&block, 1}, image).ok());
  EXPECT_EQ(image_of(to, 2), image);
  EXPECT_EQ(image_of(to, 1), before);
  EXPECT_EQ(image_of(to, 3), before);
}

TEST_P(Image, RunsAreThePiecesOfTheImageInOrder) {
  KVStorage storage = *KVStorage::create({{spec()}});
  write_pattern(*storage.view(GroupId(0)));
  const std::vector<std::byte> image = image_of(storage, 2);
  const std::int64_t count = *storage.image_runs(GroupId(0), 2, 0, {});
  EXPECT_EQ(count, spec().num_layers);  // in the library's own layouts
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    KVStorage::ImageRun run;
    ASSERT_EQ(*storage.image_runs(GroupId(0), 2, i, {&run, 1}), count);
    EXPECT_EQ(run.offset, at);
    EXPECT_EQ(std::memcmp(run.memory, image.data() + at, static_cast<std::size_t>(run.bytes)), 0);
    at += run.bytes;
  }
  EXPECT_EQ(at, storage.block_image_bytes(GroupId(0)));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Image,
    ::testing::Combine(::testing::Values(Format::kHnd, Format::kNhd, Format::kGranule),
                       ::testing::Values(DType::kF32, DType::kBF16, DType::kInt8)));
INSTANTIATE_TEST_SUITE_P(E4M3, Image,
                         ::testing::Combine(::testing::Values(Format::kHnd, Format::kNhd),
                                            ::testing::Values(DType::kE4M3)));

// A storage over a vector, with each layer and axis where `gap` puts it.
struct Lent {
  explicit Lent(const GroupSpec& spec, std::int64_t gap, bool token_major)
      : memory(std::size_t{1} << 20, std::byte{0x77}) {
    const std::int64_t row_k = spec.head_dim_k * dtype_bytes(spec.dtype) + gap;
    const std::int64_t row_v = spec.head_dim_v * dtype_bytes(spec.dtype) + gap;
    const auto strides = [&](std::int64_t row) {
      KVStrides s{};
      s.token = token_major ? row * spec.num_kv_heads : row;
      s.head = token_major ? row : row * spec.block_size;
      s.block = row * spec.num_kv_heads * spec.block_size + gap;
      s.layer = s.block * spec.num_blocks + gap;
      return s;
    };
    BorrowedGroup group;
    group.k = memory.data();
    group.k_strides = strides(row_k);
    group.k_bytes = group.k_strides.layer * spec.num_layers;
    group.v = memory.data() + group.k_bytes;
    group.v_strides = strides(row_v);
    group.v_bytes = group.v_strides.layer * spec.num_layers;
    storage.emplace(*KVStorage::borrow({{spec}}, {&group, 1}));
  }
  std::vector<std::byte> memory;
  std::optional<KVStorage> storage;
};

TEST(ImageOfLentMemory, DoesNotDependOnStrides) {
  const GroupSpec spec = shape(Format::kHnd, DType::kF32);
  KVStorage own = *KVStorage::create({{spec}});
  write_pattern(*own.view(GroupId(0)));
  for (const bool token_major : {false, true}) {
    for (const std::int64_t gap : {0, 4, 64}) {
      Lent lent(spec, gap, token_major);
      write_pattern(*lent.storage->view(GroupId(0)));
      EXPECT_EQ(image_of(*lent.storage, 3), image_of(own, 3));
      // And back: bytes of the engine that belong to no row stay as they are.
      Lent other(spec, gap, token_major);
      const std::vector<std::byte> image = image_of(own, 1);
      const std::int32_t block = 4;
      const auto untouched = std::count(other.memory.begin(), other.memory.end(), std::byte{0x77});
      ASSERT_TRUE(other.storage->write_blocks(GroupId(0), {&block, 1}, image).ok());
      EXPECT_EQ(image_of(*other.storage, 4), image);
      EXPECT_GE(std::count(other.memory.begin(), other.memory.end(), std::byte{0x77}),
                untouched - static_cast<std::ptrdiff_t>(image.size()));
    }
  }
}

TEST(ImageErrors, SayWhatIsWrongAndCopyNothing) {
  KVStorage storage = *KVStorage::create({{shape(Format::kHnd, DType::kF32)}});
  const auto bytes = static_cast<std::size_t>(storage.block_image_bytes(GroupId(0)));
  std::vector<std::byte> image(bytes, std::byte{1});
  EXPECT_EQ(storage.block_image_bytes(GroupId(1)), 0);
  EXPECT_EQ(storage.block_image_bytes(GroupId(-1)), 0);
  for (const std::int32_t block : {-1, 5}) {
    EXPECT_EQ(storage.read_blocks(GroupId(0), {&block, 1}, image).code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(storage.write_blocks(GroupId(0), {&block, 1}, image).code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(storage.image_runs(GroupId(0), block, 0, {}).error().code(),
              ErrorCode::kInvalidArgument);
  }
  const std::int32_t block = 0;
  image.pop_back();
  EXPECT_EQ(storage.read_blocks(GroupId(0), {&block, 1}, image).code(),
            ErrorCode::kInvalidArgument);
  image.clear();
  EXPECT_EQ(storage.write_blocks(GroupId(0), {&block, 1}, image).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(storage.write_blocks(GroupId(0), {}, image).ok());
  EXPECT_EQ(storage.read_blocks(GroupId(1), {}, image).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(storage.image_runs(GroupId(0), 0, -1, {}).error().code(), ErrorCode::kInvalidArgument);
}

// Memory that only the resource touches: its addresses lie beside those of the bytes.
class Device final : public MemoryResource {
 public:
  explicit Device(bool copies_to_host) : copies_to_host_(copies_to_host) {}
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kDevice; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    memory_.assign(static_cast<std::size_t>(bytes), std::byte{0});
    return address(0);
  }
  void deallocate(std::byte*, std::int64_t) noexcept override {}
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    std::memcpy(at(dst), at(src), static_cast<std::size_t>(bytes));
    return {};
  }
  Status copy_in(std::span<const CopyRun> runs) noexcept override {
    if (!copies_to_host_) return MemoryResource::copy_in(runs);
    ++num_batches;
    for (const CopyRun& run : runs) {
      std::memcpy(at(run.dst), run.src, static_cast<std::size_t>(run.bytes));
    }
    return {};
  }
  Status copy_out(std::span<const CopyRun> runs) noexcept override {
    if (!copies_to_host_) return MemoryResource::copy_out(runs);
    for (const CopyRun& run : runs) {
      std::memcpy(run.dst, at(run.src), static_cast<std::size_t>(run.bytes));
    }
    return {};
  }
  int num_batches = 0;

 private:
  static std::byte* address(std::int64_t offset) {
    // It may not be touched. NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40) + offset;
  }
  std::byte* at(const std::byte* address_of) { return memory_.data() + (address_of - address(0)); }
  bool copies_to_host_;
  std::vector<std::byte> memory_;
};

TEST(ImageOfADevice, GoesThroughItsResource) {
  Device device(true);
  KVStorage storage = *KVStorage::create({{shape(Format::kHnd, DType::kBF16)}}, &device);
  KVStorage host = *KVStorage::create({{shape(Format::kHnd, DType::kBF16)}});
  write_pattern(*host.view(GroupId(0)));
  const std::vector<std::byte> image = image_of(host, 2);
  const std::int32_t block = 4;
  ASSERT_TRUE(storage.write_blocks(GroupId(0), {&block, 1}, image).ok());
  EXPECT_EQ(device.num_batches, 1);
  EXPECT_EQ(image_of(storage, 4), image);
  EXPECT_EQ(storage.image_runs(GroupId(0), 4, 0, {}).error().code(), ErrorCode::kUnsupported);
}

TEST(ImageOfADevice, IsUnsupportedWithoutCopiesToTheHost) {
  Device device(false);
  KVStorage storage = *KVStorage::create({{shape(Format::kHnd, DType::kBF16)}}, &device);
  std::vector<std::byte> image(static_cast<std::size_t>(storage.block_image_bytes(GroupId(0))));
  const std::int32_t block = 0;
  EXPECT_EQ(storage.read_blocks(GroupId(0), {&block, 1}, image).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(storage.write_blocks(GroupId(0), {&block, 1}, image).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(storage.write_blocks(GroupId(0), {}, {}).code(), ErrorCode::kUnsupported);
}

// The defaults of MemoryResource: those of a device cannot, those of host memory copy run by run.
class Plain final : public MemoryResource {
 public:
  explicit Plain(MemoryKind kind) : kind_(kind) {}
  [[nodiscard]] MemoryKind kind() const noexcept override { return kind_; }
  Result<std::byte*> allocate(std::int64_t) override { return nullptr; }
  void deallocate(std::byte*, std::int64_t) noexcept override {}
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    ++num_copies;
    std::memcpy(dst, src, static_cast<std::size_t>(bytes));
    return {};
  }
  int num_copies = 0;

 private:
  MemoryKind kind_;
};

TEST(CopyBatch, DefaultsCopyRunByRunWhereTheCpuMay) {
  const int from[] = {1, 2, 3};
  int to[3] = {};
  const auto run = [&](int i) {
    return CopyRun{reinterpret_cast<std::byte*>(to + i),
                   reinterpret_cast<const std::byte*>(from + i), sizeof(int)};
  };
  const CopyRun runs[] = {run(0), run(2)};
  Plain host(MemoryKind::kHost);
  EXPECT_TRUE(host.copy_batch(runs));
  EXPECT_EQ(to[0], 1);
  EXPECT_EQ(to[1], 0);
  EXPECT_EQ(to[2], 3);
  EXPECT_TRUE(host.copy_in(runs));
  EXPECT_TRUE(host.copy_out(runs));
  EXPECT_EQ(host.num_copies, 6);
  Plain device(MemoryKind::kDevice);
  EXPECT_EQ(device.copy_in(runs).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(device.copy_out(runs).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(device.num_copies, 0);
}

}  // namespace
}  // namespace kvfolio
