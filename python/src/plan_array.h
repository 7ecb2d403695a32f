// SPDX-License-Identifier: Apache-2.0
#pragma once

// The arrays of a plan without copies: each lies in the buffers of its step, and every access
// raises once the step has ended or was planned again. A kernel that reads one without the GIL
// holds the lease, and what would end the step is refused meanwhile.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bindings.h"

namespace kvfolio::python {

// Holds a lease of a plan while a kernel reads it. Made and destroyed under the GIL.
class Reading {
 public:
  Reading() = default;
  explicit Reading(std::shared_ptr<Lease> lease) : lease_(std::move(lease)) {
    if (lease_ != nullptr) ++lease_->num_readers;
  }
  Reading(Reading&& other) noexcept : lease_(std::move(other.lease_)) {}
  Reading& operator=(Reading&& other) noexcept {
    std::swap(lease_, other.lease_);
    return *this;
  }
  ~Reading() {
    if (lease_ != nullptr) --lease_->num_readers;
  }

 private:
  std::shared_ptr<Lease> lease_;
};

class PlanArray {
 public:
  PlanArray(std::shared_ptr<ManagerState> keeper, std::shared_ptr<Lease> lease,
            const std::int32_t* data, std::vector<std::size_t> shape)
      : keeper_(std::move(keeper)),
        lease_(std::move(lease)),
        data_(data),
        shape_(std::move(shape)) {}

  // false: the step has ended or was planned again.
  [[nodiscard]] bool is_live() const { return lease_->live; }
  // FailedPrecondition: it is not live.
  void check_live(const char* name) const;
  // All numbers of an array of ndim dimensions. InvalidArgument: it has others.
  [[nodiscard]] std::span<const std::int32_t> numbers(const char* name, std::size_t ndim) const;
  [[nodiscard]] Reading reading() const { return Reading(lease_); }
  [[nodiscard]] const std::vector<std::size_t>& shape() const { return shape_; }
  [[nodiscard]] std::size_t size() const;

  [[nodiscard]] nb::object copy() const;                             // a NumPy array
  [[nodiscard]] nb::object dlpack(const nb::kwargs& options) const;  // a capsule

 private:
  std::shared_ptr<ManagerState> keeper_;
  std::shared_ptr<Lease> lease_;
  const std::int32_t* data_;
  std::vector<std::size_t> shape_;
};

void add_plan_array(nb::module_& m);

}  // namespace kvfolio::python
