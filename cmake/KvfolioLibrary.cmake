# SPDX-License-Identifier: Apache-2.0
include_guard(GLOBAL)
find_package(Threads REQUIRED)
#   kvfolio_add_library(<name> EXPORT <short> [PUBLIC <name of ours> ...] [PRIVATE ...])
#
# A library from the layers that name it (kvfolio_add_layer), twice, from the same objects: <name>
# (static) and <name>_shared. They are exported as kvfolio::<short>static and kvfolio::<short>shared;
# kvfolio::<name> is the shared one where BUILD_SHARED_LIBS is on. cmake/<name>.map says what the
# shared one exports. PUBLIC names libraries of ours that it stands on; PRIVATE all others.
function(kvfolio_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "EXPORT" "PUBLIC;PRIVATE")
  set(shared ${name}_shared)
  get_property(layers GLOBAL PROPERTY KVFOLIO_LAYERS_OF_${name})
  set(objects)
  foreach(layer IN LISTS layers)
    list(APPEND objects $<TARGET_OBJECTS:${layer}>)
  endforeach()

  add_library(${name} STATIC ${objects})
  add_library(${shared} SHARED ${objects})
  set(map ${PROJECT_SOURCE_DIR}/cmake/${name}.map)
  set_target_properties(${shared} PROPERTIES
    OUTPUT_NAME ${name}
    VERSION ${PROJECT_VERSION}
    SOVERSION 0
    LINK_DEPENDS ${map})
  if(NOT KVFOLIO_SANITIZE)
    # The run-time of a sanitizer is in the executable only.
    target_link_options(${shared} PRIVATE -Wl,--no-undefined)
  endif()
  target_link_options(${shared} PRIVATE -Wl,--version-script=${map} -Wl,--as-needed)
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${arg_EXPORT}static)
  set_target_properties(${shared} PROPERTIES EXPORT_NAME ${arg_EXPORT}shared)

  foreach(target ${name} ${shared})
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_link_libraries(${target}
      PRIVATE $<BUILD_INTERFACE:kvfolio_options> ${arg_PRIVATE}
      PUBLIC Threads::Threads)
  endforeach()
  foreach(below IN LISTS arg_PUBLIC)
    target_link_libraries(${name} PUBLIC ${below})
    target_link_libraries(${shared} PUBLIC ${below}_shared)
  endforeach()

  add_library(kvfolio::${arg_EXPORT}static ALIAS ${name})
  add_library(kvfolio::${arg_EXPORT}shared ALIAS ${shared})
  if(BUILD_SHARED_LIBS)
    add_library(kvfolio::${name} ALIAS ${shared})
  else()
    add_library(kvfolio::${name} ALIAS ${name})
    if(NOT PROJECT_IS_TOP_LEVEL AND NOT KVFOLIO_INSTALL)
      set_target_properties(${shared} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endif()
endfunction()
