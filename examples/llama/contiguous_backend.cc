// SPDX-License-Identifier: Apache-2.0
#include "contiguous_backend.h"

#include <cmath>
#include <numeric>
#include <utility>

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

ContiguousBackend::ContiguousBackend(const ModelConfig& config, DType dtype, KernelTarget kernel,
                                     ThreadPool& pool)
    : config_(config), dtype_(dtype), kernel_(kernel), attend_(pool) {}

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
  arrays->capacity = (limits.max_tokens + kRowBlock - 1) / kRowBlock * kRowBlock;
  const std::size_t rows = static_cast<std::size_t>(config_.num_layers) *
                           static_cast<std::size_t>(config_.num_kv_heads) *
                           static_cast<std::size_t>(arrays->capacity);
  const std::size_t bytes = rows * static_cast<std::size_t>(config_.head_dim) *
                            static_cast<std::size_t>(dtype_bytes(dtype_));
  arrays->k.resize(bytes);
  arrays->v.resize(bytes);
  if (dtype_ == DType::kInt8) {
    arrays->k_scale.resize(rows * sizeof(float));
    arrays->v_scale.resize(rows * sizeof(float));
  }
  bytes_ += arrays->bytes();
  const SequenceId id(next_id_++);
  sequences_.emplace(id, std::move(arrays));
  return OffloadOpened{.sequence = id, .cached_tokens = 0};
}

Result<SequenceId> ContiguousBackend::fork(SequenceId parent) {
  const Result<Arrays*> source = find(parent);
  if (!source) return source.error();
  const SequenceId id(next_id_++);
  sequences_.emplace(id, std::make_unique<Arrays>(**source));
  bytes_ += (*source)->bytes();
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

// The next tokens of one layer's arrays, as rows.
RowsView ContiguousBackend::rows(std::vector<std::byte>& array, const Arrays& arrays,
                                 std::int32_t layer, std::int32_t num_tokens) const {
  const std::int64_t token = std::int64_t{config_.head_dim} * dtype_bytes(dtype_);
  const std::int64_t head = token * arrays.capacity;
  return {.data = array.data() + layer * config_.num_kv_heads * head + arrays.length * token,
          .token_stride = token,
          .head_stride = head,
          .num_tokens = num_tokens,
          .num_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .dtype = dtype_};
}

KVView ContiguousBackend::view(Arrays& arrays) const {
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
              .dtype = dtype_};
  if (dtype_ != DType::kInt8) return view;
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

Status ContiguousBackend::write(Arrays& arrays, std::int32_t layer, const ConstRowsView& k,
                                const ConstRowsView& v) {
  if (dtype_ == DType::kInt8) {
    // A quantized row has a scale beside it, which only the kernels of a cache know how to write.
    slots_.resize(static_cast<std::size_t>(k.num_tokens));
    std::iota(slots_.begin(), slots_.end(), arrays.length);
    return kvfolio::append(view(arrays), layer, k, v, slots_);
  }
  KVFOLIO_RETURN_IF_ERROR(convert(k, rows(arrays.k, arrays, layer, k.num_tokens)));
  return convert(v, rows(arrays.v, arrays, layer, v.num_tokens));
}

Status ContiguousBackend::layer(std::int32_t layer, const ConstRowsView& q, const ConstRowsView& k,
                                const ConstRowsView& v, const RowsView& out) {
  std::int32_t first = 0;
  for (const Appended& appended : step_) {
    Arrays& arrays = *appended.arrays;
    const std::int32_t count = appended.num_tokens;
    KVFOLIO_RETURN_IF_ERROR(
        write(arrays, layer, rows_of(k, first, count), rows_of(v, first, count)));

    const auto num_blocks = static_cast<std::size_t>(arrays.capacity / kRowBlock);
    if (identity_.size() < num_blocks) {
      identity_.resize(num_blocks);
      std::iota(identity_.begin(), identity_.end(), 0);
    }
    const std::int32_t query_start[] = {0, count};
    const std::int32_t kv_lens[] = {arrays.length + count};
    AttentionArgs args;
    args.cache = view(arrays);
    args.layer = layer;
    args.batch = {.query_start = query_start,
                  .kv_lens = kv_lens,
                  .block_table = std::span(identity_).first(num_blocks),
                  .block_table_stride = static_cast<std::int32_t>(num_blocks),
                  .trim_sinks = {},
                  .trim_first_kept = {}};
    args.params = {.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
                   .rule = config_.sliding_window > 0 ? GroupRule::of_window(config_.sliding_window)
                                                      : GroupRule()};
    args.q = rows_of(q, first, count);
    args.out = out;
    args.out.data = out.at(first, 0);
    args.out.num_tokens = count;
    args.target = kernel_;
    KVFOLIO_RETURN_IF_ERROR(attend_.run(args));
    first += count;
  }
  return {};
}

}  // namespace kvfolio::llama
