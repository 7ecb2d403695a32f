// SPDX-License-Identifier: Apache-2.0
#pragma once

// The functions of the table in op_codes.h.

#include "kvfolio/manager.h"
#include "manager/op_archive.h"
#include "manager/op_codes.h"

namespace kvfolio {

// with() is called with the function of the call, if `op` is one.
template <typename With>
void with_call(Op op, const With& with) {
  using M = KVCacheManager;
  using Tokens = std::span<const std::int32_t>;
  using Ids = std::span<const SequenceId>;
  using Int = std::int32_t;
  using Long = std::int64_t;
  using Policy = std::optional<VictimPolicy>;
  switch (op) {
#define KVFOLIO_OP_CASE(number, code, name, first, ...) \
  case Op::code:                                        \
    return with(__VA_ARGS__);
    KVFOLIO_OPS(KVFOLIO_OP_CASE)
#undef KVFOLIO_OP_CASE
    case Op::kEnd:
      return;
  }
}

}  // namespace kvfolio
