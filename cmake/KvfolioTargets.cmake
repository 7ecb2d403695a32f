# SPDX-License-Identifier: Apache-2.0
# Flags of our own targets. Nothing here changes a global variable: a consumer that includes kvfolio
# by add_subdirectory keeps its flags.
#
#   kvfolio_options   warnings and sanitizers; every target of this repository links it PRIVATE
#   kvfolio_headers   the include directories of the public headers
#   kvfolio_internal  the same and src/, for layers and their tests: #include "core/foo.h"
#
#   kvfolio_compile_together(<target>)  as KVFOLIO_UNITY says: its sources are compiled several at a time, so
#       that what they include is read once. Those with flags or definitions of their own (a processor's,
#       -frtti) stay alone; CMake sees to that. Two sources of a target may not give the same name to
#       different things, in anonymous namespaces either, nor leave a macro behind. Sources whose property
#       KVFOLIO_UNIT has one value are compiled with each other and with no others: such as include
#       manager.h, so that a change of it does not compile the others again (scripts/rebuilds).

add_library(kvfolio_options INTERFACE)
target_compile_options(kvfolio_options INTERFACE -Wall -Wextra -Wconversion)
# g++ warns of what the checks of its own sanitizers do.
if(KVFOLIO_DEV AND NOT (KVFOLIO_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"))
  target_compile_options(kvfolio_options INTERFACE -Werror)
endif()
if(KVFOLIO_UNITY)
  # A unity source includes by absolute paths. A failed check names its source from the root of the repository
  # all the same, and ccache finds an object that another checkout has made.
  target_compile_options(kvfolio_options INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
  if(KVFOLIO_SANITIZE)
    # At -Og g++ inlines no function whose address two callers of a large source take, and xxhash insists.
    target_compile_definitions(kvfolio_options INTERFACE XXH_NO_INLINE_HINTS=1)
  endif()
endif()
# g++ 12 sees overlap in "literal" + std::string at -O3 (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(kvfolio_options INTERFACE -Wno-restrict)
endif()
if(KVFOLIO_MUTANTS)
  target_compile_definitions(kvfolio_options INTERFACE KVFOLIO_MUTANTS)
endif()
# What clang compiles of a loop over registers, or of the text of a device's kernel, under its sanitizers: the other
# checks of pointers make it three times as long, and the access itself is checked. The preset asan-gcc has them.
set(kvfolio_kernel_checks)
set(kvfolio_clang_sanitizes OFF)
if(KVFOLIO_SANITIZE)
  # vptr and clang's function need RTTI, which the library does not have.
  set(left_out vptr)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set(left_out vptr,function)
    set(kvfolio_clang_sanitizes ON)
    set(kvfolio_kernel_checks -fno-sanitize=null,pointer-overflow,object-size)
    # As g++ says it; clang 14 only answers when it is asked (__has_feature).
    foreach(which address thread)
      string(TOUPPER __SANITIZE_${which}__ macro)
      if(KVFOLIO_SANITIZE MATCHES ${which})
        target_compile_definitions(kvfolio_options INTERFACE ${macro}=1)
      endif()
    endforeach()
  endif()
  target_compile_options(kvfolio_options INTERFACE -fsanitize=${KVFOLIO_SANITIZE}
    -fno-sanitize-recover=all $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=${left_out}> -fno-omit-frame-pointer -g1)
  target_link_options(kvfolio_options INTERFACE -fsanitize=${KVFOLIO_SANITIZE})
endif()

add_library(kvfolio_headers INTERFACE)
target_include_directories(kvfolio_headers INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_compile_features(kvfolio_headers INTERFACE cxx_std_20)

add_library(kvfolio_internal INTERFACE)
target_include_directories(kvfolio_internal INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(kvfolio_internal INTERFACE kvfolio_headers)

# A layer, or an engine that tests run. Under the sanitizers of clang little else is optimised.
function(kvfolio_optimise_sanitized target)
  if(kvfolio_clang_sanitizes)
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

function(kvfolio_compile_together target)
  if(NOT KVFOLIO_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set(units)
  foreach(source IN LISTS sources)
    get_source_file_property(flags ${source} COMPILE_OPTIONS)
    get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(flags OR alone OR source MATCHES "^[$]<")
      continue()
    endif()
    get_source_file_property(unit ${source} KVFOLIO_UNIT)
    if(NOT unit)
      set(unit others)
    endif()
    list(APPEND units ${unit})
    list(APPEND sources_of_${unit} ${source})
  endforeach()
  list(REMOVE_DUPLICATES units)
  # 20 at most, and as many each time, so that two cores have work to the end.
  foreach(unit IN LISTS units)
    list(LENGTH sources_of_${unit} count)
    math(EXPR batches "(${count} + 19) / 20")
    set(index 0)
    foreach(source IN LISTS sources_of_${unit})
      math(EXPR batch "${index} * ${batches} / ${count}")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${unit}_${batch})
      math(EXPR index "${index} + 1")
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
