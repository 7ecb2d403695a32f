// SPDX-License-Identifier: Apache-2.0

#include "bridge.h"
#include "tier_state.h"

NB_MODULE(_tiers, m) {
  namespace python = kvfolio::python;
  // Objects that a program still holds when it ends are no fault of it.
  nb::set_leak_warnings(false);
  m.doc() = "The compiled part of kvfolio_tiers.";
  python::check_core();
  python::add_tier(m);
  python::add_disk(m);
  python::add_redis(m);
  python::add_identity(m);
  python::add_offload(m);
  python::add_snapshot(m);
}
