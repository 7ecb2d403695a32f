// SPDX-License-Identifier: Apache-2.0

// The names of kernels and element types, and the choice of a kernel by its name.

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/attention/attend.h"

namespace kvfolio::cuda {

std::string_view to_string(KernelName kernel) noexcept {
  switch (kernel) {
    case KernelName::kNode:
      return "cuda-node";
    case KernelName::kGeneral:
      return "cuda-general";
    case KernelName::kMerge:
      return "cuda-merge";
    case KernelName::kPrefill:
      return "cuda-prefill";
    case KernelName::kWgmma:
      return "cuda-wgmma";
    case KernelName::kStream:
      return "cuda-stream";
    case KernelName::kNarrow:
      return "cuda-narrow";
    case KernelName::kWgmmaTiles:
      return "cuda-wgmma-tiles";
  }
  return "invalid";
}

std::string_view to_string(Element element) noexcept {
  switch (element) {
    case Element::kF32:
      return "f32";
    case Element::kF16:
      return "f16";
    case Element::kBF16:
      return "bf16";
    case Element::kInt8:
      return "int8";
    case Element::kE4M3:
      return "e4m3";
  }
  return "invalid";
}

Result<KernelChoice> choice_named(std::string_view name, KernelChoice choice) {
  if (name == to_string(KernelName::kNode)) {
    choice.prefill = false;
  } else if (name == to_string(KernelName::kPrefill)) {
    choice.wgmma = false;
  } else if (name == to_string(KernelName::kWgmmaTiles)) {
    choice.wgmma_tiles = true;
  } else if (name != to_string(KernelName::kWgmma)) {
    return invalid(
        text::concat("the kernel for chunks is ", name,
                     ", allowed: cuda-node, cuda-prefill, cuda-wgmma, cuda-wgmma-tiles"));
  }
  return choice;
}

}  // namespace kvfolio::cuda
