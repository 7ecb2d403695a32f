// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arrays as rows of an engine (kvfolio/view.h).

#include <cstdint>
#include <optional>

#include "arrays.h"
#include "bindings.h"
#include "kvfolio/view.h"

namespace kvfolio::python {

// Rows [tokens, heads, head_dim]. Without `object` (None) there is no data.
struct Rows {
  std::optional<Array> array;
  RowsView view{};
};
Rows rows_of(nb::handle object, const char* name, Access access);
Rows rows_of(Array array, const char* name);
// States [batch, heads, tokens, head_dim], as attention has them.
struct States {
  std::optional<Array> array;
  RowsView first{};  // of row 0 of the batch
  std::int64_t batch = 0;
  std::int64_t batch_stride = 0;  // in bytes

  // One row of the batch.
  [[nodiscard]] RowsView row(std::int64_t index) const {
    RowsView rows = first;
    rows.data += index * batch_stride;
    return rows;
  }
};
States states_of(nb::handle object, const char* name, Access access);
// [tokens, heads] or [tokens, heads, 1], f32 or f64.
Rows lse_of(nb::handle object, const char* name, Access access);

}  // namespace kvfolio::python
