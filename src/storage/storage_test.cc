// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

TEST(KVStorage, GroupsThatDoNotExistHaveNoView) {
  const CacheSpec spec{.groups = {{.head_dim_k = 4, .head_dim_v = 4, .num_blocks = 2}}};
  Result<KVStorage> storage = KVStorage::create(spec);
  ASSERT_TRUE(storage);
  for (const std::int32_t group : {-1, 1, 1 << 30}) {
    const Result<KVView> view = storage->view(GroupId(group));
    ASSERT_FALSE(view);
    EXPECT_EQ(view.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(view.error().message(), HasSubstr(std::to_string(group)));
  }
}

}  // namespace
}  // namespace kvfolio
