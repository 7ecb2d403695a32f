# SPDX-License-Identifier: Apache-2.0
# Every public header compiles alone, and all of them together with each compiler that is here; and
# designated.cc, which initialises one field of each public struct, without a warning.
find_program(KVFOLIO_CLANGXX NAMES clang++-14 clang++)
find_program(KVFOLIO_NVCC nvcc PATHS /usr/local/cuda/bin)
function(add_headers_test name)
  add_test(NAME headers.${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_headers ${ARGN})
  set_tests_properties(headers.${name} PROPERTIES
    LABELS toolchain TIMEOUT 300 SKIP_RETURN_CODE 77 PROCESSORS 2)
endfunction()
add_headers_test(gxx gnu ${CMAKE_CXX_COMPILER})
set_property(TEST headers.gxx APPEND PROPERTY LABELS sources)
add_headers_test(clang together "${KVFOLIO_CLANGXX}")
add_headers_test(clang_alone gnu "${KVFOLIO_CLANGXX}")
set_property(TEST headers.clang_alone APPEND PROPERTY LABELS nightly)
add_headers_test(nvcc nvcc "${KVFOLIO_NVCC}")
set_property(TEST headers.nvcc APPEND PROPERTY LABELS sources)
