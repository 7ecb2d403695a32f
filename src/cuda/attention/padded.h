// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans of one size for every batch within a capacity, so that one captured graph serves them all:
// the room that a capacity needs, its refusals, and the image of a WorkPlan with the rest of the
// room empty. plan_kernel.cuh makes the same image on the device.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/attention/padded_args.h"
#include "cuda/attention/plan.h"
#include "kvfolio/cuda_capacity.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

// With max_tokens said. kInvalidArgument with the numbers.
[[nodiscard]] Result<AttendCapacity> checked_capacity(AttendCapacity capacity);
// The batch is within the capacity. kInvalidArgument with both numbers. Requires: lengths that
// attend() has checked, a checked capacity.
[[nodiscard]] Status check_fits_capacity(const BatchLengths& lengths,
                                         const AttendCapacity& capacity);

// The room for every batch of the capacity. options.stream_blocks > 0: a stream, of at least so
// many blocks; it is changed to how many there are, or to 0 where the stream would have too many
// for the kernel that plans it. kInvalidArgument: more items than a launch has blocks for, or an
// image of more than 4 GiB, both numbers.
[[nodiscard]] Result<PaddedRoom> padded_room(const AttendCapacity& capacity, const Mask& mask,
                                             PlanOptions& options);
// Requires: a plan of these lengths, within the room.
[[nodiscard]] std::vector<std::byte> padded_image(const WorkPlan& work, const BatchLengths& lengths,
                                                  std::int32_t group_size, const PaddedRoom& room);

}  // namespace kvfolio::cuda
