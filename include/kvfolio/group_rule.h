// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a position of a group reads, and what follows from it: which blocks a sequence keeps, which
// ones a prefix needs, and which ones eviction may take. The manager, the prefix tree, the kernels
// and the tests ask here, so a new kind of attention is one more case in this file. Values only.

#include <cstdint>

#include "kvfolio/spec.h"

namespace kvfolio {

class GroupRule {
 public:
  constexpr GroupRule() noexcept = default;  // a full group
  // window: tokens that a query reads, itself included, or those of a chunk; >= 1 but in a full
  // group.
  constexpr GroupRule(AttentionKind kind, std::int32_t window, std::int32_t num_sinks) noexcept
      : kind_(kind), window_(window), num_sinks_(num_sinks) {}
  constexpr explicit GroupRule(const GroupSpec& spec) noexcept
      : GroupRule(spec.kind, spec.window, spec.num_sinks) {}
  [[nodiscard]] static constexpr GroupRule of_window(std::int32_t window,
                                                     std::int32_t num_sinks = 0) noexcept {
    return {AttentionKind::kSlidingWindow, window, num_sinks};
  }
  [[nodiscard]] static constexpr GroupRule of_chunk(std::int32_t chunk,
                                                    std::int32_t num_sinks = 0) noexcept {
    return {AttentionKind::kChunked, chunk, num_sinks};
  }

  // The query at position p reads the positions below num_sinks() and those from first_read(p) to
  // p. first_read() never falls while p grows, and is at most p. Requires: p >= 0. Nothing
  // overflows. T: std::int32_t or std::int64_t.
  template <typename T>
  [[nodiscard]] constexpr T first_read(T p) const noexcept {
    switch (kind_) {
      case AttentionKind::kFull:
        return 0;
      case AttentionKind::kSlidingWindow:
        return p < window_ ? 0 : p - window_ + 1;
      case AttentionKind::kChunked:
        return p - p % window_;
    }
    return 0;
  }
  [[nodiscard]] constexpr AttentionKind kind() const noexcept { return kind_; }
  [[nodiscard]] constexpr std::int32_t window() const noexcept { return window_; }
  [[nodiscard]] constexpr std::int32_t num_sinks() const noexcept { return num_sinks_; }

  // The most positions in front of its own that a query at any position up to p reads, sinks apart.
  template <typename T>
  [[nodiscard]] constexpr T most_read(T p) const noexcept {
    return kind_ == AttentionKind::kFull || p < window_ ? p : T{window_ - 1};
  }

  // The query at position p reads some position of [begin, end). Requires: begin <= p.
  template <typename T>
  [[nodiscard]] constexpr bool reads(T p, T begin, T end) const noexcept {
    return begin < num_sinks_ || end > first_read(p);
  }

  // A sequence of `accepted` tokens gives back what lies between the sinks and this position: no
  // later query reads it.
  [[nodiscard]] constexpr std::int32_t keep_from(std::int32_t accepted) const noexcept {
    return first_read(accepted);
  }
  // keep_from() is 0 for every length: a sequence keeps all of its blocks.
  [[nodiscard]] constexpr bool keeps_all() const noexcept { return kind_ == AttentionKind::kFull; }

  // A prefix needs every block before its end. So a block is of no use without the ones before it,
  // and eviction takes the last ones of a path first.
  [[nodiscard]] constexpr bool only_leaves_evictable() const noexcept {
    return kind_ == AttentionKind::kFull;
  }

  friend constexpr bool operator==(const GroupRule&, const GroupRule&) noexcept = default;

 private:
  AttentionKind kind_ = AttentionKind::kFull;
  std::int32_t window_ = 0;
  std::int32_t num_sinks_ = 0;
};

}  // namespace kvfolio
