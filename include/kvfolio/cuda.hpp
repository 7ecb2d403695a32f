// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every public header of libkvfolio_cuda, which stands on libkvfolio: link kvfolio::kvfolio_cuda.
// No state beyond what they declare; each says its own thread safety. None of them needs CUDA.

#include "kvfolio/cuda_capacity.h"
#include "kvfolio/cuda_device.h"
#include "kvfolio/cuda_graph.h"
#include "kvfolio/cuda_kernels.h"
#include "kvfolio/cuda_memory.h"
#include "kvfolio/cuda_plan.h"
#include "kvfolio/cuda_wrapper.h"
