# SPDX-License-Identifier: Apache-2.0
# Misuse that must not compile. Each case is a block "#ifdef CASE_name" of misuse.cc, with the message that the
# compiler must give for a line of the block in a comment "// error: regular expression". All of them are compiled
# at once, since reading the headers is most of a compile; without a case the file must compile.
foreach(which none all)
  add_test(NAME compile_fail.${which}
    COMMAND ${CMAKE_COMMAND} -DWHICH=${which} -DCOMPILER=${CMAKE_CXX_COMPILER}
      -DINCLUDE=${PROJECT_SOURCE_DIR}/include -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/misuse.cc
      -P ${CMAKE_CURRENT_SOURCE_DIR}/misuse.cmake)
  set_tests_properties(compile_fail.${which} PROPERTIES LABELS toolchain TIMEOUT 60)
endforeach()
