# SPDX-License-Identifier: Apache-2.0
# Install rules: find_package(kvfolio CONFIG) gives kvfolio::kvfolio, pkg-config gives kvfolio.
# `cpack -G DEB` makes four packages of them: each shared library, what a build needs, the command.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvfolio)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)
install(TARGETS kvfolio kvfolio_shared EXPORT kvfolio
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
if(KVFOLIO_BUILD_TIERS)
  # A package of its own: it needs libcrypto, and the library does not.
  install(TARGETS kvfolio_tiers kvfolio_tiers_shared EXPORT kvfolio
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tiers NAMELINK_COMPONENT dev)
endif()
if(KVFOLIO_BUILD_CUDA)
  install(TARGETS kvfolio_cuda kvfolio_cuda_shared EXPORT kvfolio
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda NAMELINK_COMPONENT dev)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvfolio
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
# Not CMAKE_INSTALL_DOCDIR: it names the project that included GNUInstallDirs first.
set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/kvfolio)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md
  ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${doc_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${doc_dir}
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
if(EXISTS ${PROJECT_SOURCE_DIR}/python/adapters)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/adapters DESTINATION ${doc_dir}/python
    FILES_MATCHING PATTERN "README.md" PATTERN tests EXCLUDE)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${doc_dir} PATTERN __pycache__ EXCLUDE)
# Pages name headers by their places in the source.
file(RELATIVE_PATH doc_to_headers /${doc_dir} /${CMAKE_INSTALL_INCLUDEDIR})
install(CODE "set(doc_to_headers ${doc_to_headers})
set(doc_dir \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${doc_dir}\")")
install(CODE [[
file(GLOB_RECURSE pages RELATIVE "${doc_dir}" "${doc_dir}/*.md")
foreach(page IN LISTS pages)
  string(REGEX MATCHALL "/" folders "${page}")
  list(LENGTH folders depth)
  string(REPEAT "../" ${depth} up)
  file(READ "${doc_dir}/${page}" text)
  string(REPLACE "](${up}include/" "](${up}${doc_to_headers}/" text "${text}")
  file(WRITE "${doc_dir}/${page}" "${text}")
endforeach()
]])
install(EXPORT kvfolio NAMESPACE kvfolio:: FILE kvfolioTargets.cmake DESTINATION ${package_dir})
if(TARGET kvfolio_cli)
  install(TARGETS kvfolio_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kvfolioConfig.cmake.in
  ${PROJECT_BINARY_DIR}/kvfolioConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvfolioConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvfolioConfig.cmake
  ${PROJECT_BINARY_DIR}/kvfolioConfigVersion.cmake DESTINATION ${package_dir})

# The prefix is computed from the place of the .pc file, so that an installed tree can be moved.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix /prefix/${pc_dir} /prefix)
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
set(pc_names kvfolio)
if(KVFOLIO_BUILD_TIERS)
  list(APPEND pc_names kvfolio_tiers)
  set(pc_tiers_private libcrypto)
  if(KVFOLIO_HIREDIS)
    string(APPEND pc_tiers_private ", libssl, hiredis")
  endif()
  if(KVFOLIO_HAS_URING)
    string(APPEND pc_tiers_private ", liburing")
  endif()
endif()
if(KVFOLIO_BUILD_CUDA)
  list(APPEND pc_names kvfolio_cuda)
endif()
foreach(name IN LISTS pc_names)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${pc_dir})
endforeach()

# ---- packages ----

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_CONTACT "kvfolio maintainers <maintainers@kvfolio.invalid>")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_COMPONENTS_ALL runtime tiers dev tools)
  if(KVFOLIO_BUILD_CUDA)
    list(APPEND CPACK_COMPONENTS_ALL cuda)
    set(CPACK_DEBIAN_CUDA_PACKAGE_NAME libkvfolio-cuda0)
    set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION libs)
    set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "libkvfolio0 (= ${PROJECT_VERSION})")
    set(CPACK_COMPONENT_CUDA_DESCRIPTION "${PROJECT_DESCRIPTION}: memory and kernels of NVIDIA cards")
  endif()
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libkvfolio0)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_DEV_PACKAGE_NAME libkvfolio-dev)
  set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
    "libkvfolio0 (= ${PROJECT_VERSION}), libkvfolio-tiers0 (= ${PROJECT_VERSION})")
  set(CPACK_DEBIAN_TIERS_PACKAGE_NAME libkvfolio-tiers0)
  set(CPACK_DEBIAN_TIERS_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_TIERS_PACKAGE_DEPENDS "libkvfolio0 (= ${PROJECT_VERSION})")
  # Where dpkg-shlibdeps finds libkvfolio.so, which no installed package has.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
  set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME kvfolio-tools)
  set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "${PROJECT_DESCRIPTION}: the shared library")
  set(CPACK_COMPONENT_TIERS_DESCRIPTION
    "${PROJECT_DESCRIPTION}: keys, host memory, save and restore")
  set(CPACK_COMPONENT_DEV_DESCRIPTION "${PROJECT_DESCRIPTION}: headers, static library, documents")
  set(CPACK_COMPONENT_TOOLS_DESCRIPTION "${PROJECT_DESCRIPTION}: the command kvfolio")
  include(CPack)
endif()
