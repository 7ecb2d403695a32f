// SPDX-License-Identifier: Apache-2.0
#pragma once

// Each family of the header: a part that calls its functions. What parts call is noted (calls.h).

#include "tiers_toy.h"

void call_identity(void);
void call_tiers(void);
void call_offload(void);
void call_files(void);
void call_records(void);
