// SPDX-License-Identifier: Apache-2.0

// KVStorage: the memory of the groups of a cache. Own memory is one allocation for each group, laid
// out by plan_layouts (spec.h). Borrowed memory is an engine's, in any strides; borrow.cc proves
// that its rows lie inside it and do not overlap. A group is one view of all layers, or one view
// for each layer if its layers were lent apart. All that copies or fills goes over these
// views. Kernels take the KVView that view() gives.

#include "kvfolio/storage.h"
#include "kvfolio/view.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/row_nest.h"
#include "base/text.h"
#include "storage/borrow.h"
#include "storage/said.h"

namespace kvfolio {
namespace {

using storage::GroupViews;
using storage::layer_of;
using text::concat;

Status bad_group(std::size_t group, std::string_view what) {
  return {ErrorCode::kInvalidArgument, concat("group ", group, ": ", what)};
}

// Do the bytes of a block lie in the same runs?
bool runs_alike(const BlockRuns& one, const BlockRuns& other) noexcept {
  const auto same = [](const BlockRuns::Part& a, const BlockRuns::Part& b) {
    return a.runs.row_bytes == b.runs.row_bytes && a.runs.num_axes == b.runs.num_axes &&
           std::equal(a.runs.axes.begin(), a.runs.axes.begin() + a.runs.num_axes,
                      b.runs.axes.begin());
  };
  return one.num_parts == other.num_parts &&
         std::equal(one.parts.begin(), one.parts.begin() + one.num_parts, other.parts.begin(),
                    same);
}

// Do heads and tokens follow each other in the same order, in two views of one spec? Runs do not
// say so: where both join, [head][token] looks as [token][head] does.
bool rows_alike(const KVView& view, const ViewParts& one, const ViewParts& other) noexcept {
  const auto same = [&](const ViewPart& a, const ViewPart& b) {
    return (view.num_kv_heads == 1 || a.strides.head == b.strides.head) &&
           (a.num_rows == 1 || a.strides.token == b.strides.token);
  };
  return std::equal(one.all().begin(), one.all().end(), other.all().begin(), same);
}

// The named blocks of all layers of one view to the same ids of another: copy(to, from, bytes).
template <typename Copy>
void copy_between(const KVView& to, const KVView& from, std::span<const std::int32_t> blocks,
                  Copy&& copy) {
  const BlockRuns to_runs = block_runs(to);
  const BlockRuns from_runs = block_runs(from);
  const ViewParts to_rows = parts_of(to);
  const ViewParts from_rows = parts_of(from);
  const bool alike = runs_alike(to_runs, from_runs) && rows_alike(to, to_rows, from_rows);
  for (std::int32_t layer = 0; layer < to.num_layers; ++layer) {
    for (const std::int32_t block : blocks) {
      for (std::size_t p = 0; alike && p < static_cast<std::size_t>(to_runs.num_parts); ++p) {
        const BlockRuns::Part& a = to_runs.parts[p];
        const BlockRuns::Part& b = from_runs.parts[p];
        std::byte* dst = a.base + layer * a.strides.layer + block * a.strides.block;
        const std::byte* src = b.base + layer * b.strides.layer + block * b.strides.block;
        for_each_run(a.runs, [&](std::int64_t offset) {
          copy(dst + offset, src + offset, a.runs.row_bytes);
        });
      }
      for (std::size_t p = 0; !alike && p < to_rows.all().size(); ++p) {
        const ViewPart& a = to_rows.parts[p];
        const ViewPart& b = from_rows.parts[p];
        for (std::int32_t head = 0; head < to.num_kv_heads; ++head) {
          for (std::int32_t row = 0; row < a.num_rows; ++row) {
            copy(a.at(layer, block, head, row), b.at(layer, block, head, row), a.row_bytes);
          }
        }
      }
    }
  }
}

// Every byte of every row.
void fill_rows(const KVView& cache, std::byte value) {
  const BlockRuns runs = block_runs(cache);
  for (int p = 0; p < runs.num_parts; ++p) {
    const BlockRuns::Part& part = runs.parts[static_cast<std::size_t>(p)];
    for (std::int32_t layer = 0; layer < cache.num_layers; ++layer) {
      for (std::int32_t block = 0; block < cache.num_blocks; ++block) {
        std::byte* base = part.base + layer * part.strides.layer + block * part.strides.block;
        for_each_run(part.runs, [&](std::int64_t offset) {
          std::memset(base + offset, std::to_integer<int>(value),
                      static_cast<std::size_t>(part.runs.row_bytes));
        });
      }
    }
  }
}

}  // namespace

KVStorage::KVStorage() = default;

KVStorage::KVStorage(KVStorage&& other) noexcept
    : spec_(std::move(other.spec_)),
      groups_(std::exchange(other.groups_, {})),
      owned_(std::exchange(other.owned_, {})),
      own_resource_(std::move(other.own_resource_)),
      resource_(std::exchange(other.resource_, nullptr)) {}

KVStorage& KVStorage::operator=(KVStorage&& other) noexcept {
  if (this == &other) return *this;
  release();
  spec_ = std::move(other.spec_);
  groups_ = std::exchange(other.groups_, {});
  owned_ = std::exchange(other.owned_, {});
  own_resource_ = std::move(other.own_resource_);
  resource_ = std::exchange(other.resource_, nullptr);
  return *this;
}

KVStorage::~KVStorage() { release(); }

void KVStorage::release() noexcept {
  for (const Region& region : owned_) resource_->deallocate(region.memory, region.bytes);
  owned_.clear();
}

Result<KVStorage> KVStorage::create(const CacheSpec& spec, MemoryResource* resource) {
  Result<std::vector<GroupLayout>> layouts = plan_layouts(spec);
  if (!layouts) return std::move(layouts).error();
  KVStorage storage;
  storage.spec_ = spec;
  if (resource == nullptr) {
    storage.own_resource_ = std::make_unique<HostMemory>();
    resource = storage.own_resource_.get();
  }
  storage.resource_ = resource;
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    const std::int64_t bytes = (*layouts)[i].total_bytes;
    Result<std::byte*> memory = resource->allocate(bytes);
    if (!memory) {
      return Status(ErrorCode::kOutOfMemory, concat("group ", i, ": no memory for ", bytes,
                                                    " bytes: ", memory.error().message()));
    }
    if (*memory == nullptr) {
      return Status(ErrorCode::kOutOfMemory,
                    concat("group ", i, ": the memory resource gave null for ", bytes, " bytes"));
    }
    storage.owned_.push_back({*memory, bytes});
    if (reinterpret_cast<std::uintptr_t>(*memory) % std::uintptr_t{kMemoryAlignment} != 0) {
      return bad_group(i, concat("the memory resource gave memory that is not aligned to ",
                                 kMemoryAlignment, " bytes"));
    }
    KVView view = make_view(spec.groups[i], (*layouts)[i], *memory);
    view.memory_kind = resource->kind();
    storage.groups_.push_back({view});
  }
  return storage;
}

Result<KVStorage> KVStorage::borrow(const CacheSpec& spec, std::span<const BorrowedGroup> groups,
                                    MemoryResource* resource) {
  KVFOLIO_RETURN_IF_ERROR(validate(spec));
  if (groups.size() != spec.groups.size()) {
    return Status(ErrorCode::kInvalidArgument,
                  concat(groups.size(), " borrowed groups for a spec of ", spec.groups.size()));
  }
  KVStorage storage;
  storage.spec_ = spec;
  if (resource == nullptr) {
    storage.own_resource_ = std::make_unique<HostMemory>();
    resource = storage.own_resource_.get();
  }
  storage.resource_ = resource;
  Result<std::vector<GroupViews>> views = storage::check_borrowed(spec, groups);
  if (!views) return std::move(views).error();
  for (GroupViews& group : *views) {
    for (KVView& view : group) view.memory_kind = resource->kind();
  }
  storage.groups_ = std::move(*views);
  return storage;
}

Status KVStorage::check_group(GroupId group) const {
  if (group.value() >= 0 && group.value() < num_groups()) return {};
  return {ErrorCode::kInvalidArgument,
          concat("group ", group.value(), " of a storage of ", num_groups(), " groups")};
}

Result<KVView> KVStorage::view(GroupId group) const {
  KVFOLIO_RETURN_IF_ERROR(check_group(group));
  const std::vector<KVView>& views = views_of(group);
  if (views.size() == 1) return views.front();
  return Status(ErrorCode::kUnsupported,
                concat("group ", group.value(), ": its ", views.size(),
                       " layers were lent apart, so one view cannot show them; "
                       "view(group, layer) shows one"));
}

Result<KVView> KVStorage::view(GroupId group, std::int32_t layer) const {
  KVFOLIO_RETURN_IF_ERROR(check_group(group));
  const std::int32_t num_layers = spec_.groups[static_cast<std::size_t>(group.value())].num_layers;
  if (layer < 0 || layer >= num_layers) {
    return Status(ErrorCode::kInvalidArgument, concat("layer ", layer, ": group ", group.value(),
                                                      " has layers 0 to ", num_layers - 1));
  }
  return layer_of(views_of(group), layer);
}

MemoryKind KVStorage::memory_kind() const noexcept {
  return resource_ == nullptr ? MemoryKind::kHost : resource_->kind();
}

std::int64_t KVStorage::memory_bytes() const noexcept {
  std::int64_t bytes = 0;
  for (const Region& region : owned_) bytes += region.bytes;
  return bytes;
}

Status KVStorage::copy_blocks(GroupId group, std::span<const std::int32_t> src,
                              std::span<const std::int32_t> dst) {
  KVFOLIO_RETURN_IF_ERROR(check_group(group));
  const std::int32_t num_blocks = views_of(group).front().num_blocks;
  if (src.size() != dst.size()) {
    return {ErrorCode::kInvalidArgument,
            concat("block copy: ", src.size(), " sources, ", dst.size(), " destinations")};
  }
  for (std::size_t i = 0; i < src.size(); ++i) {
    for (const std::int32_t block : {src[i], dst[i]}) {
      if (block < 0 || block >= num_blocks) {
        return {ErrorCode::kInvalidArgument,
                concat("block copy ", i, " (", src[i], " to ", dst[i], "): group ", group.value(),
                       " has blocks 0 to ", num_blocks - 1)};
      }
    }
  }
  Status status;
  const auto copy = [&](std::byte* to, const std::byte* from, std::int64_t bytes) {
    if (status.ok()) status = resource_->copy(to, from, bytes);
  };
  for (const KVView& cache : views_of(group)) for_each_block_copy(cache, src, dst, copy);
  return storage::said("block copy", status);
}

Status KVStorage::copy_blocks_from(const KVStorage& source, GroupId group,
                                   std::span<const std::int32_t> blocks) {
  KVFOLIO_RETURN_IF_ERROR(check_group(group));
  if (spec_ != source.spec_) {
    return {ErrorCode::kInvalidArgument, "block copy from a storage of another spec"};
  }
  const bool one_resource = resource_ == source.resource_;
  if (!one_resource &&
      (memory_kind() != MemoryKind::kHost || source.memory_kind() != MemoryKind::kHost)) {
    return {ErrorCode::kUnsupported,
            concat("block copy from ", std::string_view(to_string(source.memory_kind())), " to ",
                   std::string_view(to_string(memory_kind())), " memory of another resource")};
  }
  const std::vector<KVView>& to = views_of(group);
  const std::vector<KVView>& from = source.views_of(group);
  const std::int32_t num_blocks = to.front().num_blocks;
  for (const std::int32_t block : blocks) {
    if (block >= 0 && block < num_blocks) continue;
    return {ErrorCode::kInvalidArgument,
            concat("block copy of block ", block, ": group ", group.value(), " has blocks 0 to ",
                   num_blocks - 1)};
  }
  Status status;
  const auto copy = [&](std::byte* dst, const std::byte* src, std::int64_t bytes) {
    if (one_resource) {
      if (status.ok()) status = resource_->copy(dst, src, bytes);
    } else {
      std::memcpy(dst, src, static_cast<std::size_t>(bytes));
    }
  };
  if (to.size() == 1 && from.size() == 1) {
    copy_between(to.front(), from.front(), blocks, copy);
    return storage::said("block copy", status);
  }
  const std::int32_t num_layers = spec_.groups[static_cast<std::size_t>(group.value())].num_layers;
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    copy_between(layer_of(to, layer), layer_of(from, layer), blocks, copy);
  }
  return storage::said("block copy", status);
}

Status KVStorage::fill(std::byte value) {
  if (memory_kind() != MemoryKind::kHost) {
    return {ErrorCode::kUnsupported,
            concat("fill of ", std::string_view(to_string(memory_kind())), " memory")};
  }
  for (const Region& region : owned_) {
    std::memset(region.memory, std::to_integer<int>(value), static_cast<std::size_t>(region.bytes));
  }
  if (owns_memory()) return {};
  for (const std::vector<KVView>& group : groups_) {
    for (const KVView& cache : group) fill_rows(cache, value);
  }
  return {};
}

}  // namespace kvfolio
