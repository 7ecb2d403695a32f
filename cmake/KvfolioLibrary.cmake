# SPDX-License-Identifier: Apache-2.0
# The library from its layers, twice: kvfolio (static) and kvfolio_shared, from the same objects.
# kvfolio::kvfolio is the shared one where BUILD_SHARED_LIBS is on.
find_package(Threads REQUIRED)

get_property(layers GLOBAL PROPERTY KVFOLIO_OBJECT_LAYERS)
set(objects)
foreach(layer IN LISTS layers)
  list(APPEND objects $<TARGET_OBJECTS:${layer}>)
endforeach()

add_library(kvfolio STATIC ${objects})
add_library(kvfolio_shared SHARED ${objects})
set(map ${PROJECT_SOURCE_DIR}/cmake/kvfolio.map)
set_target_properties(kvfolio_shared PROPERTIES
  OUTPUT_NAME kvfolio
  VERSION ${PROJECT_VERSION}
  SOVERSION 0
  LINK_DEPENDS ${map})
if(NOT KVFOLIO_SANITIZE)
  # The run-time of a sanitizer is in the executable only.
  target_link_options(kvfolio_shared PRIVATE -Wl,--no-undefined)
endif()
target_link_options(kvfolio_shared PRIVATE -Wl,--version-script=${map} -Wl,--as-needed)
set_target_properties(kvfolio PROPERTIES EXPORT_NAME static)
set_target_properties(kvfolio_shared PROPERTIES EXPORT_NAME shared)

foreach(target kvfolio kvfolio_shared)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target}
    PRIVATE $<BUILD_INTERFACE:kvfolio_options>
    PUBLIC Threads::Threads)
endforeach()

add_library(kvfolio::static ALIAS kvfolio)
add_library(kvfolio::shared ALIAS kvfolio_shared)
if(BUILD_SHARED_LIBS)
  add_library(kvfolio::kvfolio ALIAS kvfolio_shared)
else()
  add_library(kvfolio::kvfolio ALIAS kvfolio)
  if(NOT PROJECT_IS_TOP_LEVEL AND NOT KVFOLIO_INSTALL)
    set_target_properties(kvfolio_shared PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endif()
