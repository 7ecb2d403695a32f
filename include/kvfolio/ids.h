// SPDX-License-Identifier: Apache-2.0
#pragma once

// Strong ids. A block cannot be passed for a sequence, nor a ticket for a position.
// They are plain values of the size of their integer; a default-constructed id names nothing.
// valid() says that an id names something, not that this still exists. Every id prints: to_string()
// and operator<< give the same text. Thread safety: values.

#include <compare>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

#include "kvfolio/export.h"

namespace kvfolio {

template <typename Tag, typename Rep, Rep kNone>
class StrongId {
 public:
  constexpr StrongId() noexcept = default;
  constexpr explicit StrongId(Rep value) noexcept : value_(value) {}

  [[nodiscard]] constexpr Rep value() const noexcept { return value_; }
  [[nodiscard]] constexpr bool valid() const noexcept { return value_ != kNone; }

  // clang-tidy 14 takes the zero of a defaulted comparison for a null pointer.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend constexpr auto operator<=>(StrongId, StrongId) noexcept = default;

 private:
  Rep value_ = kNone;
};

// A physical block of one group: 0 .. num_blocks-1. The same number in two groups names two blocks.
using BlockId = StrongId<struct BlockIdTag, std::int32_t, -1>;
// A group of layers with one kind of attention: its index in CacheSpec::groups.
using GroupId = StrongId<struct GroupIdTag, std::int32_t, -1>;
// An open sequence: tag (16 bits), generation (24), row (24). The id of a closed sequence is not
// reissued before its row has been reused 2^24 - 1 times.
using SequenceId = StrongId<struct SequenceIdTag, std::uint64_t, 0>;
// A pinned prefix; same shape as SequenceId.
using PinId = StrongId<struct PinIdTag, std::uint64_t, 0>;
// A load or a hold that is open; same shape as SequenceId.
using LoadId = StrongId<struct LoadIdTag, std::uint64_t, 0>;
using HoldId = StrongId<struct HoldIdTag, std::uint64_t, 0>;
// An engine step: 1, 2, 3, ... in the order of begin_step.
using Ticket = StrongId<struct TicketTag, std::uint64_t, 0>;

// "block 5", "group 0", "ticket 12".
[[nodiscard]] KVFOLIO_API std::string to_string(BlockId block);
[[nodiscard]] KVFOLIO_API std::string to_string(GroupId group);
[[nodiscard]] KVFOLIO_API std::string to_string(Ticket ticket);
// Row and generation: "sequence 7.3" is the third sequence in row 7. A tag that is not 0 follows:
// "sequence 7.3 (tag 2)". An id that is not valid(), of any kind, is "no block", "no sequence".
[[nodiscard]] KVFOLIO_API std::string to_string(SequenceId sequence);
[[nodiscard]] KVFOLIO_API std::string to_string(PinId pin);
[[nodiscard]] KVFOLIO_API std::string to_string(LoadId load);
[[nodiscard]] KVFOLIO_API std::string to_string(HoldId hold);

// A template, so that <iosfwd> is enough here. Its caller includes <ostream>.
template <typename Traits, typename Tag, typename Rep, Rep kNone>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             StrongId<Tag, Rep, kNone> id) {
  return out << to_string(id);
}

// Where a sequence stands on the prefix tree: position tokens from the root, at or above the end of
// a run. When a run is split, its lower part keeps the name, so places stay valid. The tree counts
// places: give back each place of PrefixTree::enter() once, by leave().
struct Place {
  std::int32_t run = -1;
  std::uint32_t generation = 0;
  std::int32_t position = 0;

  [[nodiscard]] constexpr bool valid() const noexcept { return run >= 0; }
};

}  // namespace kvfolio

template <typename Tag, typename Rep, Rep kNone>
struct std::hash<kvfolio::StrongId<Tag, Rep, kNone>> {
  std::size_t operator()(kvfolio::StrongId<Tag, Rep, kNone> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
