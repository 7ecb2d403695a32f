// SPDX-License-Identifier: Apache-2.0

// Three arrays go up in one copy, one kernel sets the entries. The lists are checked against the
// table on the host, where they are made: what a kernel would find was changed on the way.

#include "cuda/changed_entries.h"

#include <cstring>

#include "base/invalid.h"
#include "base/text.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

Status check_table(const DeviceTable& table) {
  if (table.entries != nullptr && table.num_rows >= 1 && table.num_columns >= 1) return {};
  return invalid(concat("the table is ", table.entries == nullptr ? "null" : "given", ", ",
                        table.num_rows, " rows, ", table.num_columns,
                        " columns, allowed: given, at least 1 of both"));
}

}  // namespace

Status pack_changed_entries(const DeviceTable& table, std::span<const std::int32_t> rows,
                            std::span<const std::int32_t> columns,
                            std::span<const std::int32_t> blocks, std::span<std::byte> upload) {
  KVFOLIO_RETURN_IF_ERROR(check_table(table));
  if (rows.size() != columns.size() || rows.size() != blocks.size()) {
    return invalid(concat("changed entries: ", rows.size(), " rows, ", columns.size(), " columns, ",
                          blocks.size(), " blocks"));
  }
  const std::int64_t bytes = changed_entries_bytes(rows.size());
  if (static_cast<std::int64_t>(upload.size()) < bytes) {
    return invalid(concat("changed entries: ", rows.size(), " take ", bytes,
                          " bytes, the upload has ", upload.size()));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= 0 && rows[i] < table.num_rows && columns[i] >= 0 &&
        columns[i] < table.num_columns) {
      continue;
    }
    return invalid(concat("changed entry ", i, " is in row ", rows[i], ", column ", columns[i],
                          "; the table has rows 0 to ", table.num_rows - 1, ", columns 0 to ",
                          table.num_columns - 1));
  }
  if (rows.empty()) return {};
  const std::size_t each = rows.size() * sizeof(std::int32_t);
  std::memcpy(upload.data(), rows.data(), each);
  std::memcpy(upload.data() + each, columns.data(), each);
  std::memcpy(upload.data() + 2 * each, blocks.data(), each);
  return {};
}

Status set_changed_entries(const DeviceTable& table, const std::byte* upload, std::size_t count,
                           Queue& queue, Fault fault) {
  KVFOLIO_RETURN_IF_ERROR(check_table(table));
  if (count == 0) return {};
  if (upload == nullptr) return invalid("changed entries: the upload is null");
  if (count > std::size_t{1} << 30) {
    return invalid(concat("changed entries: ", count, ", allowed: at most 2^30"));
  }
  const auto* const arrays = reinterpret_cast<const std::int32_t*>(upload);
  const ScatterArgs args{.table = table.entries,
                         .rows = arrays,
                         .columns = arrays + count,
                         .blocks = arrays + 2 * count,
                         .fault = fault,
                         .row_stride = table.num_columns,
                         .count = static_cast<std::uint32_t>(count),
                         .num_rows = table.num_rows,
                         .num_columns = table.num_columns};
  return queue.launch({.family = MoveFamily::kScatter}, {(args.count + 255) / 256, 1, 1}, &args,
                      sizeof args);
}

}  // namespace kvfolio::cuda
