// SPDX-License-Identifier: Apache-2.0
#pragma once

// The names of the kernels that move rows, blocks and tables (move_kernels.cuh), and where they go
// to be started. What they are given is in move_args.h. Thread safety: a Queue belongs to one
// thread at a time.

#include <cstddef>
#include <cstdint>

#include "cuda/element.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

enum class MoveFamily : std::uint8_t {
  kAppendPlain,
  kAppendQuantized,
  kGather,
  kConvert,
  kCopyBlocks,
  kFillBlocks,
  kPackBlocks,
  kUnpackBlocks,
  kScatter,
  kRunsIn,       // from a staging buffer to memory
  kRunsOut,      // and back
  kPlanEntries,  // changed entries of resident tables
  kPlanRows,     // what is made of these tables for a step
};

// Names one kernel: a template and its arguments.
struct MoveKernel {
  MoveFamily family = MoveFamily::kScatter;
  Element from = Element::kF32;
  Element to = Element::kF32;
  bool wide = false;  // whole vectors of 16 bytes, or of 8 for units of 8; else element by element
  bool long_rows = false;  // kAppendQuantized: more units for each lane

  friend bool operator==(const MoveKernel&, const MoveKernel&) = default;
};

struct Grid {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
};

// Where kernels go: a stream of a device, or a test.
class Queue {
 public:
  virtual ~Queue() = default;
  // Starts a kernel of blocks of kThreads threads behind all that was started before. `args` is
  // read before the call returns.
  virtual Status launch(const MoveKernel& kernel, const Grid& grid, const void* args,
                        std::size_t args_bytes) = 0;
  // The most work of one launch, in units of 8 elements. Kernels count in 31 bits; a test counts in
  // less.
  [[nodiscard]] virtual std::int64_t most_items() const { return std::int64_t{1} << 30; }
};

}  // namespace kvfolio::cuda
