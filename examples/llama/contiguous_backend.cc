// SPDX-License-Identifier: Apache-2.0
#include "contiguous_backend.h"

#include <cmath>
#include <utility>

#include "layer_call.h"

namespace kvfolio::llama {
namespace {

// Tokens of an array that the kernel takes for one block. Any size up to kMaxBlockSize would do.
constexpr std::int32_t kRowBlock = 64;

// The slice [first, first + count) of the rows of a step.
ConstRowsView rows_of(const ConstRowsView& all, std::int32_t first, std::int32_t count) {
  ConstRowsView some = all;
  some.data = all.at(first, 0);
  some.num_tokens = count;
  return some;
}

}  // namespace

ContiguousBackend::ContiguousBackend(const ModelConfig& config, DType dtype, CacheCompute& compute)
    : config_(config), dtype_(dtype), compute_(compute) {}

Result<ContiguousBackend::Arrays*> ContiguousBackend::find(SequenceId sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    return Status(ErrorCode::kNotFound, "no sequence " + std::to_string(sequence.value()));
  }
  return found->second.get();
}

Result<OffloadOpened> ContiguousBackend::open(std::span<const std::int32_t> /*tokens*/,
                                              const OpenLimits& limits) {
  auto arrays = std::make_unique<Arrays>();
  KVFOLIO_RETURN_IF_ERROR(
      reserve(*arrays, (limits.max_tokens + kRowBlock - 1) / kRowBlock * kRowBlock));
  bytes_ += arrays->bytes();
  const SequenceId id(next_id_++);
  sequences_.emplace(id, std::move(arrays));
  return OffloadOpened{.sequence = id, .cached_tokens = 0};
}

Status ContiguousBackend::reserve(Arrays& arrays, std::int32_t capacity) const {
  const std::int64_t rows =
      std::int64_t{config_.num_layers} * config_.num_kv_heads * std::int64_t{capacity};
  const std::int64_t bytes = rows * config_.head_dim * dtype_bytes(dtype_);
  const std::int64_t scale_bytes =
      has_scales(dtype_) ? rows * static_cast<std::int64_t>(sizeof(float)) : 0;
  arrays.capacity = capacity;
  for (const auto& [array, size] :
       {std::pair(&arrays.k, bytes), std::pair(&arrays.v, bytes),
        std::pair(&arrays.k_scale, scale_bytes), std::pair(&arrays.v_scale, scale_bytes)}) {
    Result<ResourceBytes> made = ResourceBytes::create(compute_.memory(), size);
    if (!made) return std::move(made).error();
    *array = *std::move(made);
  }
  return {};
}

Result<SequenceId> ContiguousBackend::fork(SequenceId parent) {
  const Result<Arrays*> source = find(parent);
  if (!source) return source.error();
  auto arrays = std::make_unique<Arrays>();
  arrays->capacity = (*source)->capacity;
  arrays->length = (*source)->length;
  for (ResourceBytes Arrays::*const array :
       {&Arrays::k, &Arrays::v, &Arrays::k_scale, &Arrays::v_scale}) {
    Result<ResourceBytes> copy = ((*source)->*array).copy();
    if (!copy) return std::move(copy).error();
    (*arrays).*array = *std::move(copy);
  }
  bytes_ += arrays->bytes();
  const SequenceId id(next_id_++);
  sequences_.emplace(id, std::move(arrays));
  return id;
}

Status ContiguousBackend::close(SequenceId sequence) {
  const Result<Arrays*> arrays = find(sequence);
  if (!arrays) return arrays.error();
  bytes_ -= (*arrays)->bytes();
  sequences_.erase(sequence);
  return {};
}

Status ContiguousBackend::begin_step() {
  step_.clear();
  return {};
}

Status ContiguousBackend::append(SequenceId sequence, std::span<const std::int32_t> tokens) {
  const Result<Arrays*> arrays = find(sequence);
  if (!arrays) return arrays.error();
  step_.push_back({.arrays = *arrays, .num_tokens = static_cast<std::int32_t>(tokens.size())});
  return {};
}

Status ContiguousBackend::finish_step() {
  for (const Appended& appended : step_) appended.arrays->length += appended.num_tokens;
  return {};
}

Status ContiguousBackend::drop_step() {
  step_.clear();
  return {};
}

KVView ContiguousBackend::view(const Arrays& arrays) const {
  const std::int64_t token = std::int64_t{config_.head_dim} * dtype_bytes(dtype_);
  const std::int64_t head = token * arrays.capacity;
  const KVStrides strides{.layer = head * config_.num_kv_heads,
                          .block = token * kRowBlock,
                          .head = head,
                          .token = token};
  KVView view{.k = arrays.k.data(),
              .v = arrays.v.data(),
              .k_strides = strides,
              .v_strides = strides,
              .num_layers = config_.num_layers,
              .num_blocks = arrays.capacity / kRowBlock,
              .block_size = kRowBlock,
              .num_kv_heads = config_.num_kv_heads,
              .head_dim_k = config_.head_dim,
              .head_dim_v = config_.head_dim,
              .dtype = dtype_,
              .memory_kind = compute_.memory().kind()};
  if (!has_scales(dtype_)) return view;
  constexpr auto kScale = static_cast<std::int64_t>(sizeof(float));
  view.k_scale_strides = {.layer = kScale * arrays.capacity * config_.num_kv_heads,
                          .block = kScale * kRowBlock,
                          .head = kScale * arrays.capacity,
                          .token = kScale};
  view.v_scale_strides = view.k_scale_strides;
  view.k_scale = arrays.k_scale.data();
  view.v_scale = arrays.v_scale.data();
  return view;
}

Status ContiguousBackend::layer(std::int32_t layer, const ConstRowsView& q, const ConstRowsView& k,
                                const ConstRowsView& v, const RowsView& out) {
  std::int32_t first = 0;
  for (const Appended& appended : step_) {
    const Arrays& arrays = *appended.arrays;
    const std::int32_t count = appended.num_tokens;
    while (std::ssize(identity_) < arrays.capacity) {
      identity_.push_back(static_cast<std::int32_t>(identity_.size()));
    }
    const std::span<const std::int32_t> numbers = identity_;
    const std::int32_t num_blocks = arrays.capacity / kRowBlock;
    const std::int32_t query_start[] = {0, count};
    const std::int32_t kv_lens[] = {arrays.length + count};
    RowsView some_out = out;
    some_out.data = out.at(first, 0);
    some_out.num_tokens = count;
    KVFOLIO_RETURN_IF_ERROR(compute_.layer(
        {.cache = view(arrays),
         .layer = layer,
         .k = rows_of(k, first, count),
         .v = rows_of(v, first, count),
         .slots = numbers.subspan(static_cast<std::size_t>(arrays.length),
                                  static_cast<std::size_t>(count)),
         .batch = {.query_start = query_start,
                   .kv_lens = kv_lens,
                   .block_table = numbers.first(static_cast<std::size_t>(num_blocks)),
                   .block_table_stride = num_blocks,
                   .trim_sinks = {},
                   .trim_first_kept = {}},
         .params = {.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
                    .rule = config_.sliding_window > 0
                                ? GroupRule::of_window(config_.sliding_window)
                                : GroupRule()},
         .q = rows_of(q, first, count),
         .out = some_out}));
    first += count;
  }
  return {};
}

}  // namespace kvfolio::llama
