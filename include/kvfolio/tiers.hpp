// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every public header of libkvfolio_tiers, which stands on libkvfolio: link kvfolio::kvfolio_tiers.
// No state beyond what they declare; each says its own thread safety.

#include "kvfolio/arena_tier.h"
#include "kvfolio/byte_stream.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/disk_tier.h"
#include "kvfolio/foreign_identity.h"
#include "kvfolio/host_arena.h"
#include "kvfolio/identity.h"
#include "kvfolio/offload.h"
#include "kvfolio/op_log_file.h"
#include "kvfolio/op_replay.h"
#include "kvfolio/record.h"
#include "kvfolio/redis_tier.h"
#include "kvfolio/snapshot.h"
#include "kvfolio/snapshot_list.h"
#include "kvfolio/tier.h"
#include "kvfolio/tier_metrics.h"
