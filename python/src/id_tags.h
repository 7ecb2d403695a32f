// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tags in the ids of this process's managers. Ids of two managers must not pass for each
// other's: a close() of the wrong one would end a stranger. Nothing copies one manager into another
// in Python, which would need equal tags.
//
// Thread safety: any thread may call anything at any time.

#include <cstdint>

namespace kvfolio::python {

// A tag that is taken as long as this lives.
class IdTag {
 public:
  // The most managers that have a tag of their own at a time: 1 to INT16_MAX, so that ids fit
  // int64. 0 is left to who asks for it.
  static constexpr std::int32_t kMost = INT16_MAX;

  // One that no manager has. They are given in turn: one that is free again comes when all others
  // had theirs. Raises ResourceExhausted if all are taken.
  static IdTag next();
  // One that the caller wants, taken or not.
  explicit IdTag(std::uint16_t value);

  IdTag(IdTag&& other) noexcept;
  IdTag(const IdTag&) = delete;
  IdTag& operator=(const IdTag&) = delete;
  IdTag& operator=(IdTag&&) = delete;
  ~IdTag();

  [[nodiscard]] std::uint16_t value() const noexcept { return value_; }

 private:
  struct Taken {};  // it is counted already
  IdTag(std::uint16_t value, Taken) noexcept;

  std::uint16_t value_;
  bool holds_ = true;
};

}  // namespace kvfolio::python
