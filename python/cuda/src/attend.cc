// SPDX-License-Identifier: Apache-2.0

// Attention over blocks in device memory. A plan is cut on the host and sent on a stream; each
// layer of the step then starts its kernels with it.

#include "attend.h"

#include <algorithm>
#include <cstring>

#include "arrays.h"
#include "masks.h"

namespace kvfolio::python {

// ---- memory of plans ----

void PlanMemory::give_back() noexcept {
  static_cast<void>(device_->wait(last));
  for (Piece* piece : {&lengths_, &work_}) {
    if (piece->data == nullptr) continue;
    const Result<cuda::DeviceMemory*> pool = device_->pool();
    if (pool) (*pool)->deallocate(piece->data, piece->bytes);
    *piece = {};
  }
  for (Sent& sent : sent_) sent = {};
}

PlanMemory::~PlanMemory() {
  end_without_gil([this] { give_back(); });
}

Status PlanMemory::reserve(Piece& piece, std::int64_t bytes) {
  if (bytes <= piece.bytes) return {};
  const Result<cuda::DeviceMemory*> pool = device_->pool();
  if (!pool) return pool.error();
  // Half as much again, since the batches of an engine grow a little each step.
  const std::int64_t wanted = bytes + bytes / 2;
  const Result<std::byte*> memory = (*pool)->allocate(wanted);
  if (!memory) return memory.error();
  if (piece.data != nullptr) {
    static_cast<void>(device_->wait(last));
    (*pool)->deallocate(piece.data, piece.bytes);
  }
  piece = {*memory, wanted};
  return {};
}

Result<PlanMemory::Sent*> PlanMemory::next_sent(std::int64_t bytes) {
  Sent& sent = sent_[turn_];
  turn_ = 1 - turn_;
  KVFOLIO_RETURN_IF_ERROR(device_->wait(sent.last));
  if (sent.pinned.bytes() < bytes) {
    Result<cuda::PinnedMemory> pinned = cuda::PinnedMemory::allocate(
        std::shared_ptr<cuda::Device>(device_, &device_->device()), bytes + bytes / 2);
    if (!pinned) return pinned.error();
    sent.pinned = *std::move(pinned);
  }
  return &sent;
}

AttentionBatch host_batch(const CudaBatch& batch) {
  AttentionBatch result;
  result.query_start = batch.query_start;
  result.kv_lens = batch.kv_lens;
  result.trim_sinks = batch.trim_sinks;
  result.trim_first_kept = batch.trim_first_kept;
  return result;
}

namespace {

constexpr std::int64_t kAligned = 256;
std::int64_t aligned(std::int64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

// ---- a batch ----

std::vector<std::int32_t> numbers_on_host(nb::handle object, const char* name) {
  if (object.is_none()) return {};
  check_on_host(object, name);
  const Input<std::int32_t> input(object, name);
  return {input.span().begin(), input.span().end()};
}

// Its lengths, one behind the other.
std::array<const std::vector<std::int32_t>*, 4> lengths_of(const CudaBatch& batch) {
  return {&batch.query_start, &batch.kv_lens, &batch.trim_sinks, &batch.trim_first_kept};
}
// A table without entries has no address: some of the device, then.
void set_table(const Lent& table, const CudaView& cache, cuda::DeviceAttention& call) {
  constexpr const char* kName = "block_table";
  if (table.dtype.code != dl::kInt || table.dtype.bits != 32) {
    raise_type(std::string(kName) + ": " + table.text() +
               ", wanted: int32 (no array is converted)");
  }
  if (table.ndim() != 2) {
    raise_invalid(std::string(kName) + ": " + table.text() + ", wanted: [num_sequences, widest]");
  }
  const std::int64_t columns = table.shape[1];
  if (!table.empty() && ((columns > 1 && table.strides[1] != 1) ||
                         (table.shape[0] > 1 && table.strides[0] != columns))) {
    raise_invalid(std::string(kName) + ": a tensor with strides (" +
                  std::to_string(table.strides[0]) + ", " + std::to_string(table.strides[1]) +
                  "), wanted: a contiguous one");
  }
  call.batch.block_table_stride = i32(Int{columns}, kName);
  const std::byte* const data = table.empty() ? cache.view.k : table.data;
  call.batch.block_table = {static_cast<const std::int32_t*>(static_cast<const void*>(data)),
                            static_cast<std::size_t>(table.shape[0] * columns)};
}

// ---- tensors of a call ----

std::span<const float> per_head_of(const Lent& lent, const char* name) {
  if (lent.dtype.code != dl::kFloat || lent.dtype.bits != 32 || lent.ndim() != 1 ||
      (lent.shape[0] > 1 && lent.strides[0] != 1)) {
    raise_type(std::string(name) + ": " + lent.text() +
               ", wanted: a contiguous float32 tensor [q_heads] (no array is converted)");
  }
  return {static_cast<const float*>(static_cast<const void*>(lent.data)),
          static_cast<std::size_t>(lent.shape[0])};
}

float* lse_of(const Lent& lent, const ConstRowsView& q) {
  const std::vector<std::int64_t> wanted{q.num_tokens, q.num_heads};
  std::vector<std::int64_t> shape = lent.shape;
  if (shape.size() == 3 && shape[2] == 1) shape.pop_back();
  const bool contiguous =
      lent.empty() || ((shape.size() < 2 || q.num_heads == 1 || lent.strides[1] == 1) &&
                       (q.num_tokens <= 1 || lent.strides[0] == q.num_heads));
  if (shape == wanted && contiguous && lent.dtype.code == dl::kFloat && lent.dtype.bits == 32) {
    return static_cast<float*>(static_cast<void*>(lent.data));
  }
  raise_invalid("lse: " + lent.text() + ", wanted: a contiguous float32 tensor of shape (" +
                std::to_string(q.num_tokens) + ", " + std::to_string(q.num_heads) + ")");
}

// What one layer is given.
struct GivenLayer {
  nb::handle q, out, lse, block_table, alibi_slopes, sink_logits;
  Int layer;
};

cuda::DeviceAttention layer_call(Call& call, const CudaView& cache, const GivenLayer& given,
                                 const PlanState& state) {
  cuda::DeviceAttention result;
  const auto lent = [&](nb::handle object, const char* name, Use use, auto&& read) {
    if (object.is_none()) return;
    Lent tensor = call.lent(object, name, use);
    read(tensor);
    call.keep(tensor);
  };
  result.cache = cache.view;
  result.layer = i32(given.layer, "layer");
  result.params = state.params;
  result.batch = host_batch(state.batch);
  if (given.q.is_none()) raise_type("q is None");
  if (given.out.is_none()) raise_type("out is None, wanted: a tensor of the device");
  lent(given.q, "q", Use::kRead, [&](Lent& q) { result.q = rows_at(q, "q", cache); });
  lent(given.out, "out", Use::kWrite, [&](Lent& out) { result.out = rows_at(out, "out", cache); });
  lent(given.lse, "lse", Use::kWrite, [&](Lent& lse) { result.lse = lse_of(lse, result.q); });
  lent(given.block_table, "block_table", Use::kRead,
       [&](Lent& table) { set_table(table, cache, result); });
  lent(given.alibi_slopes, "alibi_slopes", Use::kRead,
       [&](Lent& slopes) { result.params.alibi_slopes = per_head_of(slopes, "alibi_slopes"); });
  lent(given.sink_logits, "sink_logits", Use::kRead,
       [&](Lent& logits) { result.params.sink_logits = per_head_of(logits, "sink_logits"); });
  return result;
}

const std::int32_t** length_fields(cuda::DeviceAttention& call, std::size_t which) {
  const std::int32_t** const fields[] = {&call.query_start, &call.kv_lens, &call.trim_sinks,
                                         &call.trim_first_kept};
  return fields[which];
}

// Where the lengths of a batch lie on the device.
void set_lengths(const PlanState& state, cuda::DeviceAttention& call) {
  const std::byte* at = state.memory->lengths();
  const std::array<std::int64_t, 4> entries = length_entries(state);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i >= 2 && !state.batch.has_trims) continue;
    *length_fields(call, i) = static_cast<const std::int32_t*>(static_cast<const void*>(at));
    at += entries[i] * std::int64_t{sizeof(std::int32_t)};
  }
}

// The same, or the tensors that plan_on_device() read, for as long as the call needs them.
void lend_lengths(Call& call, const PlanState& state, cuda::DeviceAttention& layer) {
  if (state.there.empty()) return set_lengths(state, layer);
  for (std::size_t i = 0; i < state.there.size(); ++i) {
    Lent tensor = call.lent(state.there[i], kLengthNames[i], Use::kRead);
    *length_fields(layer, i) = length_there(tensor, i, *state.capacity);
    call.keep(tensor);
  }
}

// ---- plans ----

// Cuts the work, and makes room for it. Requires: no GIL.
Status cut(PlanState& state, cuda::DeviceAttention& call, PlanMemory::Sent*& sent) {
  PlanMemory& memory = *state.memory;
  DeviceState& device = *memory.device();
  KVFOLIO_RETURN_IF_ERROR(memory.reserve_lengths(std::max<std::int64_t>(length_bytes(state), 1)));
  set_lengths(state, call);
  Result<cuda::AttendPlan> plan = state.capacity
                                      ? cuda::plan_attend(device.kernels(), call, *state.capacity)
                                      : cuda::plan_attend(device.kernels(), call);
  if (!plan) return plan.error();
  const auto image = static_cast<std::int64_t>(plan->image().size());
  state.image_bytes = aligned(image);
  KVFOLIO_RETURN_IF_ERROR(
      memory.reserve_work(std::max<std::int64_t>(state.image_bytes + plan->workspace_bytes(), 1)));
  Result<PlanMemory::Sent*> piece =
      memory.next_sent(std::max<std::int64_t>(state.image_bytes + length_bytes(state), 1));
  if (!piece) return piece.error();
  sent = *piece;
  state.plan.emplace(*std::move(plan));
  return {};
}

void write_lengths(const PlanState& state, std::span<std::byte> to) {
  const std::array<std::int64_t, 4> entries = length_entries(state);
  if (!to.empty()) std::memset(to.data(), 0, to.size());
  std::byte* at = to.data();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::vector<std::int32_t>& lengths = *lengths_of(state.batch)[i];
    if (!lengths.empty()) std::memcpy(at, lengths.data(), lengths.size() * sizeof(std::int32_t));
    at += entries[i] * std::int64_t{sizeof(std::int32_t)};
  }
  if (!state.capacity) return;
  const unsigned long long none = cuda::kNoEntry;
  std::memcpy(to.data() + (to.size() - sizeof(none)), &none, sizeof(none));
}

// Requires: no GIL.
Status send(PlanState& state, const PlanMemory::Sent& sent, void* stream) {
  PlanMemory& memory = *state.memory;
  cuda::Kernels& kernels = memory.device()->kernels();
  KVFOLIO_RETURN_IF_ERROR(DeviceState::hold_back(memory.last, stream));
  const std::span<std::byte> lengths(sent.pinned.data() + state.image_bytes,
                                     static_cast<std::size_t>(length_bytes(state)));
  write_lengths(state, lengths);
  KVFOLIO_RETURN_IF_ERROR(cuda::upload(kernels, lengths, memory.lengths(), stream));
  return cuda::upload(kernels, *state.plan,
                      {sent.pinned.data(), static_cast<std::size_t>(sent.pinned.bytes())},
                      memory.work(), memory.work() + state.image_bytes, stream);
}

struct GivenPlan {
  nb::handle q, out, alibi_slopes, sink_logits;
  Int layer;
  GivenMask mask;
  nb::handle capacity = nb::none();
};

// What a call of the plan looks like, without anything of the caller's: addresses of the plan's own
// memory stand for its tensors.
cuda::DeviceAttention looks_of(const PlanState& state, cuda::DeviceAttention call) {
  std::byte* const own = state.memory->work();
  for (std::byte** const each :
       {&call.cache.k, &call.cache.v, &call.cache.k_scale, &call.cache.v_scale}) {
    if (*each != nullptr) *each = own;
  }
  const auto* const table = static_cast<const std::int32_t*>(static_cast<const void*>(own));
  call.batch.block_table = {table, call.batch.block_table.size()};
  const auto* const numbers = static_cast<const float*>(static_cast<const void*>(own));
  for (std::span<const float>* const each : {&call.params.alibi_slopes, &call.params.sink_logits}) {
    if (!each->empty()) *each = {numbers, each->size()};
  }
  call.q.data = own;
  call.out.data = own;
  call.lse = nullptr;
  return call;
}

std::shared_ptr<PlanState> make_plan(const CudaView& cache, nb::handle batch,
                                     const GivenPlan& given, std::unique_ptr<PlanMemory>& reused,
                                     nb::handle stream) {
  Call look(cache, stream, false);  // at shapes; the tensors go with it
  auto state = std::make_shared<PlanState>();
  state->batch = object_of<CudaBatch>(batch, "batch", "a kvfolio.cuda.Batch");
  if (!given.capacity.is_none()) {
    state->capacity =
        object_of<cuda::AttendCapacity>(given.capacity, "capacity", "an AttendCapacity or None");
  }
  set_mask(given.mask, cache.view.head_dim_k, state->params);
  state->alibi_slopes = nb::borrow(given.alibi_slopes);
  state->sink_logits = nb::borrow(given.sink_logits);
  cuda::DeviceAttention layer =
      layer_call(look, cache,
                 {given.q, given.out, nb::none(), state->batch.block_table, given.alibi_slopes,
                  given.sink_logits, given.layer},
                 *state);
  const std::shared_ptr<DeviceState>& device = cache.state->device;
  const bool fits = reused != nullptr && reused->device() == device;
  state->memory = fits ? std::move(reused) : std::make_unique<PlanMemory>(device);
  const std::byte* const lengths = state->memory->lengths();
  PlanMemory::Sent* sent = nullptr;
  Status status;
  {
    const ReleasedGil release;
    status = cut(*state, layer, sent);
  }
  if (!status.ok()) {
    // Nothing was written; if it grew, what the older plan wrote is gone.
    if (fits && state->memory->lengths() == lengths) reused = std::move(state->memory);
    raise(status);
  }
  if (state->capacity) state->looks = looks_of(*state, layer);
  Call call(cache, stream, true);
  call.uses(state->memory->last);
  call.uses(sent->last);
  call.run([&] { return send(*state, *sent, call.stream()); });
  return state;
}

void attend_layer(PlanState& state, const CudaView& cache, const GivenLayer& given,
                  nb::handle stream, bool keep) {
  check_has_memory(state);
  if (state.memory->device() != cache.state->device) {
    raise_invalid("cache is on device " + std::to_string(cache.state->device->device().ordinal()) +
                  ", the plan on device " +
                  std::to_string(state.memory->device()->device().ordinal()));
  }
  Call call(cache, stream, keep);
  call.uses(state.memory->last);
  cuda::DeviceAttention layer = layer_call(call, cache, given, state);
  lend_lengths(call, state, layer);
  call.run([&]() -> Status {
    const PlanMemory& memory = *state.memory;
    if (call.keeps()) KVFOLIO_RETURN_IF_ERROR(DeviceState::hold_back(memory.last, call.stream()));
    return cuda::attend(call.kernels(), layer, *state.plan, memory.work(),
                        memory.work() + state.image_bytes, call.stream());
  });
}

nb::handle or_default(nb::handle given, const nb::object& otherwise) {
  return given.is_none() ? nb::handle(otherwise) : given;
}

CudaAttendPlan plan_rows(nb::handle q, const CudaView& cache, nb::handle batch, nb::handle out,
                         nb::handle scale, bool causal, nb::handle window, nb::handle num_sinks,
                         nb::handle chunk, double soft_cap, nb::handle alibi_slopes,
                         nb::handle sink_logits, Int layer, nb::handle reuse, nb::handle capacity,
                         nb::handle stream) {
  const GivenPlan given{q,           out,   alibi_slopes,
                        sink_logits, layer, {scale, causal, window, num_sinks, chunk, soft_cap},
                        capacity};
  std::unique_ptr<PlanMemory> none;
  if (reuse.is_none()) return {make_plan(cache, batch, given, none, stream)};
  auto& old = object_of<CudaAttendPlan>(reuse, "reuse", "an AttendPlan or None");
  return {make_plan(cache, batch, given, old.state->memory, stream)};
}

nb::object attend_rows(nb::handle q, const CudaView& cache, nb::handle batch, nb::object out,
                       nb::handle lse, nb::handle scale, bool causal, nb::handle window,
                       nb::handle num_sinks, nb::handle chunk, double soft_cap,
                       nb::handle alibi_slopes, nb::handle sink_logits, Int layer,
                       nb::handle stream) {
  const GivenPlan given{q,           out,   alibi_slopes,
                        sink_logits, layer, {scale, causal, window, num_sinks, chunk, soft_cap},
                        nb::none()};
  // The storage keeps memory for such calls; another thread that is in one has it.
  std::unique_ptr<PlanMemory> memory = std::move(cache.state->plans);
  std::shared_ptr<PlanState> state;
  try {
    state = make_plan(cache, batch, given, memory, stream);
    attend_layer(*state, cache,
                 {q, out, lse, state->batch.block_table, alibi_slopes, sink_logits, layer}, stream,
                 true);
  } catch (...) {
    if (state != nullptr) memory = std::move(state->memory);
    cache.state->plans = std::move(memory);
    throw;
  }
  cache.state->plans = std::move(state->memory);
  return out;
}

#define KVFOLIO_MASK_SIGNATURE                                                      \
  "scale: float | None = None, causal: bool = True, window: int | None = None, "    \
  "num_sinks: int | None = None, chunk: int | None = None, soft_cap: float = 0.0, " \
  "alibi_slopes: kvfolio._types.SupportsDLPack | None = None, "                     \
  "sink_logits: kvfolio._types.SupportsDLPack | None = None, layer: int = 0, "

void add_batch(nb::module_& m) {
  nb::class_<CudaBatch>(m, "Batch",
                        "The arrays of a ragged batch for attend(). Lengths are of the host and "
                        "copied, the block table is a tensor of the device and kept.")
      .def(
          "__init__",
          [](CudaBatch* self, nb::handle query_start, nb::handle kv_lens, nb::object block_table,
             nb::handle trim_sinks, nb::handle trim_first_kept) {
            CudaBatch batch{numbers_on_host(query_start, "query_start"),
                            numbers_on_host(kv_lens, "kv_lens"),
                            numbers_on_host(trim_sinks, "trim_sinks"),
                            numbers_on_host(trim_first_kept, "trim_first_kept"),
                            std::move(block_table),
                            !trim_sinks.is_none() || !trim_first_kept.is_none()};
            if (batch.block_table.is_none()) {
              raise_type("block_table is None, wanted: a tensor of the device");
            }
            new (self) CudaBatch(std::move(batch));
          },
          "query_start"_a, "kv_lens"_a, "block_table"_a.none(), "trim_sinks"_a = nb::none(),
          "trim_first_kept"_a = nb::none(),
          nb::sig("def __init__(self, query_start: kvfolio._types.Int32Input, kv_lens: "
                  "kvfolio._types.Int32Input, block_table: kvfolio._types.SupportsDLPack, "
                  "trim_sinks: kvfolio._types.Int32Input | None = None, trim_first_kept: "
                  "kvfolio._types.Int32Input | None = None) -> None"),
          "query_start [n + 1], kv_lens [n], trims [n]: arrays of the host or ints. block_table "
          "[n or more, widest]: int32, contiguous, of the device. attend() trusts its entries.");
}

void add_plan_class(nb::module_& m) {
  nb::class_<CudaAttendPlan> c(
      m, "AttendPlan",
      "How the work of a batch is cut, for all layers of one shape: see plan_attend(). Its end "
      "waits for the kernels that read it.");
  c.def(
       "attend",
       [](const CudaAttendPlan& self, nb::handle q, const CudaView& cache, nb::object out,
          nb::handle lse, Int layer, nb::handle alibi_slopes, nb::handle sink_logits,
          nb::handle block_table, nb::handle stream, bool keep) {
         PlanState& state = *self.state;
         attend_layer(state, cache,
                      {q, out, lse, or_default(block_table, state.batch.block_table),
                       or_default(alibi_slopes, state.alibi_slopes),
                       or_default(sink_logits, state.sink_logits), layer},
                      stream, keep);
         return out;
       },
       "q"_a.none(), "cache"_a, nb::kw_only(), "out"_a.none(), "lse"_a = nb::none(),
       "layer"_a = Int{0}, "alibi_slopes"_a = nb::none(), "sink_logits"_a = nb::none(),
       "block_table"_a = nb::none(), "stream"_a = nb::none(), "keep"_a = true,
       nb::sig("def attend(self, q: kvfolio._types.SupportsDLPack, cache: View, *, "
               "out: typing.Any, lse: kvfolio._types.SupportsDLPack | None = None, "
               "layer: int = 0, alibi_slopes: kvfolio._types.SupportsDLPack | None = None, "
               "sink_logits: kvfolio._types.SupportsDLPack | None = None, "
               "block_table: kvfolio._types.SupportsDLPack | None = None, "
               "stream: typing.Any = None, keep: bool = True) -> typing.Any"),
       "One layer of the plan's batch, as attend(). Slopes, logits and block table: those of "
       "the "
       "plan, or a layer's own. Raises InvalidArgument for other shapes, strides or numbers of "
       "rows than those of the plan, with what differs; FailedPrecondition once another plan "
       "has its memory.")
      .def_prop_ro(
          "target",
          [](const CudaAttendPlan& self) { return std::string(self.state->plan->target()); },
          "\"cuda-sm90-general\" or \"cuda-sm90-tiles\": rows of one name have one set of bits.")
      .def_prop_ro(
          "shape",
          [](const CudaAttendPlan& self) { return shape_tuple(self.state->plan->shape()); },
          nb::sig("def shape(self) -> tuple[int, ...]"),
          "A graph that captured attend() serves every plan of an equal shape at the same "
          "addresses (reuse). That of a padded plan follows from its capacity.")
      .def(
          "explain", [](const CudaAttendPlan& self) { return self.state->plan->explain(); },
          "The target, the kernels that attend() starts, and those that the card has no room for.");
  add_padded(m, c);
}

}  // namespace

void add_attend(nb::module_& m) {
  add_batch(m);
  add_plan_class(m);
  m.def("plan_attend", &plan_rows, "q"_a.none(), "cache"_a, "batch"_a, nb::kw_only(),
        "out"_a.none(), "scale"_a = nb::none(), "causal"_a = true, "window"_a = nb::none(),
        "num_sinks"_a = nb::none(), "chunk"_a = nb::none(), "soft_cap"_a = 0.0,
        "alibi_slopes"_a = nb::none(), "sink_logits"_a = nb::none(), "layer"_a = Int{0},
        "reuse"_a = nb::none(), "capacity"_a = nb::none(), "stream"_a = nb::none(),
        nb::sig("def plan_attend(q: kvfolio._types.SupportsDLPack, cache: View, batch: Batch, *, "
                "out: kvfolio._types.SupportsDLPack, " KVFOLIO_MASK_SIGNATURE
                "reuse: AttendPlan | None = None, capacity: AttendCapacity | None = None, "
                "stream: typing.Any = None) -> AttendPlan"),
        "Cuts the work of a batch and sends it, with the lengths, to memory of the plan on "
        "`stream`, for every layer that has these shapes, strides and masks. Of q and out only "
        "these are looked at. reuse: an older plan whose memory the new one takes, so that it lies "
        "at the same addresses unless it needs more; the older one is refused from then on. It "
        "waits for an upload only if two are still on their way. capacity: the plan is padded to "
        "it, so one captured attend() serves every batch within, planned with reuse in front of a "
        "replay or by plan_on_device() in it; q, out and the block table have room for the "
        "capacity. Raises InvalidArgument with both numbers for a batch that is larger.");
  m.def("attend", &attend_rows, "q"_a.none(), "cache"_a, "batch"_a, nb::kw_only(), "out"_a.none(),
        "lse"_a = nb::none(), "scale"_a = nb::none(), "causal"_a = true, "window"_a = nb::none(),
        "num_sinks"_a = nb::none(), "chunk"_a = nb::none(), "soft_cap"_a = 0.0,
        "alibi_slopes"_a = nb::none(), "sink_logits"_a = nb::none(), "layer"_a = Int{0},
        "stream"_a = nb::none(),
        nb::sig("def attend(q: kvfolio._types.SupportsDLPack, cache: View, batch: Batch, *, "
                "out: typing.Any, lse: kvfolio._types.SupportsDLPack | None = "
                "None, " KVFOLIO_MASK_SIGNATURE "stream: typing.Any = None) -> typing.Any"),
        "softmax(scale * q k^T + mask) v over the blocks, for each row of q, [tokens, q_heads, "
        "head_dim], as kvfolio.attend(): scale, masks, slopes and sinks mean the same. All tensors "
        "are of the device; q and out are float32, float16 or bfloat16, out is [tokens, q_heads, "
        "head_dim_v] and is returned, lse float32 [tokens, q_heads]. Rows are near those of a CPU, "
        "not of the same bits. It plans anew at each call: plan_attend() once, and the plan's "
        "attend() for each layer, cost less.");
}

#undef KVFOLIO_MASK_SIGNATURE

}  // namespace kvfolio::python
