// SPDX-License-Identifier: Apache-2.0
#include "device_compute.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kvfolio/kernels.h"
#include "layer_call.h"

namespace kvfolio::llama {
namespace {

constexpr std::int32_t kHeadDimStep = 8;
constexpr std::int32_t kMaxHeadDim = 576;  // of cuda::attend()

Status check_model(const ModelConfig& config, DType dtype) {
  if (dtype == DType::kF64) {
    return {ErrorCode::kUnsupported,
            "a cache of f64 is the CPU's, allowed on a device: f32, f16, bf16, int8, e4m3"};
  }
  if (config.head_dim % kHeadDimStep != 0 || config.head_dim > kMaxHeadDim) {
    return {ErrorCode::kUnsupported, "head_dim " + std::to_string(config.head_dim) +
                                         ", allowed on a device: multiples of 8 up to 576"};
  }
  return {};
}

// Lays arrays out one behind the other and notes what is to be copied there.
class Layout {
 public:
  // Room for `bytes`; where it begins.
  std::int64_t add(std::int64_t bytes) {
    const std::int64_t begin = end_;
    end_ += (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
    return begin;
  }
  [[nodiscard]] std::int64_t bytes() const { return end_; }

 private:
  std::int64_t end_ = 0;
};

std::int64_t head_bytes(const ConstRowsView& rows) {
  return std::int64_t{rows.head_dim} * dtype_bytes(rows.dtype);
}

std::int64_t bytes_of(const ConstRowsView& rows) {
  return head_bytes(rows) * rows.num_tokens * rows.num_heads;
}

template <typename T>
std::int64_t bytes_of(std::span<const T> numbers) {
  return static_cast<std::int64_t>(numbers.size_bytes());
}

// Copies of rows whose heads follow each other in host memory, token by token.
void add_runs(std::vector<CopyRun>& runs, const ConstRowsView& rows, std::byte* to) {
  const std::int64_t head = head_bytes(rows);
  const bool together = rows.head_stride == head;
  const std::int32_t pieces = together ? 1 : rows.num_heads;
  const std::int64_t bytes = together ? head * rows.num_heads : head;
  for (std::int32_t token = 0; token < rows.num_tokens; ++token) {
    for (std::int32_t piece = 0; piece < pieces; ++piece, to += bytes) {
      runs.push_back({.dst = to, .src = rows.at(token, piece), .bytes = bytes});
    }
  }
}

void add_run(std::vector<CopyRun>& runs, std::span<const std::int32_t> numbers, std::byte* to) {
  if (numbers.empty()) return;
  runs.push_back({.dst = to, .src = std::as_bytes(numbers).data(), .bytes = bytes_of(numbers)});
}

// The same rows, packed, in device memory.
ConstRowsView packed(const ConstRowsView& rows, const std::byte* data) {
  const std::int64_t head = head_bytes(rows);
  return {data,           head * rows.num_heads, head,      rows.num_tokens,
          rows.num_heads, rows.head_dim,         rows.dtype};
}

// Adds cuda-node and cuda-merge for "cuda-sm90-tiles: cuda-node, cuda-merge; left out: ...".
void note_kernels(std::string_view explained, std::set<std::string, std::less<>>& names) {
  explained.remove_prefix(std::min(explained.size(), explained.find(": ") + 2));
  explained = explained.substr(0, explained.find(';'));
  while (!explained.empty()) {
    const std::string_view name = explained.substr(0, explained.find(", "));
    if (name != "no rows") names.emplace(name);
    explained.remove_prefix(std::min(explained.size(), name.size() + 2));
  }
}

const std::int32_t* numbers_at(const std::byte* data) {
  return reinterpret_cast<const std::int32_t*>(data);
}

}  // namespace

DType query_dtype(std::int32_t head_dim, DType cache) noexcept {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) return DType::kF32;
  if (cache == DType::kF16) return DType::kF16;
  return cache == DType::kBF16 || has_scales(cache) ? DType::kBF16 : DType::kF32;
}

Result<std::unique_ptr<DeviceCompute>> DeviceCompute::create(std::int32_t ordinal,
                                                             const ModelConfig& config,
                                                             DType dtype) {
  Result<std::shared_ptr<cuda::Device>> device = cuda::Device::open(ordinal);
  if (!device) {
    // A number beyond the last device is a device that is not there.
    const ErrorCode code = device.error().code() == ErrorCode::kInvalidArgument
                               ? ErrorCode::kUnavailable
                               : device.error().code();
    return Status(code, std::string(device.error().message()));
  }
  Result<std::shared_ptr<cuda::Kernels>> kernels = cuda::Kernels::load(*device);
  if (!kernels) return std::move(kernels).error();
  return create(*std::move(device), *std::move(kernels), config, dtype);
}

Result<std::unique_ptr<DeviceCompute>> DeviceCompute::create(std::shared_ptr<cuda::Device> device,
                                                             std::shared_ptr<cuda::Kernels> kernels,
                                                             const ModelConfig& config,
                                                             DType dtype) {
  KVFOLIO_RETURN_IF_ERROR(check_model(config, dtype));
  std::unique_ptr<DeviceCompute> made(new DeviceCompute());
  made->device_ = std::move(device);
  made->kernels_ = std::move(kernels);
  made->query_dtype_ = query_dtype(config.head_dim, dtype);
  Result<std::unique_ptr<cuda::DeviceMemory>> memory =
      cuda::DeviceMemory::create(made->device_, {.kernels = made->kernels_, .later_bytes = 0});
  if (!memory) return std::move(memory).error();
  made->memory_ = *std::move(memory);
  Result<cuda::Stream> stream = cuda::Stream::create(made->device_);
  if (!stream) return std::move(stream).error();
  made->stream_ = *std::move(stream);
  return made;
}

std::string DeviceCompute::name() const {
  std::string name = device_->target() + "-r" + std::to_string(cuda::kKernelRevision);
  if (query_dtype_ != DType::kF32) name += std::string("-q") + to_string(query_dtype_);
  return name;
}

std::vector<std::string> DeviceCompute::take_kernels() {
  std::vector<std::string> taken(attended_.begin(), attended_.end());
  attended_.clear();
  return taken;
}

ConstRowsView DeviceCompute::rounded(const ConstRowsView& q) {
  if (query_dtype_ == DType::kF32) return q;
  ConstRowsView rows = q;
  rows.dtype = query_dtype_;
  rows.head_stride = head_bytes(rows);
  rows.token_stride = rows.head_stride * rows.num_heads;
  rounded_.clear();
  for (std::int32_t token = 0; token < q.num_tokens; ++token) {
    for (std::int32_t head = 0; head < q.num_heads; ++head) {
      const std::byte* from = q.at(token, head);
      for (std::int32_t i = 0; i < q.head_dim; ++i, from += sizeof(float)) {
        float value = 0.0f;
        std::memcpy(&value, from, sizeof value);
        rounded_.push_back(query_dtype_ == DType::kF16 ? f16_from_f32(value)
                                                       : bf16_from_f32(value));
      }
    }
  }
  rows.data = std::as_bytes(std::span(rounded_)).data();
  return rows;
}

Status DeviceCompute::grow(ResourceBytes& array, std::int64_t bytes) {
  if (array.size() >= bytes) return {};
  Result<ResourceBytes> made = ResourceBytes::create(*memory_, 2 * bytes);
  if (!made) return std::move(made).error();
  array = *std::move(made);
  return {};
}

Status DeviceCompute::layer(const LayerCall& call) {
  const ConstRowsView out = {call.out.data,       call.out.token_stride, call.out.head_stride,
                             call.out.num_tokens, call.out.num_heads,    call.out.head_dim,
                             call.out.dtype};
  const ConstRowsView queries = rounded(call.q);
  const unsigned long long no_fault = cuda::kNoEntry;
  Layout layout;
  const std::int64_t k = layout.add(bytes_of(call.k));
  const std::int64_t v = layout.add(bytes_of(call.v));
  const std::int64_t q = layout.add(bytes_of(queries));
  const std::int64_t rows_out = layout.add(bytes_of(out));
  const std::int64_t slots = layout.add(bytes_of(call.slots));
  const std::int64_t query_start = layout.add(bytes_of(call.batch.query_start));
  const std::int64_t kv_lens = layout.add(bytes_of(call.batch.kv_lens));
  const std::int64_t table = layout.add(bytes_of(call.batch.block_table));
  const std::int64_t trim_sinks = layout.add(bytes_of(call.batch.trim_sinks));
  const std::int64_t trim_first_kept = layout.add(bytes_of(call.batch.trim_first_kept));
  const std::int64_t fault = layout.add(sizeof no_fault);
  KVFOLIO_RETURN_IF_ERROR(grow(arrays_, layout.bytes()));
  std::byte* const base = arrays_.data();

  runs_.clear();
  add_runs(runs_, call.k, base + k);
  add_runs(runs_, call.v, base + v);
  add_runs(runs_, queries, base + q);
  add_run(runs_, call.slots, base + slots);
  add_run(runs_, call.batch.query_start, base + query_start);
  add_run(runs_, call.batch.kv_lens, base + kv_lens);
  add_run(runs_, call.batch.block_table, base + table);
  add_run(runs_, call.batch.trim_sinks, base + trim_sinks);
  add_run(runs_, call.batch.trim_first_kept, base + trim_first_kept);
  runs_.push_back({.dst = base + fault,
                   .src = reinterpret_cast<const std::byte*>(&no_fault),
                   .bytes = sizeof no_fault});
  KVFOLIO_RETURN_IF_ERROR(memory_->copy_in(runs_));

  KVFOLIO_RETURN_IF_ERROR(
      cuda::append(*kernels_, call.cache, call.layer, packed(call.k, base + k),
                   packed(call.v, base + v), {numbers_at(base + slots), call.slots.size()},
                   stream_.handle(), reinterpret_cast<cuda::Fault>(base + fault)));

  cuda::DeviceAttention attention;
  attention.cache = call.cache;
  attention.layer = call.layer;
  attention.batch = call.batch;
  attention.batch.block_table = {numbers_at(base + table), call.batch.block_table.size()};
  attention.query_start = numbers_at(base + query_start);
  attention.kv_lens = numbers_at(base + kv_lens);
  if (!call.batch.trim_sinks.empty()) {
    attention.trim_sinks = numbers_at(base + trim_sinks);
    attention.trim_first_kept = numbers_at(base + trim_first_kept);
  }
  attention.params = call.params;
  attention.q = packed(queries, base + q);
  attention.out = call.out;
  attention.out.data = base + rows_out;
  attention.out.head_stride = head_bytes(out);
  attention.out.token_stride = attention.out.head_stride * call.out.num_heads;
  KVFOLIO_RETURN_IF_ERROR(attend(attention));

  unsigned long long found = cuda::kNoEntry;
  runs_.clear();
  add_runs(runs_, out, base + rows_out);
  // The way back: what was a source is where it goes.
  for (CopyRun& run : runs_) {
    std::byte* const host = call.out.data + (run.src - out.data);
    run = {.dst = host, .src = run.dst, .bytes = run.bytes};
  }
  runs_.push_back(
      {.dst = reinterpret_cast<std::byte*>(&found), .src = base + fault, .bytes = sizeof found});
  KVFOLIO_RETURN_IF_ERROR(memory_->copy_out(runs_));
  return cuda::slot_fault(call.cache, found);
}

// Returns when it is done.
Status DeviceCompute::attend(const cuda::DeviceAttention& call) {
  Result<cuda::AttendPlan> plan = cuda::plan_attend(*kernels_, call);
  if (!plan) return std::move(plan).error();
  note_kernels(plan->explain(), attended_);
  const std::int64_t image_bytes = std::ssize(plan->image());
  KVFOLIO_RETURN_IF_ERROR(grow(image_, image_bytes));
  KVFOLIO_RETURN_IF_ERROR(grow(workspace_, plan->workspace_bytes()));
  if (pinned_.bytes() < image_bytes) {
    Result<cuda::PinnedMemory> pinned = cuda::PinnedMemory::allocate(device_, 2 * image_bytes);
    if (!pinned) return std::move(pinned).error();
    pinned_ = *std::move(pinned);
  }
  const std::span<std::byte> pinned(pinned_.data(), static_cast<std::size_t>(pinned_.bytes()));
  KVFOLIO_RETURN_IF_ERROR(
      cuda::upload(*kernels_, *plan, pinned, image_.data(), workspace_.data(), stream_.handle()));
  KVFOLIO_RETURN_IF_ERROR(
      cuda::attend(*kernels_, call, *plan, image_.data(), workspace_.data(), stream_.handle()));
  return stream_.synchronize();
}

}  // namespace kvfolio::llama
