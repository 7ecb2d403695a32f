# SPDX-License-Identifier: Apache-2.0
add_test(NAME symbols.shared_library
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_symbols $<TARGET_FILE:kvfolio_shared> $<TARGET_FILE:kvfolio>
  $<IF:$<CONFIG:Debug>,debug,optimized>)
set_tests_properties(symbols.shared_library PROPERTIES LABELS toolchain TIMEOUT 60)
add_test(NAME symbols.tiers_library
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_tiers_symbols $<TARGET_FILE:kvfolio_tiers_shared>)
set_tests_properties(symbols.tiers_library PROPERTIES LABELS toolchain TIMEOUT 60)
