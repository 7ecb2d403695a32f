// SPDX-License-Identifier: Apache-2.0
#pragma once

// A block of one layer as the kernels that know no element see it: parts (K, V, scales) of rows
// along two axes, cut into units as wide as every address in them allows.

#include <array>
#include <cstdint>

#include "cuda/move_args.h"
#include "kvfolio/spec.h"
#include "kvfolio/view.h"

namespace kvfolio::cuda {

struct PartsOfBlock {
  std::array<PartArgs, 4> parts;
  int num_parts = 0;
  std::int64_t image_layer_bytes = 0;  // of one layer of an image
};

// Where images lie; none: for copies within a cache.
struct Images {
  Format format = Format::kHnd;  // the order within an image, see storage.h
  const std::byte* base = nullptr;
};

// Requires: a view that check_view() takes, without granule. `images` null: only memory counts.
[[nodiscard]] PartsOfBlock parts_of_block(const KVView& view, const Images* images) noexcept;

}  // namespace kvfolio::cuda
