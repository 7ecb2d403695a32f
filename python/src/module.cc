// SPDX-License-Identifier: Apache-2.0

#include "bindings.h"
#include "bridge.h"
#include "kvfolio/version.h"

NB_MODULE(_core, m) {
  namespace python = kvfolio::python;
  // Objects that a program still holds when it ends are no fault of it.
  nb::set_leak_warnings(false);
  m.doc() = "The compiled part of kvfolio.";
  m.def("version", &kvfolio::version, "Of the library in this extension.");
  m.def("_interface_id", &python::interface_id);
  python::add_spec(m);
  python::add_records(m);
  python::add_storage(m);
  python::add_plan(m);
  python::add_step(m);
  python::add_manager(m);
  python::add_kernels(m);
  python::add_attention(m);
  python::add_token_store(m);
  python::add_block_store(m);
  python::add_module_watch(m);
}
