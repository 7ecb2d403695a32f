// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where K and V of a token lie in a cache of host memory: for tests that write and read them
// themselves, and include no view.h for it.

#include <cstddef>
#include <cstdint>

#include "kvfolio/ids.h"
#include "kvfolio/storage.h"

namespace kvfolio::test {

struct TokenRows {
  std::byte* k = nullptr;  // [head_dim_k] of head 0
  std::byte* v = nullptr;  // [head_dim_v]
};
// Requires: the storage has the group, the group the layer and the block, and the block the token.
TokenRows token_rows(const KVStorage& storage, GroupId group, std::int32_t layer,
                     std::int32_t block, std::int32_t token);

}  // namespace kvfolio::test
