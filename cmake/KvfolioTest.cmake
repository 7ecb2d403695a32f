# SPDX-License-Identifier: Apache-2.0
include_guard(GLOBAL)
#   kvfolio_add_test(<name> SOURCES a_test.cc ... [LIBS ...] [INCLUDE folder] [LABELS ...]
#                    [TIMEOUT seconds] [NO_MAIN] [THREADS] [RUNS_LONG])
#
# TIMEOUT is ten times what the slowest test took on the slowest machine seen, and 600 s at most: a test that
# needs more does too much for one entry.
#
# Adds the executable <name> (GoogleTest, with gtest_main unless NO_MAIN) and a ctest entry for each
# of its tests, named Suite.Test. In a layer's directory it links that layer and those below it;
# elsewhere the library kvfolio. LIBS adds to that. Label "slow": under the sanitizers at night only.
# What may take longer (TIMEOUT) starts earlier (COST), so that no core waits at the end.
# THREADS: it runs more than one; only such tests are built under the thread sanitizer. RUNS_LONG: most
# of its time is spent in its own sources (a naive model, an exploration), so they are optimised where
# little else is. Does nothing where tests are not built.
if(KVFOLIO_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

#   kvfolio_compile_soon(<target> [RUNS_LONG])
#
# For what only tests run: optimising takes half of the time of such a source. What is tested keeps its flags,
# and a test that computes a lot itself asks for more (COMPILE_OPTIONS of its source). clang's -Og is its -O1, and under
# its sanitizers it takes a quarter of the time without any; RUNS_LONG: not where many tests spend their time.
function(kvfolio_compile_soon target)
  set(level -Og)
  if(kvfolio_clang_sanitizes AND NOT "RUNS_LONG" IN_LIST ARGN)
    set(level -O0)
  endif()
  target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:${level}>)
endfunction()

#   kvfolio_read_headers_once(<target>)
#
# What most tests include is compiled once for all tests; a second of each program. Not where a source is compiled
# alone to see that it includes what it uses, nor with flags of its own, which g++ wants to be equal.
function(kvfolio_read_headers_once target)
  if(NOT KVFOLIO_TEST_HEADERS_ONCE OR NOT KVFOLIO_UNITY)
    return()
  endif()
  get_target_property(libraries ${target} LINK_LIBRARIES)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(flags ${source} COMPILE_OPTIONS)
    if(flags OR libraries MATCHES "OpenMP|kvfolio_redis")  # hiredis brings a definition
      return()
    endif()
  endforeach()
  set(precompiled -fpch-preprocess)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # For ccache: a header that is as it was is no newer one.
    set(precompiled "SHELL:-Xclang -fno-pch-timestamp")
  endif()
  if(NOT TARGET kvfolio_test_headers)
    add_library(kvfolio_test_headers OBJECT ${PROJECT_SOURCE_DIR}/cmake/test_headers.cc)
    target_link_libraries(kvfolio_test_headers PRIVATE kvfolio_options kvfolio_internal GTest::gmock)
    kvfolio_compile_soon(kvfolio_test_headers)
    target_precompile_headers(kvfolio_test_headers PRIVATE ${PROJECT_SOURCE_DIR}/cmake/test_headers.h)
    target_compile_options(kvfolio_test_headers PRIVATE ${precompiled})
    # ccache takes what two headers have but for their comments for one. A precompiled header is not: the
    # compiler knows a header that it has read by its bytes, and would read a changed one a second time.
    if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
      set_target_properties(kvfolio_test_headers PROPERTIES
        CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_DEPEND=1;${CMAKE_CXX_COMPILER_LAUNCHER}")
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM kvfolio_test_headers)
  target_compile_options(${target} PRIVATE ${precompiled})
endfunction()

function(kvfolio_add_test name)
  if(NOT KVFOLIO_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN;THREADS;RUNS_LONG" "INCLUDE;TIMEOUT" "SOURCES;LIBS;LABELS")
  if(KVFOLIO_SANITIZE MATCHES "thread" AND NOT arg_THREADS)
    return()
  endif()
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
  kvfolio_compile_together(${name})
  target_link_libraries(${name} PRIVATE kvfolio_options ${subject} ${arg_LIBS} GTest::gmock
    $<IF:$<BOOL:${arg_NO_MAIN}>,GTest::gtest,GTest::gtest_main>)
  if(arg_INCLUDE)
    target_include_directories(${name} PRIVATE ${arg_INCLUDE})
  endif()
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(arg_RUNS_LONG AND kvfolio_clang_sanitizes)
    kvfolio_compile_soon(${name} RUNS_LONG)
  else()
    kvfolio_compile_soon(${name})
    kvfolio_read_headers_once(${name})
  endif()
  gtest_discover_tests(${name}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT})
  # Labels are a list, which gtest_discover_tests loses on its way; ctest reads this file after its.
  set(labels ${CMAKE_CURRENT_BINARY_DIR}/${name}.labels.cmake)
  file(WRITE ${labels}
    "if(${name}_TESTS)\n"
    "  set_tests_properties(\${${name}_TESTS} PROPERTIES LABELS \"${arg_LABELS}\")\n"
    "endif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels})
endfunction()

#   kvfolio_add_pytest(<name> FILE test_x.py ... [ARGS ...] [LABELS ...] [TIMEOUT seconds])
#
# Adds one ctest entry that runs pytest over FILE; scripts/totals counts its cases. The tests find
# the command in $KVFOLIO and the repository in $KVFOLIO_SOURCE_DIR. NumPy gets one thread: several
# wait for each other in a loop, which takes the cores from the tests beside them. Uses build/venv
# (scripts/test makes it), else a Python with numpy and pytest on the path; without one, these tests
# are left out, and a line of the configuration says so.
if(KVFOLIO_BUILD_TESTS)
  set(venv ${PROJECT_SOURCE_DIR}/build/venv/bin)
  if(EXISTS ${venv}/python AND NOT "${KVFOLIO_PYTHON}" STREQUAL "${venv}/python")
    unset(KVFOLIO_PYTHON CACHE)  # found before build/venv was made, and it may have no nanobind
  endif()
  find_program(KVFOLIO_PYTHON python NAMES python python3
    HINTS ${venv} DOC "Python with numpy and pytest")
  set(missing TRUE)
  if(KVFOLIO_PYTHON)
    execute_process(COMMAND ${KVFOLIO_PYTHON} -c "import numpy, pytest"
      RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(missing)
    message(STATUS "The tests in Python are left out: no numpy and pytest for "
      "${KVFOLIO_PYTHON}. scripts/test makes build/venv.")
    unset(KVFOLIO_PYTHON CACHE)  # look again next time
  endif()
endif()

function(kvfolio_add_pytest name)
  if(NOT KVFOLIO_BUILD_TESTS OR NOT KVFOLIO_PYTHON)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "FILE;ARGS;LABELS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvfolio_add_pytest(${name}): what is ${arg_UNPARSED_ARGUMENTS}?")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  add_test(NAME ${name}
    COMMAND ${KVFOLIO_PYTHON} -m pytest -q -p no:cacheprovider
      --junitxml=${PROJECT_BINARY_DIR}/pytest/${name}.xml ${arg_FILE} ${arg_ARGS}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${arg_TIMEOUT}
    COST ${arg_TIMEOUT}
    LABELS "python;${arg_LABELS}"
    ENVIRONMENT "KVFOLIO=${PROJECT_BINARY_DIR}/bin/kvfolio;KVFOLIO_SOURCE_DIR=${PROJECT_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1;OPENBLAS_NUM_THREADS=1")
endfunction()

#   kvfolio_add_fuzzer(<name> SOURCES fuzz_x.cc [LIBS ...] [CORPUS directory])
#
# Adds the executable bin/<name> around LLVMFuzzerTestOneInput, and a ctest entry that runs it over
# the files of CORPUS once. With clang it is a libFuzzer program (the preset fuzz also instruments
# what it links); with g++ a program that only replays the files and folders named on its command
# line. Not under the thread sanitizer: one thread reads. The target `fuzzers` builds all of them.
function(kvfolio_add_fuzzer name)
  if(NOT KVFOLIO_BUILD_TESTS OR KVFOLIO_SANITIZE MATCHES "thread")
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "CORPUS" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${name})
  target_link_libraries(${name} PRIVATE kvfolio_options kvfolio ${arg_LIBS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set(once -runs=0)
  else()
    if(NOT TARGET kvfolio_fuzz_replay)
      add_library(kvfolio_fuzz_replay OBJECT ${PROJECT_SOURCE_DIR}/cmake/fuzz_replay.cc)
      target_link_libraries(kvfolio_fuzz_replay PRIVATE kvfolio_options)
      target_compile_features(kvfolio_fuzz_replay PRIVATE cxx_std_20)
      kvfolio_compile_soon(kvfolio_fuzz_replay)
    endif()
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:kvfolio_fuzz_replay>)
    kvfolio_compile_soon(${name})
    set(once)
  endif()
  if(arg_CORPUS)
    add_test(NAME ${name} COMMAND ${name} ${once} ${arg_CORPUS}
      WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS "cpu;fuzz")
  endif()
endfunction()
