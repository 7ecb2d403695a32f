# SPDX-License-Identifier: Apache-2.0
# kvfolio_cuda over a driver that is none, in python_twin/ of the build directory: the objects of its extension, the
# library and the text of its kernels, which run on the CPU. python/tests/test_cuda.py imports it instead of the
# package. Included by python/cuda, where nanobind is known.
set(twin_package ${PROJECT_BINARY_DIR}/python_twin/kvfolio_cuda)
set(objects $<TARGET_OBJECTS:kvfolio_python_cuda_core>)
kvfolio_add_extension(kvfolio_python_cuda_twin _cuda ${twin_package}
  SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/module.cc ${PROJECT_SOURCE_DIR}/tests/python_cuda/twin.cc
    $<FILTER:${objects},EXCLUDE,unity_entry|/driver\\.cc|/module\\.cc>
  LIBS kvfolio_cuda_on_host kvfolio_cuda kvfolio_internal)
target_include_directories(kvfolio_python_cuda_twin PRIVATE ${PROJECT_SOURCE_DIR}/python/src
  ${PROJECT_SOURCE_DIR}/python/cuda/src)
target_compile_definitions(kvfolio_python_cuda_twin PRIVATE KVFOLIO_WHEEL="kvfolio_cuda" KVFOLIO_CUDA_TWIN)
kvfolio_link_cuda_package(${twin_package})
