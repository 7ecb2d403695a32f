// SPDX-License-Identifier: Apache-2.0
//
// The checksum of records (checksum_impl.h), compiled for use on every machine.

#define KVFOLIO_CHECKSUM_TARGET portable
#include "tiers/checksum_impl.h"
