// SPDX-License-Identifier: Apache-2.0

// Attention, merges, and the threads that are lent to them.

#include "arrays.h"
#include "cache_view.h"
#include "kvfolio/executor.h"
#include "kvfolio/kernels.h"
#include "masks.h"
#include "plan.h"
#include "rows.h"
#include "storage.h"

namespace kvfolio::python {
namespace {

struct Threads {
  std::unique_ptr<ThreadPool> pool;
  Executor executor;
};

// Arrays of attend() that come from no plan.
struct Batch {
  std::unique_ptr<Input<std::int32_t>> query_start, kv_lens, trim_sinks, trim_first_kept;
  std::optional<Array> block_table;
  Reading reading;  // of a table of a plan
  AttentionBatch arrays;
};

std::unique_ptr<Input<std::int32_t>> optional_input(nb::handle object, const char* name) {
  if (object.is_none()) return nullptr;
  return std::make_unique<Input<std::int32_t>>(object, name);
}

void set_table(Batch& batch, nb::handle table) {
  if (nb::isinstance<PlanArray>(table)) {
    const auto& array = object_of<PlanArray>(table, "block_table", "a 2-D int32 array");
    batch.arrays.block_table = array.numbers("block_table", 2);
    batch.arrays.block_table_stride = static_cast<std::int32_t>(array.shape()[1]);
    batch.reading = array.reading();
    return;
  }
  batch.block_table = array_of(table, "block_table", Access::kRead);
  const Array& array = *batch.block_table;
  if (array.array.dtype() != nb::dtype<std::int32_t>()) {
    raise_type("block_table: " + describe(array.array) + ", wanted: int32 (no array is converted)");
  }
  if (array.array.ndim() != 2) {
    raise_invalid("block_table: " + describe(array.array) + ", wanted: [num_sequences, widest]");
  }
  const std::int64_t columns = array.size(1);
  if ((columns > 1 && array.array.stride(1) != 1) ||
      (array.size(0) > 1 && array.array.stride(0) != columns)) {
    raise_invalid("block_table: an array with strides (" + std::to_string(array.array.stride(0)) +
                  ", " + std::to_string(array.array.stride(1)) + "), wanted: a contiguous one");
  }
  batch.arrays.block_table = {reinterpret_cast<const std::int32_t*>(array.data),
                              static_cast<std::size_t>(array.size(0) * columns)};
  batch.arrays.block_table_stride = i32(Int{columns}, "block_table");
}

Batch* make_batch(Batch* batch, nb::handle query_start, nb::handle kv_lens, nb::handle table,
                  nb::handle trim_sinks, nb::handle trim_first_kept) {
  batch->query_start = std::make_unique<Input<std::int32_t>>(query_start, "query_start");
  batch->kv_lens = std::make_unique<Input<std::int32_t>>(kv_lens, "kv_lens");
  batch->trim_sinks = optional_input(trim_sinks, "trim_sinks");
  batch->trim_first_kept = optional_input(trim_first_kept, "trim_first_kept");
  set_table(*batch, table);
  batch->arrays.query_start = batch->query_start->span();
  batch->arrays.kv_lens = batch->kv_lens->span();
  if (batch->trim_sinks) batch->arrays.trim_sinks = batch->trim_sinks->span();
  if (batch->trim_first_kept) batch->arrays.trim_first_kept = batch->trim_first_kept->span();
  return batch;
}

constexpr const char* kBatchWanted = "a GroupPlan (plan.groups[i]) or a Batch";

// The arrays of a GroupPlan or of a Batch, and the window of the plan's group.
AttentionBatch batch_of(nb::handle object, Reading& reading, AttentionParams& params) {
  if (nb::isinstance<PlanGroup>(object)) {
    const auto& plan = object_of<PlanGroup>(object, "batch", kBatchWanted);
    plan.data->check_live("batch");
    reading = plan.data->reading();
    params = plan.data->params(plan.group);
    return plan.batch();
  }
  return object_of<Batch>(object, "batch", kBatchWanted).arrays;
}

// Memory of attend(), one for each thread that calls it; it grows to what the thread needed.
std::span<std::byte> workspace_of(std::int64_t bytes) {
  static thread_local std::unique_ptr<std::byte[]> memory;
  static thread_local std::int64_t size = 0;
  if (size < bytes) {
    memory.reset();
    size = 0;
    memory.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(bytes)]);
    if (memory == nullptr) return {};
    size = bytes;
  }
  return {memory.get(), static_cast<std::size_t>(size)};
}

// A new NumPy array for the result: float64 for queries of float64, else float32.
nb::object new_rows(const RowsView& q, std::int32_t head_dim) {
  const bool wide = q.dtype == DType::kF64;
  return nb::module_::import_("numpy").attr("zeros")(
      nb::make_tuple(q.num_tokens, q.num_heads, head_dim), wide ? "float64" : "float32");
}

Status attend_with_workspace(AttentionArgs& args) {
  std::int32_t longest = 0;
  for (const std::int32_t length : args.batch.kv_lens) longest = std::max(longest, length);
  const std::int32_t threads = args.executor == nullptr ? 1 : args.executor->num_threads;
  const Result<std::int64_t> bytes = attention_workspace_bytes(
      args.cache, std::max(args.q.num_heads, 1), longest, args.target, threads);
  if (!bytes) return bytes.error();
  args.workspace = workspace_of(*bytes);
  if (static_cast<std::int64_t>(args.workspace.size()) < *bytes) {
    return Status(ErrorCode::kOutOfMemory,
                  "attend: a workspace of " + std::to_string(*bytes) + " bytes");
  }
  return attend(args);
}

// A float32 number for each query head, or None. It keeps alive what its span points into.
struct PerHead {
  PerHead(nb::handle object, const char* name) {
    if (object.is_none()) return;
    array = array_of(object, name, Access::kRead);
    if (array->array.dtype() != nb::dtype<float>() || array->array.ndim() != 1 ||
        (array->size(0) > 1 && array->array.stride(0) != 1)) {
      raise_type(std::string(name) + ": " + describe(array->array) +
                 ", wanted: a contiguous float32 array [q_heads] (no array is converted)");
    }
    span = {reinterpret_cast<const float*>(array->data), static_cast<std::size_t>(array->size(0))};
  }
  std::optional<Array> array;
  std::span<const float> span;
};

nb::object attend_rows(nb::handle q, const View& cache, nb::handle batch, nb::object out,
                       nb::handle lse, nb::handle scale, bool causal, nb::handle window,
                       nb::handle num_sinks, nb::handle chunk, double soft_cap,
                       nb::handle alibi_slopes, nb::handle sink_logits, Int layer,
                       const char* target, nb::handle pool) {
  const PerHead slopes(alibi_slopes, "alibi_slopes");
  const PerHead logits(sink_logits, "sink_logits");
  const Rows q_rows = rows_of(q, "q", Access::kRead);
  if (!q_rows.array) raise_type("q is None");
  if (out.is_none()) out = new_rows(q_rows.view, cache.view.head_dim_v);
  const Rows out_rows = rows_of(out, "out", Access::kWrite);
  const Rows lse_rows = lse_of(lse, "lse", Access::kWrite);
  Reading reading;
  AttentionArgs args;
  args.cache = cache.view;
  args.layer = i32(layer, "layer");
  args.batch = batch_of(batch, reading, args.params);
  set_mask({scale, causal, window, num_sinks, chunk, soft_cap}, cache.view.head_dim_k, args.params);
  args.params.alibi_slopes = slopes.span;
  args.params.sink_logits = logits.span;
  args.q = q_rows.view;
  args.out = out_rows.view;
  args.lse = lse_rows.view;
  args.target = take(parse_kernel_target(target));
  if (!pool.is_none()) {
    args.executor = &object_of<Threads>(pool, "pool", "a ThreadPool or None").executor;
  }
  Status status;
  {
    const ReleasedGil release;
    status = attend_with_workspace(args);
  }
  check(status);
  return out;
}

void merge(nb::handle a_out, nb::handle a_lse, nb::handle b_out, nb::handle b_lse, nb::handle out,
           nb::handle lse) {
  const Rows rows[] = {
      rows_of(a_out, "a_out", Access::kRead), lse_of(a_lse, "a_lse", Access::kRead),
      rows_of(b_out, "b_out", Access::kRead), lse_of(b_lse, "b_lse", Access::kRead)};
  const Rows to = rows_of(out, "out", Access::kWrite);
  const Rows to_lse = lse_of(lse, "lse", Access::kWrite);
  Status status;
  {
    const ReleasedGil release;
    status = merge_states({rows[0].view, rows[1].view}, {rows[2].view, rows[3].view}, to.view,
                          to_lse.view);
  }
  check(status);
}

void add_threads(nb::module_& m) {
  nb::class_<Threads>(m, "ThreadPool",
                      "Threads for attend(). Calls may share one: while one runs, another uses its "
                      "own thread only.")
      .def(
          "__init__",
          [](Threads* self, Int num_threads) {
            auto pool = take(ThreadPool::create(i32(num_threads, "num_threads")));
            const Executor executor = pool->executor();
            new (self) Threads{std::move(pool), executor};
          },
          "num_threads"_a, nb::sig("def __init__(self, num_threads: int) -> None"),
          "num_threads counts the caller of attend(): 1 starts no thread.")
      .def("__repr__",
           [](const Threads& self) {
             return "<kvfolio.ThreadPool: " + counted(self.executor.num_threads, "thread") + ">";
           })
      .def_prop_ro("num_threads", [](const Threads& self) { return self.executor.num_threads; });
}

void add_targets(nb::module_& m) {
  m.def(
      "kernel_targets",
      [] {
        nb::list targets;
        for (const KernelTarget target : kernel_targets()) targets.append(to_string(target));
        return targets;
      },
      nb::sig("def kernel_targets() -> list[str]"),
      "What this build has and this CPU runs, slowest first.");
  m.def(
      "choose_kernel_target",
      [](const View& cache, const char* target, double soft_cap, nb::handle alibi_slopes) {
        const PerHead slopes(alibi_slopes, "alibi_slopes");
        const AttentionParams params{.soft_cap = soft_cap, .alibi_slopes = slopes.span};
        return to_string(
            take(choose_kernel_target(cache.view, params, take(parse_kernel_target(target)))));
      },
      "cache"_a, "target"_a = "auto", nb::kw_only(), "soft_cap"_a = 0.0,
      "alibi_slopes"_a = nb::none(),
      nb::sig("def choose_kernel_target(cache: View, target: kvfolio._types.KernelTarget = 'auto', "
              "*, soft_cap: float = 0.0, alibi_slopes: kvfolio._types.Array | None = None) -> str"),
      "The target that attend() takes for this cache and these arguments.");
}

}  // namespace

void add_attention(nb::module_& m) {
  add_threads(m);
  add_targets(m);
  nb::class_<Batch>(m, "Batch",
                    "The arrays of a ragged batch for attend(), if they come from no plan. They "
                    "are kept, not copied.")
      .def(
          "__init__",
          [](Batch* self, nb::handle query_start, nb::handle kv_lens, nb::handle block_table,
             nb::handle trim_sinks, nb::handle trim_first_kept) {
            make_batch(new (self) Batch, query_start, kv_lens, block_table, trim_sinks,
                       trim_first_kept);
          },
          "query_start"_a, "kv_lens"_a, "block_table"_a, "trim_sinks"_a = nb::none(),
          "trim_first_kept"_a = nb::none(),
          nb::sig("def __init__(self, query_start: kvfolio._types.Int32Input, kv_lens: "
                  "kvfolio._types.Int32Input, block_table: kvfolio._types.Array, trim_sinks: "
                  "kvfolio._types.Int32Input | None = None, trim_first_kept: "
                  "kvfolio._types.Int32Input | None = None) -> None"),
          "query_start [n + 1], kv_lens [n], block_table [n, widest] contiguous, trims [n].")
      .def("__repr__", [](const Batch& batch) {
        const AttentionBatch& arrays = batch.arrays;
        return "<kvfolio.Batch: " +
               counted(static_cast<std::int64_t>(arrays.kv_lens.size()), "sequence") +
               ", a table of " + counted(arrays.block_table_stride, "column") + ">";
      });
  m.def(
      "attend", &attend_rows, "q"_a, "cache"_a, "batch"_a, nb::kw_only(), "out"_a = nb::none(),
      "lse"_a = nb::none(), "scale"_a = nb::none(), "causal"_a = true, "window"_a = nb::none(),
      "num_sinks"_a = nb::none(), "chunk"_a = nb::none(), "soft_cap"_a = 0.0,
      "alibi_slopes"_a = nb::none(), "sink_logits"_a = nb::none(), "layer"_a = Int{0},
      "target"_a = "auto", "pool"_a = nb::none(),
      nb::sig("def attend(q: kvfolio._types.Array, cache: View, batch: GroupPlan | Batch, *, "
              "out: typing.Any = None, lse: kvfolio._types.Array | None = None, "
              "scale: float | None = None, causal: bool = True, window: int | None = None, "
              "num_sinks: int | None = None, chunk: int | None = None, soft_cap: float = 0.0, "
              "alibi_slopes: kvfolio._types.Array | None = None, "
              "sink_logits: kvfolio._types.Array | None = None, layer: int = 0, "
              "target: kvfolio._types.KernelTarget = 'auto', pool: ThreadPool | None = None) "
              "-> typing.Any"),
      "softmax(scale * q k^T + mask) v over the blocks, for each row of q, [tokens, q_heads, "
      "head_dim]. Returns out, [tokens, q_heads, head_dim_v]; None: a new NumPy array, float64 "
      "for q of float64, else float32. lse [tokens, q_heads] gets the natural logarithm of the "
      "sum of exp(score). scale None: 1 / sqrt(head_dim). window and num_sinks None: those of the "
      "plan's group, none for a Batch. chunk: a query reads its own chunk of so many tokens, and "
      "the "
      "sinks. Scores become soft_cap * tanh(score / soft_cap) (0: none), then alibi_slopes add "
      "slope * "
      "(position of the key - that of the query); sink_logits are scores without a value, in the "
      "sum "
      "and in lse; both float32 [q_heads]. A row that reads no token is 0, its lse -inf or the "
      "logit "
      "of its sink. Runs without the GIL, on the threads of `pool`, else on the caller's.");
  m.def("merge_states", &merge, "a_out"_a, "a_lse"_a, "b_out"_a, "b_lse"_a, nb::kw_only(), "out"_a,
        "lse"_a = nb::none(),
        nb::sig("def merge_states(a_out: kvfolio._types.Array, a_lse: kvfolio._types.Array, "
                "b_out: kvfolio._types.Array, b_lse: kvfolio._types.Array, *, "
                "out: kvfolio._types.Array, lse: kvfolio._types.Array | None = None) -> None"),
        "Merges what attend() wrote over two disjoint sets of tokens. out may be a_out or b_out, "
        "lse a_lse or b_lse.");
}

}  // namespace kvfolio::python
