// SPDX-License-Identifier: Apache-2.0

// Append, gather and copies. Every kernel reads its arguments under the GIL and runs without it.

#include "kvfolio/kernels.h"

#include <algorithm>

#include "arrays.h"
#include "cache_view.h"
#include "rows.h"
#include "storage.h"

namespace kvfolio::python {
namespace {

template <typename F>
void run(F&& kernel) {
  Status status;
  {
    const ReleasedGil release;
    status = kernel();
  }
  check(status);
}

void append_rows(const View& cache, nb::handle k, nb::handle v, nb::handle slots, Int layer) {
  const Rows k_rows = rows_of(k, "k", Access::kRead);
  const Rows v_rows = rows_of(v, "v", Access::kRead);
  const Input<std::int32_t> numbers(slots, "slots");
  const std::int32_t number = i32(layer, "layer");
  run([&] { return append(cache.view, number, k_rows.view, v_rows.view, numbers.span()); });
}

// Rows [layers, tokens, heads, head_dim] of several layers, as rows of the first.
struct LayerRows {
  Rows rows;
  std::int64_t layer_stride = 0;
};
LayerRows layer_rows(nb::handle object, const char* name, std::int32_t num_layers) {
  if (object.is_none()) return {};
  Array array = array_of(object, name, Access::kWrite);
  // The array, not the object: a capsule of DLPack can be taken once.
  if (array.array.ndim() != 4) return {rows_of(std::move(array), name), 0};
  if (array.size(0) != num_layers) {
    raise_invalid(std::string(name) + ": " + describe(array.array) +
                  ", wanted: " + std::to_string(num_layers) + " layers along axis 0");
  }
  const nb::object first = nb::borrow(object)[nb::int_(0)];
  return {rows_of(first, name, Access::kWrite), array.stride(0)};
}

void gather_rows(const View& cache, nb::handle block_table, Int length, nb::handle k, nb::handle v,
                 Int first, nb::handle count, Int layer, Int num_layers, Int first_head) {
  const Input<std::int32_t> table(block_table, "block_table");
  GatherArgs args;
  args.cache = cache.view;
  args.block_table = table.span();
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
  const LayerRows k_rows = layer_rows(k, "k", args.num_layers);
  const LayerRows v_rows = layer_rows(v, "v", args.num_layers);
  if (args.num_layers > 1 && ((k_rows.rows.array && k_rows.layer_stride == 0) ||
                              (v_rows.rows.array && v_rows.layer_stride == 0))) {
    raise_invalid("rows of " + std::to_string(args.num_layers) +
                  " layers need four axes: [num_layers, count, heads, head_dim]");
  }
  args.k = k_rows.rows.view;
  args.v = v_rows.rows.view;
  args.k_layer_stride = k_rows.layer_stride;
  args.v_layer_stride = v_rows.layer_stride;
  run([&] { return gather(args); });
}

// What a layer of a batch brings, and what it reads: rows of one sequence for each row of the
// batch.
class Exchange {
 public:
  Exchange(const KVView& cache, nb::handle k, nb::handle v, nb::handle slots)
      : view_(cache),
        k_(states_of(k, "k", Access::kRead)),
        v_(states_of(v, "v", Access::kRead)),
        slots_(slots, "slots") {
    const std::int64_t tokens = k_.batch * k_.first.num_tokens;
    if (v_.batch != k_.batch || slots_.size() != tokens) {
      raise_invalid("k is of " + std::to_string(k_.batch) + " rows, v of " +
                    std::to_string(v_.batch) + ", and slots has " + std::to_string(slots_.size()) +
                    " numbers for " + std::to_string(tokens) + " tokens");
    }
  }

  // Where tokens first .. end - 1 of each row go.
  void read(nb::handle tables, Int first, Int end, nb::handle k, nb::handle v) {
    k_out_ = states_of(k, "k_out", Access::kWrite);
    v_out_ = states_of(v, "v_out", Access::kWrite);
    for (const nb::object& table : items_of(tables, "tables", "a list of int32 arrays")) {
      tables_.emplace_back(table, "tables");
    }
    const auto rows = static_cast<std::int64_t>(tables_.size());
    if (k_out_->batch != rows || v_out_->batch != rows) {
      raise_invalid("k_out is of " + std::to_string(k_out_->batch) + " rows, v_out of " +
                    std::to_string(v_out_->batch) + ", wanted: one for each of the " +
                    std::to_string(rows) + " tables");
    }
    first_ = i32(first, "first");
    end_ = i32(end, "end");
  }

  [[nodiscard]] Status run() const {
    for (std::int64_t row = 0; row < k_.batch; ++row) {
      const auto count = static_cast<std::size_t>(k_.first.num_tokens);
      const auto mine = slots_.span().subspan(static_cast<std::size_t>(row) * count, count);
      Status status = append(view_, 0, k_.row(row), v_.row(row), mine);
      if (!status) return status;
    }
    for (std::size_t row = 0; row < tables_.size(); ++row) {
      GatherArgs args;
      args.cache = view_;
      args.block_table = tables_[row].span();
      args.length = end_;
      args.first = first_;
      args.count = end_ >= first_ && first_ >= 0 ? end_ - first_ : 0;
      args.k = k_out_->row(static_cast<std::int64_t>(row));
      args.v = v_out_->row(static_cast<std::int64_t>(row));
      Status status = gather(args);
      if (!status) return status;
    }
    return {};
  }

 private:
  KVView view_;
  States k_, v_;
  Input<std::int32_t> slots_;
  std::optional<States> k_out_, v_out_;
  std::vector<Input<std::int32_t>> tables_;
  std::int32_t first_ = 0, end_ = 0;
};

void exchange(const View& cache, nb::handle k, nb::handle v, nb::handle slots, nb::handle tables,
              Int first, Int end, nb::handle k_out, nb::handle v_out) {
  Exchange both(cache.view, k, v, slots);
  if (!tables.is_none()) both.read(tables, first, end, k_out, v_out);
  run([&] { return both.run(); });
}

// States of one row that a layer has handed to attention, with room for more tokens.
class LayerStates {
 public:
  LayerStates(const View& cache, nb::handle k, nb::handle v)
      : view_(cache.view),
        k_(states_of(k, "k", Access::kWrite)),
        v_(states_of(v, "v", Access::kWrite)) {
    if (k_.batch != 1 || v_.batch != 1) {
      raise_invalid("k is of " + std::to_string(k_.batch) + " rows, v of " +
                    std::to_string(v_.batch) + ", wanted: 1");
    }
  }

  void extend(nb::handle k, nb::handle v, nb::handle slots, nb::handle table, Int first, Int end) {
    const Exchange brought(view_, k, v, slots);
    const Input<std::int32_t> blocks(table, "table");
    GatherArgs args;
    args.cache = view_;
    args.block_table = blocks.span();
    args.length = i32(end, "end");
    args.first = i32(first, "first");
    const std::int64_t room = std::min(k_.first.num_tokens, v_.first.num_tokens);
    if (args.first < 0 || args.length < args.first || args.length > room) {
      raise_invalid("tokens " + std::to_string(args.first) + " to " + std::to_string(args.length) +
                    ", and there is room for " + std::to_string(room));
    }
    args.count = args.length - args.first;
    args.k = behind(k_.first, args);
    args.v = behind(v_.first, args);
    run([&] {
      Status status = brought.run();
      return status ? gather(args) : status;
    });
  }

 private:
  static RowsView behind(RowsView rows, const GatherArgs& args) {
    rows.data += args.first * rows.token_stride;
    rows.num_tokens = args.count;
    return rows;
  }

  KVView view_;
  States k_, v_;
};

void copy_blocks_of_view(const View& cache, nb::handle src, nb::handle dst) {
  const Input<std::int32_t> from(src, "src");
  const Input<std::int32_t> to(dst, "dst");
  run([&] { return copy_blocks(cache.view, from.span(), to.span()); });
}

void convert_blocks_of_views(const View& source, const View& target, nb::handle src,
                             nb::handle dst) {
  const Input<std::int32_t> from(src, "src");
  const Input<std::int32_t> to(dst, "dst");
  run([&] { return convert_blocks(source.view, target.view, from.span(), to.span()); });
}

void convert_rows(nb::handle src, nb::handle dst) {
  const Rows from = rows_of(src, "src", Access::kRead);
  const Rows to = rows_of(dst, "dst", Access::kWrite);
  run([&] { return convert(from.view, to.view); });
}

}  // namespace

void add_kernels(nb::module_& m) {
  m.def("append", &append_rows, "cache"_a, "k"_a, "v"_a.none(), "slots"_a, "layer"_a = Int{0},
        nb::sig("def append(cache: View, k: kvfolio._types.Array, "
                "v: kvfolio._types.Array | None, slots: kvfolio._types.Int32Input, "
                "layer: int = 0) -> None"),
        "Writes row t of k and v, [tokens, num_kv_heads, head_dim] each, to slots[t] of a layer; "
        "-1: the row is skipped. Of equal slots the last one wins. v is None if the cache stores "
        "no V of its own. Rows have any strides and any element type but int8 and e4m3.");
  m.def("gather", &gather_rows, "cache"_a, "block_table"_a, "length"_a, nb::kw_only(),
        "k"_a = nb::none(), "v"_a = nb::none(), "first"_a = Int{0}, "count"_a = nb::none(),
        "layer"_a = Int{0}, "num_layers"_a = Int{1}, "first_head"_a = Int{0},
        nb::sig("def gather(cache: View, block_table: kvfolio._types.Int32Input, length: int, *, "
                "k: kvfolio._types.Array | None = None, v: kvfolio._types.Array | None = None, "
                "first: int = 0, count: int | None = None, layer: int = 0, num_layers: int = 1, "
                "first_head: int = 0) -> None"),
        "Copies positions [first, first + count) of one sequence of `length` tokens to k and v: "
        "[count, heads, head_dim], or [num_layers, count, heads, head_dim] for several layers. "
        "They get as many heads as they have, from first_head on. count None: to the end.");
  m.def("exchange", &exchange, "cache"_a, "k"_a, "v"_a, "slots"_a, "tables"_a = nb::none(),
        "first"_a = Int{0}, "end"_a = Int{0}, "k_out"_a = nb::none(), "v_out"_a = nb::none(),
        nb::sig("def exchange(cache: View, k: kvfolio._types.Array, v: kvfolio._types.Array, "
                "slots: kvfolio._types.Int32Input, "
                "tables: collections.abc.Sequence[kvfolio._types.Int32Input] | None = None, "
                "first: int = 0, end: int = 0, k_out: kvfolio._types.Array | None = None, "
                "v_out: kvfolio._types.Array | None = None) -> None"),
        "For kvfolio.hf, a layer's part of a forward in one call: append() of states [batch, "
        "heads, tokens, head_dim], and gather() of tokens [first, end) of the sequences with these "
        "tables to states of the same form.");
  nb::class_<LayerStates>(
      m, "LayerStates",
      "For kvfolio.hf: states [1, heads, room, head_dim] that a layer of one sequence has "
      "handed to attention.")
      .def(nb::init<const View&, nb::handle, nb::handle>(), "cache"_a, "k"_a, "v"_a,
           nb::keep_alive<1, 2>(),
           nb::sig("def __init__(self, cache: View, k: kvfolio._types.Array, "
                   "v: kvfolio._types.Array) -> None"))
      .def(
          "extend", &LayerStates::extend, "k"_a, "v"_a, "slots"_a, "table"_a, "first"_a, "end"_a,
          nb::sig("def extend(self, k: kvfolio._types.Array, v: kvfolio._types.Array, "
                  "slots: kvfolio._types.Int32Input, table: kvfolio._types.Int32Input, first: int, "
                  "end: int) -> None"),
          "append() of k and v, and then gather() of tokens [first, end) to where they belong.");
  m.def("copy_blocks", &copy_blocks_of_view, "cache"_a, "src"_a, "dst"_a,
        nb::sig("def copy_blocks(cache: View, src: kvfolio._types.Int32Input, "
                "dst: kvfolio._types.Int32Input) -> None"),
        "Copies block src[i] to block dst[i], all layers of the view, in order. All pairs are "
        "checked before the first byte moves.");
  m.def("convert_blocks", &convert_blocks_of_views, "source"_a, "target"_a, "src"_a, "dst"_a,
        nb::sig("def convert_blocks(source: View, target: View, src: kvfolio._types.Int32Input, "
                "dst: kvfolio._types.Int32Input) -> None"),
        "Copies block src[i] of one view to block dst[i] of another, converted to its format and "
        "element type.");
  m.def("convert", &convert_rows, "src"_a, "dst"_a,
        nb::sig("def convert(src: kvfolio._types.Array, dst: kvfolio._types.Array) -> None"),
        "dst[...] = src with the library's rounding; [tokens, heads, head_dim] each.");
}

}  // namespace kvfolio::python
