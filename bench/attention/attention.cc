// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "bench_attention.h"
#include "context.h"

namespace kvfolio::bench {
namespace {

std::vector<AttentionFamily> families() {
  return {cores_family(),   decode_family(), contiguous_family(), prefill_family(),
          lengths_family(), append_family(), losers_family(),     instruction_counts_family()};
}

}  // namespace

std::vector<std::string> attention_row_names() {
  std::vector<std::string> names;
  for (const AttentionFamily& family : families()) {
    names.insert(names.end(), family.names.begin(), family.names.end());
  }
  return names;
}

void run_attention(const AttentionOptions& options, const std::function<void(const Row&)>& emit,
                   const LeftOut& left_out) {
  const Session session(options.common, emit, left_out);
  const Context context(options, session);
  for (const AttentionFamily& family : families()) {
    const bool wanted = std::any_of(family.names.begin(), family.names.end(),
                                    [&](const std::string& name) { return session.wants(name); });
    if (wanted) family.run(context);
  }
}

}  // namespace kvfolio::bench
