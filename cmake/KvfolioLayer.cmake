# SPDX-License-Identifier: Apache-2.0
include_guard(GLOBAL)
#   kvfolio_add_layer(<name> SOURCES a.cc b.cc ... [DEPENDS base ...] [LIBRARY kvfolio] [LIBS ...])
#
# Adds the object library kvfolio_<name>. DEPENDS names layers that it may call; a test of this layer
# (kvfolio_add_test in the same directory) links this layer and those, and nothing else, so that a
# call in a wrong direction does not link. A layer without sources yet is an interface library.
# LIBRARY is the library that its objects go into (kvfolio_add_library), LIBS what else they need.
function(kvfolio_add_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY" "SOURCES;DEPENDS;LIBS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvfolio_add_layer(${name}): what is ${arg_UNPARSED_ARGUMENTS}?")
  endif()
  if(NOT arg_LIBRARY)
    set(arg_LIBRARY kvfolio)
  endif()
  set(target kvfolio_${name})
  if(arg_SOURCES)
    add_library(${target} OBJECT ${arg_SOURCES})
    set_target_properties(${target} PROPERTIES
      POSITION_INDEPENDENT_CODE ON
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON)
    # No contraction to fused multiply-add: a sum has the same bits whoever computes it.
    target_compile_options(${target} PRIVATE -fno-exceptions -fno-rtti -ffp-contract=off)
    kvfolio_optimise_sanitized(${target})
    target_link_libraries(${target} PRIVATE kvfolio_options kvfolio_internal PUBLIC ${arg_LIBS})
    kvfolio_compile_together(${target})
    set_property(GLOBAL APPEND PROPERTY KVFOLIO_LAYERS_OF_${arg_LIBRARY} ${target})
  else()
    add_library(${target} INTERFACE)
  endif()
  set(closure ${target})
  foreach(dependency IN LISTS arg_DEPENDS)
    get_property(below GLOBAL PROPERTY KVFOLIO_CLOSURE_${dependency})
    if(NOT below)
      message(FATAL_ERROR "kvfolio_add_layer(${name}): there is no layer ${dependency}")
    endif()
    list(APPEND closure ${below})
  endforeach()
  list(REMOVE_DUPLICATES closure)
  set_property(GLOBAL PROPERTY KVFOLIO_CLOSURE_${name} ${closure})
  set(KVFOLIO_LAYER_CLOSURE ${closure} PARENT_SCOPE)
endfunction()
