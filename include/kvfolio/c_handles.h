// SPDX-License-Identifier: Apache-2.0
#pragma once

// From handles of the C interface (kvfolio.h) to the C++ objects behind them: for libraries in C++
// that stand on libkvfolio and are called from C, as libkvfolio_tiers and libkvfolio_cuda are. The
// object belongs to the handle and is valid as long. Thread safety: that of the object.

#include <memory>

#include "kvfolio/export.h"
#include "kvfolio/root_key.h"

struct kvfolio_manager;
struct kvfolio_root;
struct kvfolio_view;

namespace kvfolio {

class KVCacheManager;  // manager.h
struct KVView;         // view.h

[[nodiscard]] KVFOLIO_API KVCacheManager& manager_of(kvfolio_manager& handle) noexcept;
// Expires when the handle is destroyed: for what refers to a manager and may outlive it.
[[nodiscard]] KVFOLIO_API std::weak_ptr<const void> lifetime_of(const kvfolio_manager& handle);
[[nodiscard]] KVFOLIO_API const RootKey& root_key_of(const kvfolio_root& handle) noexcept;
[[nodiscard]] KVFOLIO_API const KVView& view_of(const kvfolio_view& handle) noexcept;
// For kvfolio_view_destroy(). Null: no memory for the handle.
[[nodiscard]] KVFOLIO_API kvfolio_view* new_handle(const KVView& view) noexcept;

}  // namespace kvfolio
