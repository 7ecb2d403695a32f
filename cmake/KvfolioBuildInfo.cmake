# SPDX-License-Identifier: Apache-2.0
# Target kvfolio_build_info: gives tools the header "kvfolio_build_info.h" (namespace
# kvfolio_build_info: kVersion, kCommit, kCompiler). Not for the library, which must
# not change with the commit. The commit is read when CMake configures, again after each commit.
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE KVFOLIO_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
  RESULT_VARIABLE git_failed)
if(git_failed OR NOT KVFOLIO_COMMIT)
  set(KVFOLIO_COMMIT unknown)
else()
  execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --git-path logs/HEAD
    OUTPUT_VARIABLE head_log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(head_log "${head_log}" ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  if(EXISTS ${head_log})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${head_log})
  endif()
endif()

set(KVFOLIO_VERSION ${PROJECT_VERSION})
if(KVFOLIO_MUTANTS)
  string(APPEND KVFOLIO_VERSION "-mutants")
endif()

configure_file(${PROJECT_SOURCE_DIR}/cmake/kvfolio_build_info.h.in
  ${PROJECT_BINARY_DIR}/generated/kvfolio_build_info.h @ONLY)
add_library(kvfolio_build_info INTERFACE)
target_include_directories(kvfolio_build_info INTERFACE ${PROJECT_BINARY_DIR}/generated)
