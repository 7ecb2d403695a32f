// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every public header but openmp.h, which needs a compiler flag. The library knows no state beyond
// what they declare, and each of them says its own thread safety. A program that compiles many
// sources includes the few headers that each of them needs.

#include "kvfolio/bit_tree.h"
#include "kvfolio/block_pool.h"
#include "kvfolio/block_state.h"
#include "kvfolio/block_store.h"
#include "kvfolio/block_table.h"
#include "kvfolio/byte_sink.h"
#include "kvfolio/dtype.h"
#include "kvfolio/executor.h"
#include "kvfolio/export.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/gather_sequence.h"
#include "kvfolio/group_rule.h"
#include "kvfolio/ids.h"
#include "kvfolio/kernels.h"
#include "kvfolio/lru_order.h"
#include "kvfolio/manager.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/memory.h"
#include "kvfolio/memory_kind.h"
#include "kvfolio/metrics.h"
#include "kvfolio/op_log.h"
#include "kvfolio/plan_attention.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/root_key.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/step_plan.h"
#include "kvfolio/storage.h"
#include "kvfolio/token_store.h"
#include "kvfolio/version.h"
#include "kvfolio/view.h"
