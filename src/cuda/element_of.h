// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the host: the element of a type. kF32 also for what no kernel takes, which was refused
// before.

#include "cuda/element.h"
#include "kvfolio/dtype.h"

namespace kvfolio::cuda {

// No default: a new type has to be thought of here.
[[nodiscard]] inline Element element_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      return Element::kBF16;
    case DType::kInt8:
      return Element::kInt8;
    case DType::kE4M3:
      return Element::kE4M3;
    case DType::kF32:
    case DType::kF64:
    case DType::kOpaque:
      break;
  }
  return Element::kF32;
}

}  // namespace kvfolio::cuda
