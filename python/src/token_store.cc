// SPDX-License-Identifier: Apache-2.0

// TokenStore: one sequence without a manager.

#include "kvfolio/token_store.h"

#include "arrays.h"
#include "cache_view.h"
#include "rows.h"
#include "storage.h"

namespace kvfolio::python {
namespace {

Result<TokenStore> make(Int head_dim, Int head_dim_v, Int num_kv_heads, const char* dtype,
                        Int block_size, Int max_tokens) {
  TokenStoreOptions options;
  options.head_dim_k = i32(head_dim, "head_dim");
  options.head_dim_v = i32(head_dim_v, "head_dim_v");
  options.num_kv_heads = i32(num_kv_heads, "num_kv_heads");
  options.dtype = parse_dtype("dtype", dtype);
  options.block_size = i32(block_size, "block_size");
  options.max_tokens = i32(max_tokens, "max_tokens");
  return TokenStore::create(options);
}

void append_to(TokenStore& store, nb::handle k, nb::handle v) {
  const Rows k_rows = rows_of(k, "k", Access::kRead);
  const Rows v_rows = rows_of(v, "v", Access::kRead);
  if (k_rows.array && k_rows.array->empty() && k_rows.view.num_tokens == 0) return;
  check(store.append(k_rows.view, v_rows.view));
}

void gather_from(const TokenStore& store, Int begin, nb::handle k, nb::handle v) {
  const Rows k_rows = rows_of(k, "k", Access::kWrite);
  const Rows v_rows = rows_of(v, "v", Access::kWrite);
  check(store.gather(begin.value, k_rows.view, v_rows.view));
}

TokenStore copy_of(const TokenStore& store) { return take(store.copy()); }

void add_store_options(nb::class_<TokenStore>& c) {
  const auto number = [&](const char* name, std::int32_t TokenStoreOptions::*field) {
    c.def_prop_ro(name, [field](const TokenStore& store) { return store.options().*field; });
  };
  number("head_dim", &TokenStoreOptions::head_dim_k);
  number("head_dim_v", &TokenStoreOptions::head_dim_v);
  number("num_kv_heads", &TokenStoreOptions::num_kv_heads);
  number("block_size", &TokenStoreOptions::block_size);
  c.def_prop_ro(
       "dtype", [](const TokenStore& store) { return to_string(store.options().dtype); },
       nb::sig("def dtype(self) -> kvfolio._types.DType"))
      .def_prop_ro("max_tokens", &TokenStore::max_tokens)
      .def_prop_ro("num_blocks_used", &TokenStore::num_blocks_used)
      .def_prop_ro("bytes_used", &TokenStore::bytes_used)
      .def_prop_ro("memory_bytes", &TokenStore::memory_bytes);
}

}  // namespace

void add_token_store(nb::module_& m) {
  nb::class_<TokenStore> c(m, "TokenStore",
                           "The rows of one sequence: no ids, no steps, no sharing. A page of "
                           "memory that no token has reached costs nothing.");
  c.def(
       "__init__",
       [](TokenStore* self, Int head_dim, Int head_dim_v, Int num_kv_heads, const char* dtype,
          Int block_size, Int max_tokens) {
         new (self) TokenStore(
             take(make(head_dim, head_dim_v, num_kv_heads, dtype, block_size, max_tokens)));
       },
       "head_dim"_a, nb::kw_only(), "head_dim_v"_a = Int{0}, "num_kv_heads"_a = Int{1},
       "dtype"_a = "f32", "block_size"_a = Int{16}, "max_tokens"_a,
       nb::sig("def __init__(self, head_dim: int, *, head_dim_v: int = 0, num_kv_heads: int = 1, "
               "dtype: kvfolio._types.DType = 'f32', block_size: int = 16, max_tokens: int) -> "
               "None"),
       "head_dim_v 0: there is no V. max_tokens is the exact cap.")
      .def("append", &append_to, "k"_a, "v"_a = nb::none(),
           nb::sig("def append(self, k: kvfolio._types.Array, v: kvfolio._types.Array | None = "
                   "None) -> None"),
           "Appends rows [tokens, num_kv_heads, head_dim], all or none. ResourceExhausted: full.")
      .def("gather", &gather_from, "begin"_a, nb::kw_only(), "k"_a, "v"_a = nb::none(),
           nb::sig("def gather(self, begin: int, *, k: kvfolio._types.Array | None, "
                   "v: kvfolio._types.Array | None = None) -> None"),
           "Copies tokens begin, begin + 1, ... to the rows, as many as they hold.")
      .def("copy", &copy_of, "A deep copy of the blocks in use.")
      .def("__copy__", &copy_of)
      .def(
          "__deepcopy__", [](const TokenStore& store, nb::handle) { return copy_of(store); },
          "memo"_a, nb::sig("def __deepcopy__(self, memo: typing.Any) -> TokenStore"))
      .def("clear", &TokenStore::clear, "Forgets every token and keeps the memory.")
      .def("__len__", &TokenStore::size)
      .def("__repr__", [](const TokenStore& store) { return "<" + to_string(store) + ">"; })
      .def(
          "view",
          [](nb::handle_t<TokenStore> self) {
            return View{object_of<TokenStore>(self, "self", "a TokenStore").view(),
                        nb::borrow(self)};
          },
          nb::sig("def view(self) -> View"),
          "For the kernels: one layer, and the block table of the sequence is 0, 1, 2, ...");
  add_store_options(c);
}

}  // namespace kvfolio::python
