// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sees whether calls of the system that a thread makes may wait. owner.cc has functions under the
// names of libc's, which the programs of these tests call instead.

#include <cstdint>
#include <string>

namespace kvfolio::test {

// While one exists, its thread is an owner of tiers.
class OwnerCalls {
 public:
  OwnerCalls();
  ~OwnerCalls();
  OwnerCalls(const OwnerCalls&) = delete;
  OwnerCalls& operator=(const OwnerCalls&) = delete;

  // The first call that might have waited, of all owners so far; empty: none.
  static std::string first_that_may_wait();
  // Calls that were looked at: none means that nothing was.
  static std::uint64_t seen();
};

}  // namespace kvfolio::test
