// SPDX-License-Identifier: Apache-2.0
#pragma once

// A Queue whose kernels run on the CPU, by on_host.h, before launch() returns. Its source is
// library/host_moves.cc, so that their text is compiled once.

#include <cstddef>
#include <cstdint>

#include "cuda/queue.h"

namespace kvfolio::cuda {

class HostQueue final : public Queue {
 public:
  Status launch(const MoveKernel& kernel, const Grid& grid, const void* args,
                std::size_t args_bytes) override;
  [[nodiscard]] std::int64_t most_items() const override { return items; }

  unsigned seed = 1;
  std::int64_t items = std::int64_t{1} << 30;
  int launches = 0;
};

}  // namespace kvfolio::cuda
