// SPDX-License-Identifier: Apache-2.0
//
// A plan in FlashInfer's form becomes a block table and lengths in a piece of pinned memory, and
// from there in device memory that lies as that piece does; the rest is plan_attend(), upload() and
// attend().

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/library/device_piece.h"
#include "cuda/library/loaded.h"
#include "kvfolio/cuda_memory.h"
#include "kvfolio/cuda_wrapper.h"

namespace kvfolio::cuda {

// What attend() reads of a batch on the host.
struct HostLengths {
  std::vector<std::int32_t> query_start;
  std::vector<std::int32_t> kv_lens;
};

namespace {

using text::concat;

constexpr std::int64_t kMostSequences = std::int64_t{1} << 20;
constexpr std::int64_t kMostColumns = std::int64_t{1} << 24;
constexpr std::int64_t kMostTableBytes = std::int64_t{1} << 34;

Status check_option(std::string_view name, std::int64_t value, std::int64_t low,
                    std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid(concat(name, " is ", value, ", allowed: ", low, " to ", high));
}

Status check_options(const BatchAttentionOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_option("max_sequences", options.max_sequences, 1, kMostSequences));
  KVFOLIO_RETURN_IF_ERROR(
      check_option("max_pages_of_sequence", options.max_pages_of_sequence, 1, kMostColumns));
  KVFOLIO_RETURN_IF_ERROR(
      check_option("max_image_bytes", options.max_image_bytes, 16, std::int64_t{1} << 32));
  KVFOLIO_RETURN_IF_ERROR(
      check_option("workspace_bytes", options.workspace_bytes, 16, std::int64_t{1} << 40));
  KVFOLIO_RETURN_IF_ERROR(check_option("max_tokens", options.max_tokens, 0,
                                       std::int64_t{options.max_sequences} * kMaxSequenceTokens));
  KVFOLIO_RETURN_IF_ERROR(check_option("max_queries", options.max_queries, 1, 1 << 16));
  return check_option("the bytes of a block table, 4 x max_sequences x max_pages_of_sequence,",
                      std::int64_t{4} * options.max_sequences * options.max_pages_of_sequence, 1,
                      kMostTableBytes);
}

Status check_entries(std::string_view name, std::size_t entries, std::size_t needed) {
  if (entries == needed) return {};
  return invalid(concat(name, " has ", entries, " entries, needed: ", needed));
}

// An index of ranges: from 0 on, not falling.
Status check_indptr(std::string_view name, std::span<const std::int32_t> indptr) {
  if (indptr[0] != 0) return invalid(concat(name, "[0] is ", indptr[0], ", allowed: 0"));
  for (std::size_t i = 1; i < indptr.size(); ++i) {
    if (indptr[i] >= indptr[i - 1]) continue;
    return invalid(concat(name, "[", i, "] is ", indptr[i], ", below ", name, "[", i - 1,
                          "], which is ", indptr[i - 1]));
  }
  return {};
}

// What an engine of FlashInfer may ask for and no kernel here does.
Status check_supported(const BatchAttentionPlan& step) {
  if (step.pos_encoding_mode != "NONE") {
    return {ErrorCode::kUnsupported,
            concat("pos_encoding_mode is ", step.pos_encoding_mode,
                   ", allowed: NONE: rotate q and k before, and for slopes call attend()")};
  }
  if (!step.custom_mask.empty()) {
    return {ErrorCode::kUnsupported,
            "custom_mask is given, allowed: none: causal and window_left alone"};
  }
  return {};
}

// Tokens of a sequence.
Result<std::int32_t> length_of(const BatchAttentionPlan& step, std::size_t i) {
  const std::int64_t pages = std::int64_t{step.kv_indptr[i + 1]} - step.kv_indptr[i];
  if (pages == 0) return 0;
  const std::int32_t last = step.kv_last_page_len[i], size = step.paged_kv.block_size;
  if (last < 1 || last > size) {
    return invalid(
        concat("kv_last_page_len[", i, "] is ", last, ", allowed: 1 to ", size, ", the page_size"));
  }
  const std::int64_t tokens = (pages - 1) * size + last;
  if (tokens > kMaxSequenceTokens) {
    return invalid(
        concat("sequence ", i, " has ", tokens, " tokens, allowed: up to ", kMaxSequenceTokens));
  }
  return static_cast<std::int32_t>(tokens);
}

Status check_indices(const BatchAttentionPlan& step) {
  const auto num = static_cast<std::size_t>(step.kv_indptr.back());
  if (step.kv_indices.size() < num) {
    return invalid(
        concat("kv_indices has ", step.kv_indices.size(), " entries, kv_indptr ends at ", num));
  }
  for (std::size_t i = 0; i < num; ++i) {
    const std::int32_t page = step.kv_indices[i];
    if (page >= 0 && page < step.paged_kv.num_blocks) continue;
    return invalid(
        concat("kv_indices[", i, "] is ", page, ", allowed: 0 to ", step.paged_kv.num_blocks - 1));
  }
  return {};
}

// Requires: kv_indptr has an entry.
Status check_sizes(const BatchAttentionPlan& step, const BatchAttentionOptions& options) {
  const std::size_t n = step.kv_indptr.size() - 1;
  if (std::cmp_greater(n, options.max_sequences)) {
    return invalid(
        concat("the plan has ", n, " sequences, there is room for ", options.max_sequences));
  }
  KVFOLIO_RETURN_IF_ERROR(check_entries("kv_last_page_len", step.kv_last_page_len.size(), n));
  if (options.padded && options.max_queries > 1 && step.qo_indptr.empty()) {
    return invalid(concat("qo_indptr is empty, needed: ", n + 1,
                          " entries, in a decode 0, 1, 2 ...", ": a padded plan of max_queries ",
                          options.max_queries, " has one mask for decodes and chunks"));
  }
  if (!step.qo_indptr.empty()) {
    KVFOLIO_RETURN_IF_ERROR(check_entries("qo_indptr", step.qo_indptr.size(), n + 1));
    KVFOLIO_RETURN_IF_ERROR(check_indptr("qo_indptr", step.qo_indptr));
  }
  KVFOLIO_RETURN_IF_ERROR(check_indptr("kv_indptr", step.kv_indptr));
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t pages = step.kv_indptr[i + 1] - step.kv_indptr[i];
    if (pages <= options.max_pages_of_sequence) continue;
    return invalid(concat("sequence ", i, " has ", pages, " pages, there is room for ",
                          options.max_pages_of_sequence));
  }
  return {};
}

Status check_step(const BatchAttentionPlan& step, const BatchAttentionOptions& options) {
  if (step.kv_indptr.empty()) return invalid("kv_indptr has 0 entries, needed: at least 1");
  const KVView& cache = step.paged_kv;
  if (cache.block_size < 1 || cache.num_blocks < 1) {
    return invalid(concat("paged_kv has ", cache.num_blocks, " pages of ", cache.block_size,
                          " tokens, allowed: at least 1 of each"));
  }
  if (step.num_qo_heads < 1) {
    return invalid(concat("num_qo_heads is ", step.num_qo_heads, ", allowed: at least 1"));
  }
  if (step.window_left < -1 || step.window_left > kMaxSequenceTokens) {
    return invalid(
        concat("window_left is ", step.window_left, ", allowed: -1 to ", kMaxSequenceTokens));
  }
  KVFOLIO_RETURN_IF_ERROR(check_sizes(step, options));
  return check_indices(step);
}

// Requires: check_step(step).ok(). `to` has the capacity.
Status read_lengths(const BatchAttentionPlan& step, HostLengths& to) {
  const std::size_t n = step.kv_indptr.size() - 1;
  to.query_start.clear();
  to.kv_lens.clear();
  for (std::size_t i = 0; i <= n; ++i) {
    to.query_start.push_back(step.qo_indptr.empty() ? static_cast<std::int32_t>(i)
                                                    : step.qo_indptr[i]);
  }
  for (std::size_t i = 0; i < n; ++i) {
    Result<std::int32_t> length = length_of(step, i);
    if (!length) return length.error();
    to.kv_lens.push_back(*length);
  }
  return {};
}

AttentionParams params_of(const BatchAttentionPlan& step, const BatchAttentionOptions& options) {
  AttentionParams params;
  params.scale = step.sm_scale != 0
                     ? step.sm_scale
                     : 1.0 / std::sqrt(static_cast<double>(step.paged_kv.head_dim_k));
  // The one row of a decode is the last position: it sees the same either way, and a sequence
  // without pages is allowed. A padded plan has one mask for all steps.
  params.causal =
      step.causal && (options.padded ? options.max_queries > 1 : !step.qo_indptr.empty());
  if (step.window_left >= 0) params.rule = GroupRule::of_window(step.window_left + 1);
  params.soft_cap = step.logits_soft_cap;
  return params;
}

std::string text_of(double number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), number).ptr};
}
std::string text_of(bool is) { return is ? "true" : "false"; }
std::string text_of_window(const GroupRule& rule) {
  return rule.kind() == AttentionKind::kFull ? "-1"
                                             : text_of(static_cast<double>(rule.window() - 1));
}

// A captured run() keeps them, and no shape() says so.
Status check_kept(const AttentionParams& step, const AttentionParams& kept) {
  struct Kept {
    std::string_view name;
    std::string here, there;
  };
  const Kept all[] = {{"causal", text_of(step.causal), text_of(kept.causal)},
                      {"sm_scale", text_of(step.scale), text_of(kept.scale)},
                      {"window_left", text_of_window(step.rule), text_of_window(kept.rule)},
                      {"logits_soft_cap", text_of(step.soft_cap), text_of(kept.soft_cap)}};
  for (const Kept& one : all) {
    if (one.here == one.there) continue;
    return invalid(concat(one.name, " is ", one.here, ", that of the first padded plan is ",
                          one.there,
                          ", which a captured graph keeps: make another BatchAttention"));
  }
  return {};
}

}  // namespace

struct BatchAttention::Impl {
  // In device memory, and up to the end of the image in each pinned piece.
  struct Places {
    std::int64_t query_start = 0;
    std::int64_t kv_lens = 0;
    std::int64_t table = 0;
    std::int64_t image = 0;
    std::int64_t workspace = 0;
    std::int64_t end = 0;
  };

  std::shared_ptr<Kernels> kernels;
  BatchAttentionOptions options;
  Places at;
  DevicePiece memory;
  PinnedPiece pieces[2];
  std::size_t next = 0;
  std::optional<AttendPlan> plan;
  HostLengths lengths, coming;
  DeviceAttention call;                 // of the plan, but for what run() is given
  std::optional<AttentionParams> kept;  // of the first plan that was padded

  Status allocate();
  [[nodiscard]] DeviceAttention call_of(const BatchAttentionPlan& step) const;
  [[nodiscard]] AttendCapacity capacity_of(const BatchAttentionPlan& step) const;
  [[nodiscard]] Status check_room(const AttendPlan& made) const;
  Status wait_for(PinnedPiece& piece);
  void write(const BatchAttentionPlan& step, std::byte* to) const;
  Status send(const BatchAttentionPlan& step, const AttendPlan& made, void* stream);
};

Status BatchAttention::Impl::allocate() {
  std::int64_t end = 0;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t begin = end;
    end += (bytes + 255) / 256 * 256;
    return begin;
  };
  const std::int64_t n = options.max_sequences;
  at.query_start = take(4 * (n + 1));
  at.kv_lens = take(4 * n);
  at.table = take(4 * n * options.max_pages_of_sequence);
  at.image = take(options.max_image_bytes);
  at.workspace = end;
  take(options.workspace_bytes);
  at.end = end;
  const std::shared_ptr<Device>& device = kernels->impl().device;
  Result<DevicePiece> piece = DevicePiece::allocate(device, at.end);
  if (!piece) return piece.error();
  memory = *std::move(piece);
  for (PinnedPiece& each : pieces) {
    Result<PinnedMemory> bytes = PinnedMemory::allocate(device, at.workspace);
    if (!bytes) return bytes.error();
    each.memory = *std::move(bytes);
    // What lies between two arrays is copied with them.
    std::memset(each.memory.data(), 0, static_cast<std::size_t>(at.workspace));
    Result<Event> event = Event::create(device);
    if (!event) return event.error();
    each.copied = *std::move(event);
  }
  for (HostLengths* each : {&lengths, &coming}) {
    each->query_start.reserve(static_cast<std::size_t>(n + 1));
    each->kv_lens.reserve(static_cast<std::size_t>(n));
  }
  return {};
}

DeviceAttention BatchAttention::Impl::call_of(const BatchAttentionPlan& step) const {
  DeviceAttention made;
  made.cache = step.paged_kv;
  const std::int32_t columns = options.max_pages_of_sequence;
  made.batch = {.query_start = coming.query_start,
                .kv_lens = coming.kv_lens,
                .block_table = {memory.at<const std::int32_t>(at.table),
                                coming.kv_lens.size() * static_cast<std::size_t>(columns)},
                .block_table_stride = columns};
  made.query_start = memory.at<const std::int32_t>(at.query_start);
  made.kv_lens = memory.at<const std::int32_t>(at.kv_lens);
  made.params = params_of(step, options);
  // Rows come with run(); here is only what they look like.
  auto* const rows = memory.at<std::byte>(at.workspace);
  const std::int32_t count = coming.query_start.back();
  made.q =
      contiguous_rows(rows, count, step.num_qo_heads, step.paged_kv.head_dim_k, step.q_data_type);
  made.out =
      contiguous_rows(rows, count, step.num_qo_heads, step.paged_kv.head_dim_v, step.o_data_type);
  return made;
}

AttendCapacity BatchAttention::Impl::capacity_of(const BatchAttentionPlan& step) const {
  const std::int64_t tokens =
      std::int64_t{options.max_pages_of_sequence} * step.paged_kv.block_size;
  AttendCapacity capacity = {.max_sequences = options.max_sequences,
                             .max_sequence_tokens = static_cast<std::int32_t>(
                                 std::min<std::int64_t>(tokens, kMaxSequenceTokens)),
                             .max_tokens = 0,
                             .max_queries = options.max_queries};
  const std::int64_t all =
      std::int64_t{capacity.max_sequences} * std::int64_t{capacity.max_sequence_tokens};
  if (options.max_tokens < all) capacity.max_tokens = options.max_tokens;
  return capacity;
}

Status BatchAttention::Impl::check_room(const AttendPlan& made) const {
  const auto image = static_cast<std::int64_t>(made.image().size());
  if (image > options.max_image_bytes) {
    return invalid(concat("the plan's image has ", image, " bytes, there is room for ",
                          options.max_image_bytes, ": max_image_bytes"));
  }
  if (made.workspace_bytes() > options.workspace_bytes) {
    return invalid(concat("the plan needs ", made.workspace_bytes(),
                          " bytes of workspace, there is room for ", options.workspace_bytes,
                          ": workspace_bytes"));
  }
  return {};
}

Status BatchAttention::Impl::wait_for(PinnedPiece& piece) {
  if (!piece.lost) return piece.copied.synchronize();
  KVFOLIO_RETURN_IF_ERROR(kernels->device().synchronize());
  piece.lost = false;
  return {};
}

void BatchAttention::Impl::write(const BatchAttentionPlan& step, std::byte* to) const {
  const auto put = [&](std::int64_t place, std::span<const std::int32_t> values) {
    if (!values.empty()) std::memcpy(to + place, values.data(), values.size_bytes());
  };
  put(at.query_start, coming.query_start);
  put(at.kv_lens, coming.kv_lens);
  if (options.padded && coming.kv_lens.empty()) {  // a row that no sequence has is not read
    std::memset(to + at.query_start, 0, 2 * sizeof(std::int32_t));
  }
  const std::int64_t row = std::int64_t{4} * options.max_pages_of_sequence;
  for (std::size_t i = 0; i < coming.kv_lens.size(); ++i) {
    const auto first = static_cast<std::size_t>(step.kv_indptr[i]);
    const auto end = static_cast<std::size_t>(step.kv_indptr[i + 1]);
    put(at.table + static_cast<std::int64_t>(i) * row, step.kv_indices.subspan(first, end - first));
  }
}

Status BatchAttention::Impl::send(const BatchAttentionPlan& step, const AttendPlan& made,
                                  void* stream) {
  PinnedPiece& piece = pieces[next];
  KVFOLIO_RETURN_IF_ERROR(wait_for(piece));
  write(step, piece.memory.data());
  piece.lost = true;
  next = 1 - next;
  const std::int64_t bytes = at.table + std::int64_t{4} *
                                            static_cast<std::int64_t>(coming.kv_lens.size()) *
                                            options.max_pages_of_sequence;
  KVFOLIO_RETURN_IF_ERROR(
      kernels->device().run([&] { return concat("to copy a block table of ", bytes, " bytes"); },
                            [&](const DriverCalls& calls) {
                              return calls.copy_in(memory.address(), piece.memory.data(),
                                                   static_cast<std::size_t>(bytes), stream);
                            }));
  const std::span<std::byte> image(piece.memory.data() + at.image,
                                   static_cast<std::size_t>(options.max_image_bytes));
  KVFOLIO_RETURN_IF_ERROR(upload(*kernels, made, image, memory.at<std::byte>(at.image),
                                 memory.at<std::byte>(at.workspace), stream));
  KVFOLIO_RETURN_IF_ERROR(piece.copied.record(stream));
  piece.lost = false;
  return {};
}

// ---- the public calls ----

Result<KVView> paged_kv_view(const PagedKV& tensors) {
  if (tensors.k == nullptr) return invalid("k is null");
  for (const auto& [name, count] : {std::pair{"num_pages", tensors.num_pages},
                                    {"page_size", tensors.page_size},
                                    {"num_kv_heads", tensors.num_kv_heads},
                                    {"head_dim", tensors.head_dim}}) {
    if (count < 1) return invalid(concat(name, " is ", count, ", allowed: at least 1"));
  }
  if (tensors.layout != Format::kNhd && tensors.layout != Format::kHnd) {
    return invalid("layout is neither kNhd nor kHnd");
  }
  if (tensors.dtype != DType::kF32 && tensors.dtype != DType::kF16 &&
      tensors.dtype != DType::kBF16) {
    return Status(ErrorCode::kUnsupported,
                  concat("dtype is ", to_string(tensors.dtype), ", allowed: f32, f16, bf16"));
  }
  const bool nhd = tensors.layout == Format::kNhd;
  const std::int64_t row = std::int64_t{tensors.head_dim} * dtype_bytes(tensors.dtype);
  const std::int64_t page = row * tensors.num_kv_heads * tensors.page_size;
  KVView view;
  view.k = tensors.k;
  view.v = tensors.v != nullptr ? tensors.v : tensors.k + page;
  view.k_strides = {.layer = 0,
                    .block = tensors.v != nullptr ? page : 2 * page,
                    .head = nhd ? row : row * tensors.page_size,
                    .token = nhd ? row * tensors.num_kv_heads : row};
  view.v_strides = view.k_strides;
  view.num_layers = 1;
  view.num_blocks = tensors.num_pages;
  view.block_size = tensors.page_size;
  view.num_kv_heads = tensors.num_kv_heads;
  view.head_dim_k = view.head_dim_v = tensors.head_dim;
  view.dtype = tensors.dtype;
  view.memory_kind = MemoryKind::kDevice;
  return view;
}

Result<std::unique_ptr<BatchAttention>> BatchAttention::create(
    const std::shared_ptr<Kernels>& kernels, const BatchAttentionOptions& options) {
  if (kernels == nullptr) return invalid("kernels is null");
  KVFOLIO_RETURN_IF_ERROR(check_options(options));
  auto impl = std::make_unique<Impl>();
  impl->kernels = kernels;
  impl->options = options;
  KVFOLIO_RETURN_IF_ERROR(impl->allocate());
  return std::make_unique<BatchAttention>(std::move(impl));
}

BatchAttention::BatchAttention(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

BatchAttention::~BatchAttention() {
  for (PinnedPiece& piece : impl_->pieces) {
    static_cast<void>(piece.lost ? impl_->kernels->device().synchronize()
                                 : piece.copied.synchronize());
  }
}

Status BatchAttention::plan(const BatchAttentionPlan& step, void* stream) {
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(check_supported(step));
  KVFOLIO_RETURN_IF_ERROR(check_step(step, m.options));
  KVFOLIO_RETURN_IF_ERROR(read_lengths(step, m.coming));
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(*m.kernels, stream).status());
  KVFOLIO_RETURN_IF_ERROR(
      check_not_captured(m.kernels->device(), stream, "a plan is made in front of a graph"));
  const DeviceAttention call = m.call_of(step);
  if (m.kept) KVFOLIO_RETURN_IF_ERROR(check_kept(call.params, *m.kept));
  Result<AttendPlan> made = m.options.padded ? plan_attend(*m.kernels, call, m.capacity_of(step))
                                             : plan_attend(*m.kernels, call);
  if (!made) return made.error();
  KVFOLIO_RETURN_IF_ERROR(m.check_room(*made));
  // From here on the plan before is no longer what lies on the device.
  m.plan.reset();
  KVFOLIO_RETURN_IF_ERROR(m.send(step, *made, stream));
  m.call = call;  // its spans are of what is swapped now, and stay
  std::swap(m.lengths, m.coming);
  m.plan = *std::move(made);
  if (m.options.padded) m.kept = m.call.params;
  return {};
}

Status BatchAttention::run(const ConstRowsView& q, const KVView& paged_kv, const RowsView& out,
                           float* lse, void* stream, std::int32_t layer) {
  Impl& m = *impl_;
  if (!m.plan) return {ErrorCode::kFailedPrecondition, "run: there is no plan, call plan() first"};
  DeviceAttention call = m.call;
  call.cache = paged_kv;
  call.layer = layer;
  call.q = q;
  call.out = out;
  call.lse = lse;
  return attend(*m.kernels, call, *m.plan, m.memory.at<const std::byte>(m.at.image),
                m.memory.at<std::byte>(m.at.workspace), stream);
}

AttendShape BatchAttention::shape() const noexcept {
  return impl_->plan ? impl_->plan->shape() : AttendShape{};
}
std::string_view BatchAttention::target() const noexcept {
  return impl_->plan ? impl_->plan->target() : std::string_view();
}
std::int64_t BatchAttention::device_bytes() const noexcept { return impl_->at.end; }
std::int64_t BatchAttention::pinned_bytes() const noexcept { return 2 * impl_->at.workspace; }

}  // namespace kvfolio::cuda
