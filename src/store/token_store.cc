// SPDX-License-Identifier: Apache-2.0

// TokenStore: one sequence in a KVStorage of one layer, in format NHD, whose rows are contiguous.
// The header writes and reads single rows that are kept as given. This file has the rest: what is
// checked and said, and rows that are converted, quantized, strided or many. These go through the
// rows of the kernels (kernels/rows.h), one box for each block, so the bytes are those of append().
//
// Read append(ConstRowsView) first; gather() is its mirror image.

#include "kvfolio/token_store.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "kernels/check.h"
#include "kernels/rows.h"
#include "kernels/stream.h"

namespace kvfolio {
namespace {

using kernels::RowReader;
using kernels::RowWriter;
using kernels::Stores;
using text::concat;

constexpr std::int32_t kMaxDim = 1 << 20;

Status check(const TokenStoreOptions& options) {
  struct Range {
    std::string_view field;
    std::int32_t value, low, high;
  };
  const Range ranges[] = {{"head_dim_k", options.head_dim_k, 1, kMaxDim},
                          {"head_dim_v", options.head_dim_v, 0, kMaxDim},
                          {"num_kv_heads", options.num_kv_heads, 1, kMaxDim},
                          {"block_size", options.block_size, 1, kMaxBlockSize},
                          {"max_tokens", options.max_tokens, 1, kMaxSequenceTokens}};
  for (const auto& [field, value, low, high] : ranges) {
    if (value >= low && value <= high) continue;
    return invalid(concat("token store: ", field, " is ", value, ", allowed: ", low, " to ", high));
  }
  if (options.dtype == DType::kOpaque) {
    return invalid(
        "token store: dtype is opaque, whose values it cannot read; allowed: f64, f32, "
        "f16, bf16, int8, e4m3");
  }
  if (dtype_bytes(options.dtype) != 0) return {};
  return invalid(concat("token store: dtype is ", static_cast<std::int32_t>(options.dtype),
                        ", allowed: f64, f32, f16, bf16, int8, e4m3"));
}

CacheSpec spec_of(const TokenStoreOptions& options) {
  GroupSpec group{.num_kv_heads = options.num_kv_heads,
                  .head_dim_k = options.head_dim_k,
                  .head_dim_v = options.head_dim_v,
                  .block_size = options.block_size,
                  .dtype = options.dtype,
                  .format = Format::kNhd};
  group.num_blocks = (options.max_tokens - 1) / options.block_size + 1;
  return {.groups = {group}};
}

// Calls visit(box, tokens before it) for the part of a range that lies in each block.
template <typename Visit>
void for_each_box(const KVView& view, std::int32_t begin, std::int32_t count, Visit&& visit) {
  for (std::int32_t done = 0; done < count;) {
    const std::int32_t block = (begin + done) / view.block_size;
    const std::int32_t offset = begin + done - block * view.block_size;
    const std::int32_t run = std::min(view.block_size - offset, count - done);
    KVFOLIO_DCHECK(run > 0 && block >= 0 && block < view.num_blocks);
    visit(kernels::RowBox{.block = block,
                          .head = 0,
                          .offset = offset,
                          .num_tokens = run,
                          .num_heads = view.num_kv_heads},
          done);
    done += run;
  }
}

// Rows that follow each other without gaps; null data if there are none.
template <typename View, typename Byte>
View rows_at(Byte* data, std::int64_t num_rows, std::int32_t num_heads, std::int32_t head_dim,
             DType dtype) {
  if (num_rows == 0) return {};
  KVFOLIO_DCHECK(num_rows <= kMaxSequenceTokens && dtype_bytes(dtype) > 0);
  const std::int64_t head_stride = std::int64_t{head_dim} * dtype_bytes(dtype);
  return {data,        head_stride * num_heads,
          head_stride, static_cast<std::int32_t>(num_rows),
          num_heads,   head_dim,
          dtype};
}

}  // namespace

TokenStore::TokenStore(KVStorage storage, const TokenStoreOptions& options,
                       MemoryResource* resource)
    : storage_(std::move(storage)),
      options_(options),
      resource_(resource),
      view_(*storage_.view(GroupId(0))),
      element_bytes_(dtype_bytes(options.dtype)),
      max_tokens_(options.max_tokens) {
  const auto rows = [&](std::byte* base, const KVStrides& strides, std::int32_t head_dim,
                        std::string_view name) {
    const std::int64_t num_elements = std::int64_t{options.num_kv_heads} * head_dim;
    const std::int64_t row_bytes = num_elements * element_bytes_;
    return Rows{.base = base,
                .row_bytes = row_bytes,
                .block_gap = strides.block - options.block_size * row_bytes,
                .num_elements = static_cast<std::size_t>(num_elements),
                .name = name};
  };
  k_ = rows(view_.k, view_.k_strides, options.head_dim_k, "k");
  v_ = rows(view_.v, view_.v_strides, options.head_dim_v, "v");
  const auto block_size = static_cast<std::uint32_t>(options.block_size);
  KVFOLIO_CHECK(k_.base != nullptr && k_.block_gap >= 0 && v_.block_gap >= 0);
  shift_ = std::has_single_bit(block_size) ? std::countr_zero(block_size) : -1;
}

TokenStore::TokenStore(TokenStore&& other) noexcept
    : storage_(std::move(other.storage_)),
      options_(other.options_),
      resource_(other.resource_),
      view_(other.view_),
      k_(other.k_),
      v_(other.v_),
      element_bytes_(other.element_bytes_),
      shift_(other.shift_),
      size_(std::exchange(other.size_, 0)),
      max_tokens_(std::exchange(other.max_tokens_, 0)) {}

TokenStore& TokenStore::operator=(TokenStore&& other) noexcept {
  if (this == &other) return *this;
  storage_ = std::move(other.storage_);
  options_ = other.options_;
  resource_ = other.resource_;
  view_ = other.view_;
  k_ = other.k_;
  v_ = other.v_;
  element_bytes_ = other.element_bytes_;
  shift_ = other.shift_;
  size_ = std::exchange(other.size_, 0);
  max_tokens_ = std::exchange(other.max_tokens_, 0);
  return *this;
}

Result<TokenStore> TokenStore::create(const TokenStoreOptions& options, MemoryResource* resource) {
  KVFOLIO_RETURN_IF_ERROR(check(options));
  if (resource != nullptr && resource->kind() != MemoryKind::kHost) {
    return Status(ErrorCode::kUnsupported,
                  concat("token store in ", std::string_view(to_string(resource->kind())),
                         " memory, allowed: host"));
  }
  Result<KVStorage> storage = KVStorage::create(spec_of(options), resource);
  if (!storage) {
    return Status(storage.error().code(), concat("token store of ", options.max_tokens,
                                                 " tokens: ", storage.error().message()));
  }
  return TokenStore(std::move(*storage), options, resource);
}

Result<TokenStore> TokenStore::copy() const {
  Result<TokenStore> made = create(options_, resource_);
  if (!made) return made;
  std::array<std::int32_t, 256> blocks;
  for (std::int32_t first = 0; first < num_blocks_used();) {
    const auto count = std::min<std::int32_t>(num_blocks_used() - first, std::ssize(blocks));
    for (std::int32_t i = 0; i < count; ++i) blocks[static_cast<std::size_t>(i)] = first + i;
    KVFOLIO_RETURN_IF_ERROR(made->storage_.copy_blocks_from(
        storage_, GroupId(0), std::span(blocks).first(static_cast<std::size_t>(count))));
    first += count;
  }
  made->size_ = size_;
  return made;
}

// ---- what is checked ---------------------------------------------------------------------------

Result<TokenStore::Shape> TokenStore::shape_of(std::string_view call, const Rows& rows,
                                               const ConstElements& elements) const {
  const auto bad = [&](const std::string& what) {
    return invalid(concat(call, ": ", rows.name, what));
  };
  Shape shape{.dtype = elements.element_bytes == 8 ? DType::kF64 : DType::kF32};
  if (elements.element_bytes == 2) {
    shape.dtype = options_.dtype;
    if (element_bytes_ != 2) {
      return bad(
          concat(" has elements of 16 bits, which are those of a store of f16 or bf16; this "
                 "store is ",
                 std::string_view(to_string(shape.dtype)),
                 ": allowed is a view of rows, which names their type"));
    }
  }
  if (elements.size == 0) return shape;
  if (elements.data == nullptr) {
    return bad(concat(" is null, for ", elements.size, " elements"));
  }
  if (rows.num_elements == 0) return bad(" is given, but the store has no V");
  if (elements.size % rows.num_elements != 0) {
    return bad(concat(" has ", elements.size, " elements, allowed: multiples of a row, ",
                      rows.num_elements));
  }
  shape.num_rows = static_cast<std::int64_t>(elements.size / rows.num_elements);
  return shape;
}

Status TokenStore::check_append(std::int64_t num_tokens, std::int64_t num_rows_v) const {
  if (v_.num_elements > 0 && num_rows_v != num_tokens) {
    return invalid(num_rows_v == 0
                       ? concat("append: v is missing: the store has V, rows of ", v_.num_elements,
                                " elements")
                       : concat("append: ", num_rows_v, " rows of v for ", num_tokens, " of k"));
  }
  if (num_tokens <= max_tokens_ - size_) return {};
  return {ErrorCode::kResourceExhausted, concat("append of ", num_tokens, " tokens: full: ", size_,
                                                " of ", max_tokens_, " tokens")};
}

Status TokenStore::check_range(std::string_view call, std::int64_t begin,
                               std::int64_t count) const {
  if (begin >= 0 && begin <= size_ && count <= size_ - begin) return {};
  return invalid(concat(call, " of ", count, " tokens from ", begin, " on: the store has ", size_));
}

Status TokenStore::no_row(const Rows& rows, std::int64_t i, std::int32_t element_bytes) const {
  if (!has(i)) return invalid(concat("token ", i, " of a store of ", size_, " tokens"));
  if (rows.num_elements == 0) return invalid("the row of v: the store has no V");
  if (has_scales(options_.dtype)) {
    return {ErrorCode::kUnsupported,
            concat("the row of ", rows.name, " in place: the store is ",
                   std::string_view(to_string(options_.dtype)),
                   ", whose elements need their scales; allowed: read and gather")};
  }
  return invalid(concat("the row of ", rows.name, " as elements of ", element_bytes,
                        " bytes: the store is ", std::string_view(to_string(options_.dtype)), ", ",
                        element_bytes_, " bytes"));
}

// ---- append ------------------------------------------------------------------------------------

Status TokenStore::append(const ConstRowsView& k, const ConstRowsView& v) {
  if (k.num_tokens < 0) {
    return invalid(concat("append: k has ", k.num_tokens, " tokens, allowed: at least 0"));
  }
  const auto shape = [&](std::int32_t head_dim) {
    return kernels::RowsShape{k.num_tokens, options_.num_kv_heads, head_dim};
  };
  const bool v_given = v.data != nullptr || v.num_tokens != 0;
  KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("k", k, shape(options_.head_dim_k)));
  if (v_given && v_.num_elements == 0) {
    return invalid("append: v is given, but the store has no V");
  }
  if (v_given) KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("v", v, shape(options_.head_dim_v)));
  KVFOLIO_RETURN_IF_ERROR(check_append(k.num_tokens, v_given ? v.num_tokens : 0));
  copy_in(k, v);
  return {};
}

Status TokenStore::append_slowly(const ConstElements& k, const ConstElements& v) {
  const Result<Shape> k_shape = shape_of("append", k_, k);
  if (!k_shape) return k_shape.error();
  const Result<Shape> v_shape = shape_of("append", v_, v);
  if (!v_shape) return v_shape.error();
  KVFOLIO_RETURN_IF_ERROR(check_append(k_shape->num_rows, v_shape->num_rows));
  const std::int32_t heads = options_.num_kv_heads;
  copy_in(
      rows_at<ConstRowsView>(k.data, k_shape->num_rows, heads, options_.head_dim_k, k_shape->dtype),
      rows_at<ConstRowsView>(v.data, v_shape->num_rows, heads, options_.head_dim_v,
                             v_shape->dtype));
  return {};
}

void TokenStore::copy_in(const ConstRowsView& k, const ConstRowsView& v) noexcept {
  const std::int32_t num_tokens = k.num_tokens;
  KVFOLIO_CHECK(num_tokens >= 0 && num_tokens <= max_tokens_ - size_);
  const double bytes = static_cast<double>(k_.row_bytes + v_.row_bytes) * num_tokens;
  const Stores stores = kernels::stores_for(bytes, kernels::kAppendPastCaches);
  const auto write_rows = [&](const kernels::Plane& plane, const ConstRowsView& rows) {
    const RowWriter writer(plane, rows.dtype, stores);
    for_each_box(view_, size_, num_tokens, [&](const kernels::RowBox& box, std::int32_t done) {
      writer.write(box, rows.at(done, 0), {rows.token_stride, rows.head_stride});
    });
  };
  write_rows(kernels::k_plane(view_, 0), k);
  if (v_.num_elements > 0) write_rows(kernels::v_plane(view_, 0), v);
  if (stores == Stores::kPastCaches) kernels::stream_fence();
  size_ += num_tokens;
}

// ---- read and gather ---------------------------------------------------------------------------

Status TokenStore::gather(std::int64_t begin, const RowsView& k, const RowsView& v) const {
  const std::int32_t count = k.data != nullptr ? k.num_tokens : v.num_tokens;
  if (count < 0) {
    return invalid(concat("gather of ", count, " tokens, allowed: at least 0"));
  }
  const auto shape = [&](std::int32_t head_dim) {
    return kernels::RowsShape{count, options_.num_kv_heads, head_dim};
  };
  if (k.data != nullptr) {
    KVFOLIO_RETURN_IF_ERROR(kernels::check_written_rows("k", k, shape(options_.head_dim_k)));
  }
  if (v.data != nullptr) {
    if (v_.num_elements == 0) return invalid("gather: v is given, but the store has no V");
    KVFOLIO_RETURN_IF_ERROR(kernels::check_written_rows("v", v, shape(options_.head_dim_v)));
  }
  KVFOLIO_RETURN_IF_ERROR(check_range("gather", begin, count));
  copy_out(static_cast<std::int32_t>(begin), k, v);
  return {};
}

Status TokenStore::gather_elements(std::string_view call, std::int64_t begin, const Elements& k,
                                   const Elements& v) const {
  const Result<Shape> k_shape = shape_of(call, k_, {k.data, k.size, k.element_bytes});
  if (!k_shape) return k_shape.error();
  const Result<Shape> v_shape = shape_of(call, v_, {v.data, v.size, v.element_bytes});
  if (!v_shape) return v_shape.error();
  if (k.size > 0 && v.size > 0 && k_shape->num_rows != v_shape->num_rows) {
    return invalid(
        concat(call, ": ", v_shape->num_rows, " rows of v for ", k_shape->num_rows, " of k"));
  }
  KVFOLIO_RETURN_IF_ERROR(check_range(call, begin, std::max(k_shape->num_rows, v_shape->num_rows)));
  const std::int32_t heads = options_.num_kv_heads;
  copy_out(
      static_cast<std::int32_t>(begin),
      rows_at<RowsView>(k.data, k_shape->num_rows, heads, options_.head_dim_k, k_shape->dtype),
      rows_at<RowsView>(v.data, v_shape->num_rows, heads, options_.head_dim_v, v_shape->dtype));
  return {};
}

Status TokenStore::read_slowly(std::int64_t i, const Elements& k, const Elements& v) const {
  for (const auto& [rows, elements] : {std::pair(&k_, &k), std::pair(&v_, &v)}) {
    if (elements->size == 0 || elements->size == rows->num_elements) continue;
    return invalid(concat("read: ", rows->name, " has ", elements->size,
                          " elements, allowed: 0 or a row, ", rows->num_elements));
  }
  if (!has(i)) return no_row(k_, i, 0);
  return gather_elements("read", i, k, v);
}

void TokenStore::copy_out(std::int32_t begin, const RowsView& k, const RowsView& v) const noexcept {
  KVFOLIO_CHECK(k.data == nullptr || k.num_tokens <= size_ - begin);
  KVFOLIO_CHECK(v.data == nullptr || v.num_tokens <= size_ - begin);
  const auto bytes_of = [&](const RowsView& rows) {
    return rows.data == nullptr ? 0.0
                                : static_cast<double>(rows.num_tokens) * rows.num_heads *
                                      rows.head_dim * dtype_bytes(rows.dtype);
  };
  const Stores stores = kernels::stores_for(bytes_of(k) + bytes_of(v), kernels::kGatherPastCaches);
  const auto read_rows = [&](const kernels::Plane& plane, const RowsView& rows) {
    const RowReader reader(plane, rows.dtype, stores);
    for_each_box(view_, begin, rows.num_tokens, [&](const kernels::RowBox& box, std::int32_t done) {
      reader.read(box, rows.at(done, 0), {rows.token_stride, rows.head_stride});
    });
  };
  if (k.data != nullptr) read_rows(kernels::k_plane(view_, 0), k);
  if (v.data != nullptr) read_rows(kernels::v_plane(view_, 0), v);
  if (stores == Stores::kPastCaches) kernels::stream_fence();
}

std::string to_string(const TokenStore& store) {
  const TokenStoreOptions& options = store.options();
  const std::string v = options.head_dim_v == 0
                            ? std::string("no V")
                            : concat("V ", options.num_kv_heads, " x ", options.head_dim_v);
  return concat("token store: ", store.size(), " of ", store.max_tokens(), " tokens of ",
                std::string_view(to_string(options.dtype)), ", K ", options.num_kv_heads, " x ",
                options.head_dim_k, ", ", v, "; ", store.num_blocks_used(), " of ",
                store.num_blocks(), " blocks of ", options.block_size, " tokens in use, ",
                store.bytes_used(), " of ", store.memory_bytes(), " bytes");
}

}  // namespace kvfolio
