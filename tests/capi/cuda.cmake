# SPDX-License-Identifier: Apache-2.0
# The C interface of libkvfolio_cuda under the rules of the other ones, over a driver that is none
# (tests/fake_cuda); and with the library as it is on this machine, which may have no driver.
set(capi ${CMAKE_CURRENT_SOURCE_DIR})
set(derived ${CMAKE_CURRENT_BINARY_DIR}/cuda_derived)
set(derived_files ${derived}/calls.h ${derived}/calls.c ${derived}/structs.h
  ${derived}/later/kvfolio/kvfolio_cuda.h)
set(header ${PROJECT_SOURCE_DIR}/include/kvfolio/kvfolio_cuda.h)
add_custom_command(OUTPUT ${derived_files}
  COMMAND ${KVFOLIO_PYTHON3} ${capi}/derive.py ${header} ${derived}
  DEPENDS ${header} ${capi}/derive.py)
add_custom_target(cuda_capi_derived DEPENDS ${derived_files})

#   add_cuda_test(<name> [LATER] [REAL] SOURCES a.c ... [ARGS ...])
# LATER: compiled as if each struct of both headers had two more fields. REAL: over the driver of this
# machine; 77, skipped, where a test wants none.
function(add_cuda_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LATER;REAL" "" "SOURCES;ARGS")
  set(target cuda_capi_${name})
  set(library kvfolio_fake_cuda)
  if(arg_REAL)
    set(library kvfolio_cuda_shared)
  endif()
  add_executable(${target} ${arg_SOURCES})
  add_dependencies(${target} cuda_capi_derived capi_derived ${library})
  set_target_properties(${target} PROPERTIES
    C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF LINKER_LANGUAGE C
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic)
  if(KVFOLIO_DEV)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(arg_LATER)
    target_compile_options(${target} PRIVATE -Wno-missing-field-initializers)
    target_include_directories(${target} PRIVATE ${derived}/later
      ${CMAKE_CURRENT_BINARY_DIR}/derived/later)
  endif()
  target_include_directories(${target} PRIVATE ${derived} ${PROJECT_SOURCE_DIR}/include ${capi}
    ${capi}/..)
  target_link_libraries(${target} PRIVATE $<TARGET_LINKER_FILE:${library}>
    $<TARGET_LINKER_FILE:kvfolio_shared> m)
  if(KVFOLIO_SANITIZE)
    set(flags -fsanitize=${KVFOLIO_SANITIZE} -fno-sanitize-recover=all)
    target_compile_options(${target} PRIVATE -g ${flags})
    target_link_options(${target} PRIVATE ${flags})
  endif()
  add_test(NAME cuda_capi.${name} COMMAND ${target} ${arg_ARGS})
  set_tests_properties(cuda_capi.${name} PROPERTIES TIMEOUT 120 LABELS cpu SKIP_RETURN_CODE 77)
endfunction()

foreach(later "" LATER)
  string(TOLOWER "${later}" suffix)
  add_cuda_test(every_function${suffix} ${later}
    SOURCES cuda_every_function.c cuda_toy.c ${derived}/calls.c)
  add_cuda_test(structs${suffix} ${later} SOURCES cuda_structs.c cuda_toy.c struct_checks.c)
endforeach()
add_cuda_test(contract SOURCES cuda_contract.c cuda_toy.c)
add_cuda_test(with_driver SOURCES cuda_without_driver.c ARGS fake)
add_cuda_test(without_driver REAL SOURCES cuda_without_driver.c)
