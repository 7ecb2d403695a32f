// SPDX-License-Identifier: Apache-2.0

// The way of a call to the driver: which kernel of the module is started, with what, and what is
// said if there is none.

#include "cuda/move_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cuda/fake_driver.h"
#include "cuda/move.h"

namespace kvfolio::cuda {
namespace {

using testing::HasSubstr;

DeviceCache small_cache(DType dtype) {
  DeviceCache cache;
  cache.view = {.k = reinterpret_cast<std::byte*>(0x1000),
                .k_strides = {.layer = 4096, .block = 1024, .head = 512, .token = 64},
                .num_layers = 2,
                .num_blocks = 4,
                .block_size = 8,
                .num_kv_heads = 2,
                .head_dim_k = 16,
                .dtype = dtype,
                .memory_kind = MemoryKind::kDevice};
  if (dtype == DType::kInt8) {
    cache.view.k_scale = reinterpret_cast<std::byte*>(0x9000);
    cache.view.k_scale_strides = {.layer = 256, .block = 64, .head = 32, .token = 4};
  }
  return cache;
}

TEST(CudaMoveModule, EveryKernelHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const MoveKernel& kernel : all_move_kernels()) names.insert(symbol_of(kernel));
  EXPECT_EQ(names.size(), all_move_kernels().size());
  EXPECT_EQ(names.size(), 129u);
  EXPECT_EQ(names.count("kvfolio_append_f32_int8_narrow_long"), 1u);
  EXPECT_EQ(names.count("kvfolio_copy_wide"), 1u);
  EXPECT_EQ(names.count("kvfolio_scatter"), 1u);
}

TEST(CudaMoveModule, ACallStartsTheKernelOfItsTypesOnItsStream) {
  FakeDriver fake;
  fake.args_bytes = sizeof(AppendArgs);
  const int image = 0;
  {
    const auto module = *MoveModule::load(open_device(), &image);
    int stream = 0;
    DriverQueue queue(module, &stream);
    alignas(16) std::byte rows[3 * 2 * 16 * 4];
    const auto* const slots = reinterpret_cast<const std::int32_t*>(0x7000);
    const auto k = contiguous_rows(static_cast<const std::byte*>(rows), 3, 2, 16, DType::kBF16);
    ASSERT_TRUE(append(small_cache(DType::kF16), 1, k, {}, slots, 3, queue).ok());
    ASSERT_TRUE(append(small_cache(DType::kInt8), 0, k, {}, slots, 3, queue).ok());
    auto narrow = k;
    narrow.data += 2;
    ASSERT_TRUE(append(small_cache(DType::kF16), 1, narrow, {}, slots, 3, queue).ok());
    ASSERT_EQ(fake.launches.size(), 3u);
    EXPECT_EQ(fake.launches[0].kernel, "kvfolio_append_bf16_f16_wide");
    EXPECT_EQ(fake.launches[1].kernel, "kvfolio_append_bf16_int8_wide_short");
    EXPECT_EQ(fake.launches[2].kernel, "kvfolio_append_bf16_f16_narrow");
    for (const FakeDriver::Launch& launch : fake.launches) {
      EXPECT_EQ(launch.stream, &stream);
      EXPECT_EQ(launch.threads, 256u);
      EXPECT_EQ(launch.y, 1u);
    }
    AppendArgs args;
    std::memcpy(static_cast<void*>(&args), fake.launches[0].args.data(), sizeof args);
    EXPECT_EQ(args.slots, slots);
    EXPECT_EQ(args.num_rows, 6u);
    EXPECT_EQ(args.k.data, reinterpret_cast<char*>(0x1000 + 4096));
  }
  EXPECT_EQ(fake.open(), 0u);
}

TEST(CudaMoveModule, AModuleThatLacksAKernelIsRefusedByItsName) {
  FakeDriver fake;
  fake.missing.insert("kvfolio_pack_wide");
  const int image = 0;
  const auto module = MoveModule::load(open_device(), &image);
  ASSERT_FALSE(module);
  EXPECT_EQ(module.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(module.error().message(), HasSubstr("failed to find its kernel kvfolio_pack_wide"));
  EXPECT_EQ(fake.open(), 0u);
}

TEST(CudaMoveModule, AStartThatFailsIsSaidAndAKernelThatIsNotThereToo) {
  FakeDriver fake;
  const int image = 0;
  const auto module = *MoveModule::load(open_device(), &image);
  DriverQueue queue(module, nullptr);
  const std::int32_t src = 0, dst = 1;
  fake.count = 0;
  fake.fail_at = 2;  // behind the push of the context
  fake.fail_with = 701;
  const Status failed = copy_blocks(small_cache(DType::kF32), {&src, 1}, {&dst, 1}, queue);
  EXPECT_EQ(failed.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(failed.message(), HasSubstr("failed to start kvfolio_copy_wide: error 701"));
  EXPECT_TRUE(fake.launches.empty());
  fake.fail_at = 0;
  EXPECT_TRUE(copy_blocks(small_cache(DType::kF32), {&src, 1}, {&dst, 1}, queue).ok());
  const MoveKernel none{MoveFamily::kAppendPlain, Element::kInt8, Element::kF32, true, false};
  EXPECT_EQ(queue.launch(none, {}, &src, 4).message(),
            "there is no kernel kvfolio_append_int8_f32_wide");
}

}  // namespace
}  // namespace kvfolio::cuda
