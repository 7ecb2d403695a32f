# SPDX-License-Identifier: Apache-2.0
# The C interface of libkvfolio_tiers under the rules of the other one: each function once, each struct
# at each size, calls that nobody should make; and that no C++ exception comes out of it.
set(capi ${CMAKE_CURRENT_SOURCE_DIR})
set(derived ${CMAKE_CURRENT_BINARY_DIR}/tiers_derived)
set(derived_files ${derived}/calls.h ${derived}/calls.c ${derived}/structs.h ${derived}/null_handles.h
  ${derived}/later/kvfolio/kvfolio_tiers.h)
set(header ${PROJECT_SOURCE_DIR}/include/kvfolio/kvfolio_tiers.h)
add_custom_command(OUTPUT ${derived_files}
  COMMAND ${KVFOLIO_PYTHON3} ${capi}/derive.py ${header} ${derived}
  DEPENDS ${header} ${capi}/derive.py)
add_custom_target(tiers_capi_derived DEPENDS ${derived_files})

#   add_tiers_program(<name> [LATER] SOURCES a.c ...)
# LATER: compiled as if each struct of both headers had two more fields.
function(add_tiers_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "LATER" "" "SOURCES")
  add_executable(${name} ${arg_SOURCES})
  add_dependencies(${name} tiers_capi_derived capi_derived kvfolio_tiers_shared)
  set_target_properties(${name} PROPERTIES
    C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF LINKER_LANGUAGE C
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic)
  if(KVFOLIO_DEV)
    target_compile_options(${name} PRIVATE -Werror)
  endif()
  if(arg_LATER)
    target_compile_options(${name} PRIVATE -Wno-missing-field-initializers)
    target_include_directories(${name} PRIVATE ${derived}/later
      ${CMAKE_CURRENT_BINARY_DIR}/derived/later)
  endif()
  if(NOT KVFOLIO_HIREDIS)
    target_compile_definitions(${name} PRIVATE KVFOLIO_WITHOUT_HIREDIS)
  endif()
  target_include_directories(${name} PRIVATE ${derived} ${PROJECT_SOURCE_DIR}/include ${capi})
  target_link_libraries(${name} PRIVATE $<TARGET_LINKER_FILE:kvfolio_tiers_shared>
    $<TARGET_LINKER_FILE:kvfolio_shared> m)
  if(KVFOLIO_SANITIZE)
    set(flags -fsanitize=${KVFOLIO_SANITIZE} -fno-sanitize-recover=all)
    target_compile_options(${name} PRIVATE -g ${flags})
    target_link_options(${name} PRIVATE ${flags})
  endif()
endfunction()
function(add_tiers_test name)
  add_test(NAME tiers_capi.${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  set_tests_properties(tiers_capi.${name} PROPERTIES TIMEOUT 120 LABELS cpu)
endfunction()

# The same story in C++.
add_executable(tiers_capi_story tiers_story.cc)
kvfolio_compile_soon(tiers_capi_story)
target_link_libraries(tiers_capi_story PRIVATE kvfolio_options kvfolio_tiers)
foreach(later "" LATER)
  string(TOLOWER "${later}" suffix)
  add_tiers_program(tiers_capi_every_function${suffix} ${later}
    SOURCES tiers_every_function.c tiers_families.c tiers_toy.c ${derived}/calls.c)
  add_tiers_test(every_function${suffix} ${capi}/same_output
    $<TARGET_FILE:tiers_capi_every_function${suffix}> $<TARGET_FILE:tiers_capi_story>)
  add_tiers_program(tiers_capi_structs${suffix} ${later}
    SOURCES tiers_structs.c tiers_toy.c ${capi}/struct_checks.c)
  add_tiers_test(structs${suffix} tiers_capi_structs${suffix})
endforeach()
# They write files of the same names.
set_tests_properties(tiers_capi.every_function tiers_capi.every_functionlater tiers_capi.structs
  tiers_capi.structslater PROPERTIES RESOURCE_LOCK tiers_capi_file)
add_tiers_program(tiers_capi_hostile SOURCES tiers_hostile.c refused.c tiers_toy.c)
add_tiers_test(hostile tiers_capi_hostile)
add_tiers_program(tiers_capi_contract SOURCES tiers_contract.c tiers_toy.c)
add_tiers_test(contract tiers_capi_contract)

# Under a sanitizer operator new is the sanitizer's.
if(NOT KVFOLIO_SANITIZE)
  add_executable(tiers_capi_exceptions tiers_exceptions.cc)
  set_target_properties(tiers_capi_exceptions PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(tiers_capi_exceptions PRIVATE kvfolio_options kvfolio_tiers_shared)
  add_tiers_test(exceptions tiers_capi_exceptions)
endif()
