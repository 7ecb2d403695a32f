// SPDX-License-Identifier: Apache-2.0
#include "offload/test_token_rows.h"

#include "kvfolio/view.h"

namespace kvfolio::test {

TokenRows token_rows(const KVStorage& storage, GroupId group, std::int32_t layer,
                     std::int32_t block, std::int32_t token) {
  const KVView view = *storage.view(group);
  return {view.k_at(layer, block, 0, token), view.v_at(layer, block, 0, token)};
}

}  // namespace kvfolio::test
