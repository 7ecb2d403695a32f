# SPDX-License-Identifier: Apache-2.0
include_guard(GLOBAL)
#   kvfolio_add_test(<name> SOURCES a_test.cc ... [LIBS ...] [LABELS ...] [TIMEOUT seconds]
#                    [NO_MAIN])
#
# Adds the executable <name> (GoogleTest, with gtest_main unless NO_MAIN) and a ctest entry for each
# of its tests, named Suite.Test. In a layer's directory it links that layer and those below it;
# elsewhere the library kvfolio. LIBS adds to that. Label "slow": left out of the sanitizer runs.
# Does nothing where tests are not built.
if(KVFOLIO_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

function(kvfolio_add_test name)
  if(NOT KVFOLIO_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN" "TIMEOUT" "SOURCES;LIBS;LABELS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvfolio_add_test(${name}): what is ${arg_UNPARSED_ARGUMENTS}?")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS cpu)
  endif()
  if(KVFOLIO_LAYER_CLOSURE)
    set(subject ${KVFOLIO_LAYER_CLOSURE} kvfolio_internal Threads::Threads)
  else()
    set(subject kvfolio kvfolio_internal)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE kvfolio_options ${subject} ${arg_LIBS} GTest::gmock
    $<IF:$<BOOL:${arg_NO_MAIN}>,GTest::gtest,GTest::gtest_main>)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  # The labels are one list-valued property; the escape keeps it one argument on its way.
  string(REPLACE ";" "\\;" labels "${arg_LABELS}")
  gtest_discover_tests(${name}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${labels}")
endfunction()
