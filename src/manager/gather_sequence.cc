// SPDX-License-Identifier: Apache-2.0

// gather() of a sequence: the manager says which blocks, the kernel copies. It uses public calls
// only, as a host would.

#include "kvfolio/gather_sequence.h"

#include <algorithm>

#include "base/invalid.h"
#include "base/text.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"

namespace kvfolio {
namespace {

using text::concat;

// No rows at all may have null data, and still say how many they are.
bool is_given(const RowsView& rows) {
  return rows.data != nullptr || rows.num_heads != 0 || rows.head_dim != 0;
}

// What of [first, first + count) the sequence does not have any more.
Status check_dropped(const SequenceInfo& info, std::span<const std::int32_t> table,
                     std::int32_t block_size, std::int32_t first, std::int32_t count) {
  if (count == 0) return {};
  const std::int32_t last = first + count - 1;
  const auto dropped = [&](std::int32_t position, std::string_view by) {
    return Status(
        ErrorCode::kFailedPrecondition,
        concat("gather of positions ", first, " to ", last, ": ", by, " has dropped ", position));
  };
  if (first < info.trim_first_kept && last >= info.trim_sinks) {
    return dropped(std::max(first, info.trim_sinks), "a trim");
  }
  for (std::int32_t i = first / block_size; i <= last / block_size; ++i) {
    if (table[static_cast<std::size_t>(i)] >= 0) continue;
    return dropped(std::max(first, i * block_size), "the window");
  }
  return {};
}

}  // namespace

Status gather(const KVCacheManager& manager, SequenceId sequence, const GatherFrom& from,
              const RowsView& k, const RowsView& v) {
  const Result<SequenceInfo> info = manager.info(sequence);
  if (!info) return info.error();
  const Result<std::span<const std::int32_t>> table = manager.block_table(sequence, from.group);
  if (!table) return table.error();
  const KVStorage* const storage = manager.storage();
  if (storage == nullptr) {
    return {ErrorCode::kUnsupported,
            "gather: the manager has no storage: it knows blocks, and the engine their bytes"};
  }
  const Result<KVView> view = storage->view(from.group, from.layer);
  if (!view) return view.error();
  if (is_given(k) && is_given(v) && k.num_tokens != v.num_tokens) {
    return invalid(concat("gather: ", v.num_tokens, " rows of v for ", k.num_tokens, " of k"));
  }
  const std::int32_t count = is_given(k) ? k.num_tokens : v.num_tokens;
  if (from.first < 0 || count < 0 || from.first > info->length ||
      count > info->length - from.first) {
    return invalid(concat("gather of ", count, " positions from ", from.first,
                          " on: ", to_string(sequence), " has ", info->length, " tokens"));
  }
  KVFOLIO_RETURN_IF_ERROR(check_dropped(*info, *table, view->block_size, from.first, count));
  return gather({.cache = *view,
                 .block_table = *table,
                 .length = info->length,
                 .first = from.first,
                 .count = count,
                 .k = k,
                 .v = v});
}

}  // namespace kvfolio
