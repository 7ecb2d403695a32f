// SPDX-License-Identifier: Apache-2.0
#pragma once

// The verb `kvfolio tier`: `kvfolio tier check disk:DIR | redis:HOST:PORT [--erase]`.

#include "tier_option.h"

namespace kvfolio::tools {

struct TierOptions {
  DiskChoice disk;
  std::string redis;  // HOST:PORT; empty: the disk
  bool erase = false;
  bool json = false;
};

// Adds the verb's own verbs and options to `app`; parsing fills `options`, which outlives `app`.
void add_tier_verb(CLI::App& app, TierOptions& options);
// The exit code: 0 every record is right; 1 one is damaged; 2 bad input.
int tier(const TierOptions& options);

}  // namespace kvfolio::tools
