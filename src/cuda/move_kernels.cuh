// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels as types, each with its arguments and what it runs, and the way from a MoveKernel to
// its type: for what starts kernels.

#include "cuda/move.cuh"
#include "cuda/move_blocks.cuh"
#include "cuda/queue.h"

namespace kvfolio::cuda {

constexpr int kBatch = 2;       // of the plain kernels
constexpr int kShortUnits = 2;  // of a lane: head dims up to 512
constexpr int kLongUnits = 4;   // up to 1,024

// kMeets: threads meet at shuffles.
template <Element kFrom, Element kTo, int kUnits, bool kWide>
struct AppendPlain {
  using Args = AppendArgs;
  static constexpr bool kMeets = false;
  __device__ static void run(const Args& a) { append_plain<kFrom, kTo, kUnits, kWide>(a); }
};
template <Element kFrom, Element kTo, int kUnits, bool kWide>
struct AppendQuantized {
  using Args = AppendArgs;
  static constexpr bool kMeets = true;
  __device__ static void run(const Args& a) { append_quantized<kFrom, kTo, kUnits, kWide>(a); }
};
template <Element kFrom, Element kTo, int kUnits, bool kWide>
struct Gather {
  using Args = GatherArgs;
  static constexpr bool kMeets = false;
  __device__ static void run(const Args& a) { gather_plain<kFrom, kTo, kUnits, kWide>(a); }
};
template <Element kFrom, Element kTo, bool kWide>
struct Convert {
  using Args = ConvertArgs;
  static constexpr bool kMeets = kHasScales<kTo> && kFrom != kTo;
  __device__ static void run(const Args& a) {
    if constexpr (kMeets) {
      convert_quantized<kFrom, kTo, kWide>(a);
    } else {
      convert_plain<kFrom, kTo, kWide>(a);
    }
  }
};
template <BlocksOp kOp, bool kWide, int kUnits = kUnitsOfThread>
struct Blocks {
  using Args = BlocksArgs;
  static constexpr bool kMeets = false;
  __device__ static void run(const Args& a) { move_blocks<kOp, kWide, kUnits>(a); }
};
template <bool kIn>
struct Runs {
  using Args = RunsArgs;
  static constexpr bool kMeets = false;
  __device__ static void run(const Args& a) { move_runs<kIn>(a); }
};
struct Scatter {
  using Args = ScatterArgs;
  static constexpr bool kMeets = false;
  __device__ static void run(const Args& a) { scatter_entries(a); }
};
struct PlanEntries {
  using Args = PlanArgs;
  static constexpr bool kMeets = false;
  __device__ static void run(const Args& a) { set_plan_entries(a); }
};
struct PlanRows {
  using Args = PlanArgs;
  static constexpr bool kMeets = false;
  __device__ static void run(const Args& a) { make_plan_rows(a); }
};

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

// start(type of the kernel, its arguments) answers true.
template <typename Start>
bool with_append_kernel(const MoveKernel& kernel, const AppendArgs& args, Start&& start) {
  return with_plain(kernel.from, [&](auto from) {
    return with_bool(kernel.wide, [&](auto wide) {
      constexpr Element kFrom = decltype(from)::value;
      constexpr bool kWide = decltype(wide)::value;
      if (kernel.family == MoveFamily::kAppendPlain) {
        return with_plain(kernel.to, [&](auto to) {
          return start(AppendPlain<kFrom, decltype(to)::value, kBatch, kWide>(), args);
        });
      }
      return with_scaled(kernel.to, [&](auto to) {
        constexpr Element kTo = decltype(to)::value;
        if constexpr (kWide) {
          if (!kernel.long_rows)
            return start(AppendQuantized<kFrom, kTo, kShortUnits, true>(), args);
        }
        return start(AppendQuantized<kFrom, kTo, kLongUnits, kWide>(), args);
      });
    });
  });
}

template <typename Start>
bool with_gather_kernel(const MoveKernel& kernel, const GatherArgs& args, Start&& start) {
  return with_element(kernel.from, [&](auto from) {
    return with_plain(kernel.to, [&](auto to) {
      return with_bool(kernel.wide, [&](auto wide) {
        return start(
            Gather<decltype(from)::value, decltype(to)::value, kBatch, decltype(wide)::value>(),
            args);
      });
    });
  });
}

template <typename Start>
bool with_convert_kernel(const MoveKernel& kernel, const ConvertArgs& args, Start&& start) {
  return with_element(kernel.from, [&](auto from) {
    return with_element(kernel.to, [&](auto to) {
      return with_bool(kernel.wide, [&](auto wide) {
        return start(Convert<decltype(from)::value, decltype(to)::value, decltype(wide)::value>(),
                     args);
      });
    });
  });
}

template <typename Start>
bool with_blocks_kernel(const MoveKernel& kernel, const BlocksArgs& args, Start&& start) {
  return with_bool(kernel.wide, [&](auto wide) {
    constexpr bool kWide = decltype(wide)::value;
    switch (kernel.family) {
      case MoveFamily::kCopyBlocks:
        return start(Blocks<BlocksOp::kCopy, kWide>(), args);
      case MoveFamily::kFillBlocks:
        return start(Blocks<BlocksOp::kFill, kWide>(), args);
      case MoveFamily::kPackBlocks:
        return start(Blocks<BlocksOp::kPack, kWide>(), args);
      case MoveFamily::kUnpackBlocks:
        return start(Blocks<BlocksOp::kUnpack, kWide>(), args);
      default:
        return false;
    }
  });
}

// False: there is no such kernel.
template <typename Start>
bool with_kernel(const MoveKernel& kernel, const void* args, Start&& start) {
  switch (kernel.family) {
    case MoveFamily::kAppendPlain:
    case MoveFamily::kAppendQuantized:
      return with_append_kernel(kernel, *static_cast<const AppendArgs*>(args), start);
    case MoveFamily::kGather:
      return with_gather_kernel(kernel, *static_cast<const GatherArgs*>(args), start);
    case MoveFamily::kConvert:
      return with_convert_kernel(kernel, *static_cast<const ConvertArgs*>(args), start);
    case MoveFamily::kRunsIn:
      return start(Runs<true>(), *static_cast<const RunsArgs*>(args));
    case MoveFamily::kRunsOut:
      return start(Runs<false>(), *static_cast<const RunsArgs*>(args));
    case MoveFamily::kScatter:
      return start(Scatter(), *static_cast<const ScatterArgs*>(args));
    case MoveFamily::kPlanEntries:
      return start(PlanEntries(), *static_cast<const PlanArgs*>(args));
    case MoveFamily::kPlanRows:
      return start(PlanRows(), *static_cast<const PlanArgs*>(args));
    default:
      return with_blocks_kernel(kernel, *static_cast<const BlocksArgs*>(args), start);
  }
}

}  // namespace kvfolio::cuda
