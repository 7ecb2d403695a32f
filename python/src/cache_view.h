// SPDX-License-Identifier: Apache-2.0
#pragma once

// kvfolio.View: the view of a cache, and what keeps the memory behind it.

#include "bindings.h"
#include "kvfolio/view.h"

namespace kvfolio::python {

struct View {
  KVView view;
  nb::object keeper;
};

}  // namespace kvfolio::python
