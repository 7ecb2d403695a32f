// SPDX-License-Identifier: Apache-2.0

// Append, gather and copies over tensors of a device. Every call reads its arguments under the GIL,
// starts its kernels without it, and waits for none of them.

#include "arrays.h"
#include "call.h"

namespace kvfolio::python {
namespace {

void append_rows(const CudaView& cache, nb::handle k, nb::handle v, nb::handle slots, Int layer,
                 nb::handle stream, bool keep) {
  Call call(cache, stream, keep);
  const std::int32_t number = i32(layer, "layer");
  ConstRowsView k_rows, v_rows;
  const auto read = [&](nb::handle object, const char* name, ConstRowsView& rows) {
    if (object.is_none()) return;
    Lent lent = call.lent(object, name, Use::kRead);
    rows = rows_at(lent, name, cache);
    call.keep(lent);
  };
  read(k, "k", k_rows);
  read(v, "v", v_rows);
  Lent lent = call.lent(slots, "slots", Use::kRead);
  const std::span<const std::int32_t> places = numbers_of(lent, "slots");
  call.keep(lent);
  call.run([&] {
    return cuda::append(call.kernels(), cache.view, number, k_rows, v_rows, places, call.stream(),
                        cache.state->slot_fault(cache.group));
  });
}

struct LayerRows {
  RowsView rows = {};
  std::int64_t layer_stride = 0;
  bool given = false;
};

// Rows [layers, tokens, heads, head_dim] of several layers, or [tokens, heads, head_dim].
LayerRows layer_rows(Call& call, const CudaView& cache, nb::handle object, const char* name,
                     std::int32_t num_layers) {
  LayerRows result;
  if (object.is_none()) return result;
  Lent lent = call.lent(object, name, Use::kWrite);
  result.given = true;
  if (lent.ndim() == 4) {
    if (lent.shape[0] != num_layers) {
      raise_invalid(std::string(name) + ": " + lent.text() +
                    ", wanted: " + std::to_string(num_layers) + " layers along axis 0");
    }
    result.layer_stride = lent.stride(0);
    lent.shape.erase(lent.shape.begin());
    lent.strides.erase(lent.strides.begin());
  } else if (num_layers > 1) {
    raise_invalid("rows of " + std::to_string(num_layers) +
                  " layers need four axes: [num_layers, count, heads, head_dim]");
  }
  result.rows = rows_at(lent, name, cache);
  call.keep(lent);
  return result;
}

void gather_rows(const CudaView& cache, nb::handle block_table, Int length, nb::handle k,
                 nb::handle v, Int first, nb::handle count, Int layer, Int num_layers,
                 Int first_head, nb::handle stream, bool keep) {
  Call call(cache, stream, keep);
  GatherArgs args;
  args.cache = cache.view;
  args.length = i32(length, "length");
  args.first = i32(first, "first");
  if (count.is_none()) {
    args.count = args.length >= args.first && args.first >= 0 ? args.length - args.first : 0;
  } else {
    Int number;
    if (!nb::try_cast(count, number)) raise_type("count is no int");
    args.count = i32(number, "count");
  }
  args.first_layer = i32(layer, "layer");
  args.num_layers = i32(num_layers, "num_layers");
  args.first_head = i32(first_head, "first_head");
  Lent table = call.lent(block_table, "block_table", Use::kRead);
  args.block_table = numbers_of(table, "block_table");
  call.keep(table);
  const LayerRows k_rows = layer_rows(call, cache, k, "k", args.num_layers);
  const LayerRows v_rows = layer_rows(call, cache, v, "v", args.num_layers);
  args.k = k_rows.rows;
  args.v = v_rows.rows;
  args.k_layer_stride = k_rows.layer_stride;
  args.v_layer_stride = v_rows.layer_stride;
  call.run([&] {
    return cuda::gather(call.kernels(), args, call.stream(), cache.state->table_fault(cache.group));
  });
}

void copy_view_blocks(const CudaView& cache, nb::handle src, nb::handle dst, nb::handle stream) {
  Call call(cache, stream, true);
  check_on_host(src, "src");
  check_on_host(dst, "dst");
  const Input<std::int32_t> from(src, "src");
  const Input<std::int32_t> to(dst, "dst");
  call.run([&] {
    return cuda::copy_blocks(call.kernels(), cache.view, from.span(), to.span(), call.stream());
  });
}

void convert_view_blocks(const CudaView& source, const CudaView& target, nb::handle src,
                         nb::handle dst, nb::handle stream) {
  Call call(target, stream, true);
  call.uses(source.state->last);
  check_on_host(src, "src");
  check_on_host(dst, "dst");
  const Input<std::int32_t> from(src, "src");
  const Input<std::int32_t> to(dst, "dst");
  call.run([&] {
    return cuda::convert_blocks(call.kernels(), source.view, target.view, from.span(), to.span(),
                                call.stream());
  });
}

void fill_view(const CudaView& cache, Int value, nb::handle stream) {
  Call call(cache, stream, true);
  const auto byte = static_cast<std::byte>(within(value, "value", 0, 255));
  call.run([&] { return cuda::fill(call.kernels(), cache.view, byte, call.stream()); });
}

}  // namespace

void add_moves(nb::module_& m) {
  m.def("append", &append_rows, "cache"_a, "k"_a.none(), "v"_a.none(), "slots"_a,
        "layer"_a = Int{0}, nb::kw_only(), "stream"_a = nb::none(), "keep"_a = true,
        nb::sig("def append(cache: View, k: kvfolio._types.SupportsDLPack, "
                "v: kvfolio._types.SupportsDLPack | None, slots: kvfolio._types.SupportsDLPack, "
                "layer: int = 0, *, stream: typing.Any = None, keep: bool = True) -> None"),
        "Writes row t of k and v, [tokens, num_kv_heads, head_dim] each, to slots[t] of a layer; "
        "-1: the row is skipped. All are tensors of the device; slots is int32, and its slots "
        "differ. A slot out of range is left alone, see Storage.check(). Rows are float32, float16 "
        "or bfloat16.");
  m.def("gather", &gather_rows, "cache"_a, "block_table"_a, "length"_a, nb::kw_only(),
        "k"_a = nb::none(), "v"_a = nb::none(), "first"_a = Int{0}, "count"_a = nb::none(),
        "layer"_a = Int{0}, "num_layers"_a = Int{1}, "first_head"_a = Int{0},
        "stream"_a = nb::none(), "keep"_a = true,
        nb::sig("def gather(cache: View, block_table: kvfolio._types.SupportsDLPack, length: int, "
                "*, k: kvfolio._types.SupportsDLPack | None = None, "
                "v: kvfolio._types.SupportsDLPack | None = None, first: int = 0, "
                "count: int | None = None, layer: int = 0, num_layers: int = 1, "
                "first_head: int = 0, stream: typing.Any = None, keep: bool = True) -> None"),
        "Copies positions [first, first + count) of one sequence of `length` tokens to k and v: "
        "[count, heads, head_dim], or [num_layers, count, heads, head_dim] for several layers. All "
        "are tensors of the device. They get as many heads as they have, from first_head on. count "
        "None: to the end.");
  m.def("copy_blocks", &copy_view_blocks, "cache"_a, "src"_a, "dst"_a, nb::kw_only(),
        "stream"_a = nb::none(),
        nb::sig("def copy_blocks(cache: View, src: kvfolio._types.Int32Input, "
                "dst: kvfolio._types.Int32Input, *, stream: typing.Any = None) -> None"),
        "Copies block src[i] to block dst[i], all layers of the view, in order. The lists are of "
        "the host, read before the call returns; all pairs are checked first.");
  m.def("convert_blocks", &convert_view_blocks, "source"_a, "target"_a, "src"_a, "dst"_a,
        nb::kw_only(), "stream"_a = nb::none(),
        nb::sig("def convert_blocks(source: View, target: View, src: kvfolio._types.Int32Input, "
                "dst: kvfolio._types.Int32Input, *, stream: typing.Any = None) -> None"),
        "Copies block src[i] of one view to block dst[i] of another, converted to its element "
        "type.");
  m.def("fill", &fill_view, "cache"_a, "value"_a, nb::kw_only(), "stream"_a = nb::none(),
        nb::sig("def fill(cache: View, value: int, *, stream: typing.Any = None) -> None"),
        "Sets every byte of every row and scale of the view.");
}

}  // namespace kvfolio::python
