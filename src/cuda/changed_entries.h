// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block table that stays on a device: [num_rows, num_columns] of int32, of which a step sets
// the entries that a GroupPlan lists as changed. Knows no sequence and no block.

#include <cstdint>
#include <span>

#include "cuda/move_args.h"
#include "cuda/queue.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

struct DeviceTable {
  std::int32_t* entries = nullptr;  // device memory
  std::int32_t num_rows = 0;
  std::int32_t num_columns = 0;
};

// Bytes of the upload of `count` entries: rows, columns, blocks, one behind the other.
[[nodiscard]] constexpr std::int64_t changed_entries_bytes(std::size_t count) noexcept {
  return static_cast<std::int64_t>(count) * 3 * 4;
}
// Checks the lists of a plan against the table and writes them to `upload`, pinned memory of at
// least changed_entries_bytes() that is not written again before the copy has passed.
// kInvalidArgument: lists of unequal lengths, an entry that the table does not have, an upload that
// is too small.
Status pack_changed_entries(const DeviceTable& table, std::span<const std::int32_t> rows,
                            std::span<const std::int32_t> columns,
                            std::span<const std::int32_t> blocks, std::span<std::byte> upload);
// Sets the entries that lie at `upload`, in memory of the device, or in the pinned memory itself,
// which the kernel then reads from the host: one call less, and faster for the few kilobytes of a
// step. An entry is named once.
Status set_changed_entries(const DeviceTable& table, const std::byte* upload, std::size_t count,
                           Queue& queue, Fault fault = nullptr);

}  // namespace kvfolio::cuda
