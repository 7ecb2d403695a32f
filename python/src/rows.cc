// SPDX-License-Identifier: Apache-2.0
#include "rows.h"

#include <string>
#include <utility>

namespace kvfolio::python {

namespace {

// Rows along these axes. dim == ndim: there is none, a row is one number.
RowsView rows_view(const Array& array, const char* name, std::size_t token, std::size_t head,
                   std::size_t dim) {
  const std::size_t ndim = array.array.ndim();
  for (std::size_t axis = 0; axis < ndim; ++axis) {
    if (array.size(axis) > INT32_MAX) {
      raise_invalid(std::string(name) + ": " + describe(array.array) + ", at most 2147483647");
    }
  }
  const std::int64_t last = dim < ndim ? array.size(dim) : 1;
  if (dim < ndim && last > 1 && array.array.stride(dim) != 1) {
    raise_invalid(std::string(name) + ": elements of a row lie " +
                  std::to_string(array.array.stride(dim)) + " apart, wanted: 1 (contiguous)");
  }
  RowsView rows;
  rows.data = array.data;
  rows.token_stride = array.stride(token);
  rows.head_stride = array.stride(head);
  rows.num_tokens = static_cast<std::int32_t>(array.size(token));
  rows.num_heads = static_cast<std::int32_t>(array.size(head));
  rows.head_dim = static_cast<std::int32_t>(last);
  rows.dtype = dtype_of(array, name);
  // Null data stands for no rows at all; rows without tokens have some address.
  static std::byte nowhere[8];
  if (rows.data == nullptr || array.empty()) rows.data = nowhere;
  return rows;
}

RowsView view_of(const Array& array, const char* name, bool squeezed) {
  const char* shape = squeezed ? "[tokens, heads]" : "[tokens, heads, head_dim]";
  const std::size_t ndim = array.array.ndim();
  if (ndim != 3 && !(squeezed && ndim == 2)) {
    raise_invalid(std::string(name) + ": " + describe(array.array) + ", wanted: " + shape);
  }
  return rows_view(array, name, 0, 1, ndim == 3 ? 2 : ndim);
}

}  // namespace

Rows rows_of(nb::handle object, const char* name, Access access) {
  if (object.is_none()) return {};
  return rows_of(array_of(object, name, access), name);
}

Rows rows_of(Array array, const char* name) {
  Rows rows;
  rows.array = std::move(array);
  rows.view = view_of(*rows.array, name, false);
  return rows;
}

States states_of(nb::handle object, const char* name, Access access) {
  States states;
  states.array = array_of(object, name, access);
  const Array& array = *states.array;
  if (array.array.ndim() != 4) {
    raise_invalid(std::string(name) + ": " + describe(array.array) +
                  ", wanted: [batch, heads, tokens, head_dim]");
  }
  states.first = rows_view(array, name, 2, 1, 3);
  states.batch = array.size(0);
  states.batch_stride = array.stride(0);
  return states;
}

Rows lse_of(nb::handle object, const char* name, Access access) {
  if (object.is_none()) return {};
  Rows rows;
  rows.array = array_of(object, name, access);
  rows.view = view_of(*rows.array, name, true);
  return rows;
}

}  // namespace kvfolio::python
