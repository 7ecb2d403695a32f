// SPDX-License-Identifier: Apache-2.0
//
// One piece of device memory has the image of a step (plan_image.h), the resident tables, and what
// is made of both: its addresses are what graphs keep. A step is written to a free piece of pinned
// memory, and goes up in one copy; an event behind the copy says when the piece is free again.

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/invalid.h"
#include "base/mutants.h"
#include "base/text.h"
#include "cuda/library/device_piece.h"
#include "cuda/library/loaded.h"
#include "cuda/plan_image.h"
#include "kvfolio/cuda_memory.h"
#include "kvfolio/cuda_plan.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

constexpr std::uint32_t kEntriesOfBlock = 256;

}  // namespace

// Where the arrays of a group begin that are not in the image; -1: not wanted.
struct MadePlaces {
  std::int64_t table = -1;
  std::int64_t batch = -1;
  std::int64_t indices = -1;
};

struct DevicePlan::Impl {
  Impl(std::shared_ptr<Kernels> kernels_in, PlanImage image_in)
      : kernels(std::move(kernels_in)),
        image(std::move(image_in)),
        rows(image.options().num_rows) {}

  std::shared_ptr<Kernels> kernels;
  PlanImage image;
  ResidentRows rows;
  DevicePiece memory;
  std::int64_t device_bytes = 0;
  std::vector<PinnedPiece> pinned;
  std::size_t next = 0;  // of pinned: the oldest
  std::array<MadePlaces, kMaxGroups> made{};
  DevicePlanArrays arrays;
  std::array<DeviceGroupPlan, kMaxGroups> groups{};
  PlanArgs args;
  UploadInfo last;
  std::uint64_t unapplied = 0;  // the plan that was sent and, as far as is known, not applied

  void forget();
  Status allocate();
  void place();
  void point();
  Status clear_tables();
  // Ok: the piece `next` is free.
  Status find_free_piece();
  Status send(const StepPlan& plan, void* stream);
  // Where it fails, what is on the device is not known.
  Status apply(void* stream);
  Status launch(void* stream);
  Status copy(PinnedPiece& piece, std::int64_t bytes, void* stream);
  [[nodiscard]] std::string difference(const StepPlan& plan, const std::byte* all) const;
  [[nodiscard]] std::string difference(const StepPlan& plan, const std::byte* all,
                                       std::int32_t g) const;
};

// ---- memory ----

void DevicePlan::Impl::place() {
  const DevicePlanOptions& options = image.options();
  std::int64_t at = 0;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t begin = at;
    at += (bytes + 255) / 256 * 256;
    return begin;
  };
  take(image.bytes());
  for (std::int32_t g = 0; g < image.num_groups(); ++g) {
    const std::int64_t row = 4 * std::int64_t{image.group(g).table_stride};
    MadePlaces& to = made[static_cast<std::size_t>(g)];
    to.table = take(options.num_rows * row);
    if (options.batch_tables) to.batch = take(options.max_sequences * row);
    if (options.flashinfer) to.indices = take(options.max_sequences * row);
  }
  device_bytes = at;
}

Status DevicePlan::Impl::allocate() {
  const std::shared_ptr<Device>& device = kernels->impl().device;
  place();
  Result<DevicePiece> piece = DevicePiece::allocate(device, device_bytes);
  if (!piece) return piece.error();
  memory = *std::move(piece);
  pinned.resize(static_cast<std::size_t>(image.options().steps_in_flight));
  for (PinnedPiece& each : pinned) {
    Result<PinnedMemory> bytes = PinnedMemory::allocate(device, image.bytes());
    if (!bytes) return bytes.error();
    each.memory = *std::move(bytes);
    // What lies between two arrays is copied with them.
    std::memset(each.memory.data(), 0, static_cast<std::size_t>(image.places().entries));
    Result<Event> event = Event::create(device);
    if (!event) return event.error();
    each.copied = *std::move(event);
  }
  point();
  return clear_tables();
}

void DevicePlan::Impl::point() {
  const PlanImage::Places& at = image.places();
  const auto in = [&](std::int64_t byte) { return memory.at<const std::int32_t>(byte); };
  arrays = {.query_start = in(at.query_start),
            .rows = in(at.rows),
            .kv_lens = in(at.kv_lens),
            .trim_sinks = in(at.trim_sinks),
            .trim_first_kept = in(at.trim_first_kept),
            .positions = in(at.positions),
            .counts = in(at.counts)};
  args.entries = memory.at<const ChangedEntry>(at.entries);
  args.num_entries = arrays.counts + PlanImage::kChangedCount;
  args.rows = arrays.rows;
  args.kv_lens = arrays.kv_lens;
  args.pad = image.options().pad;
  for (std::int32_t i = 0; i < image.num_groups(); ++i) {
    const auto g = static_cast<std::size_t>(i);
    const PlanImage::Group& from = at.groups[g];
    const MadePlaces& here = made[g];
    const bool wide = image.options().int64_slots;
    groups[g] = {.slot_mapping = wide ? nullptr : in(from.slots),
                 .slot_mapping_64 = wide ? memory.at<const std::int64_t>(from.slots) : nullptr,
                 .table = in(here.table),
                 .batch_table = in(here.batch),
                 .table_stride = image.group(i).table_stride,
                 .kv_indptr = in(from.indptr),
                 .kv_indices = in(here.indices),
                 .kv_last_page_len = in(from.last_page_len),
                 .kv_first_live = in(from.first_live)};
    args.groups[g] = {.table = memory.at<std::int32_t>(here.table),
                      .batch = memory.at<std::int32_t>(here.batch),
                      .indices = memory.at<std::int32_t>(here.indices),
                      .indptr = in(from.indptr),
                      .first_live = in(from.first_live),
                      .front_at = in(from.front_at),
                      .stride = image.group(i).table_stride,
                      .block_size = image.group(i).block_size};
  }
}

// What no plan has set yet names no block that is not there, and the first image is of no step.
Status DevicePlan::Impl::clear_tables() {
  Result<Stream> stream = Stream::create(kernels->impl().device);
  if (!stream) return stream.error();
  const std::int64_t tables = made[0].table;
  const unsigned char pad = image.options().pad == -1 ? 0xff : 0;
  KVFOLIO_RETURN_IF_ERROR(
      kernels->device().run("to set the tables of plans", [&](const DriverCalls& calls) {
        const DriverResult error = calls.memory_set(
            memory.address(), 0, static_cast<std::size_t>(tables), stream->handle());
        if (error != 0) return error;
        return calls.memory_set(memory.address() + static_cast<DeviceAddress>(tables), pad,
                                static_cast<std::size_t>(device_bytes - tables), stream->handle());
      }));
  return stream->synchronize();
}

// ---- a step ----

Status DevicePlan::Impl::find_free_piece() {
  PinnedPiece& oldest = pinned[next];
  Result<bool> passed = !oldest.lost;
  if (!oldest.lost) passed = oldest.copied.passed();
  if (!passed) return passed.error();
  if (*passed || mutant(Mutant::kDevicePlanReusesPinnedEarly)) return {};
  return {
      ErrorCode::kResourceExhausted,
      concat("the plan cannot be sent: ", pinned.size(), " of ", pinned.size(),
             " pieces of pinned memory are on their way; wait(), or allow more steps_in_flight")};
}

Status DevicePlan::Impl::copy(PinnedPiece& piece, std::int64_t bytes, void* stream) {
  piece.lost = true;  // a copy that the driver answers with an error may have begun
  KVFOLIO_RETURN_IF_ERROR(
      kernels->device().run([&] { return concat("to copy a plan of ", bytes, " bytes"); },
                            [&](const DriverCalls& calls) {
                              return calls.copy_in(memory.address(), piece.memory.data(),
                                                   static_cast<std::size_t>(bytes), stream);
                            }));
  KVFOLIO_RETURN_IF_ERROR(piece.copied.record(stream));
  piece.lost = false;
  return {};
}

// Then rows are sent whole, and what was not applied is missed by none.
void DevicePlan::Impl::forget() {
  rows.forget();
  unapplied = 0;
}

Status DevicePlan::Impl::send(const StepPlan& plan, void* stream) {
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(*kernels, stream).status());
  KVFOLIO_RETURN_IF_ERROR(
      check_not_captured(kernels->device(), stream, "a plan is sent in front of a graph"));
  // Its changed entries lie where those of the next one come.
  if (unapplied != 0) {
    return {ErrorCode::kFailedPrecondition,
            concat("plan ", plan.number, " cannot be sent: plan ", unapplied,
                   " was sent and not applied; call apply(), or applied() behind the launch of a "
                   "graph that has it, or resend()")};
  }
  UploadInfo info;
  KVFOLIO_RETURN_IF_ERROR(image.check(plan, rows, info));
  KVFOLIO_RETURN_IF_ERROR(find_free_piece());
  PinnedPiece& piece = pinned[next];
  const std::int64_t bytes = image.write(plan, rows, piece.memory.data());
  Status copied = copy(piece, bytes, stream);
  next = (next + 1) % pinned.size();
  if (!copied.ok()) {
    forget();
    return copied;
  }
  rows.note(plan);
  unapplied = plan.number;
  last = info;
  return {};
}

Status DevicePlan::Impl::apply(void* stream) {
  // What is captured does not run.
  const Result<bool> captured = kernels->device().is_captured(stream);
  if (captured && *captured && is_legacy(stream)) {
    // A launch there breaks that capture; what was sent waits for another apply().
    return {
        ErrorCode::kFailedPrecondition,
        "a plan cannot be applied on the null stream while a blocking stream is being captured; "
        "nothing was begun: apply it on another stream, or behind the capture"};
  }
  Status applied = captured ? launch(stream) : captured.error();
  if (!applied.ok()) {
    forget();
  } else if (!*captured) {
    unapplied = 0;
  }
  return applied;
}

Status DevicePlan::Impl::launch(void* stream) {
  const DevicePlanOptions& options = image.options();
  DriverQueue queue(kernels->impl().moves, stream);
  const std::int64_t most = (image.max_entries() + kEntriesOfBlock - 1) / kEntriesOfBlock;
  const auto blocks = static_cast<std::uint32_t>(std::min<std::int64_t>(
      most, 2 * std::int64_t{std::max(1, kernels->device().num_multiprocessors())}));
  KVFOLIO_RETURN_IF_ERROR(
      queue.launch({.family = MoveFamily::kPlanEntries}, {blocks, 1, 1}, &args, sizeof args));
  if (!options.batch_tables && !options.flashinfer) return {};
  return queue.launch({.family = MoveFamily::kPlanRows},
                      {static_cast<std::uint32_t>(options.max_sequences),
                       static_cast<std::uint32_t>(image.num_groups()), 1},
                      &args, sizeof args);
}

// ---- what is on the device ----

std::string DevicePlan::Impl::difference(const StepPlan& plan, const std::byte* all) const {
  std::string found = image.difference(plan, all);
  for (std::int32_t g = 0; g < image.num_groups() && found.empty(); ++g) {
    found = difference(plan, all, g);
  }
  return found;
}

std::string DevicePlan::Impl::difference(const StepPlan& plan, const std::byte* all,
                                         std::int32_t g) const {
  const GroupPlan& host = plan.groups[static_cast<std::size_t>(g)];
  const MadePlaces& at = made[static_cast<std::size_t>(g)];
  const std::int64_t stride = image.group(g).table_stride;
  const std::int32_t pad = image.options().pad;
  const auto word = [&](std::int64_t begin, std::int64_t i) {
    return reinterpret_cast<const std::int32_t*>(all + begin)[i];
  };
  for (std::int32_t i = 0; i < image.options().max_sequences; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const bool padding = index >= plan.rows.size() || plan.rows[index] < 0;
    const std::int32_t row = padding ? -1 : plan.rows[index];
    const std::int32_t columns = padding ? 0 : image.columns(g, plan.kv_lens[index]);
    for (std::int32_t c = 0; c < stride; ++c) {
      const std::int32_t wanted =
          c < columns ? host.block_table[index * static_cast<std::size_t>(host.block_table_stride) +
                                         static_cast<std::size_t>(c)]
                      : pad;
      if (c < columns && (wanted < 0 || (pad == 0 && wanted == 0))) continue;  // a dropped block
      if (c < columns && word(at.table, row * stride + c) != wanted) {
        return concat("group ", g, ", row ", row, ", column ", c, ": the device has ",
                      word(at.table, row * stride + c), ", the plan ", wanted);
      }
      if (at.batch < 0 || word(at.batch, i * stride + c) == wanted) continue;
      return concat("group ", g, ", sequence ", i, ", column ", c, ": the device has ",
                    word(at.batch, i * stride + c), ", the plan ", wanted);
    }
  }
  for (std::size_t i = 0; i < host.kv_indices.size() && at.indices >= 0; ++i) {
    const std::int32_t found = word(at.indices, static_cast<std::int64_t>(i));
    if (found == host.kv_indices[i]) continue;
    return concat("group ", g, ", kv_indices[", i, "]: the device has ", found, ", the plan ",
                  host.kv_indices[i]);
  }
  return {};
}

// ---- the public calls ----

Result<std::unique_ptr<DevicePlan>> DevicePlan::create(const std::shared_ptr<Kernels>& kernels,
                                                       const DevicePlanOptions& options) {
  if (kernels == nullptr) return invalid("kernels is null");
  Result<PlanImage> image = PlanImage::create(options);
  if (!image) return image.error();
  auto impl = std::make_unique<Impl>(kernels, *std::move(image));
  KVFOLIO_RETURN_IF_ERROR(impl->allocate());
  return std::make_unique<DevicePlan>(std::move(impl));
}

DevicePlan::DevicePlan(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

DevicePlan::~DevicePlan() {
  for (PinnedPiece& piece : impl_->pinned) {
    static_cast<void>(piece.lost ? impl_->kernels->device().synchronize()
                                 : piece.copied.synchronize());
  }
}

const DevicePlanArrays& DevicePlan::arrays() const noexcept { return impl_->arrays; }
const DeviceGroupPlan& DevicePlan::group(GroupId group) const noexcept {
  return impl_->groups[static_cast<std::size_t>(group.value())];
}
std::int32_t DevicePlan::num_groups() const noexcept { return impl_->image.num_groups(); }
std::int64_t DevicePlan::device_bytes() const noexcept { return impl_->device_bytes; }
std::int64_t DevicePlan::pinned_bytes() const noexcept {
  return static_cast<std::int64_t>(impl_->pinned.size()) * impl_->image.bytes();
}
const UploadInfo& DevicePlan::last_upload() const noexcept { return impl_->last; }

bool DevicePlan::needs_block_tables(const StepPlan& plan) const noexcept {
  const bool has_tables =
      std::all_of(plan.groups.begin(), plan.groups.end(),
                  [](const GroupPlan& group) { return !group.block_table.empty(); });
  return !has_tables && impl_->image.num_untrusted(plan, impl_->rows) > 0;
}

Status DevicePlan::upload(const StepPlan& plan, void* stream) {
  KVFOLIO_RETURN_IF_ERROR(impl_->send(plan, stream));
  return impl_->apply(stream);
}

Status DevicePlan::send(const StepPlan& plan, void* stream) { return impl_->send(plan, stream); }

Status DevicePlan::apply(void* stream) {
  Status checked = PointerCheck(*impl_->kernels, stream).status();
  if (checked.ok()) return impl_->apply(stream);
  impl_->forget();  // the plan that was sent may never be applied
  return checked;
}

void DevicePlan::applied() noexcept { impl_->unapplied = 0; }

Status DevicePlan::wait() {
  PinnedPiece& oldest = impl_->pinned[impl_->next];
  if (!oldest.lost) return oldest.copied.synchronize();
  KVFOLIO_RETURN_IF_ERROR(impl_->kernels->device().synchronize());
  oldest.lost = false;
  return {};
}

void DevicePlan::resend() noexcept { impl_->forget(); }

Status DevicePlan::verify(const StepPlan& plan, void* stream) {
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(*m.kernels, stream).status());
  if (plan.number != m.rows.newest()) {
    return {ErrorCode::kFailedPrecondition,
            concat("verify: plan ", plan.number, " is not the one that was uploaded last, ",
                   m.rows.newest(), " is")};
  }
  // The number alone does not say that the arrays are those that were uploaded.
  KVFOLIO_RETURN_IF_ERROR(m.image.check_arrays(plan));
  for (std::int32_t g = 0; g < m.image.num_groups(); ++g) {
    if (!PlanImage::has_table(plan, g)) {
      return {ErrorCode::kFailedPrecondition, "verify: the plan has no block tables"};
    }
    KVFOLIO_RETURN_IF_ERROR(m.image.check_table(plan, g));
  }
  std::vector<std::byte> all(static_cast<std::size_t>(m.device_bytes));
  KVFOLIO_RETURN_IF_ERROR(
      m.kernels->device().run("to read the plan back", [&](const DriverCalls& calls) {
        const DriverResult error =
            calls.copy_out(all.data(), m.memory.address(), all.size(), stream);
        return error != 0 ? error : calls.stream_synchronize(stream);
      }));
  std::string found = m.difference(plan, all.data());
  if (found.empty()) return {};
  return {ErrorCode::kCorrupt, std::move(found)};
}

}  // namespace kvfolio::cuda
