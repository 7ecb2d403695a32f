# SPDX-License-Identifier: Apache-2.0
# cmake -DPROGRAM=... -DEXPECTED=file -P this: the program prints the file.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE printed RESULT_VARIABLE code)
file(READ ${EXPECTED} expected)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${code}")
endif()
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "${PROGRAM} printed what ${EXPECTED} does not say:\n${printed}")
endif()
