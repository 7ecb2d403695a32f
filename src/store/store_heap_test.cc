// SPDX-License-Identifier: Apache-2.0

// A token store takes heap memory at creation and for what it says, and for nothing else.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "heap_calls/heap_calls.h"
#include "kvfolio/token_store.h"

namespace kvfolio {
namespace {

using testing_heap::num_heap_calls;

// Fault J8: a batch append, too.
TEST(TokenStore, CallsThatSucceedTakeNoMemory) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kInt8, DType::kE4M3}) {
    Result<TokenStore> made =
        TokenStore::create({.head_dim_k = 24, .head_dim_v = 8, .dtype = dtype, .max_tokens = 100});
    ASSERT_TRUE(made) << made.error().message();
    TokenStore& store = *made;
    const std::vector<double> k(24 * 40, 0.5);
    const std::vector<float> k_float(24 * 40, 0.5f);
    const std::vector<double> v(8 * 40, 0.25);
    const std::vector<float> v_float(8 * 40, 0.25f);
    const std::span<const double> one_k(k.data(), 24);
    const std::span<const double> one_v(v.data(), 8);
    std::vector<double> out_k(24 * 40);
    std::vector<double> out_v(8 * 40);
    bool ok = true;
    std::uint64_t seen = 0;

    const std::uint64_t before = num_heap_calls();
    for (int round = 0; round < 2; ++round) {
      ok = ok && store.append(one_k, one_v).ok();
      ok = ok && store.append(k, v).ok();
      ok = ok && store.append(k_float, v_float).ok();
      ok = ok && store.gather(3, out_k, out_v).ok();
      ok = ok && store.read(80, std::span(out_k).first(24), std::span(out_v).first(8)).ok();
      if (!has_scales(dtype)) {
        const Result<std::span<const std::byte>> row = store.at(80);
        seen += row ? row->size() : 0;
      }
      store.clear();
    }
    const std::uint64_t taken = num_heap_calls() - before;

    EXPECT_TRUE(ok) << to_string(dtype);
    EXPECT_EQ(taken, 0U) << to_string(dtype);
    EXPECT_EQ(seen, has_scales(dtype) ? 0U : 2U * 24 * static_cast<unsigned>(dtype_bytes(dtype)));
  }
}

// The counter counts: a text is on the heap.
TEST(TokenStore, AnErrorHasItsTextOnTheHeap) {
  TokenStore store = *TokenStore::create({.head_dim_k = 1, .max_tokens = 1});
  const std::uint64_t before = num_heap_calls();
  const Status status = store.append(std::vector<float>(2));
  EXPECT_FALSE(status.ok());
  EXPECT_GT(num_heap_calls() - before, 0U);
}

}  // namespace
}  // namespace kvfolio
