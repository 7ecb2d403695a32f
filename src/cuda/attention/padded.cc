// SPDX-License-Identifier: Apache-2.0

#include "cuda/attention/padded.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "base/invalid.h"
#include "base/mutants.h"
#include "base/text.h"
#include "kvfolio/ids.h"
#include "kvfolio/spec.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;  // of a launch
constexpr std::int64_t kMostImageBytes = std::int64_t{1} << 32;
constexpr std::int64_t kMostSegmentsOfBlock = 24;  // its shared memory

Status check_range(std::string_view name, std::int64_t value, std::int64_t least,
                   std::int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid(concat(name, " is ", value, ", allowed: ", least, " to ", most));
}

std::int64_t product(std::int64_t x, std::int64_t y) {  // 2^62 of more
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  return y > 0 && x > kMost / y ? kMost : x * y;
}

// Before any of it is made.
Status check_image_bytes(std::int64_t bytes) {
  if (bytes <= kMostImageBytes) return {};
  return invalid(concat("the capacity makes an image of ", bytes, " bytes, allowed: ",
                        kMostImageBytes, ": lower max_sequences, max_tokens or max_queries"));
}

std::int64_t ceil_of(std::int64_t x, std::int64_t of) { return (x + of - 1) / of; }

// Units of `tokens` positions of which the rows of one sequence see some, at most.
std::int64_t units_of_sequence(const AttendCapacity& capacity, const Mask& mask,
                               std::int64_t tokens) {
  const std::int64_t all = ceil_of(capacity.max_sequence_tokens, tokens);
  if (mask.rule == Rule::kFull) return all;
  const std::int64_t seen = std::int64_t{mask.window} + capacity.max_queries;  // without a gap
  return std::min(all, (seen - 1) / tokens + 2 + ceil_of(mask.num_sinks, tokens));
}
// The same of all sequences together.
std::int64_t units_of_all(const AttendCapacity& capacity, const Mask& mask, std::int64_t tokens) {
  return std::min(capacity.max_sequences * units_of_sequence(capacity, mask, tokens),
                  capacity.max_tokens / tokens + capacity.max_sequences);
}

// False: more than the kernel that plans a stream has memory for.
bool stream_room(const AttendCapacity& capacity, const Mask& mask, PlanOptions& options,
                 PaddedRoom& room) {
  const std::int64_t leaves = units_of_all(capacity, mask, kLeafTokens) * options.num_heads;
  const std::int64_t groups = std::int64_t{capacity.max_sequences} * options.num_heads;
  // Whole rounds of blocks, so many that none has more leaves than segments fit.
  std::int64_t blocks = options.stream_blocks;
  std::int64_t segments = std::min(groups, ceil_of(leaves, blocks));
  if (segments > kMostSegmentsOfBlock) {
    blocks *= ceil_of(leaves, kMostSegmentsOfBlock * blocks);
    segments = ceil_of(leaves, blocks);
  }
  if (capacity.max_sequences > kMostStreamSequences || blocks > kMostStreamBlocks ||
      leaves > kNoRows) {
    return false;
  }
  room.stream_blocks = static_cast<std::int32_t>(blocks);
  room.segments_per_block = static_cast<std::int32_t>(std::max<std::int64_t>(segments, 1));
  room.stream_groups = static_cast<std::int32_t>(groups);
  // Each cut leaves two states in front of it, at most, and behind it three leaves of a node that
  // began before, a part of a node, and the nodes between.
  room.states =
      static_cast<std::int32_t>(std::min(leaves, leaves / kLeavesPerNode + 6 * (blocks - 1)));
  return true;
}

template <typename T>
void put(std::byte* to, std::size_t place, const T& value) {
  std::memcpy(to + place * sizeof(T), &value, sizeof(T));
}

}  // namespace

Result<AttendCapacity> checked_capacity(AttendCapacity capacity) {
  KVFOLIO_RETURN_IF_ERROR(
      check_range("capacity.max_sequences", capacity.max_sequences, 1, 1 << 20));
  KVFOLIO_RETURN_IF_ERROR(check_range("capacity.max_sequence_tokens", capacity.max_sequence_tokens,
                                      1, kMaxSequenceTokens));
  KVFOLIO_RETURN_IF_ERROR(check_range("capacity.max_queries", capacity.max_queries, 1, 1 << 16));
  const std::int64_t all = std::int64_t{capacity.max_sequences} * capacity.max_sequence_tokens;
  KVFOLIO_RETURN_IF_ERROR(check_range("capacity.max_tokens", capacity.max_tokens, 0, all));
  if (capacity.max_tokens == 0) capacity.max_tokens = all;
  return capacity;
}

Status check_fits_capacity(const BatchLengths& lengths, const AttendCapacity& capacity) {
  const std::size_t n = lengths.kv_lens.size();
  if (mutant(Mutant::kPlanCapacityNotChecked)) return {};
  if (n > static_cast<std::size_t>(capacity.max_sequences)) {
    return invalid(concat("the batch has ", n, " sequences, the capacity is ",
                          capacity.max_sequences, ": max_sequences"));
  }
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t queries = lengths.query_start[i + 1] - lengths.query_start[i];
    if (queries > capacity.max_queries) {
      return invalid(concat("sequence ", i, " has ", queries, " queries, the capacity is ",
                            capacity.max_queries, ": max_queries"));
    }
    if (lengths.kv_lens[i] > capacity.max_sequence_tokens) {
      return invalid(concat("kv_lens[", i, "] is ", lengths.kv_lens[i], ", the capacity is ",
                            capacity.max_sequence_tokens, ": max_sequence_tokens"));
    }
    tokens += lengths.kv_lens[i];
  }
  if (tokens > capacity.max_tokens) {
    return invalid(concat("the batch has ", tokens, " tokens of K and V, the capacity is ",
                          capacity.max_tokens, ": max_tokens"));
  }
  return {};
}

Result<PaddedRoom> padded_room(const AttendCapacity& capacity, const Mask& mask,
                               PlanOptions& options) {
  PaddedRoom room;
  if (options.stream_blocks > 0) {
    if (stream_room(capacity, mask, options, room)) {
      options.stream_blocks = room.stream_blocks;
      KVFOLIO_RETURN_IF_ERROR(
          check_image_bytes(std::int64_t{room.stream_blocks} * room.segments_per_block *
                                std::int64_t{sizeof(Segment)} +
                            std::int64_t{room.states} * std::int64_t{sizeof(std::int32_t)}));
      return room;
    }
    options.stream_blocks = 0;
  }
  const std::int64_t groups_of_sequence =
      ceil_of(std::int64_t{capacity.max_queries} * options.group_size, options.group_rows);
  const std::int64_t groups = groups_of_sequence * capacity.max_sequences;
  const std::int64_t items = product(groups_of_sequence, units_of_all(capacity, mask, kNodeTokens));
  for (const auto& [what, blocks] :
       {std::pair{"items", product(items, options.num_heads)},
        {"rows that are merged", groups * options.num_heads * options.group_rows}}) {
    if (blocks <= kMostBlocks) continue;
    return invalid(concat("the capacity makes ", blocks, " ", what, ", allowed: ", kMostBlocks,
                          ": lower max_sequences, max_tokens or max_queries"));
  }
  static_assert(sizeof(Item) == sizeof(Group));
  KVFOLIO_RETURN_IF_ERROR(check_image_bytes((items + groups + 1) * std::int64_t{sizeof(Item)}));
  room.items = static_cast<std::int32_t>(items);
  room.groups = static_cast<std::int32_t>(groups);
  room.merges = units_of_sequence(capacity, mask, kNodeTokens) > 1;
  return room;
}

std::vector<std::byte> padded_image(const WorkPlan& work, const BatchLengths& lengths,
                                    std::int32_t group_size, const PaddedRoom& room) {
  const auto count = [](std::int32_t n) { return static_cast<std::size_t>(n); };
  if (room.stream_blocks > 0) {
    const std::size_t per = count(room.segments_per_block);
    const std::size_t segments = count(room.stream_blocks) * per;
    std::vector<std::byte> image(segments * sizeof(Segment) +
                                 count(room.states) * sizeof(std::int32_t));
    const std::size_t own = count(work.segments_per_block);
    for (std::size_t i = 0; i < segments; ++i) {
      const std::size_t block = i / per, at = i % per;
      const bool is_work = block < count(work.stream_blocks) && at < own;
      put(image.data(), i, is_work ? work.segments[block * own + at] : Segment{});
    }
    std::byte* const flags = image.data() + segments * sizeof(Segment);
    for (std::size_t i = 0; i < work.state_flags.size(); ++i) put(flags, i, work.state_flags[i]);
    return image;
  }
  std::vector<std::byte> image(count(room.items) * sizeof(Item) +
                               (count(room.groups) + 1) * sizeof(Group));
  std::int32_t with_rows = 0, rows = 0;
  for (std::size_t i = 0; i < lengths.kv_lens.size() && rows == 0; ++i) {
    rows = (lengths.query_start[i + 1] - lengths.query_start[i]) * group_size;
    if (rows > 0) with_rows = static_cast<std::int32_t>(i);
  }
  Item none = empty_item(with_rows, rows, room.groups);
  if (mutant(Mutant::kPlanEmptyItemIsNot)) none = {with_rows, 0, 0, 0};
  for (std::size_t i = 0; i < count(room.items); ++i) {
    put(image.data(), i, i < work.items.size() ? work.items[i] : none);
  }
  std::byte* const groups = image.data() + count(room.items) * sizeof(Item);
  for (std::size_t i = 0; i < count(room.groups); ++i) {
    put(groups, i, i < work.groups.size() ? work.groups[i] : empty_group());
  }
  put(groups, count(room.groups), group_of_empty_items());
  return image;
}

}  // namespace kvfolio::cuda
