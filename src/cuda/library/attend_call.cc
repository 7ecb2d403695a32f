// SPDX-License-Identifier: Apache-2.0

// From the public arguments of attend() to those of src/cuda/attention, and to its kernels.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/attention/check.h"
#include "cuda/attention/padded.h"
#include "cuda/element_of.h"
#include "cuda/library/loaded.h"
#include "kernels/check.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

Status check_shapes(const DeviceAttention& call) {
  const KVView& cache = call.cache;
  if (cache.memory_kind != MemoryKind::kDevice) {
    return {ErrorCode::kUnsupported, concat("the cache is in ", to_string(cache.memory_kind),
                                            " memory, which kernels of a device do not touch")};
  }
  KVView on_host = cache;
  on_host.memory_kind = MemoryKind::kHost;
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(on_host));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_layer(cache, call.layer));
  if (cache.head_dim_v < 1) return invalid("cache.head_dim_v is 0, allowed: at least 1");
  if (cache.granule) {
    return {ErrorCode::kUnsupported, "the cache has format granule, allowed on a device: rows"};
  }
  for (const DType dtype : {cache.dtype, call.q.dtype, call.out.dtype}) {
    if (dtype == DType::kF64 || dtype == DType::kOpaque) {
      return {ErrorCode::kUnsupported,
              concat(to_string(dtype), " is not allowed on a device: f32, f16, bf16, int8, e4m3")};
    }
  }
  if (call.q.num_heads < 1 || call.q.num_heads % cache.num_kv_heads != 0) {
    return invalid(concat("q has ", call.q.num_heads, " heads, allowed: multiples of the ",
                          cache.num_kv_heads, " KV heads"));
  }
  const std::int32_t rows = call.batch.query_start.empty() ? 0 : call.batch.query_start.back();
  KVFOLIO_RETURN_IF_ERROR(
      kernels::check_rows("q", call.q, {rows, call.q.num_heads, cache.head_dim_k}));
  KVFOLIO_RETURN_IF_ERROR(
      kernels::check_written_rows("out", call.out, {rows, call.q.num_heads, cache.head_dim_v}));
  for (const std::size_t entries :
       {call.params.alibi_slopes.size(), call.params.sink_logits.size()}) {
    if (entries == 0 || std::cmp_equal(entries, call.q.num_heads)) continue;
    return invalid(concat("alibi_slopes or sink_logits has ", entries, " entries, allowed: ",
                          call.q.num_heads, ", one for each query head, or 0"));
  }
  const auto sequences = static_cast<std::int64_t>(call.batch.kv_lens.size());
  const std::int64_t entries = sequences * call.batch.block_table_stride;
  if (static_cast<std::int64_t>(call.batch.block_table.size()) < entries) {
    return invalid(concat("block_table has ", call.batch.block_table.size(),
                          " entries, needed: ", sequences, " x ", call.batch.block_table_stride));
  }
  return {};
}

Strides strides_of(const KVStrides& strides) {
  return {strides.block, strides.head, strides.token};
}
const char* layer_of(const std::byte* data, const KVStrides& strides, std::int32_t layer) {
  return data == nullptr ? nullptr : reinterpret_cast<const char*>(data + layer * strides.layer);
}

CacheArgs cache_args_of(const KVView& view, std::int32_t layer) {
  return {.k = layer_of(view.k, view.k_strides, layer),
          .v = layer_of(view.v, view.v_strides, layer),
          .k_scales = layer_of(view.k_scale, view.k_scale_strides, layer),
          .v_scales = layer_of(view.v_scale, view.v_scale_strides, layer),
          .k_strides = strides_of(view.k_strides),
          .v_strides = strides_of(view.v_strides),
          .k_scale_strides = strides_of(view.k_scale_strides),
          .v_scale_strides = strides_of(view.v_scale_strides),
          .block_size = view.block_size,
          .num_blocks = view.num_blocks,
          .num_heads = view.num_kv_heads,
          .dim_k = view.head_dim_k,
          .dim_v = view.head_dim_v,
          .element = element_of(view.dtype)};
}

// A new field of AttentionParams changes what attend() means, so it has to be passed on here.
static_assert(sizeof(AttentionParams) == 64);
// check_params() of cuda/attention refuses a rule that there is not.
Mask mask_of(const AttentionParams& params) {
  return {.rule = static_cast<Rule>(params.rule.kind()),
          .window = params.rule.window(),
          .num_sinks = params.rule.num_sinks(),
          .causal = params.causal ? 1 : 0};
}
const float* data_of(std::span<const float> values) {
  return values.empty() ? nullptr : values.data();
}

// Requires: check_shapes(call).ok().
AttentionCall attention_call(const DeviceAttention& call) {
  AttentionCall result;
  result.cache = cache_args_of(call.cache, call.layer);
  result.block_table = call.batch.block_table.data();
  result.block_table_stride = call.batch.block_table_stride;
  result.device_query_start = call.query_start;
  result.device_kv_lens = call.kv_lens;
  result.device_trim_sinks = call.trim_sinks;
  result.device_trim_first_kept = call.trim_first_kept;
  result.q = call.q.data;
  result.q_token_stride = call.q.token_stride;
  result.q_head_stride = call.q.head_stride;
  result.q_element = element_of(call.q.dtype);
  result.out = call.out.data;
  result.out_token_stride = call.out.token_stride;
  result.out_head_stride = call.out.head_stride;
  result.out_element = element_of(call.out.dtype);
  result.lse = call.lse;
  result.lengths = {call.batch.query_start, call.batch.kv_lens, call.batch.trim_sinks,
                    call.batch.trim_first_kept};
  result.group_size = call.q.num_heads / call.cache.num_kv_heads;
  result.scale = call.params.scale;
  result.soft_cap = call.params.soft_cap;
  result.alibi_slopes = data_of(call.params.alibi_slopes);
  result.sink_logits = data_of(call.params.sink_logits);
  result.mask = mask_of(call.params);
  return result;
}

Status check_pointers(Kernels& kernels, const DeviceAttention& call, void* stream) {
  return PointerCheck(kernels, stream)
      .cache("cache", call.cache)
      .device("q", call.q.data)
      .device("out", call.out.data)
      .device("lse", call.lse)
      .device("alibi_slopes", data_of(call.params.alibi_slopes))
      .device("sink_logits", data_of(call.params.sink_logits))
      .device("block_table", call.batch.block_table.data())
      .device("query_start", call.query_start)
      .device("kv_lens", call.kv_lens)
      .device("trim_sinks", call.trim_sinks)
      .device("trim_first_kept", call.trim_first_kept)
      .status();
}

// A plan is cut for what its rows see. Slopes and logits may lie elsewhere in each layer.
Status check_params_fit(const AttentionCall& call, const AttendPlan::Impl& plan) {
  const AttentionCall& planned = plan.call;
  const Mask &m = call.mask, &n = planned.mask;
  if (m.rule != n.rule || m.window != n.window || m.num_sinks != n.num_sinks) {
    return invalid("window, num_sinks or chunk is another than that of the plan");
  }
  if (m.causal != n.causal) {
    return invalid(concat("causal is ", m.causal != 0 ? "true" : "false", ", that of the plan is ",
                          n.causal != 0 ? "true" : "false"));
  }
  if (call.scale != planned.scale) return invalid("scale is another than that of the plan");
  if (call.soft_cap != planned.soft_cap) {
    return invalid("soft_cap is another than that of the plan");
  }
  struct Given {
    std::string_view name;
    bool here, there;
  };
  // A batch of no sequences has no trims, nor does it miss any.
  const bool is_idle = plan.plan.capacity && call.lengths.kv_lens.empty();
  const bool has_trims = is_idle ? plan.has_trims : !call.lengths.trim_sinks.empty();
  const Given given[] = {
      {"alibi_slopes", call.alibi_slopes != nullptr, planned.alibi_slopes != nullptr},
      {"sink_logits", call.sink_logits != nullptr, planned.sink_logits != nullptr},
      {"batch.trim_sinks and trim_first_kept", has_trims, plan.has_trims}};
  for (const Given& one : given) {
    if (one.here == one.there) continue;
    return invalid(concat(one.name, one.here ? ": given" : ": empty", ", but the plan was made ",
                          one.there ? "with them" : "without"));
  }
  return {};
}

// Under the names of DeviceAttention. What src/cuda/attention checks has the same names here.
Status check_arrays(const DeviceAttention& call) {
  const bool has_trims = !call.batch.trim_sinks.empty();
  const std::pair<const char*, bool> missing[] = {
      {"query_start", call.query_start == nullptr},
      {"kv_lens", call.kv_lens == nullptr},
      {"trim_sinks", has_trims && call.trim_sinks == nullptr},
      {"trim_first_kept", has_trims && call.trim_first_kept == nullptr}};
  for (const auto& [name, is_missing] : missing) {
    if (is_missing) return invalid(concat(name, " is null, needed: memory of the device"));
  }
  return {};
}

Status check_batch(const AttentionCall& call, const AttendPlan::Impl& plan) {
  const BatchLengths& lengths = call.lengths;
  if (plan.plan.capacity) {
    if (lengths.query_start.size() == lengths.kv_lens.size() + 1) {
      const auto rows = static_cast<std::size_t>(lengths.query_start.back());
      if (lengths.kv_lens.size() <= plan.num_sequences &&
          rows <= static_cast<std::size_t>(plan.num_rows)) {
        return {};
      }
    }
    return invalid(concat("the batch has ", lengths.kv_lens.size(), " sequences and ",
                          lengths.query_start.empty() ? 0 : lengths.query_start.back(),
                          " rows, the plan's capacity is ", plan.num_sequences, " and ",
                          plan.num_rows));
  }
  if (lengths.kv_lens.size() != plan.num_sequences || lengths.query_start.empty() ||
      lengths.query_start.back() != plan.num_rows) {
    return invalid(concat("the batch is another than that of the plan, which has ",
                          plan.num_sequences, " sequences and ", plan.num_rows, " rows"));
  }
  return {};
}
// What a plan depends on beside lengths: another layer of the same cache has the same.
Status check_fits(const AttentionCall& call, const AttendPlan::Impl& plan) {
  KVFOLIO_RETURN_IF_ERROR(check_batch(call, plan));
  const AttentionCall& planned = plan.call;
  const CacheArgs &a = call.cache, &b = planned.cache;
  if (a.block_size != b.block_size || a.num_blocks != b.num_blocks || a.num_heads != b.num_heads ||
      a.dim_k != b.dim_k || a.dim_v != b.dim_v || a.element != b.element) {
    return invalid("the cache has another shape or element type than that of the plan");
  }
  if (a.k_strides != b.k_strides || a.v_strides != b.v_strides ||
      a.k_scale_strides != b.k_scale_strides || a.v_scale_strides != b.v_scale_strides) {
    return invalid("the cache has other strides than that of the plan");
  }
  if (call.group_size != planned.group_size || call.q_element != planned.q_element ||
      call.out_element != planned.out_element) {
    return invalid("q or out has other heads or another element type than that of the plan");
  }
  KVFOLIO_RETURN_IF_ERROR(check_params_fit(call, plan));
  if (call.block_table_stride != planned.block_table_stride) {
    return invalid(concat("block_table_stride is ", call.block_table_stride,
                          ", needed: that of the plan, ", planned.block_table_stride));
  }
  return check_memory_of(call);
}

// A batch of no sequences may come without the trims of its plan, but not for others to be
// replayed.
Status check_trims_captured(Kernels& kernels, const AttentionCall& call,
                            const AttendPlan::Impl& plan, void* stream) {
  if (!plan.plan.trims || !call.lengths.kv_lens.empty()) return {};
  if (call.device_trim_sinks != nullptr && call.device_trim_first_kept != nullptr) return {};
  return check_not_captured(kernels.device(), stream,
                            "trim_sinks or trim_first_kept is null, and the plan has trims, which "
                            "a replay for other batches reads");
}

Status not_padded() {
  return {ErrorCode::kFailedPrecondition,
          "the plan is not padded: plan_attend() with an AttendCapacity makes one that is"};
}

struct LaunchInto {
  AttendModules& modules;
  void* stream;
};

// What the card has, and of it what KVFOLIO_CUDA_KERNEL prefers, which is read at each plan.
Result<KernelChoice> choice_for(const KernelChoice& card) {
  const char* const name = std::getenv("KVFOLIO_CUDA_KERNEL");
  if (name == nullptr || *name == '\0') return card;
  Result<KernelChoice> named = choice_named(name, card);
  if (!named) return invalid(concat("KVFOLIO_CUDA_KERNEL: ", named.error().message()));
  return named;
}

}  // namespace

AttendPlan::AttendPlan(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
AttendPlan::AttendPlan(AttendPlan&&) noexcept = default;
AttendPlan& AttendPlan::operator=(AttendPlan&&) noexcept = default;
AttendPlan::~AttendPlan() = default;

std::span<const std::byte> AttendPlan::image() const noexcept { return impl_->plan.image; }
std::int64_t AttendPlan::workspace_bytes() const noexcept { return impl_->plan.workspace_bytes; }
std::int64_t AttendPlan::zeroed_bytes() const noexcept { return impl_->plan.zeroed_bytes; }
std::string_view AttendPlan::target() const noexcept { return impl_->target; }
std::string AttendPlan::explain() const {
  std::string text = concat(impl_->target, ": ");
  std::string_view between;
  for (const KernelName kernel : kernels_of(impl_->plan)) {
    text = concat(text, between, to_string(kernel));
    between = ", ";
  }
  if (between.empty()) text += "no rows";
  for (const std::string& kernel : impl_->left_out) text = concat(text, "; left out: ", kernel);
  return text;
}
AttendShape AttendPlan::shape() const noexcept {
  const PlanCounts& counts = impl_->plan.counts;
  return {.num_sequences = static_cast<std::int32_t>(impl_->num_sequences),
          .num_rows = impl_->num_rows,
          .items = counts.items,
          .groups = counts.groups,
          .prefill_items = counts.prefill_items,
          .segments = counts.segments,
          .segments_per_block = counts.segments_per_block,
          .states = counts.states,
          .many_nodes = impl_->plan.many_nodes,
          .merges = counts.merges};
}
AttendCapacity AttendPlan::capacity() const noexcept {
  return impl_->plan.capacity.value_or(AttendCapacity{});
}
Status AttendPlan::check(const AttentionBatch& batch) const {
  if (!impl_->plan.capacity) return not_padded();
  const BatchLengths lengths = {batch.query_start, batch.kv_lens, batch.trim_sinks,
                                batch.trim_first_kept};
  const AttentionCall& call = impl_->call;
  const bool positions_matter = call.mask.causal != 0 || call.mask.rule != Rule::kFull;
  KVFOLIO_RETURN_IF_ERROR(kernels::check_lengths(lengths, call.block_table_stride,
                                                 call.cache.block_size, positions_matter));
  if (!batch.kv_lens.empty() && batch.trim_sinks.empty() == impl_->has_trims) {
    return invalid(concat("batch.trim_sinks and trim_first_kept: ",
                          impl_->has_trims ? "empty, but the plan was made with them"
                                           : "given, but the plan was made without"));
  }
  return check_fits_capacity(lengths, *impl_->plan.capacity);
}

namespace {

Result<AttendPlan> make_plan(Kernels& kernels, const DeviceAttention& call,
                             const AttendCapacity* capacity) {
  KVFOLIO_RETURN_IF_ERROR(check_pointers(kernels, call, nullptr));
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, nullptr)
                              .host("batch.query_start", call.batch.query_start.data())
                              .host("batch.kv_lens", call.batch.kv_lens.data())
                              .host("batch.trim_sinks", call.batch.trim_sinks.data())
                              .host("batch.trim_first_kept", call.batch.trim_first_kept.data())
                              .status());
  KVFOLIO_RETURN_IF_ERROR(check_shapes(call));
  KVFOLIO_RETURN_IF_ERROR(check_arrays(call));
  Device& device = kernels.device();
  auto impl = std::make_unique<AttendPlan::Impl>();
  impl->call = attention_call(call);
  Result<CardChoice> card = kernels.impl().attention.choose(impl->call);
  if (!card) return card.error();
  const Result<KernelChoice> choice = choice_for(card->choice);
  if (!choice) return choice.error();
  Result<AttentionPlan> plan = capacity == nullptr ? plan_attention(impl->call, *choice)
                                                   : plan_attention(impl->call, *choice, *capacity);
  if (!plan) return plan.error();
  impl->left_out = std::move(card->left_out);
  impl->plan = *std::move(plan);
  KVFOLIO_RETURN_IF_ERROR(kernels.impl().attention.prepare(impl->call, impl->plan));
  impl->num_sequences = call.batch.kv_lens.size();
  impl->num_rows = call.batch.query_start.back();
  if (const auto& padded = impl->plan.capacity) {
    impl->num_sequences = static_cast<std::size_t>(padded->max_sequences);
    const std::int64_t rows = std::int64_t{padded->max_sequences} * padded->max_queries;
    impl->num_rows = static_cast<std::int32_t>(
        std::min<std::int64_t>(rows, std::numeric_limits<std::int32_t>::max()));
  }
  impl->has_trims = impl->plan.capacity ? impl->plan.trims : !call.batch.trim_sinks.empty();
  impl->call.lengths = {};
  impl->target =
      concat(device.target(), impl->plan.family == Family::kGeneral ? "-general" : "-tiles");
  return AttendPlan(std::move(impl));
}

}  // namespace

Result<AttendPlan> plan_attend(Kernels& kernels, const DeviceAttention& call) {
  return make_plan(kernels, call, nullptr);
}
Result<AttendPlan> plan_attend(Kernels& kernels, const DeviceAttention& call,
                               const AttendCapacity& capacity) {
  return make_plan(kernels, call, &capacity);
}

Status plan_on_device(Kernels& kernels, const DeviceAttention& call, const AttendPlan& plan,
                      std::byte* image, std::byte* workspace, void* stream,
                      const std::int32_t* num_sequences, Fault fault) {
  const AttentionPlan& padded = plan.impl().plan;
  if (!padded.capacity) return not_padded();
  KVFOLIO_RETURN_IF_ERROR(check_pointers(kernels, call, stream));
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, nullptr)
                              .device("image", image)
                              .device("workspace", workspace)
                              .device("num_sequences", num_sequences)
                              .device("fault", fault)
                              .status());
  for (const auto& [name, memory] : {std::pair{"image", image}, {"workspace", workspace}}) {
    if (memory == nullptr) return invalid(concat(name, " is null"));
    if (reinterpret_cast<std::uintptr_t>(memory) % 16 != 0) {
      return invalid(concat(name, " is not aligned to 16 bytes"));
    }
  }
  KVFOLIO_RETURN_IF_ERROR(check_shapes(call));
  KVFOLIO_RETURN_IF_ERROR(check_arrays(call));
  const AttentionCall checked = attention_call(call);
  KVFOLIO_RETURN_IF_ERROR(check_fits(checked, plan.impl()));
  KVFOLIO_RETURN_IF_ERROR(check_trims_captured(kernels, checked, plan.impl(), stream));
  return kernels.impl().attention.launch_plan(
      plan_args_of(checked, padded, num_sequences, image, workspace, fault), stream);
}

Status plan_fault(const AttendPlan& plan, unsigned long long fault) {
  if (fault == kNoEntry) return {};
  const AttendCapacity capacity = plan.capacity();
  if (fault < static_cast<unsigned long long>(capacity.max_sequences)) {
    return invalid(concat("sequence ", fault, " of the batch on the device has more than ",
                          capacity.max_sequence_tokens, " tokens of K and V or ",
                          capacity.max_queries,
                          " queries, the capacity: max_sequence_tokens, max_queries"));
  }
  return invalid(concat("the batch on the device has more than ", capacity.max_sequences,
                        " sequences or ", capacity.max_tokens,
                        " tokens of K and V, the capacity: max_sequences, max_tokens"));
}

Status upload(Kernels& kernels, const AttendPlan& plan, std::span<std::byte> pinned,
              std::byte* image, std::byte* workspace, void* stream) {
  const std::span<const std::byte> bytes = plan.image();
  if (pinned.size() < bytes.size()) {
    return invalid(concat("pinned has ", pinned.size(), " bytes, the image has ", bytes.size()));
  }
  if (!bytes.empty() && pinned.data() == nullptr) return invalid("pinned is null");
  if (!bytes.empty() && image == nullptr) return invalid("image is null");
  if (plan.zeroed_bytes() > 0 && workspace == nullptr) return invalid("workspace is null");
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, stream)
                              .host("pinned", pinned.data())
                              .device("image", image)
                              .device("workspace", workspace)
                              .status());
  // A replay would send what `pinned` holds by then.
  KVFOLIO_RETURN_IF_ERROR(
      check_not_captured(kernels.device(), stream, "a plan is uploaded in front of a graph"));
  const auto address = [](std::byte* memory) {
    return static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(memory));
  };
  if (!bytes.empty()) std::memcpy(pinned.data(), bytes.data(), bytes.size());
  return kernels.device().run("to copy a plan", [&](const DriverCalls& calls) {
    DriverResult error = 0;
    if (!bytes.empty()) error = calls.copy_in(address(image), pinned.data(), bytes.size(), stream);
    if (error != 0 || plan.zeroed_bytes() == 0) return error;
    return calls.memory_set(address(workspace), 0, static_cast<std::size_t>(plan.zeroed_bytes()),
                            stream);
  });
}

Status upload(Kernels& kernels, std::span<const std::byte> pinned, std::byte* to, void* stream) {
  if (pinned.empty()) return {};
  if (pinned.data() == nullptr) return invalid("pinned is null");
  if (to == nullptr) return invalid("to is null");
  KVFOLIO_RETURN_IF_ERROR(
      PointerCheck(kernels, stream).host("pinned", pinned.data()).device("to", to).status());
  return kernels.device().run("to copy from pinned memory", [&](const DriverCalls& calls) {
    return calls.copy_in(static_cast<DeviceAddress>(reinterpret_cast<std::uintptr_t>(to)),
                         pinned.data(), pinned.size(), stream);
  });
}

Status attend(Kernels& kernels, const DeviceAttention& call, const AttendPlan& plan,
              const std::byte* image, std::byte* workspace, void* stream) {
  KVFOLIO_RETURN_IF_ERROR(check_pointers(kernels, call, stream));
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, nullptr)
                              .device("image", image)
                              .device("workspace", workspace)
                              .status());
  KVFOLIO_RETURN_IF_ERROR(check_shapes(call));
  KVFOLIO_RETURN_IF_ERROR(check_arrays(call));
  const AttentionCall checked = attention_call(call);
  KVFOLIO_RETURN_IF_ERROR(check_fits(checked, plan.impl()));
  KVFOLIO_RETURN_IF_ERROR(check_trims_captured(kernels, checked, plan.impl(), stream));
  LaunchInto into{kernels.impl().attention, stream};
  const auto launch = [](void* state, const KernelLaunch& kernel) {
    auto* const to = static_cast<LaunchInto*>(state);
    return to->modules.launch(kernel, to->stream);
  };
  return attend(checked, plan.impl().plan, image, workspace, {launch, &into});
}

}  // namespace kvfolio::cuda
