# SPDX-License-Identifier: Apache-2.0
# Misuse that must not compile. Each case is a block "#ifdef CASE_name" of misuse.cc, with the message
# that the compiler must give in a comment "// error: regular expression". Without a case the file
# must compile.
file(STRINGS misuse.cc cases REGEX "^#ifdef CASE_")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/misuse.cc)
foreach(case IN ITEMS none ${cases})
  string(REPLACE "#ifdef CASE_" "" case "${case}")
  add_test(NAME compile_fail.${case}
    COMMAND ${CMAKE_COMMAND} -DCASE=${case} -DCOMPILER=${CMAKE_CXX_COMPILER}
      -DINCLUDE=${PROJECT_SOURCE_DIR}/include -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/misuse.cc
      -P ${CMAKE_CURRENT_SOURCE_DIR}/misuse.cmake)
  set_tests_properties(compile_fail.${case} PROPERTIES LABELS toolchain TIMEOUT 60)
endforeach()
