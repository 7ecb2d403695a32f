// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <string>

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

TEST(HostMemory, MemoryFromTwoMebibytesOnIsAlignedToAHugePage) {
  HostMemory memory;
  for (const std::int64_t mebibytes : {2, 3, 7, 64}) {
    const std::int64_t bytes = (mebibytes << 20) + 1;
    Result<std::byte*> got = memory.allocate(bytes);
    ASSERT_TRUE(got) << got.error().message();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*got) % (2u << 20), 0u);
    (*got)[0] = std::byte{1};
    (*got)[bytes - 1] = std::byte{2};
    memory.deallocate(*got, bytes);
  }
}

TEST(HostMemory, SmallMemoryIsAlignedAndUsableToTheLastByte) {
  HostMemory memory;
  for (const std::int64_t bytes : {1, 63, 64, 4095, 4096, 4097, 100000}) {
    Result<std::byte*> got = memory.allocate(bytes);
    ASSERT_TRUE(got) << got.error().message();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*got) % kMemoryAlignment, 0u);
    std::memset(*got, 0x5a, static_cast<std::size_t>(bytes));
    memory.deallocate(*got, bytes);
  }
}

TEST(HostMemory, SizesBeyondTheMachineAreOutOfMemoryWithTheNumbers) {
  HostMemory memory;
  for (const std::int64_t bytes :
       {std::int64_t{1} << 46, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max()}) {
    const Result<std::byte*> got = memory.allocate(bytes);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(got.error().message(), HasSubstr(std::to_string(bytes)));
  }
}

TEST(HostMemory, SizesBelowOneAreRefused) {
  HostMemory memory;
  for (const std::int64_t bytes :
       {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const Result<std::byte*> got = memory.allocate(bytes);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code(), ErrorCode::kInvalidArgument);
  }
}

// Pages of address space of this process, from /proc.
std::int64_t mapped_pages() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  statm >> pages;
  return pages;
}

TEST(HostMemory, GivesBackAllAddressSpaceThatItTook) {
  HostMemory memory;
  const std::int64_t before = mapped_pages();
  for (int i = 0; i < 100; ++i) {
    const std::int64_t bytes = (std::int64_t{i} << 20) + 1;
    Result<std::byte*> got = memory.allocate(bytes);
    ASSERT_TRUE(got) << got.error().message();
    memory.deallocate(*got, bytes);
  }
  // 100 rounds of any leak of more than 100 KiB would show.
  EXPECT_LT(mapped_pages() - before, (10 << 20) / 4096);
}

}  // namespace
}  // namespace kvfolio
