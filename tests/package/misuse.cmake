# SPDX-License-Identifier: Apache-2.0
set(define)
if(NOT CASE STREQUAL none)
  set(define -DCASE_${CASE})
endif()
execute_process(
  COMMAND ${COMPILER} -std=c++20 -Wall -Wextra -Werror -fno-exceptions -fno-rtti -fsyntax-only
    -I ${INCLUDE} ${define} ${SOURCE}
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(CASE STREQUAL none)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "without a case the file must compile:\n${output}")
  endif()
  return()
endif()
if(result EQUAL 0)
  message(FATAL_ERROR "${CASE} compiles; it must not")
endif()

file(READ ${SOURCE} text)
if(NOT text MATCHES "#ifdef CASE_${CASE}\n *// error: ([^\n]*)\n")
  message(FATAL_ERROR "${CASE} does not say which error it expects")
endif()
set(expected "${CMAKE_MATCH_1}")
if(NOT output MATCHES "${expected}")
  message(FATAL_ERROR "${CASE} fails for another reason than \"${expected}\":\n${output}")
endif()
