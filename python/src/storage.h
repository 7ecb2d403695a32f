// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage and views for Python. A view keeps the memory that it shows: arrays that were lent, or
// the storage that owns it.

#include <memory>
#include <optional>
#include <vector>

#include "bindings.h"
#include "kvfolio/storage.h"

namespace kvfolio::python {

class IdTag;

// A KVStorage, or that of a manager which has taken it.
class Storage {
 public:
  Storage(KVStorage storage, std::vector<nb::ndarray<nb::ro>> lent)
      : own_(std::move(storage)), lent_(std::move(lent)) {}
  explicit Storage(std::shared_ptr<ManagerState> manager) : manager_(std::move(manager)) {}

  // FailedPrecondition: a manager that was to take it could not be made.
  [[nodiscard]] KVStorage& get();
  // The same; null for such a one.
  [[nodiscard]] KVStorage* find();
  [[nodiscard]] const std::shared_ptr<ManagerState>& manager() const { return manager_; }
  // Makes a manager that takes the storage. FailedPrecondition: another one has taken it.
  std::shared_ptr<ManagerState> give(const ManagerOptions& options, IdTag tag);

 private:
  std::optional<KVStorage> own_;
  std::vector<nb::ndarray<nb::ro>> lent_;
  std::shared_ptr<ManagerState> manager_;
};

}  // namespace kvfolio::python
