# SPDX-License-Identifier: Apache-2.0
# A program with RTTI and -fsanitize=undefined, whose vptr check asks for type information, links and
# runs with the library, static and shared, which is compiled without.
if(KVFOLIO_SANITIZE)
  return()  # our own targets are without that check then
endif()
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS -fsanitize=undefined)
check_cxx_source_compiles("int main() {}" KVFOLIO_HAS_UBSAN)
if(NOT KVFOLIO_HAS_UBSAN)
  message(STATUS "The tests of type information are left out: -fsanitize=undefined does not link")
  return()
endif()
foreach(library kvfolio kvfolio_shared)
  set(name type_info.${library})
  add_executable(${name} host_memory.cc)
  # Not kvfolio_options: a user's flags.
  target_compile_options(${name} PRIVATE
    -Wall -Wextra -O0 -frtti -fsanitize=undefined -fno-sanitize-recover=all)
  target_link_options(${name} PRIVATE -fsanitize=undefined)
  target_link_libraries(${name} PRIVATE ${library})
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS toolchain TIMEOUT 60)
endforeach()
