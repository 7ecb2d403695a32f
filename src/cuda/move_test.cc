// SPDX-License-Identifier: Apache-2.0

// The kernels of move.cuh and move_blocks.cuh, run on the CPU by on_host.h: byte for byte what the
// CPU's functions write, in any order of threads, within their memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "cuda/elements.cuh"
#include "cuda/host_machine.h"
#include "cuda/move_block_cases.h"
#include "cuda/move_cases.h"

namespace kvfolio::cuda {
namespace {

using cases::CacheShape;
using cases::CacheTwin;
using cases::RowsTwin;
using testing::HasSubstr;

using Case = std::string (*)(cases::Machine&, unsigned);

void run(Case one, unsigned count) {
  HostMachine machine;
  for (unsigned seed = 0; seed < count; ++seed) {
    machine.queue().items = seed % 3 == 0 ? 700 : std::int64_t{1} << 30;
    ASSERT_EQ(one(machine, seed), "") << "seed " << seed;
  }
}

TEST(CudaMoves, AppendWritesTheBytesOfTheCpu) { run(cases::append_case, 400); }
TEST(CudaMoves, GatherWritesTheBytesOfTheCpu) { run(cases::gather_case, 300); }
TEST(CudaMoves, CopiesOfBlocksGoInTheirOrder) { run(cases::copy_case, 300); }
TEST(CudaMoves, ConvertedBlocksHaveTheBytesOfTheCpu) { run(cases::convert_case, 150); }
TEST(CudaMoves, ImagesAndFillsAreThoseOfStorage) { run(cases::image_case, 300); }
TEST(CudaMoves, ChangedEntriesReachTheTable) { run(cases::entries_case, 100); }

// Every bit pattern of the 16-bit types, and of f32 what borders are made of.
TEST(CudaMoves, EveryHalfConvertsAsOnTheCpu) {
  HostMachine machine;
  for (const DType from : {DType::kF16, DType::kBF16}) {
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      cases::Random random(1);
      CacheTwin cache(machine,
                      {.blocks = 64,
                       .block_size = 16,
                       .dim_k = 64,
                       .dim_v = 0,
                       .element = to == DType::kF32   ? Element::kF32
                                  : to == DType::kF16 ? Element::kF16
                                                      : Element::kBF16},
                      random);
      RowsTwin rows(machine, 1024, 1, 64, from, 1, random);
      std::vector<std::int32_t> slots;
      for (int t = 0; t < 1024; ++t) {
        slots.push_back(t);
        for (int d = 0; d < 64; ++d) {
          const auto bits = static_cast<std::uint16_t>(t * 64 + d);
          std::memcpy(rows.host.at(t, 0) + d * 2, &bits, 2);
        }
      }
      cache.upload();
      rows.upload();
      ASSERT_TRUE(append(cache.host, 0, rows.host, {}, slots).ok());
      ASSERT_TRUE(
          append(cache.device, 0, rows.device, {}, slots.data(), slots.size(), machine.queue())
              .ok());
      EXPECT_EQ(cache.differs(), "");
    }
  }
}

TEST(CudaMoves, SinglesConvertAsOnTheCpuAtEveryBorder) {
  cases::Random random(7);
  for (int i = 0; i < 2000000; ++i) {
    // Exponents of halves and their neighbours, with the bits that decide ties.
    std::uint32_t bits = random();
    if (i % 2 == 0)
      bits =
          (bits & 0x80003fffu) | static_cast<std::uint32_t>(0x31000000 + (i % 0x17) * 0x01000000);
    if (i % 8 == 0) bits &= ~0x1fffu;
    if (i % 8 == 2) bits = (bits & ~0x1fffu) | 0x1000u;
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(f16_bits(value, 1.0f) & 0xffffu, f16_from_f32(value)) << bits;
    ASSERT_EQ(f16_bits(1.0f, value) >> 16, f16_from_f32(value)) << bits;
    ASSERT_EQ(bf16_bits(value, 1.0f) & 0xffffu, bf16_from_f32(value)) << bits;
    ASSERT_EQ(bf16_bits(1.0f, value) >> 16, bf16_from_f32(value)) << bits;
  }
}

TEST(CudaMoves, BytesOfE4m3AreItsDefinitionAndThoseOfTheCpu) {
  for (int byte = 0; byte < 256; ++byte) {
    const float want = cases::e4m3_number(byte), got = e4m3_value(static_cast<std::uint32_t>(byte));
    if (want != want) {
      EXPECT_NE(got, got);
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(want), std::bit_cast<std::uint32_t>(got)) << byte;
    }
    EXPECT_EQ(std::bit_cast<std::uint32_t>(got),
              std::bit_cast<std::uint32_t>(f32_from_e4m3(static_cast<std::uint8_t>(byte))));
  }
  cases::Random random(3);
  for (int i = 0; i < 300000; ++i) {
    const float value = static_cast<float>(static_cast<int>(random() % (1u << 21)) - (1 << 20)) *
                        std::ldexp(1.0f, -static_cast<int>(random() % 24) - 4);
    ASSERT_EQ(e4m3x2_of(value, 0.0f), cases::e4m3_byte(value)) << value;
  }
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 1021) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(e4m3_rounded(value), e4m3_from_f32(value)) << bits;
  }
}

TEST(CudaMoves, DividersAreExactUpTo31Bits) {
  cases::Random random(11);
  for (int i = 0; i < 300000; ++i) {
    const std::uint32_t by = i < 5000 ? static_cast<std::uint32_t>(i + 1)
                                      : (random() >> (random() % 30) & 0x7fffffffu) | 1u;
    const Divider divider(by);
    const std::uint32_t n = random() & 0x7fffffffu, border = n / by * by;
    for (const std::uint32_t x : {n, border, border == 0 ? 0 : border - 1, 0x7fffffffu, 0u, by}) {
      ASSERT_EQ(quotient(x, divider), x / by) << x << " / " << by;
    }
  }
}

// A view of 96 GiB, of which the kernels touch some rows.
TEST(CudaMoves, OffsetsGoBeyond64GiB) {
  constexpr std::int64_t kStride = std::int64_t{12} << 30;
  constexpr std::int64_t kBytes = 8 * kStride;
  void* const map = mmap(nullptr, static_cast<std::size_t>(kBytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) GTEST_SKIP() << "no address space of 96 GiB here";
  auto* const memory = static_cast<std::byte*>(map);
  DeviceCache cache;
  cache.view = {.k = memory,
                .k_strides = {.layer = kStride / 2, .block = kStride, .head = 1024, .token = 64},
                .num_layers = 2,
                .num_blocks = 8,
                .block_size = 16,
                .num_kv_heads = 2,
                .head_dim_k = 32,
                .dtype = DType::kF16};
  KVView host = cache.view;
  cache.view.memory_kind = MemoryKind::kDevice;
  HostMachine machine;
  cases::Random random(5);
  RowsTwin rows(machine, 3, 2, 32, DType::kF16, 1, random);
  rows.upload();
  const std::vector<std::int32_t> slots{7 * 16 + 15, 6 * 16, 5 * 16 + 1};
  ASSERT_TRUE(append(cache, 1, rows.device, {}, slots.data(), 3, machine.queue()).ok());
  for (std::int32_t t = 0; t < 3; ++t) {
    for (std::int32_t h = 0; h < 2; ++h) {
      const std::int32_t slot = slots[static_cast<std::size_t>(t)];
      EXPECT_EQ(std::memcmp(host.k_at(1, slot / 16, h, slot % 16), rows.host.at(t, h), 64), 0);
    }
  }
  const std::int32_t src = 7, dst = 0;
  ASSERT_TRUE(copy_blocks(cache, {&src, 1}, {&dst, 1}, machine.queue()).ok());
  EXPECT_EQ(std::memcmp(host.k_at(1, 0, 1, 15), rows.host.at(0, 1), 64), 0);
  const std::vector<std::int32_t> table{7};
  std::vector<std::byte> out(2 * 64);
  kvfolio::GatherArgs args{.block_table = table, .length = 16, .first = 15, .count = 1};
  args.first_layer = 1;
  args.k = contiguous_rows(out.data(), 1, 2, 32, DType::kF16);
  // Sixteen bytes are what the vectors of a kernel want.
  alignas(16) std::byte aligned[128];
  args.k.data = aligned;
  ASSERT_TRUE(gather(cache, args, machine.queue()).ok());
  EXPECT_EQ(std::memcmp(aligned, rows.host.at(0, 0), 64), 0);
  munmap(map, static_cast<std::size_t>(kBytes));
}

CacheShape small_cache(Element element) {
  return {.layers = 2,
          .blocks = 3,
          .heads = 2,
          .block_size = 4,
          .dim_k = 16,
          .dim_v = 8,
          .element = element};
}

TEST(CudaMoves, ASlotOutOfRangeIsSkippedAndTheFirstOneReported) {
  for (const Element element : {Element::kF16, Element::kInt8}) {
    HostMachine machine;
    cases::Random random(2);
    CacheTwin cache(machine, small_cache(element), random);
    RowsTwin k(machine, 5, 2, 16, DType::kF32, 1, random);
    RowsTwin v(machine, 5, 2, 8, DType::kF32, 1, random);
    cache.upload();
    k.upload();
    v.upload();
    std::vector<std::int32_t> good{3, -1, -1, 1, -1};
    ASSERT_TRUE(kvfolio::append(cache.host, 1, k.host, v.host, good).ok());
    const std::vector<std::int32_t> bad{3, -1, -2, 1, 12};
    unsigned long long fault = kNoFault;
    ASSERT_TRUE(
        append(cache.device, 1, k.device, v.device, bad.data(), bad.size(), machine.queue(), &fault)
            .ok());
    EXPECT_EQ(cache.differs(), "");
    const Status said = slot_fault(cache.device.view, fault);
    EXPECT_EQ(said.message(), kvfolio::append(cache.host, 1, k.host, v.host, bad).message());
    EXPECT_THAT(said.message(), HasSubstr("slots[2] is -2"));
    EXPECT_TRUE(slot_fault(cache.device.view, kNoFault).ok());
  }
}

TEST(CudaMoves, ATableEntryThatNamesNoBlockIsReported) {
  HostMachine machine;
  cases::Random random(2);
  CacheTwin cache(machine, small_cache(Element::kBF16), random);
  RowsTwin k(machine, 9, 2, 16, DType::kF32, 1, random);
  cache.upload();
  k.upload();
  const std::vector<std::int32_t> table{2, 3, -1};
  kvfolio::GatherArgs args{.cache = cache.host, .block_table = table, .length = 9, .count = 4};
  args.k = k.host;
  args.k.num_tokens = 4;
  ASSERT_TRUE(kvfolio::gather(args).ok());  // the rows before the bad entry
  args.count = args.k.num_tokens = 9;
  unsigned long long fault = kNoFault;
  const Status cpu = kvfolio::gather(args);
  args.k = k.device;
  ASSERT_TRUE(gather(cache.device, args, machine.queue(), &fault).ok());
  EXPECT_EQ(k.differs("k"), "");
  EXPECT_EQ(table_fault(cache.device.view, fault).message(), cpu.message());
  EXPECT_THAT(cpu.message(), HasSubstr("block_table[1] is 3"));
}

// Reads behind the slots of a call do not come to light by chance.
TEST(CudaMovesDeathTest, AReadBehindTheSlotsEndsTheProcess) {
  HostMachine machine;
  cases::Random random(2);
  CacheTwin cache(machine, small_cache(Element::kF16), random);
  RowsTwin k(machine, 40, 2, 16, DType::kF32, 1, random);
  RowsTwin v(machine, 40, 2, 8, DType::kF32, 1, random);
  const GuardedMemory slots(4 * 4, true);
  std::memset(slots.data(), 0xff, 16);
  const auto call = [&] {
    const auto* const at = reinterpret_cast<const std::int32_t*>(slots.data());
    static_cast<void>(append(cache.device, 0, k.device, v.device, at, 40, machine.queue()));
  };
  EXPECT_DEATH(call(), "");
}

// Arguments that the CPU refuses are refused in its words, before a kernel starts.
TEST(CudaMoves, ArgumentsAreRefusedInTheSentencesOfTheCpu) {
  HostMachine machine;
  cases::Random random(4);
  CacheTwin cache(machine, small_cache(Element::kInt8), random);
  RowsTwin k(machine, 3, 2, 16, DType::kF32, 1, random);
  RowsTwin v(machine, 3, 2, 8, DType::kF32, 1, random);
  const std::vector<std::int32_t> slots{0, 1, 2};
  struct Call {
    KVView cache;
    std::int32_t layer = 0;
    ConstRowsView k, v;
    std::size_t num_slots = 3;
  };
  using Spoil = void (*)(Call&);
  const Spoil spoils[] = {
      [](Call& c) { c.layer = 2; },
      [](Call& c) { c.layer = -1; },
      [](Call& c) { c.num_slots = 2; },
      [](Call& c) { c.k.data = nullptr; },
      [](Call& c) { c.v.head_dim = 16; },
      [](Call& c) { c.k.dtype = DType::kInt8; },
      [](Call& c) { c.k.token_stride += 1; },
      [](Call& c) { c.v.data += 1; },
      [](Call& c) { c.cache.k = nullptr; },
      [](Call& c) { c.cache.k_scale = nullptr; },
      [](Call& c) { c.cache.num_blocks = 1 << 30; },
      [](Call& c) { c.cache.k_strides.block = -8; },
      [](Call& c) { c.cache.v_strides.layer = INT64_MAX; },
      [](Call& c) { c.cache.head_dim_v = -1; },
      [](Call& c) { c.cache.dtype = static_cast<DType>(9); },
  };
  for (const Spoil& spoil : spoils) {
    Call call{.cache = cache.host, .k = k.host, .v = v.host};
    spoil(call);
    const Status cpu = kvfolio::append(call.cache, call.layer, call.k, call.v,
                                       std::span(slots).first(call.num_slots));
    DeviceCache there{call.cache};
    there.view.memory_kind = MemoryKind::kDevice;
    const Status device =
        append(there, call.layer, call.k, call.v, slots.data(), call.num_slots, machine.queue());
    EXPECT_FALSE(cpu.ok());
    EXPECT_EQ(cpu.code(), device.code());
    EXPECT_EQ(cpu.message(), device.message());
  }
  EXPECT_EQ(machine.queue().launches, 0);
}

TEST(CudaMoves, WhatADeviceDoesNotTakeIsNamed) {
  HostMachine machine;
  cases::Random random(4);
  CacheTwin cache(machine, small_cache(Element::kF32), random);
  RowsTwin k(machine, 1, 2, 16, DType::kF32, 1, random);
  RowsTwin v(machine, 1, 2, 8, DType::kF32, 1, random);
  const std::int32_t slot = 0;
  const auto refused = [&](const DeviceCache& there, const ConstRowsView& rows) {
    const Status status = append(there, 0, rows, v.device, &slot, 1, machine.queue());
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << status.message();
    return status.message();
  };
  DeviceCache there = cache.device;
  there.view.memory_kind = MemoryKind::kHost;
  EXPECT_THAT(refused(there, k.device), HasSubstr("host memory (cache.memory_kind is 0)"));
  there = cache.device;
  RowsView wide = k.device;
  wide.head_dim = there.view.head_dim_k = 12;
  EXPECT_THAT(refused(there, wide), HasSubstr("head_dim 12, allowed on a device: multiples of 8"));
  there = cache.device;
  RowsView doubles = k.device;
  doubles.dtype = DType::kF64;
  doubles.token_stride = doubles.head_stride = 64;
  doubles.data = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(doubles.data) & ~7u);
  EXPECT_THAT(refused(there, doubles), HasSubstr("k is f64"));
  machine.queue().items = 1;
  EXPECT_THAT(refused(cache.device, k.device), HasSubstr("a token has 4 units"));
  EXPECT_EQ(machine.queue().launches, 0);
}

TEST(CudaMoves, EntriesOutsideTheTableAreRefused) {
  std::vector<std::int32_t> memory(6);
  const DeviceTable table{memory.data(), 2, 3};
  std::vector<std::byte> upload(24);
  const auto pack = [&](std::vector<std::int32_t> rows, std::vector<std::int32_t> columns) {
    const std::vector<std::int32_t> blocks(rows.size(), 5);
    return pack_changed_entries(table, rows, columns, blocks, upload).message();
  };
  EXPECT_EQ(pack({0, 1}, {0, 2}), "ok");
  EXPECT_THAT(pack({0, 2}, {0, 0}), HasSubstr("changed entry 1 is in row 2, column 0"));
  EXPECT_THAT(pack({0, 1}, {-1, 0}), HasSubstr("changed entry 0 is in row 0, column -1"));
  EXPECT_THAT(pack({0, 1}, {0}), HasSubstr("2 rows, 1 columns"));
  EXPECT_THAT(pack({0, 1, 0}, {0, 1, 2}), HasSubstr("3 take 36 bytes, the upload has 24"));
  // What was changed on its way to the device is not followed.
  HostMachine machine;
  ASSERT_EQ(pack({0, 1}, {0, 2}), "ok");
  const std::int32_t row = 7;
  std::memcpy(upload.data() + 4, &row, 4);
  unsigned long long fault = kNoFault;
  ASSERT_TRUE(set_changed_entries(table, upload.data(), 2, machine.queue(), &fault).ok());
  EXPECT_THAT(memory, testing::ElementsAre(5, 0, 0, 0, 0, 0));
  EXPECT_EQ(fault, 1ull << 32 | 7u);
}

// Runs of any length at any address, into a stage and back.
TEST(CudaMoves, RunsGoToTheirStageAndBack) {
  HostMachine machine;
  cases::Random random(12);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> memory(5000), stage(8192), before;
    for (std::byte& b : memory) b = static_cast<std::byte>(random() & 0xffu);
    before = memory;
    const GuardedMemory far(5000, round % 2 == 0), near(8192, round % 2 == 1);
    std::memcpy(far.data(), memory.data(), 5000);
    RunsArgs args;
    args.stage = reinterpret_cast<std::uintptr_t>(near.data());
    std::uint32_t count = 0, at = 0;
    for (std::int32_t from = 0; from < 5000 && count < 100;) {
      const std::int32_t bytes =
          std::min(cases::draw(random, 1, round % 3 == 0 ? 900 : 64) & (round % 5 == 0 ? ~15 : ~0),
                   5000 - from);
      if (bytes > 0) {
        args.runs[count++] = {
            reinterpret_cast<std::uintptr_t>(far.data()) + static_cast<std::uintptr_t>(from), at,
            static_cast<std::uint32_t>(bytes)};
      }
      at += (static_cast<std::uint32_t>(bytes) + 15) / 16 * 16;
      from += bytes + cases::draw(random, 0, 5);
    }
    const Grid grid{static_cast<std::uint32_t>(cases::draw(random, 1, 2)), count, 1};
    const auto launch = [&](MoveFamily family) {
      ASSERT_TRUE(machine.queue().launch({.family = family}, grid, &args, sizeof args).ok());
    };
    launch(MoveFamily::kRunsOut);
    for (std::uint32_t i = 0; i < count; ++i) {
      auto* const run = reinterpret_cast<std::byte*>(args.runs[i].memory);
      ASSERT_EQ(std::memcmp(near.data() + args.runs[i].at, run, args.runs[i].bytes), 0);
      std::memset(run, 0, args.runs[i].bytes);
    }
    launch(MoveFamily::kRunsIn);
    ASSERT_EQ(std::memcmp(far.data(), before.data(), 5000), 0);
  }
}

// More pairs than travel in one launch.
TEST(CudaMoves, ManyCopiesTakeSeveralLaunches) {
  HostMachine machine;
  cases::Random random(9);
  CacheTwin cache(machine, {.blocks = 700, .block_size = 1, .dim_k = 8, .dim_v = 8}, random);
  cache.upload();
  std::vector<std::int32_t> src, dst;
  for (std::int32_t i = 0; i < 350; ++i) {
    src.push_back(i);
    dst.push_back(350 + i);
  }
  ASSERT_TRUE(kvfolio::copy_blocks(cache.host, src, dst).ok());
  ASSERT_TRUE(copy_blocks(cache.device, src, dst, machine.queue()).ok());
  EXPECT_EQ(machine.queue().launches, 2);
  EXPECT_EQ(cache.differs(), "");
}

}  // namespace
}  // namespace kvfolio::cuda
