// SPDX-License-Identifier: Apache-2.0
#pragma once

// Digests in the containers of the standard library. Thread safety: values.

#include <cstddef>

#include "kvfolio/identity.h"
#include "tiers/key_spread.h"

namespace kvfolio {

struct DigestHash {
  std::size_t operator()(const Digest& digest) const noexcept { return spread_of(digest.data()); }
};

}  // namespace kvfolio
