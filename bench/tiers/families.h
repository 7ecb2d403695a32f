// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files of `kvfolio bench tiers`.

#include "harness.h"

namespace kvfolio::bench {

void measure_arena(Session& session);     // tiers.hit.*, tiers.lookup, tiers.hash, tiers.check*
void measure_beside(Session& session);    // tiers.decode_beside_stores
void measure_snapshot(Session& session);  // tiers.save, tiers.restore
void measure_redis(Session& session);     // tiers.redis.*
void measure_disk(Session& session);      // tiers.disk.*

}  // namespace kvfolio::bench
