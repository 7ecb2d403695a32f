// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory that an engine lends, checked: the views of its groups. Knows addresses, touches no byte.

#include <cstdint>
#include <span>
#include <vector>

#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::storage {

// A group: one view of all layers, or one view for each layer where the engine lent them apart.
// Then it does not matter where they lie: what malloc() does must not decide what works.
using GroupViews = std::vector<KVView>;

// The views of every group, in order. All rows lie in the given bytes, and no two overlap.
// kInvalidArgument with group, layer and numbers otherwise. Requires: validate(spec).ok().
Result<std::vector<GroupViews>> check_borrowed(const CacheSpec& spec,
                                               std::span<const BorrowedGroup> groups);

// One layer of a group as a view of one layer. Requires: the group has the layer.
[[nodiscard]] KVView layer_of(const GroupViews& views, std::int32_t layer) noexcept;

}  // namespace kvfolio::storage
