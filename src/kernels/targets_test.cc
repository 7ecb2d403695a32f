// SPDX-License-Identifier: Apache-2.0

// Which targets the tests of kernels ran here: they take what kernel_targets() lists, so a machine
// that lacks one is silent about it. Here it is a test that is skipped, and counted so.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

class KernelTargetHere : public testing::TestWithParam<KernelTarget> {};

TEST_P(KernelTargetHere, IsRunOrSaidToBeMissing) {
  const auto here = kernel_targets();
  const testing_cache::TestCache cache({.head_dim_k = 64, .head_dim_v = 64, .num_blocks = 1});
  const Result<KernelTarget> chosen = choose_kernel_target(cache.view, GetParam());
  if (std::find(here.begin(), here.end(), GetParam()) == here.end()) {
    ASSERT_FALSE(chosen.has_value());
    EXPECT_EQ(chosen.error().code(), ErrorCode::kUnsupported);
    const bool modelled =
        GetParam() == KernelTarget::kAvx512 || GetParam() == KernelTarget::kAvx512Bf16;
    GTEST_SKIP() << "this machine lacks " << to_string(GetParam())
                 << ": no test of kernels has run it here"
                 << (modelled ? "; its code is modelled, not run, by ModelledTargets" : "");
  }
  ASSERT_TRUE(chosen.has_value()) << chosen.error().message();
  EXPECT_EQ(*chosen, GetParam());
}

#if defined(__x86_64__)
constexpr KernelTarget kOfThisProcessor[] = {KernelTarget::kReference, KernelTarget::kPortable,
                                             KernelTarget::kAvx2, KernelTarget::kAvx512,
                                             KernelTarget::kAvx512Bf16};
#else
constexpr KernelTarget kOfThisProcessor[] = {KernelTarget::kReference};
#endif
INSTANTIATE_TEST_SUITE_P(Kernels, KernelTargetHere, testing::ValuesIn(kOfThisProcessor),
                         [](const auto& info) {
                           std::string name = to_string(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvfolio
