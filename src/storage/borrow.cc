// SPDX-License-Identifier: Apache-2.0

// The proof that the rows of lent arrays lie inside their memory and that no two overlap, in any
// strides (row_nest.h does the arithmetic). Two steps:
//   1. Each array alone: null, alignment, strides, extent, its rows among themselves. An engine
//      that lends a base for each layer has an array for each layer.
//   2. All arrays of all groups, pair by pair in the order of their addresses. Arrays that do not
//      reach each other cost nothing. If two arrays with several layers interleave so that
//      disjoint() proves nothing, the step is done again with an array for each layer.

#include "storage/borrow.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/row_nest.h"
#include "base/text.h"

namespace kvfolio::storage {
namespace {

using text::concat;

// What format granule aligns to.
constexpr std::int64_t kLine = 64;

// What an error names: a group, and its layer if the engine lends each layer apart.
struct Where {
  std::size_t group = 0;
  std::int32_t layer = -1;
};

std::string text_of(const Where& where) {
  return where.layer < 0 ? concat("group ", where.group)
                         : concat("group ", where.group, ", layer ", where.layer);
}

Status bad(const Where& where, std::string_view what) {
  return {ErrorCode::kInvalidArgument, concat(text_of(where), ": ", what)};
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
  std::int64_t row_alignment = 1;  // so is its token stride
};

std::string alignment_text(std::int64_t alignment) {
  return concat(alignment == kLine ? "a line, " : "the element, ", alignment, " bytes");
}

// The rows of a lent array, all checked but for overlap with rows of other arrays.
Status check_rows(const Where& where, const GroupSpec& spec, const Lent& lent) {
  if (lent.data == nullptr) return bad(where, concat(lent.name, " is null"));
  const std::int64_t address = address_of(lent.data);
  if (address % lent.alignment != 0) {
    return bad(where, concat(lent.name, " is at an address that is not a multiple of ",
                             alignment_text(lent.alignment)));
  }
  if (lent.bytes < 0 || address < 0 || !(Checked(address) + lent.bytes).ok()) {
    return bad(where, concat(lent.name, "_bytes is ", lent.bytes,
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
      return bad(where, concat(lent.name, "_strides.", named.name, " is ", named.axis.stride,
                               ", allowed: multiples of ", alignment_text(named.alignment),
                               ", not negative"));
    }
    nest.add(named.axis);
  }
  const Checked span = nest.span();
  if (!span.ok()) {
    return bad(where, concat("the extent of ", lent.name, " overflows 63 bits"));
  }
  if (span.value() > lent.bytes) {
    return bad(where, concat(lent.name, " ends ", span.value(), " bytes behind its start, ",
                             lent.name, "_bytes is ", lent.bytes));
  }
  if (!nest.nested()) {
    return bad(where,
               concat("rows of ", lent.name, " overlap: strides are layer ", lent.strides.layer,
                      ", block ", lent.strides.block, ", head ", lent.strides.head, ", token ",
                      lent.strides.token, ", a row has ", nest.row_bytes,
                      " bytes; each stride must step over all that lies within it"));
  }
  return {};
}

bool has_own_v(const GroupSpec& spec) { return spec.head_dim_v > 0 && !spec.v_is_prefix_of_k; }

// The view of a borrowed group, before anything is checked.
KVView view_of(const GroupSpec& spec, const BorrowedGroup& borrowed) {
  const bool scaled = has_scales(spec.dtype);
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
Status check_absent(const Where& where, const GroupSpec& spec, const BorrowedGroup& borrowed) {
  if (!has_own_v(spec)) {
    const char* const why = spec.v_is_prefix_of_k
                                ? " is given, but V is a prefix of K: allowed is null"
                                : " is given, but head_dim_v is 0: allowed is null";
    if (borrowed.v != nullptr) return bad(where, concat("v", std::string_view(why)));
    if (borrowed.v_scale != nullptr) {
      return bad(where, concat("v_scale", std::string_view(why)));
    }
  }
  const bool scaled = has_scales(spec.dtype);
  if (!scaled && (borrowed.k_scale != nullptr || borrowed.v_scale != nullptr)) {
    return bad(where, concat(borrowed.k_scale != nullptr ? "k_scale" : "v_scale",
                             " is given, but the element type is ",
                             std::string_view(to_string(spec.dtype)), ": allowed is null"));
  }
  return {};
}

// The names of the arrays of a group, in the order of parts_of().
std::string_view array_name(const GroupSpec& spec, std::size_t part) {
  constexpr std::string_view kNames[] = {"k", "v", "k_scale", "v_scale"};
  return kNames[has_own_v(spec) ? part : 2 * part];
}

// The view of the arrays of `borrowed`, checked but for overlap of two arrays.
Result<KVView> check_arrays(const Where& where, const GroupSpec& spec,
                            const BorrowedGroup& borrowed) {
  KVFOLIO_RETURN_IF_ERROR(check_absent(where, spec, borrowed));
  const bool own_v = has_own_v(spec);
  const KVView view = view_of(spec, borrowed);
  const std::int64_t bytes[] = {borrowed.k_bytes, borrowed.v_bytes, borrowed.k_scale_bytes,
                                borrowed.v_scale_bytes};
  const ViewParts parts = parts_of(view);
  for (std::size_t p = 0; p < parts.all().size(); ++p) {
    const ViewPart& part = parts.parts[p];
    const bool scale = p >= (own_v ? 2u : 1u);
    const std::int64_t element = scale ? 4 : dtype_bytes(spec.dtype);
    const Lent lent{.name = array_name(spec, p),
                    .data = part.base,
                    .bytes = bytes[own_v ? p : 2 * p],
                    .strides = part.strides,
                    .row_bytes = part.row_bytes,
                    .num_rows = part.num_rows,
                    .alignment = view.granule ? kLine : element,
                    .row_alignment = view.granule && !scale ? kLine : element};
    KVFOLIO_RETURN_IF_ERROR(check_rows(where, spec, lent));
    if (view.granule && scale && part.strides.token != element) {
      return bad(where, concat(lent.name, "_strides.token is ", part.strides.token,
                               ", allowed in format granule: ", element));
    }
  }
  return view;
}

RowNest nest_of(const KVView& view, const ViewPart& part) {
  RowNest nest;
  nest.base = address_of(part.base);
  nest.row_bytes = part.row_bytes;
  nest.add({view.num_layers, part.strides.layer});
  nest.add({view.num_blocks, part.strides.block});
  nest.add({view.num_kv_heads, part.strides.head});
  nest.add({part.num_rows, part.strides.token});
  return nest;
}

// The arrays of one layer of an engine that lends each layer apart.
BorrowedGroup arrays_of(const BorrowedGroup& borrowed, const BorrowedLayer& layer) {
  BorrowedGroup one = borrowed;
  one.layers = {};
  one.k = layer.k;
  one.v = layer.v;
  one.k_scale = layer.k_scale;
  one.v_scale = layer.v_scale;
  return one;
}

Result<GroupViews> check_group(std::size_t index, const GroupSpec& spec,
                               const BorrowedGroup& borrowed) {
  if (borrowed.layers.empty()) {
    const Result<KVView> view = check_arrays({index}, spec, borrowed);
    if (!view) return view.error();
    return GroupViews{*view};
  }
  if (std::cmp_not_equal(borrowed.layers.size(), spec.num_layers)) {
    return bad({index}, concat("layers has ", borrowed.layers.size(), " entries for ",
                               spec.num_layers, " layers, allowed: ", spec.num_layers, " or none"));
  }
  struct Base {
    std::string_view name;
    const std::byte* data;
  };
  for (const Base& base : {Base{"k", borrowed.k}, Base{"v", borrowed.v},
                           Base{"k_scale", borrowed.k_scale}, Base{"v_scale", borrowed.v_scale}}) {
    if (base.data == nullptr) continue;
    return bad({index}, concat(base.name, " is given, but layers gives a base for each of the ",
                               spec.num_layers, " layers: allowed is null"));
  }
  GroupSpec one = spec;
  one.num_layers = 1;
  GroupViews views;
  for (std::int32_t l = 0; l < spec.num_layers; ++l) {
    const BorrowedLayer& layer = borrowed.layers[static_cast<std::size_t>(l)];
    const Result<KVView> view = check_arrays({index, l}, one, arrays_of(borrowed, layer));
    if (!view) return view.error();
    views.push_back(*view);
  }
  return views;
}

// All rows of one array.
struct Rows {
  RowNest nest;
  Where where;
  std::string_view name;
  std::size_t order = 0;  // among all arrays
};

// The rows of every view, or of every layer of every view.
std::vector<Rows> rows_of(const CacheSpec& spec, std::span<const GroupViews> groups,
                          bool each_layer) {
  std::vector<Rows> result;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::int32_t num_views =
        each_layer ? spec.groups[g].num_layers : static_cast<std::int32_t>(groups[g].size());
    for (std::int32_t i = 0; i < num_views; ++i) {
      const KVView view =
          each_layer ? layer_of(groups[g], i) : groups[g][static_cast<std::size_t>(i)];
      const ViewParts parts = parts_of(view);
      for (std::size_t p = 0; p < parts.all().size(); ++p) {
        result.push_back({nest_of(view, parts.parts[p]),
                          {g, num_views == 1 ? -1 : i},
                          array_name(spec.groups[g], p),
                          result.size()});
      }
    }
  }
  return result;
}

// Two arrays whose rows are not proved to be disjoint, if there are any.
std::optional<std::pair<Rows, Rows>> find_overlap(std::vector<Rows> all) {
  std::sort(all.begin(), all.end(),
            [](const Rows& a, const Rows& b) { return a.nest.base < b.nest.base; });
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t end = all[i].nest.base + all[i].nest.span().value();
    for (std::size_t j = i + 1; j < all.size() && all[j].nest.base < end; ++j) {
      if (disjoint(all[i].nest, all[j].nest)) continue;
      if (all[i].order < all[j].order) return std::pair(all[j], all[i]);
      return std::pair(all[i], all[j]);
    }
  }
  return std::nullopt;
}

Status check_overlap(const CacheSpec& spec, std::span<const BorrowedGroup> groups,
                     std::span<const GroupViews> views) {
  const auto whole = find_overlap(rows_of(spec, views, false));
  if (!whole) return {};
  const auto of_layers = find_overlap(rows_of(spec, views, true));
  if (!of_layers) return {};
  // The error names what the engine lent: arrays of all layers, or of one.
  const bool by_layer = !groups[whole->first.where.group].layers.empty() ||
                        !groups[whole->second.where.group].layers.empty();
  const auto& [rows, others] = by_layer ? *of_layers : *whole;
  const bool one_place =
      rows.where.group == others.where.group && rows.where.layer == others.where.layer;
  return bad(
      rows.where,
      concat("rows of ", rows.name, " overlap rows of ", others.name, one_place ? "" : " of ",
             one_place ? std::string() : text_of(others.where), ": they begin ",
             std::abs(rows.nest.base - others.nest.base), " bytes apart and reach ",
             rows.nest.span().value(), " and ", others.nest.span().value(), " bytes"));
}

}  // namespace

KVView layer_of(const GroupViews& views, std::int32_t layer) noexcept {
  if (views.size() > 1) return views[static_cast<std::size_t>(layer)];
  KVView view = views.front();
  KVFOLIO_DCHECK(0 <= layer && layer < view.num_layers);
  view.num_layers = 1;
  view.k += layer * view.k_strides.layer;
  if (view.v != nullptr) view.v += layer * view.v_strides.layer;
  if (view.k_scale != nullptr) view.k_scale += layer * view.k_scale_strides.layer;
  if (view.v_scale != nullptr) view.v_scale += layer * view.v_scale_strides.layer;
  return view;
}

Result<std::vector<GroupViews>> check_borrowed(const CacheSpec& spec,
                                               std::span<const BorrowedGroup> groups) {
  std::vector<GroupViews> result;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Result<GroupViews> views = check_group(i, spec.groups[i], groups[i]);
    if (!views) return std::move(views).error();
    result.push_back(std::move(*views));
  }
  KVFOLIO_RETURN_IF_ERROR(check_overlap(spec, groups, result));
  return result;
}

}  // namespace kvfolio::storage
