// SPDX-License-Identifier: Apache-2.0
#pragma once

// OpenOptions with the memory that they point into.

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings.h"

namespace kvfolio::python {

Publish parse_publish(const char* word);
std::optional<std::uint64_t> caller_id_of(nb::handle object);  // an int or None

class HeldOptions {
 public:
  // What every lookup takes.
  HeldOptions(nb::handle root, nb::handle media, bool prefix_cache, bool look_up, Int max_tokens);
  HeldOptions(const HeldOptions&) = delete;
  HeldOptions& operator=(const HeldOptions&) = delete;

  // What a new sequence takes beside them.
  void set_sequence(const char* publish, nb::handle caller_id, Int priority, bool late_names,
                    bool announce = false);

  OpenOptions options;

 private:
  HeldRoot root_;
  std::vector<MediaSpan> media_;
};

}  // namespace kvfolio::python
