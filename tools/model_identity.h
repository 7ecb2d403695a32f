// SPDX-License-Identifier: Apache-2.0
#pragma once

// What names the blocks that the example engine computes with a checkpoint, so that another run
// with the same files finds them again, and a run with others does not. Thread safety: values.

#include <string>

#include "kvfolio/identity.h"
#include "kvfolio/status.h"

namespace kvfolio::tools {

struct CheckpointIdentity {
  std::string model;    // architecture and shape
  std::string weights;  // SHA-256 of config.json and of every *.safetensors, by name
  std::string engine;   // with the kernels: those of another CPU give other bits

  // Valid as long as this.
  [[nodiscard]] ModelIdentity fields() const {
    return {.model = model,
            .weights = weights,
            .tokenizer = "ids as the checkpoint has them",
            .model_dtype = "f32",
            .positions = "rope as config.json has it",
            .engine = engine};
  }
};

// Reads all files of the checkpoint. kUnavailable: one cannot be read.
Result<CheckpointIdentity> checkpoint_identity(const std::string& folder, const std::string& kernel,
                                               const std::string& matmul);

}  // namespace kvfolio::tools
