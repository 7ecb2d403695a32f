// SPDX-License-Identifier: Apache-2.0

#include "kernels/lengths.h"

#include <cstddef>
#include <string>

#include "base/invalid.h"
#include "base/text.h"
#include "kvfolio/attention_params.h"
#include "kvfolio/export.h"

namespace kvfolio::kernels {
namespace {

using text::concat;

Status check_sequence(const BatchLengths& lengths, std::size_t i, std::int64_t table_stride,
                      std::int32_t block_size, bool positions_matter) {
  const std::int64_t queries = std::int64_t{lengths.query_start[i + 1]} - lengths.query_start[i];
  const std::int32_t kv_len = lengths.kv_lens[i];
  if (queries < 0) {
    return invalid(concat("query_start falls from ", lengths.query_start[i], " to ",
                          lengths.query_start[i + 1], " at sequence ", i));
  }
  if (kv_len < (positions_matter ? queries : 0) || kv_len > kMaxSequenceTokens) {
    const std::string least = positions_matter ? concat("its ", queries, " queries") : "0";
    return invalid(
        concat("kv_lens[", i, "] is ", kv_len, ", allowed: ", least, " to ", kMaxSequenceTokens));
  }
  if (kv_len > table_stride * block_size) {
    return invalid(concat("kv_lens[", i, "] is ", kv_len, ", its table row holds ", table_stride,
                          " blocks of ", block_size, " tokens"));
  }
  if (lengths.trim_sinks.empty()) return {};
  if (lengths.trim_sinks[i] < 0) {
    return invalid(
        concat("trim_sinks[", i, "] is ", lengths.trim_sinks[i], ", allowed: at least 0"));
  }
  const std::int32_t kept = lengths.trim_first_kept[i];
  if (kept >= 0 && kept <= kv_len) return {};
  return invalid(
      concat("trim_first_kept[", i, "] is ", kept, ", allowed: 0 to ", kv_len, ", its length"));
}

}  // namespace

// Exported for libkvfolio_cuda, as those of check.h are.
KVFOLIO_API Status check_lengths(const BatchLengths& lengths, std::int64_t table_stride,
                                 std::int32_t block_size, bool positions_matter) {
  const std::size_t n = lengths.kv_lens.size();
  if (lengths.query_start.size() != n + 1) {
    return invalid(concat("query_start has ", lengths.query_start.size(), " entries for ", n,
                          " sequences, allowed: ", n + 1));
  }
  if (lengths.query_start[0] != 0) {
    return invalid(concat("query_start[0] is ", lengths.query_start[0], ", allowed: 0"));
  }
  if (lengths.trim_sinks.size() != lengths.trim_first_kept.size() ||
      (!lengths.trim_sinks.empty() && lengths.trim_sinks.size() != n)) {
    return invalid(concat("trim_sinks has ", lengths.trim_sinks.size(),
                          " entries and trim_first_kept ", lengths.trim_first_kept.size(),
                          ", allowed: both ", n, " or both 0"));
  }
  for (std::size_t i = 0; i < n; ++i) {
    KVFOLIO_RETURN_IF_ERROR(check_sequence(lengths, i, table_stride, block_size, positions_matter));
  }
  return {};
}

}  // namespace kvfolio::kernels
