// SPDX-License-Identifier: Apache-2.0

// What a tile costs in instructions, which no neighbour on the machine changes: the difference of
// two calls that differ by a tile. Beside the bytes of the tile and the multiply-adds that its
// rows need, it says what a target spends on everything else.

#include <string>

#include "cached_case.h"
#include "instructions.h"

namespace kvfolio::bench {
namespace {

constexpr std::int32_t kTokensCounted = 64;

std::optional<Instructions> count_of(const Context& context, DType dtype, std::int32_t tiles,
                                     std::int32_t rows) {
  const std::int32_t q_per_kv = std::min(rows, 8);
  const std::int32_t queries = rows / q_per_kv;
  // The queries stand behind what is counted, where every row sees all of it.
  const std::int32_t length = tiles * kTokensCounted + queries;
  const CachedCase cache({.dtype = dtype, .lengths = {length}});
  AttentionCall call(context, cache, q_per_kv, queries);
  call.run(1);
  return instructions_of([&] { call.run(1); });
}

// Single steps cost some 25 microseconds each.
constexpr double kMostSteps = 500'000;

void measure_instruction_counts(const Context& context) {
  if (!context.has_granule()) return;
  const Session& session = context.session;
  for (const DType dtype : context.dtypes()) {
    if (session.quick() && dtype != context.dtypes().back()) continue;
    for (const std::int32_t rows : {1, 8, 64}) {
      const auto one_tile = count_of(context, dtype, 1, rows);
      const auto two_tiles = one_tile ? count_of(context, dtype, 2, rows) : std::nullopt;
      if (!two_tiles) return session.leave_out("instructions.tile", kUncounted);
      session.report({.name = "instructions.tile",
                      .facts = {{"dtype", to_string(dtype)},
                                {"rows", std::int64_t{rows}},
                                {"target", context.target_name()},
                                {"counted_by", two_tiles->counted_by}},
                      .unit = "instructions",
                      .note = "for 64 tokens of one KV head of 128, " +
                              std::to_string(2 * kTokensCounted *
                                             static_cast<std::int64_t>(row_bytes(dtype))) +
                              " bytes of K and V; the rows need " +
                              std::to_string(2 * std::int64_t{kTokensCounted} * kHeadDim * rows) +
                              " multiply-adds of one number"},
                     {{(two_tiles->count - one_tile->count) / kKvHeads}, {}});
      const bool steps = two_tiles->counted_by == "single steps";
      if (session.quick() || (steps && 8 * two_tiles->count > kMostSteps)) break;
    }
  }
}

}  // namespace

AttentionFamily instruction_counts_family() {
  return {{"instructions.tile"}, measure_instruction_counts};
}

}  // namespace kvfolio::bench
