// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a Kernel's name to the template that it names: for what starts kernels.

#include "cuda/move.cuh"
#include "cuda/move.h"
#include "cuda/move_blocks.cuh"

namespace kvfolio::cuda {

constexpr int kBatch = 2;       // of the plain kernels
constexpr int kShortUnits = 2;  // of a lane: head dims up to 512
constexpr int kLongUnits = 4;   // up to 1,024

template <Element kElement>
struct ElementTag {
  static constexpr Element value = kElement;
};
template <bool kValue>
struct BoolTag {
  static constexpr bool value = kValue;
};

// visit(tag) answers true.
template <typename Visit>
bool with_plain(Element element, Visit&& visit) {
  switch (element) {
    case Element::kF32:
      return visit(ElementTag<Element::kF32>());
    case Element::kF16:
      return visit(ElementTag<Element::kF16>());
    case Element::kBF16:
      return visit(ElementTag<Element::kBF16>());
    default:
      return false;
  }
}
template <typename Visit>
bool with_scaled(Element element, Visit&& visit) {
  switch (element) {
    case Element::kInt8:
      return visit(ElementTag<Element::kInt8>());
    case Element::kE4M3:
      return visit(ElementTag<Element::kE4M3>());
    default:
      return false;
  }
}
template <typename Visit>
bool with_element(Element element, Visit&& visit) {
  return has_scales(element) ? with_scaled(element, visit) : with_plain(element, visit);
}
template <typename Visit>
bool with_bool(bool value, Visit&& visit) {
  return value ? visit(BoolTag<true>()) : visit(BoolTag<false>());
}

// start(kernel, whether its threads meet, typed args) answers true.
template <typename Start>
bool with_append_kernel(const Kernel& kernel, const AppendArgs& args, Start&& start) {
  return with_plain(kernel.from, [&](auto from) {
    return with_bool(kernel.wide, [&](auto wide) {
      constexpr Element kFrom = decltype(from)::value;
      constexpr bool kWide = decltype(wide)::value;
      if (kernel.family == MoveFamily::kAppendPlain) {
        return with_plain(kernel.to, [&](auto to) {
          return start(append_plain<kFrom, decltype(to)::value, kBatch, kWide>, false, args);
        });
      }
      return with_scaled(kernel.to, [&](auto to) {
        constexpr Element kTo = decltype(to)::value;
        if constexpr (kWide) {
          if (!kernel.long_rows)
            return start(append_quantized<kFrom, kTo, kShortUnits, true>, true, args);
        }
        return start(append_quantized<kFrom, kTo, kLongUnits, kWide>, true, args);
      });
    });
  });
}

template <typename Start>
bool with_gather_kernel(const Kernel& kernel, const GatherArgs& args, Start&& start) {
  return with_element(kernel.from, [&](auto from) {
    return with_plain(kernel.to, [&](auto to) {
      return with_bool(kernel.wide, [&](auto wide) {
        return start(
            gather_plain<decltype(from)::value, decltype(to)::value, kBatch, decltype(wide)::value>,
            false, args);
      });
    });
  });
}

template <typename Start>
bool with_convert_kernel(const Kernel& kernel, const ConvertArgs& args, Start&& start) {
  return with_element(kernel.from, [&](auto from) {
    return with_element(kernel.to, [&](auto to) {
      return with_bool(kernel.wide, [&](auto wide) {
        constexpr Element kFrom = decltype(from)::value, kTo = decltype(to)::value;
        constexpr bool kWide = decltype(wide)::value;
        if constexpr (kHasScales<kTo> && kFrom != kTo) {
          return start(convert_quantized<kFrom, kTo, kWide>, true, args);
        } else {
          return start(convert_plain<kFrom, kTo, kWide>, false, args);
        }
      });
    });
  });
}

template <typename Start>
bool with_blocks_kernel(const Kernel& kernel, const BlocksArgs& args, Start&& start) {
  return with_bool(kernel.wide, [&](auto wide) {
    constexpr bool kWide = decltype(wide)::value;
    switch (kernel.family) {
      case MoveFamily::kCopyBlocks:
        return start(move_blocks<BlocksOp::kCopy, kWide>, false, args);
      case MoveFamily::kFillBlocks:
        return start(move_blocks<BlocksOp::kFill, kWide>, false, args);
      case MoveFamily::kPackBlocks:
        return start(move_blocks<BlocksOp::kPack, kWide>, false, args);
      case MoveFamily::kUnpackBlocks:
        return start(move_blocks<BlocksOp::kUnpack, kWide>, false, args);
      default:
        return false;
    }
  });
}

// False: there is no such kernel.
template <typename Start>
bool with_kernel(const Kernel& kernel, const void* args, Start&& start) {
  switch (kernel.family) {
    case MoveFamily::kAppendPlain:
    case MoveFamily::kAppendQuantized:
      return with_append_kernel(kernel, *static_cast<const AppendArgs*>(args), start);
    case MoveFamily::kGather:
      return with_gather_kernel(kernel, *static_cast<const GatherArgs*>(args), start);
    case MoveFamily::kConvertPlain:
    case MoveFamily::kConvertQuantized:
      return with_convert_kernel(kernel, *static_cast<const ConvertArgs*>(args), start);
    case MoveFamily::kScatter:
      return start(scatter_entries, false, *static_cast<const ScatterArgs*>(args));
    default:
      return with_blocks_kernel(kernel, *static_cast<const BlocksArgs*>(args), start);
  }
}

}  // namespace kvfolio::cuda
