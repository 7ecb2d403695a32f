// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which positions a row sees, in a form that host and device share: the same rules as
// kernels/visible.h (causal, window or chunk with sinks, trim), asked one position or one tile at a
// time. Values only.

#include <cstdint>

#include "cuda/element.h"

namespace kvfolio::cuda {

enum class Rule : std::int32_t { kFull = 0, kSlidingWindow = 1, kChunked = 2 };

struct Mask {
  Rule rule = Rule::kFull;
  std::int32_t window = 0;     // tokens of a window or a chunk
  std::int32_t num_sinks = 0;  // leading positions seen whatever the rule says; 0 for kFull
  std::int32_t causal = 1;
};

// The first position that the row at position `at` reads, sinks apart.
KVFOLIO_CUDA_BOTH std::int32_t first_read(const Mask& mask, std::int32_t at) {
  if (mask.rule == Rule::kFull) return 0;
  if (mask.rule == Rule::kSlidingWindow) return at < mask.window ? 0 : at - mask.window + 1;
  return at - at % mask.window;
}

// Position p is seen iff p <= high, and p >= low or p < sinks, and p >= first_kept or p <
// trim_sinks.
struct Sight {
  std::int32_t low = 0;
  std::int32_t high = -1;
  std::int32_t sinks = 0;
  std::int32_t first_kept = 0;
  std::int32_t trim_sinks = 0;

  KVFOLIO_CUDA_BOTH bool sees(std::int32_t p) const {  // without branches: kernels ask it often
    const int in_rule = static_cast<int>(p >= low) | static_cast<int>(p < sinks);
    const int in_trim = static_cast<int>(p >= first_kept) | static_cast<int>(p < trim_sinks);
    return (static_cast<int>(p <= high) & in_rule & in_trim) != 0;
  }
  // All of first .. last, unless this says false without need: pieces that touch are not joined.
  KVFOLIO_CUDA_BOTH bool surely_sees_all(std::int32_t first, std::int32_t last) const {
    return last <= high && (first >= low || last < sinks) &&
           (first >= first_kept || last < trim_sinks);
  }
  // The first position from p on that is seen; above `high` if there is none.
  KVFOLIO_CUDA_BOTH std::int32_t next(std::int32_t p) const {
    for (int i = 0; i < 2; ++i) {
      if (p < low && p >= sinks) p = low;
      if (p < first_kept && p >= trim_sinks) p = first_kept;
    }
    return p;
  }
  KVFOLIO_CUDA_BOTH bool sees_any(std::int32_t first, std::int32_t last) const {
    const std::int32_t p = next(first);
    return p <= last && p <= high;
  }
};

// What one row sees. trim_sinks and first_kept: of its sequence; 0 and 0 without a trim.
KVFOLIO_CUDA_BOTH Sight sight_of(const Mask& mask, std::int32_t at, std::int32_t kv_len,
                                 std::int32_t trim_sinks, std::int32_t first_kept) {
  Sight sight;
  sight.low = first_read(mask, at);
  sight.high = mask.causal ? at : kv_len - 1;
  sight.sinks = mask.num_sinks;
  sight.first_kept = first_kept;
  sight.trim_sinks = trim_sinks;
  return sight;
}

// What the rows at positions first .. last see together, and what each of them sees.
KVFOLIO_CUDA_BOTH Sight sight_of_any(const Mask& mask, std::int32_t first, std::int32_t last,
                                     std::int32_t kv_len, std::int32_t trim_sinks,
                                     std::int32_t first_kept) {
  Sight sight = sight_of(mask, last, kv_len, trim_sinks, first_kept);
  sight.low = first_read(mask, first);
  return sight;
}
KVFOLIO_CUDA_BOTH Sight sight_of_each(const Mask& mask, std::int32_t first, std::int32_t last,
                                      std::int32_t kv_len, std::int32_t trim_sinks,
                                      std::int32_t first_kept) {
  Sight sight = sight_of(mask, first, kv_len, trim_sinks, first_kept);
  sight.low = first_read(mask, last);
  return sight;
}

}  // namespace kvfolio::cuda
