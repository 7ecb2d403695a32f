// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the attend() of a CPU and that of a device take beside tensors: scale and masks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "bindings.h"
#include "kvfolio/attention_params.h"

namespace kvfolio::python {

struct GivenMask {
  nb::handle scale;
  bool causal;
  nb::handle window, num_sinks, chunk;
  double soft_cap;
};

// None: `number`.
inline std::int32_t number_or(nb::handle object, const char* name, std::int32_t number) {
  if (object.is_none()) return number;
  Int given;
  if (!nb::try_cast(object, given)) raise_wanted(object, name, "an int or None");
  return i32(given, name);
}

// What is None stays as the group has it; chunks take the place of its window.
inline void set_rule(const GivenMask& given, GroupRule& rule) {
  const std::int32_t chunk = number_or(given.chunk, "chunk", 0);
  const std::int32_t sinks = number_or(given.num_sinks, "num_sinks", rule.num_sinks());
  if (chunk != 0) {
    const std::int32_t window = number_or(given.window, "window", 0);
    if (window != 0) {
      raise_invalid("window is " + std::to_string(window) + " and chunk " + std::to_string(chunk) +
                    ", wanted: one of them, the other 0 or None");
    }
    rule = GroupRule::of_chunk(chunk, sinks);
    return;
  }
  const std::int32_t tokens = number_or(given.window, "window", rule.window());
  rule = {tokens == 0 ? AttentionKind::kFull : AttentionKind::kSlidingWindow, tokens, sinks};
}

// All but slopes and logits. `params` has the rule of the group, or none.
inline void set_mask(const GivenMask& given, std::int32_t head_dim, AttentionParams& params) {
  params.scale = 1.0 / std::sqrt(std::max(head_dim, 1));
  if (!given.scale.is_none() && !nb::try_cast(given.scale, params.scale)) {
    raise_wanted(given.scale, "scale", "a float or None");
  }
  params.causal = given.causal;
  set_rule(given, params.rule);
  params.soft_cap = given.soft_cap;
}

}  // namespace kvfolio::python
