// SPDX-License-Identifier: Apache-2.0
#define KVFOLIO_CHECKSUM_TARGET avx2
#include "tiers/checksum_impl.h"
