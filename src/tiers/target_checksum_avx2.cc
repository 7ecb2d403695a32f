// SPDX-License-Identifier: Apache-2.0
//
// The checksum of records (checksum_impl.h), compiled for use with AVX2.

#define KVFOLIO_CHECKSUM_TARGET avx2
#include "tiers/checksum_impl.h"
