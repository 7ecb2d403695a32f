// SPDX-License-Identifier: Apache-2.0

#include "attend.h"
#include "bridge.h"
#include "cuda_storage.h"

#ifdef KVFOLIO_CUDA_TWIN
void add_twin(nb::module_& m);  // the driver that is none, for tests
#endif

NB_MODULE(_cuda, m) {
  namespace python = kvfolio::python;
  // Objects that a program still holds when it ends are no fault of it.
  nb::set_leak_warnings(false);
  m.doc() = "The compiled part of kvfolio_cuda.";
  python::check_core();
  python::add_device(m);
  python::add_cuda_storage(m);
  python::add_moves(m);
  python::add_attend(m);
  python::add_batch_attention(m);
  python::add_device_plan(m);
#ifdef KVFOLIO_CUDA_TWIN
  add_twin(m);
#endif
}
