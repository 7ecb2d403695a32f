# SPDX-License-Identifier: Apache-2.0
# The installed package serves a consumer, built as its users build theirs. "install.prefix" installs
# this build and moves the result elsewhere before it is used.
if(KVFOLIO_MUTANTS)
  return()  # that build cannot be installed
endif()
find_program(KVFOLIO_CLANGXX NAMES clang++-14 clang++)
set(work ${CMAKE_CURRENT_BINARY_DIR}/work)

add_test(NAME install.prefix
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/prepare ${PROJECT_BINARY_DIR} ${work})
set_tests_properties(install.prefix PROPERTIES
  FIXTURES_SETUP kvfolio_prefix LABELS install TIMEOUT 120)

foreach(compiler gxx clang)
  set(command ${CMAKE_CXX_COMPILER})
  if(compiler STREQUAL clang)
    set(command ${KVFOLIO_CLANGXX})
  endif()
  foreach(from find_package pkg-config add_subdirectory)
    string(REPLACE - _ name install.${from}.${compiler})
    add_test(NAME ${name}
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/consume ${work} ${name} "${command}" ${from})
    set_tests_properties(${name} PROPERTIES
      FIXTURES_REQUIRED kvfolio_prefix LABELS install TIMEOUT 600 COST 600 SKIP_RETURN_CODE 77)
  endforeach()
endforeach()
# The first two compile the library once more; the others have been seen with the other compiler.
set_property(TEST install.add_subdirectory.gxx install.add_subdirectory.clang install.find_package.clang
  install.pkg_config.gxx APPEND PROPERTY LABELS nightly)
add_test(NAME install.included
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/consume ${work} install.included ${CMAKE_CXX_COMPILER} included)
set_tests_properties(install.included PROPERTIES
  FIXTURES_REQUIRED kvfolio_prefix LABELS install TIMEOUT 300)
# A C program, by the C compiler and pkg-config alone.
foreach(kind shared static)
  foreach(example script tiers)
    set(name install.c_${kind})
    if(example STREQUAL tiers)
      set(name install.c_tiers_${kind})
    endif()
    add_test(NAME ${name}
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/consume_c ${work} ${kind} ${example})
    set_tests_properties(${name} PROPERTIES
      FIXTURES_REQUIRED kvfolio_prefix LABELS install TIMEOUT 120 SKIP_RETURN_CODE 77)
  endforeach()
endforeach()
# A Go program.
if(NOT KVFOLIO_SANITIZE)
  add_test(NAME install.go COMMAND ${PROJECT_SOURCE_DIR}/bindings/go/check installed
    ${work}/prefix/${CMAKE_INSTALL_LIBDIR} ${PROJECT_BINARY_DIR}/bindings/go
    ${PROJECT_SOURCE_DIR}/examples/c/script.txt)
  set_tests_properties(install.go PROPERTIES FIXTURES_REQUIRED kvfolio_prefix
    LABELS "install;bindings" TIMEOUT 300 SKIP_RETURN_CODE 77 PROCESSORS 2 RESOURCE_LOCK go_cache)
endif()
add_test(NAME install.deb COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deb ${PROJECT_BINARY_DIR})
set_tests_properties(install.deb PROPERTIES LABELS install TIMEOUT 300 SKIP_RETURN_CODE 77)
