// SPDX-License-Identifier: Apache-2.0

// KVStorage: the memory of the groups of a cache. Own memory is one allocation for each group, laid
// out by plan_layouts (spec.h). Borrowed memory is an engine's, in any strides, so most of this
// file is the proof that the rows of lent arrays lie inside their memory and that no two overlap
// (row_nest.h does the arithmetic). The rest copies blocks and fills them.
//
// Read check_borrowed() first. Kernels take the KVView that view() gives.

#include "kvfolio/storage.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/row_nest.h"
#include "base/text.h"

namespace kvfolio {
namespace {

using text::concat;

// What format granule aligns to.
constexpr std::int64_t kLine = 64;

Status bad_group(std::size_t group, std::string_view what) {
  return {ErrorCode::kInvalidArgument, concat("group ", group, ": ", what)};
}

std::int64_t address_of(const std::byte* pointer) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
}

// One of the arrays that an engine lends.
struct Lent {
  std::string_view name;
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
  KVStrides strides;
  std::int64_t row_bytes = 0;
  std::int32_t num_rows = 0;       // of a block and head
  std::int64_t alignment = 1;      // bytes that its address and its strides are multiples of
  std::int64_t row_alignment = 1;  // likewise its token stride
};

std::string alignment_text(std::int64_t alignment) {
  return concat(alignment == kLine ? "a line, " : "the element, ", alignment, " bytes");
}

// The rows of a lent array, all checked but for overlap with other rows.
Result<RowNest> check_rows(std::size_t group, const GroupSpec& spec, const Lent& lent) {
  if (lent.data == nullptr) return bad_group(group, concat(lent.name, " is null"));
  const std::int64_t address = address_of(lent.data);
  if (address % lent.alignment != 0) {
    return bad_group(group, concat(lent.name, " is at an address that is not a multiple of ",
                                   alignment_text(lent.alignment)));
  }
  if (lent.bytes < 0 || address < 0 || !(Checked(address) + lent.bytes).ok()) {
    return bad_group(group, concat(lent.name, "_bytes is ", lent.bytes,
                                   ", allowed: 0 to the end of the address space"));
  }
  struct Named {
    std::string_view name;
    Axis axis;
    std::int64_t alignment;
  };
  const Named axes[] = {{"layer", {spec.num_layers, lent.strides.layer}, lent.alignment},
                        {"block", {spec.num_blocks, lent.strides.block}, lent.alignment},
                        {"head", {spec.num_kv_heads, lent.strides.head}, lent.alignment},
                        {"token", {lent.num_rows, lent.strides.token}, lent.row_alignment}};
  RowNest nest;
  nest.base = address;
  nest.row_bytes = lent.row_bytes;
  for (const Named& named : axes) {
    if (named.axis.extent == 1) continue;
    if (named.axis.stride < 0 || named.axis.stride % named.alignment != 0) {
      return bad_group(group, concat(lent.name, "_strides.", named.name, " is ", named.axis.stride,
                                     ", allowed: multiples of ", alignment_text(named.alignment),
                                     ", not negative"));
    }
    nest.add(named.axis);
  }
  const Checked span = nest.span();
  if (!span.ok()) {
    return bad_group(group, concat("the extent of ", lent.name, " overflows 63 bits"));
  }
  if (span.value() > lent.bytes) {
    return bad_group(group, concat(lent.name, " ends ", span.value(), " bytes behind its start, ",
                                   lent.name, "_bytes is ", lent.bytes));
  }
  if (!nest.nested()) {
    return bad_group(
        group, concat("rows of ", lent.name, " overlap: strides are layer ", lent.strides.layer,
                      ", block ", lent.strides.block, ", head ", lent.strides.head, ", token ",
                      lent.strides.token, ", a row has ", nest.row_bytes,
                      " bytes; each stride must step over all that lies within it"));
  }
  return nest;
}

bool has_own_v(const GroupSpec& spec) { return spec.head_dim_v > 0 && !spec.v_is_prefix_of_k; }

// The view of a borrowed group, before anything is checked.
KVView view_of(const GroupSpec& spec, const BorrowedGroup& borrowed) {
  const bool scaled = spec.dtype == DType::kInt8;
  KVView view;
  view.k = borrowed.k;
  view.k_strides = borrowed.k_strides;
  view.num_layers = spec.num_layers;
  view.num_blocks = spec.num_blocks;
  view.block_size = spec.block_size;
  view.num_kv_heads = spec.num_kv_heads;
  view.head_dim_k = spec.head_dim_k;
  view.head_dim_v = spec.head_dim_v;
  view.dtype = spec.dtype;
  view.v_is_prefix_of_k = spec.v_is_prefix_of_k;
  view.granule = spec.format == Format::kGranule;
  if (scaled) {
    view.k_scale = borrowed.k_scale;
    view.k_scale_strides = borrowed.k_scale_strides;
  }
  if (has_own_v(spec)) {
    view.v = borrowed.v;
    view.v_strides = borrowed.v_strides;
    if (scaled) {
      view.v_scale = borrowed.v_scale;
      view.v_scale_strides = borrowed.v_scale_strides;
    }
  } else if (spec.v_is_prefix_of_k) {
    view.v = view.k;
    view.v_strides = view.k_strides;
    view.v_scale = view.k_scale;
    view.v_scale_strides = view.k_scale_strides;
  }
  return view;
}

// Arrays that the spec has no use for must be null.
Status check_absent(std::size_t index, const GroupSpec& spec, const BorrowedGroup& borrowed) {
  if (!has_own_v(spec)) {
    const char* const why = spec.v_is_prefix_of_k
                                ? " is given, but V is a prefix of K: allowed is null"
                                : " is given, but head_dim_v is 0: allowed is null";
    if (borrowed.v != nullptr) return bad_group(index, concat("v", std::string_view(why)));
    if (borrowed.v_scale != nullptr) {
      return bad_group(index, concat("v_scale", std::string_view(why)));
    }
  }
  const bool scaled = spec.dtype == DType::kInt8;
  if (!scaled && (borrowed.k_scale != nullptr || borrowed.v_scale != nullptr)) {
    return bad_group(index, concat(borrowed.k_scale != nullptr ? "k_scale" : "v_scale",
                                   " is given, but the element type is ",
                                   std::string_view(to_string(spec.dtype)), ": allowed is null"));
  }
  return {};
}

// The view of one borrowed group, checked; its rows are appended to `rows`.
Result<KVView> check_borrowed(std::size_t index, const GroupSpec& spec,
                              const BorrowedGroup& borrowed, std::vector<RowNest>& rows) {
  KVFOLIO_RETURN_IF_ERROR(check_absent(index, spec, borrowed));
  const bool own_v = has_own_v(spec);
  const KVView view = view_of(spec, borrowed);
  struct Given {
    std::string_view name;
    std::int64_t bytes;
  };
  const Given given[] = {{"k", borrowed.k_bytes},
                         {"v", borrowed.v_bytes},
                         {"k_scale", borrowed.k_scale_bytes},
                         {"v_scale", borrowed.v_scale_bytes}};
  const ViewParts parts = parts_of(view);
  std::string_view names[4];
  std::size_t num_rows = 0;
  for (const ViewPart& part : parts.all()) {
    // The order of parts_of(): K, V, scales of K, of V; without V of its own every second one.
    const Given& from = given[own_v ? num_rows : 2 * num_rows];
    const bool scale = num_rows >= (own_v ? 2u : 1u);
    const std::int64_t element = scale ? 4 : dtype_bytes(spec.dtype);
    const Lent lent{.name = from.name,
                    .data = part.base,
                    .bytes = from.bytes,
                    .strides = part.strides,
                    .row_bytes = part.row_bytes,
                    .num_rows = part.num_rows,
                    .alignment = view.granule ? kLine : element,
                    .row_alignment = view.granule && !scale ? kLine : element};
    Result<RowNest> nest = check_rows(index, spec, lent);
    if (!nest) return std::move(nest).error();
    if (view.granule && scale && part.strides.token != element) {
      return bad_group(index, concat(lent.name, "_strides.token is ", part.strides.token,
                                     ", allowed in format granule: ", element));
    }
    for (std::size_t i = 0; i < num_rows; ++i) {
      if (!disjoint(rows[i], *nest)) {
        return bad_group(index, concat("rows of ", lent.name, " overlap rows of ", names[i]));
      }
    }
    names[num_rows++] = lent.name;
    rows.push_back(*nest);
  }
  return view;
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

}  // namespace

KVStorage::KVStorage() = default;

KVStorage::KVStorage(KVStorage&& other) noexcept
    : spec_(std::move(other.spec_)),
      views_(std::exchange(other.views_, {})),
      owned_(std::exchange(other.owned_, {})),
      own_resource_(std::move(other.own_resource_)),
      resource_(std::exchange(other.resource_, nullptr)) {}

KVStorage& KVStorage::operator=(KVStorage&& other) noexcept {
  if (this == &other) return *this;
  release();
  spec_ = std::move(other.spec_);
  views_ = std::exchange(other.views_, {});
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
    if (address_of(*memory) % kMemoryAlignment != 0) {
      return bad_group(i, concat("the memory resource gave memory that is not aligned to ",
                                 kMemoryAlignment, " bytes"));
    }
    storage.views_.push_back(make_view(spec.groups[i], (*layouts)[i], *memory));
    storage.views_.back().memory_kind = resource->kind();
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
  std::vector<RowNest> others;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::vector<RowNest> rows;
    Result<KVView> view = check_borrowed(i, spec.groups[i], groups[i], rows);
    if (!view) return std::move(view).error();
    for (const RowNest& mine : rows) {
      for (const RowNest& other : others) {
        if (!disjoint(mine, other)) return bad_group(i, "its rows overlap those of a group before");
      }
    }
    others.insert(others.end(), rows.begin(), rows.end());
    view->memory_kind = resource->kind();
    storage.views_.push_back(*view);
  }
  return storage;
}

Result<KVView> KVStorage::view(GroupId group) const {
  if (group.value() < 0 || group.value() >= num_groups()) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("group ", group.value(), " of a storage of ", num_groups(), " groups"));
  }
  return views_[static_cast<std::size_t>(group.value())];
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
  const Result<KVView> found = view(group);
  if (!found) return found.error();
  const KVView& cache = *found;
  if (src.size() != dst.size()) {
    return {ErrorCode::kInvalidArgument,
            concat("block copy: ", src.size(), " sources, ", dst.size(), " destinations")};
  }
  for (std::size_t i = 0; i < src.size(); ++i) {
    for (const std::int32_t block : {src[i], dst[i]}) {
      if (block < 0 || block >= cache.num_blocks) {
        return {ErrorCode::kInvalidArgument,
                concat("block copy ", i, " (", src[i], " to ", dst[i], "): group ", group.value(),
                       " has blocks 0 to ", cache.num_blocks - 1)};
      }
    }
  }
  for_each_block_copy(cache, src, dst,
                      [this](std::byte* to, const std::byte* from, std::int64_t bytes) {
                        resource_->copy(to, from, bytes);
                      });
  return {};
}

Status KVStorage::copy_blocks_from(const KVStorage& source, GroupId group,
                                   std::span<const std::int32_t> blocks) {
  const Result<KVView> found = view(group);
  if (!found) return found.error();
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
  const KVView& to = *found;
  const KVView& from = source.views_[static_cast<std::size_t>(group.value())];
  for (const std::int32_t block : blocks) {
    if (block >= 0 && block < to.num_blocks) continue;
    return {ErrorCode::kInvalidArgument,
            concat("block copy of block ", block, ": group ", group.value(), " has blocks 0 to ",
                   to.num_blocks - 1)};
  }
  const auto copy = [&](std::byte* dst, const std::byte* src, std::int64_t bytes) {
    if (one_resource) {
      resource_->copy(dst, src, bytes);
    } else {
      std::memcpy(dst, src, static_cast<std::size_t>(bytes));
    }
  };
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
  return {};
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
  for (const KVView& cache : views_) {
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
  return {};
}

}  // namespace kvfolio
