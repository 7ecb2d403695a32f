// SPDX-License-Identifier: Apache-2.0
// A consumer of the installed package: values and a library call, under strict warnings, without
// exceptions and RTTI.
#include <cstdio>

#include "kvfolio/ids.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

int main() {
  kvfolio::CacheSpec spec;
  spec.groups.push_back({.num_layers = 4,
                         .num_kv_heads = 2,
                         .head_dim_k = 64,
                         .head_dim_v = 64,
                         .block_size = 16,
                         .num_blocks = 128});
  const auto layouts = kvfolio::plan_layouts(spec);
  if (!layouts) {
    std::fprintf(stderr, "%s\n", layouts.error().message().c_str());
    return 1;
  }
  spec.groups[0].block_size = 0;
  const kvfolio::Status status = kvfolio::validate(spec);
  const long long bytes = (*layouts)[0].total_bytes;
  std::printf("%lld bytes; %s\n", bytes, status.message().c_str());
  const bool fine =
      bytes == 128LL * 16 * 4 * 2 * (64 + 64) * 4 && !status.ok() && !kvfolio::BlockId().valid();
  return fine ? 0 : 1;
}
