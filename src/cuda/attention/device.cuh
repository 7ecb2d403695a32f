// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a kernel is written in: a GPU's instructions, or the model of them for a CPU.

#ifdef KVFOLIO_CUDA_HOST_MODEL
#include "cuda/attention/host_model.h"
#else
#include "cuda/attention/instructions.cuh"
#endif
