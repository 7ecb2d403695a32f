// SPDX-License-Identifier: Apache-2.0

// contiguous_rows(): rows from a pointer and three sizes.

#include "kvfolio/view.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvfolio {
namespace {

// [3 tokens, 4 heads, 5]: row (t, h) begins at element (t * 4 + h) * 5.
template <typename T, typename... DTypes>
void expect_contiguous(DType dtype, DTypes... given) {
  std::vector<T> data(60);
  const RowsView rows = contiguous_rows(data.data(), 3, 4, 5, given...);
  static_assert(
      std::is_same_v<decltype(contiguous_rows(std::declval<const T*>(), 3, 4, 5, given...)),
                     ConstRowsView>);
  const ConstRowsView read = contiguous_rows(std::as_const(data).data(), 3, 4, 5, given...);
  EXPECT_EQ(rows.num_tokens, 3);
  EXPECT_EQ(rows.num_heads, 4);
  EXPECT_EQ(rows.head_dim, 5);
  EXPECT_EQ(rows.dtype, dtype);
  EXPECT_EQ(read.num_tokens, 3);
  EXPECT_EQ(read.num_heads, 4);
  EXPECT_EQ(read.head_dim, 5);
  EXPECT_EQ(read.dtype, dtype);
  for (std::int32_t t = 0; t < 3; ++t) {
    for (std::int32_t h = 0; h < 4; ++h) {
      EXPECT_EQ(rows.at(t, h),
                reinterpret_cast<std::byte*>(&data[0]) + (t * 4 + h) * 5 * dtype_bytes(dtype));
      EXPECT_EQ(read.at(t, h), rows.at(t, h));
    }
  }
}

TEST(ContiguousRows, FollowEachOtherForEveryPointer) {
  expect_contiguous<double>(DType::kF64);
  expect_contiguous<float>(DType::kF32);
  for (const DType half : {DType::kF16, DType::kBF16}) {
    expect_contiguous<std::uint16_t>(half, half);
  }
}

TEST(ContiguousRows, OfBytesAreOfAnyType) {
  std::vector<double> memory(60);
  auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const RowsView rows = contiguous_rows(bytes, 3, 4, 5, dtype);
    EXPECT_EQ(rows.dtype, dtype);
    EXPECT_EQ(rows.at(2, 3), bytes + 55 * dtype_bytes(dtype));
  }
}

// 2^20 x 2^20 x 8 bytes in a token: the strides are 64-bit.
TEST(ContiguousRows, StridesDoNotOverflowInt32) {
  double none = 0;
  const RowsView rows = contiguous_rows(&none, 1, 1 << 20, 1 << 20);
  EXPECT_EQ(rows.head_stride, std::int64_t{1} << 23);
  EXPECT_EQ(rows.token_stride, std::int64_t{1} << 43);
}

template <typename T>
concept HasRows = requires(T* data) {
  contiguous_rows(data, 1, 1, 1);
};

// A pointer whose elements no row has, or a half without its type, does not compile.
static_assert(HasRows<double> && HasRows<const float>);
static_assert(!HasRows<std::int8_t> && !HasRows<std::uint16_t> && !HasRows<std::int32_t> &&
              !HasRows<std::byte>);

}  // namespace
}  // namespace kvfolio
