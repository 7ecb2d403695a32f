// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

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

// Whether each page of the range is there.
std::vector<unsigned char> resident(std::byte* memory, std::int64_t bytes) {
  std::vector<unsigned char> pages(static_cast<std::size_t>(bytes) / 4096);
  EXPECT_EQ(::mincore(memory, static_cast<std::size_t>(bytes), pages.data()), 0);
  return pages;
}

TEST(HostMemory, PagesAppearAtTheFirstWriteToThem) {
  HostMemory memory;
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  Result<std::byte*> got = memory.allocate(kBytes);
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_THAT(resident(*got, kBytes), ::testing::Each(0));
  (*got)[kBytes / 2] = std::byte{1};
  const std::vector<unsigned char> pages = resident(*got, kBytes);
  EXPECT_EQ(pages[kBytes / 2 / 4096], 1);
  // One page, or the huge one around it.
  EXPECT_LE(std::count(pages.begin(), pages.end(), 1), (2 << 20) / 4096);
  memory.deallocate(*got, kBytes);
}

// The line of flags that the kernel keeps for the mapping at this address.
std::string mapping_flags(const std::byte* memory) {
  std::ifstream smaps("/proc/self/smaps");
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream head(line);
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    char dash = 0;
    if (head >> std::hex >> from >> dash >> to && dash == '-')
      here = from <= address && address < to;
    if (here && line.rfind("VmFlags:", 0) == 0) return line + ' ';
  }
  return {};
}

TEST(HostMemory, LargeMemoryIsMarkedForHugePagesAndSmallIsNot) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    GTEST_SKIP() << "this kernel has no transparent huge pages";
  }
  HostMemory memory;
  constexpr std::int64_t kLarge = std::int64_t{4} << 20;
  Result<std::byte*> large = memory.allocate(kLarge);
  Result<std::byte*> small = memory.allocate(4096);
  ASSERT_TRUE(large && small);
  if (mapping_flags(*large).empty()) GTEST_SKIP() << "this kernel does not tell the flags";
  EXPECT_THAT(mapping_flags(*large), HasSubstr(" hg "));
  EXPECT_THAT(mapping_flags(*small), ::testing::Not(HasSubstr(" hg ")));
  memory.deallocate(*large, kLarge);
  memory.deallocate(*small, 4096);
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
