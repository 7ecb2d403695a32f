# SPDX-License-Identifier: Apache-2.0
add_test(NAME symbols.shared_library
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_symbols $<TARGET_FILE:kvfolio_shared> $<TARGET_FILE:kvfolio>
  $<IF:$<CONFIG:Debug>,debug,optimized>)
set_tests_properties(symbols.shared_library PROPERTIES LABELS toolchain TIMEOUT 60)
add_test(NAME symbols.tiers_library
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_tiers_symbols $<TARGET_FILE:kvfolio_tiers_shared>)
set_tests_properties(symbols.tiers_library PROPERTIES LABELS toolchain TIMEOUT 60)
# libkvfolio_cuda, here without kernels: what it needs, that nothing else needs CUDA, and that a program which
# links it starts where there is no driver.
set(core_artefacts $<TARGET_FILE:kvfolio_shared> $<TARGET_FILE:kvfolio_tiers_shared>)
if(TARGET kvfolio_cli)
  list(APPEND core_artefacts $<TARGET_FILE:kvfolio_cli>)
endif()
add_test(NAME symbols.cuda_library
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_cuda_symbols $<TARGET_FILE:kvfolio_cuda_shared> ${core_artefacts})
set_tests_properties(symbols.cuda_library PROPERTIES LABELS toolchain TIMEOUT 60)
if(KVFOLIO_SANITIZE MATCHES "thread")
  return()
endif()
foreach(library kvfolio_cuda kvfolio_cuda_shared)
  set(name cuda_starts.${library})
  add_executable(${name} consumer/cuda.cc)
  target_link_libraries(${name} PRIVATE kvfolio_options ${library})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS cpu TIMEOUT 60)
endforeach()
