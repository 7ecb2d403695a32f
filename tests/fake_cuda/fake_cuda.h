// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a test asks of the driver that is none, behind libkvfolio_cuda.so.0 of this folder. One
// thread uses it at a time.

#include "kvfolio/kvfolio.h"

#ifdef __cplusplus
extern "C" {
#endif

// What was taken of the driver and not given back.
KVFOLIO_C_API int64_t kvfolio_fake_cuda_open(void);
// The next call of the driver but `after` answers `result`, a CUresult, and does nothing.
KVFOLIO_C_API void kvfolio_fake_cuda_fail(int32_t after, int32_t result);

#ifdef __cplusplus
}  // extern "C"
#endif
