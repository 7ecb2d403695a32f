# SPDX-License-Identifier: Apache-2.0
# Flags of our own targets. Nothing here changes a global variable: a consumer that includes kvfolio
# by add_subdirectory keeps its flags.
#
#   kvfolio_options   warnings and sanitizers; every target of this repository links it PRIVATE
#   kvfolio_headers   the include directories of the public headers
#   kvfolio_internal  the same and src/, for layers and their tests: #include "core/foo.h"

add_library(kvfolio_options INTERFACE)
target_compile_options(kvfolio_options INTERFACE -Wall -Wextra -Wconversion)
if(KVFOLIO_DEV)
  target_compile_options(kvfolio_options INTERFACE -Werror)
endif()
# g++ 12 sees overlap in "literal" + std::string at -O3 (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(kvfolio_options INTERFACE -Wno-restrict)
endif()
if(KVFOLIO_MUTANTS)
  target_compile_definitions(kvfolio_options INTERFACE KVFOLIO_MUTANTS)
endif()
if(KVFOLIO_SANITIZE)
  # vptr needs RTTI, which the library does not have.
  target_compile_options(kvfolio_options INTERFACE -fsanitize=${KVFOLIO_SANITIZE}
    -fno-sanitize-recover=all -fno-sanitize=vptr -fno-omit-frame-pointer -g1)
  target_link_options(kvfolio_options INTERFACE -fsanitize=${KVFOLIO_SANITIZE})
endif()

add_library(kvfolio_headers INTERFACE)
target_include_directories(kvfolio_headers INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_compile_features(kvfolio_headers INTERFACE cxx_std_20)

add_library(kvfolio_internal INTERFACE)
target_include_directories(kvfolio_internal INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(kvfolio_internal INTERFACE kvfolio_headers)
