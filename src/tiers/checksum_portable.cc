// SPDX-License-Identifier: Apache-2.0
#define KVFOLIO_CHECKSUM_TARGET portable
#include "tiers/checksum_impl.h"
