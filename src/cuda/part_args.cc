// SPDX-License-Identifier: Apache-2.0

#include "cuda/part_args.h"

#include <numeric>
#include <utility>

#include "base/row_nest.h"

namespace kvfolio::cuda {
namespace {

// One axis of rows, in memory and in an image.
struct RowAxis {
  std::int64_t extent = 1;
  std::int64_t stride = 0;
  std::int64_t image = 0;
};

struct Part {
  ViewPart memory;
  std::int64_t image = 0;
  std::int64_t row_bytes = 0;
  RowAxis outer;
  RowAxis inner;
};

// Rows that continue each other are one, here and in the image.
void join(Part& part, bool images) noexcept {
  while (part.inner.extent > 1 && part.inner.stride == part.row_bytes &&
         (!images || part.inner.image == part.row_bytes)) {
    part.row_bytes *= part.inner.extent;
    part.inner = std::exchange(part.outer, RowAxis{});
  }
}

// The widest unit that divides all that an address is made of.
std::uint32_t width_of(const Part& part, const KVView& view, std::int64_t image_gcd) noexcept {
  std::int64_t all = std::gcd(part.row_bytes, image_gcd);
  all = std::gcd(
      all, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(part.memory.base) % 16));
  if (view.num_layers > 1) all = std::gcd(all, part.memory.strides.layer);
  if (view.num_blocks > 1) all = std::gcd(all, part.memory.strides.block);
  for (const RowAxis& axis : {part.outer, part.inner}) {
    if (axis.extent > 1) all = std::gcd(all, axis.stride);
  }
  return static_cast<std::uint32_t>(std::gcd(all, std::int64_t{16}));
}

}  // namespace

PartsOfBlock parts_of_block(const KVView& view, const Images* images) noexcept {
  const ViewParts stored = parts_of(view);
  const std::int64_t heads = view.num_kv_heads;
  std::int64_t bytes_of_head = 0;  // all parts
  for (const ViewPart& part : stored.all()) bytes_of_head += part.row_bytes * part.num_rows;
  PartsOfBlock result;
  result.image_layer_bytes = bytes_of_head * heads;
  std::int64_t image_gcd = 0;
  if (images != nullptr) {
    image_gcd =
        std::gcd(result.image_layer_bytes,
                 static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(images->base) % 16));
  }
  const bool nhd = images != nullptr && images->format == Format::kNhd;
  std::int64_t before = 0;
  for (const ViewPart& memory : stored.all()) {
    Part part{
        .memory = memory, .image = before, .row_bytes = memory.row_bytes, .outer = {}, .inner = {}};
    const RowAxis head{heads, memory.strides.head, nhd ? memory.row_bytes : bytes_of_head};
    const RowAxis token{memory.num_rows, memory.strides.token,
                        nhd ? memory.row_bytes * heads : memory.row_bytes};
    before += memory.row_bytes * memory.num_rows * (nhd ? heads : 1);
    const bool token_inside = heads == 1 || (token.extent > 1 && token.stride <= head.stride);
    part.inner = token_inside ? token : head;
    part.outer = token_inside ? head : token;
    join(part, images != nullptr);
    std::int64_t of_image = image_gcd;
    if (images != nullptr) {
      of_image = std::gcd(of_image, part.image);
      for (const RowAxis& axis : {part.outer, part.inner}) {
        if (axis.extent > 1) of_image = std::gcd(of_image, axis.image);
      }
    }
    const std::uint32_t width = width_of(part, view, of_image);
    const auto per_row = static_cast<std::uint32_t>(part.row_bytes / width);
    result.parts[static_cast<std::size_t>(result.num_parts++)] = {
        .data = reinterpret_cast<char*>(memory.base),
        .layer = memory.strides.layer,
        .block = memory.strides.block,
        .outer = part.outer.stride,
        .inner = part.inner.stride,
        .image = part.image,
        .image_outer = part.outer.image,
        .image_inner = part.inner.image,
        .width = width,
        .units = per_row * static_cast<std::uint32_t>(part.outer.extent * part.inner.extent),
        .per_row = Divider(per_row),
        .inner_rows = Divider(static_cast<std::uint32_t>(part.inner.extent))};
  }
  return result;
}

}  // namespace kvfolio::cuda
