// SPDX-License-Identifier: Apache-2.0
#pragma once

// The steps of which jobs consist, as each kind of them is filled. Thread safety: free functions.

#include <cstdint>
#include <string>

#include "disk/jobs.h"

namespace kvfolio::disk {

inline bool is_aligned(const std::byte* memory) noexcept {
  return reinterpret_cast<std::uintptr_t>(memory) % kPiece == 0;
}

// Every write goes to whole pieces behind the header of the segment, which is written once.
inline bool is_behind_header(const Extent& place) noexcept {
  return place.offset >= kPiece && place.offset % kPiece == 0;
}

inline IoStep file_step(IoStep::Kind kind, int file, std::int64_t bytes = 0) noexcept {
  IoStep step;
  step.kind = kind;
  step.file = file;
  step.bytes = bytes;
  return step;
}

inline IoStep name_step(IoStep::Kind kind, int directory, const std::string& name,
                        int flags = 0) noexcept {
  IoStep step;
  step.kind = kind;
  step.file = directory;
  step.name = &name;
  step.flags = flags;
  return step;
}

inline IoStep transfer_step(IoStep::Kind kind, const Extent& place) noexcept {
  IoStep step;
  step.kind = kind;
  step.file = place.file;
  step.offset = place.offset;
  return step;
}

}  // namespace kvfolio::disk
