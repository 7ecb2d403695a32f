// SPDX-License-Identifier: Apache-2.0

// Attention in the call shape of FlashInfer's paged wrappers (cuda_wrapper.h), over tensors of an
// engine or a view of a storage.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "attend.h"
#include "kvfolio/cuda_wrapper.h"

namespace kvfolio::python {
namespace {

// It ends when its plans and runs have passed, on any thread.
struct BatchState {
  explicit BatchState(std::shared_ptr<DeviceState> device_in, Format layout_in)
      : device(std::move(device_in)), layout(layout_in) {}
  BatchState(const BatchState&) = delete;
  BatchState& operator=(const BatchState&) = delete;
  ~BatchState() {
    end_without_gil([this] {
      static_cast<void>(device->wait(last));
      attention.reset();
    });
  }

  std::shared_ptr<DeviceState> device;
  Format layout;
  // Guarded by the device's mutex. The last two are of the plan, which another thread may be
  // replacing: `attention` is not asked for them.
  LastWork last;
  cuda::AttendShape shape = {};
  std::string target;
  std::unique_ptr<cuda::BatchAttention> attention;
};

struct CudaBatchAttention {
  std::shared_ptr<BatchState> state;
};

std::shared_ptr<BatchState> make_batch(nb::handle device, Format layout,
                                       const cuda::BatchAttentionOptions& options) {
  auto state = std::make_shared<BatchState>(device_of(device), layout);
  create_over(state->device, state->attention, [&](const std::shared_ptr<cuda::Kernels>& kernels) {
    return cuda::BatchAttention::create(kernels, options);
  });
  return state;
}

// ---- tensors of a layer ----

constexpr const char* kPages = "paged_kv_cache";

// The strides of [pages, (2,) page_size, heads, head_dim] or [pages, (2,) heads, page_size,
// head_dim].
KVStrides strides_of(const Lent& pages, Format layout) {
  const std::size_t axis = pages.ndim() - 3;
  // Along an axis of one entry a tensor may say anything.
  std::vector<std::int64_t> bytes(pages.ndim());
  std::int64_t dense = pages.item_bytes();
  for (std::size_t i = pages.ndim(); i-- > 0;) {
    bytes[i] = pages.shape[i] > 1 ? pages.stride(i) : dense;
    dense *= std::max<std::int64_t>(pages.shape[i], 1);
  }
  const bool nhd = layout == Format::kNhd;
  return {.layer = 0,
          .block = bytes[0],
          .head = nhd ? bytes[axis + 1] : bytes[axis],
          .token = nhd ? bytes[axis] : bytes[axis + 1]};
}

void check_pages(const Lent& pages, bool in_one, const char* wanted) {
  if (pages.ndim() != (in_one ? 5u : 4u) || (in_one && pages.shape[1] != 2)) {
    raise_invalid(std::string(kPages) + ": " + pages.text() + ", wanted: " + wanted);
  }
  if (pages.shape.back() > 1 && pages.strides.back() != 1) {
    raise_invalid(std::string(kPages) + ": elements of a row are " +
                  std::to_string(pages.strides.back()) + " apart, wanted: 1");
  }
}

KVView view_of_pages(const Lent& k, const Lent* v, Format layout) {
  const bool nhd = layout == Format::kNhd;
  const char* const wanted = v == nullptr
                                 ? (nhd ? "[num_pages, 2, page_size, num_kv_heads, head_dim]"
                                        : "[num_pages, 2, num_kv_heads, page_size, head_dim]")
                                 : (nhd ? "[num_pages, page_size, num_kv_heads, head_dim]"
                                        : "[num_pages, num_kv_heads, page_size, head_dim]");
  check_pages(k, v == nullptr, wanted);
  const auto size = [&](std::size_t axis) { return i32(Int{k.shape[axis]}, kPages); };
  const std::size_t axis = k.ndim() - 3;
  KVView view;
  view.k = k.data;
  view.k_strides = strides_of(k, layout);
  view.v = v == nullptr ? k.data + k.stride(1) : v->data;
  view.v_strides = view.k_strides;
  if (v != nullptr) {
    check_pages(*v, false, wanted);
    if (v->shape != k.shape || v->dtype.code != k.dtype.code || v->dtype.bits != k.dtype.bits) {
      raise_invalid(std::string(kPages) + ": K is a " + k.text() + ", V a " + v->text() +
                    ", wanted: two of one shape and type");
    }
    view.v_strides = strides_of(*v, layout);
  }
  view.num_layers = 1;
  view.num_blocks = size(0);
  view.block_size = size(nhd ? axis : axis + 1);
  view.num_kv_heads = size(nhd ? axis + 1 : axis);
  view.head_dim_k = view.head_dim_v = size(axis + 2);
  view.dtype = dtype_of(k, kPages, true);
  if (has_scales(view.dtype)) {
    raise(Status(ErrorCode::kUnsupported,
                 std::string(kPages) + ": " + k.text() +
                     " has no scales, which are of each token and head here: "
                     "Storage.borrow() has a place for them"));
  }
  view.memory_kind = MemoryKind::kDevice;
  return view;
}

// A view of a storage, one tensor or a pair (K, V), and what keeps it.
KVView pages_of(nb::handle object, const BatchState& state, const Consumer& consumer,
                Owners& owners, std::vector<LastWork*>& lasts) {
  if (nb::isinstance<CudaView>(object) && nb::inst_ready(object)) {
    auto& cache = nb::cast<CudaView&>(object);
    if (cache.state->device != state.device) {
      raise_invalid(std::string(kPages) + " is on device " +
                    std::to_string(cache.state->device->device().ordinal()) + ", wanted: device " +
                    std::to_string(state.device->device().ordinal()));
    }
    owners.push_back(cache.state);
    lasts.push_back(&cache.state->last);
    return cache.view;
  }
  std::vector<Lent> lent;
  if (PyTuple_Check(object.ptr()) || PyList_Check(object.ptr())) {
    const std::vector<nb::object> pair = items_of(object, kPages, "a pair (K, V)");
    if (pair.size() != 2) {
      raise_invalid(std::string(kPages) + " has " + std::to_string(pair.size()) +
                    " tensors, wanted: a pair (K, V), or one");
    }
    for (const nb::object& each : pair) lent.push_back(lent_of(each, kPages, consumer, Use::kRead));
  } else {
    lent.push_back(lent_of(object, kPages, consumer, Use::kRead));
  }
  const KVView view = view_of_pages(lent[0], lent.size() == 2 ? &lent[1] : nullptr, state.layout);
  for (Lent& each : lent) owners.push_back(std::move(each.owner));
  return view;
}

// ---- a step ----

// "f16", "float16", torch.float16 ...
DType named_type(nb::handle object, const char* name, DType otherwise) {
  if (object.is_none()) return otherwise;
  std::string word = nb::str(object).c_str();
  if (const std::size_t dot = word.rfind('.'); dot != std::string::npos) word.erase(0, dot + 1);
  for (const auto& [known, dtype] : {std::pair{"float32", DType::kF32},
                                     {"float", DType::kF32},
                                     {"float16", DType::kF16},
                                     {"half", DType::kF16},
                                     {"bfloat16", DType::kBF16}}) {
    if (word == known) return dtype;
  }
  return parse_dtype(name, word.c_str());
}

std::vector<std::int32_t> numbers(nb::handle object, const char* name) {
  check_on_host(object, name);
  const Input<std::int32_t> input(object, name);
  return {input.span().begin(), input.span().end()};
}

struct GivenStep {
  nb::handle qo_indptr, indptr, indices, last_page_len, sm_scale, soft_cap, q_type, o_type, mask;
  Int num_qo_heads, window_left;
  bool causal;
  std::string pos_encoding_mode;
};

void plan_step(BatchState& state, nb::handle pages, const GivenStep& given, nb::handle stream) {
  void* const number = stream_of(stream);
  // Before tensors are lent, too: a lender makes the stream wait for its own.
  state.device->check_not_captured(number, "a plan is made in front of a graph");
  Owners owners;  // the tensors go when it returns: a plan looks at shapes alone
  std::vector<LastWork*> theirs;
  cuda::BatchAttentionPlan step;
  step.paged_kv = pages_of(pages, state, state.device->consumer(number), owners, theirs);
  const std::vector<std::int32_t> indptr = numbers(given.indptr, "paged_kv_indptr");
  const std::vector<std::int32_t> indices = numbers(given.indices, "paged_kv_indices");
  const std::vector<std::int32_t> last = numbers(given.last_page_len, "paged_kv_last_page_len");
  std::vector<std::int32_t> rows;
  if (!given.qo_indptr.is_none()) {
    rows = numbers(given.qo_indptr, "qo_indptr");
    if (rows.empty()) raise_invalid("qo_indptr has 0 entries, wanted: None for a decode");
  }
  step.qo_indptr = rows;
  step.kv_indptr = indptr;
  step.kv_indices = indices;
  step.kv_last_page_len = last;
  step.num_qo_heads = i32(given.num_qo_heads, "num_qo_heads");
  step.causal = given.causal;
  if (!given.sm_scale.is_none()) step.sm_scale = nb::cast<double>(given.sm_scale);
  step.window_left = i32(given.window_left, "window_left");
  if (!given.soft_cap.is_none()) step.logits_soft_cap = nb::cast<double>(given.soft_cap);
  const DType own = has_scales(step.paged_kv.dtype) ? DType::kBF16 : step.paged_kv.dtype;
  step.q_data_type = named_type(given.q_type, "q_data_type", own);
  step.o_data_type = named_type(given.o_type, "o_data_type", step.q_data_type);
  step.pos_encoding_mode = given.pos_encoding_mode;
  static constexpr std::byte kMask[1] = {};
  if (!given.mask.is_none()) step.custom_mask = kMask;  // refused by name
  state.device->enqueue({&state.last}, {}, number, [&]() -> Status {
    KVFOLIO_RETURN_IF_ERROR(DeviceState::hold_back(state.last, number));
    Status status = state.attention->plan(step, number);
    state.shape = state.attention->shape();  // none behind a failure
    state.target = state.attention->target();
    return status;
  });
}

float* contiguous_lse(const Lent& lse, const RowsView& q) {
  const std::vector<std::int64_t> wanted{q.num_tokens, q.num_heads};
  const bool contiguous =
      lse.empty() || (lse.ndim() == 2 && (q.num_heads == 1 || lse.strides[1] == 1) &&
                      (q.num_tokens <= 1 || lse.strides[0] == q.num_heads));
  if (lse.shape == wanted && contiguous && lse.dtype.code == dl::kFloat && lse.dtype.bits == 32) {
    return static_cast<float*>(static_cast<void*>(lse.data));
  }
  raise_invalid("lse: " + lse.text() + ", wanted: a contiguous float32 tensor of shape (" +
                std::to_string(q.num_tokens) + ", " + std::to_string(q.num_heads) + ")");
}

nb::object run_layer(BatchState& state, nb::handle q, nb::handle pages, nb::object out,
                     nb::handle lse, Int layer, nb::handle stream, bool keep) {
  void* const number = stream_of(stream);
  const Consumer consumer = state.device->consumer(number);
  Owners owners;
  std::vector<LastWork*> lasts{&state.last};
  const KVView cache = pages_of(pages, state, consumer, owners, lasts);
  const auto rows = [&](nb::handle object, const char* name, Use use) {
    if (object.is_none())
      raise_type(std::string(name) + " is None, wanted: a tensor of the device");
    Lent lent = lent_of(object, name, consumer, use);
    RowsView view = rows_of(lent, name);
    // Null stands for no rows at all, and a tensor without elements has no address.
    if (view.data == nullptr || lent.empty()) view.data = cache.k;
    owners.push_back(std::move(lent.owner));
    return view;
  };
  const RowsView from = rows(q, "q", Use::kRead);
  const RowsView to = rows(out, "out", Use::kWrite);
  float* sums = nullptr;
  if (!lse.is_none()) {
    Lent lent = lent_of(lse, "lse", consumer, Use::kWrite);
    sums = contiguous_lse(lent, from);
    owners.push_back(std::move(lent.owner));
  }
  const std::int32_t number_of_layer = i32(layer, "layer");
  if (!keep) lasts.clear();
  const auto call = [&]() -> Status {
    if (keep) KVFOLIO_RETURN_IF_ERROR(DeviceState::hold_back(state.last, number));
    return state.attention->run(from, cache, to, sums, number, number_of_layer);
  };
  state.device->enqueue(lasts, std::move(owners), number, call);
  return out;
}

Format layout_of(const std::string& word) {
  if (word == "NHD") return Format::kNhd;
  if (word == "HND") return Format::kHnd;
  raise_invalid("kv_layout is \"" + word + "\", allowed: \"NHD\", \"HND\"");
}

void add_calls(nb::class_<CudaBatchAttention>& c) {
  c.def(
       "plan",
       [](const CudaBatchAttention& self, nb::handle pages, nb::handle indptr, nb::handle indices,
          nb::handle last_page_len, Int num_qo_heads, nb::handle qo_indptr, bool causal,
          nb::handle sm_scale, Int window_left, nb::handle soft_cap, nb::handle q_type,
          nb::handle o_type, const std::string& pos_encoding_mode, nb::handle mask,
          nb::handle stream) {
         plan_step(*self.state, pages,
                   {qo_indptr, indptr, indices, last_page_len, sm_scale, soft_cap, q_type, o_type,
                    mask, num_qo_heads, window_left, causal, pos_encoding_mode},
                   stream);
       },
       "paged_kv_cache"_a, "paged_kv_indptr"_a, "paged_kv_indices"_a, "paged_kv_last_page_len"_a,
       "num_qo_heads"_a, nb::kw_only(), "qo_indptr"_a = nb::none(), "causal"_a = false,
       "sm_scale"_a = nb::none(), "window_left"_a = Int{-1}, "logits_soft_cap"_a = nb::none(),
       "q_data_type"_a = nb::none(), "o_data_type"_a = nb::none(), "pos_encoding_mode"_a = "NONE",
       "custom_mask"_a = nb::none(), "stream"_a = nb::none(),
       nb::sig("def plan(self, paged_kv_cache: typing.Any, paged_kv_indptr: "
               "kvfolio._types.Int32Input, paged_kv_indices: kvfolio._types.Int32Input, "
               "paged_kv_last_page_len: kvfolio._types.Int32Input, num_qo_heads: int, *, "
               "qo_indptr: kvfolio._types.Int32Input | None = None, causal: bool = False, "
               "sm_scale: float | None = None, window_left: int = -1, "
               "logits_soft_cap: float | None = None, q_data_type: typing.Any = None, "
               "o_data_type: typing.Any = None, pos_encoding_mode: str = 'NONE', "
               "custom_mask: typing.Any = None, stream: typing.Any = None) -> None"),
       "Cuts the work of a step and sends it on the stream. Arrays are of the host, int32, in "
       "FlashInfer's form; without qo_indptr it is a decode. paged_kv_cache: the tensors of any "
       "layer, which say page_size, heads, head_dim, type and strides. Types: names or torch's; "
       "None: the cache's, and q's. Raises InvalidArgument with the array and both numbers, "
       "Unsupported for a pos_encoding_mode or a custom_mask, FailedPrecondition while the stream "
       "is captured: the plan before stays.")
      .def(
          "run",
          [](const CudaBatchAttention& self, nb::handle q, nb::handle pages, nb::object out,
             nb::handle lse, Int layer, nb::handle stream, bool keep) {
            return run_layer(*self.state, q, pages, std::move(out), lse, layer, stream, keep);
          },
          "q"_a.none(), "paged_kv_cache"_a, nb::kw_only(), "out"_a.none(), "lse"_a = nb::none(),
          "layer"_a = Int{0}, "stream"_a = nb::none(), "keep"_a = true,
          nb::sig("def run(self, q: kvfolio._types.SupportsDLPack, paged_kv_cache: typing.Any, *, "
                  "out: typing.Any, lse: kvfolio._types.SupportsDLPack | None = None, "
                  "layer: int = 0, stream: typing.Any = None, keep: bool = True) -> typing.Any"),
          "One layer of what was planned: q [rows, num_qo_heads, head_dim] to out, which is "
          "returned; lse [rows, num_qo_heads] has natural logarithms. `layer`: of a View. Without "
          "`keep` it may be captured, see the package. Raises FailedPrecondition without a plan, "
          "InvalidArgument for other shapes, strides or types than the plan's, with what differs.");
}

void add_numbers(nb::class_<CudaBatchAttention>& c) {
  c.def_prop_ro(
       "shape",
       [](const CudaBatchAttention& self) {
         BatchState& state = *self.state;
         const cuda::AttendShape s = state.device->locked([&] { return state.shape; });
         return shape_tuple(s);
       },
       nb::sig("def shape(self) -> tuple[int, ...]"),
       "Of the last plan: a graph that captured run() serves every plan of an equal shape. With "
       "`padded` there is one.")
      .def_prop_ro(
          "target",
          [](const CudaBatchAttention& self) {
            BatchState& state = *self.state;
            return state.device->locked([&] { return state.target; });
          },
          "AttendPlan.target of the last plan; empty without one.")
      .def_prop_ro(
          "device_bytes",
          [](const CudaBatchAttention& self) { return self.state->attention->device_bytes(); })
      .def_prop_ro("pinned_bytes", [](const CudaBatchAttention& self) {
        return self.state->attention->pinned_bytes();
      });
}

}  // namespace

void add_batch_attention(nb::module_& m) {
  nb::class_<CudaBatchAttention> c(
      m, "BatchAttention",
      "Attention in the call shape of FlashInfer's paged wrappers: plan() once for a step, run() "
      "for each layer. paged_kv_cache is one tensor [num_pages, 2, page_size, num_kv_heads, "
      "head_dim], a pair (K, V) without the 2 (\"HND\": heads before the page), in any strides of "
      "rows, or a View. Its memory is taken at once and keeps its addresses; what lies there is of "
      "the last plan. One thread at a time.");
  const cuda::BatchAttentionOptions defaults;
  c.def(
      "__init__",
      [](CudaBatchAttention* self, Int max_sequences, Int max_pages, const std::string& layout,
         nb::handle device, nb::handle image_bytes, nb::handle workspace_bytes, bool padded,
         Int max_tokens, Int max_queries) {
        const cuda::BatchAttentionOptions options{
            .max_sequences = i32(max_sequences, "max_sequences"),
            .max_pages_of_sequence = i32(max_pages, "max_pages_of_sequence"),
            .max_image_bytes = parse_bytes(image_bytes, "max_image_bytes"),
            .workspace_bytes = parse_bytes(workspace_bytes, "workspace_bytes"),
            .padded = padded,
            .max_tokens = max_tokens.value,
            .max_queries = i32(max_queries, "max_queries")};
        new (self) CudaBatchAttention{make_batch(device, layout_of(layout), options)};
      },
      nb::kw_only(), "max_sequences"_a, "max_pages_of_sequence"_a, "kv_layout"_a = "NHD",
      "device"_a = 0, "max_image_bytes"_a = defaults.max_image_bytes,
      "workspace_bytes"_a = defaults.workspace_bytes, "padded"_a = false, "max_tokens"_a = Int{0},
      "max_queries"_a = Int{1},
      nb::sig(
          "def __init__(self, *, max_sequences: int, max_pages_of_sequence: int, "
          "kv_layout: str = 'NHD', device: int | Device = 0, max_image_bytes: int | str = 4194304, "
          "workspace_bytes: int | str = 134217728, padded: bool = False, max_tokens: int = 0, "
          "max_queries: int = 1) -> None"),
      "max_image_bytes: for how a step's work is cut. workspace_bytes: for parts of rows that are "
      "merged. padded: plans are padded to these sequences and pages, so that `shape` is one for "
      "all steps of the same cache and heads, and one captured run() serves them; a step that is "
      "larger is refused with the numbers, and so is one of another causal (where max_queries is "
      "above 1), sm_scale, window_left or logits_soft_cap than the first one. max_tokens: of K and "
      "V of a padded step; 0: what all pages have room for. max_queries: rows of one sequence of "
      "it; above 1 each step has a qo_indptr.");
  add_calls(c);
  add_numbers(c);
}

}  // namespace kvfolio::python
