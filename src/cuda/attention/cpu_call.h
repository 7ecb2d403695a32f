// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the reference of the CPU makes of the memory and arguments of a call: for tests, whose
// memory is the host's.

#include "cuda/attention/attend.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

// Writes call.out, whose elements are f32 without gaps, and call.lse. The errors of
// kvfolio::attend().
Status attend_on_cpu(const AttentionCall& call);

}  // namespace kvfolio::cuda
