# SPDX-License-Identifier: Apache-2.0
# Install rules: find_package(kvfolio CONFIG) gives kvfolio::kvfolio, pkg-config gives kvfolio.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvfolio)

install(TARGETS kvfolio kvfolio_shared EXPORT kvfolio
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvfolio
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
# Not CMAKE_INSTALL_DOCDIR: it names the project that included GNUInstallDirs first.
set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/kvfolio)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md
  ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${doc_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${doc_dir}
  FILES_MATCHING PATTERN "*.md")
install(EXPORT kvfolio NAMESPACE kvfolio:: FILE kvfolioTargets.cmake DESTINATION ${package_dir})
if(TARGET kvfolio_cli)
  install(TARGETS kvfolio_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
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
configure_file(${PROJECT_SOURCE_DIR}/cmake/kvfolio.pc.in ${PROJECT_BINARY_DIR}/kvfolio.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvfolio.pc DESTINATION ${pc_dir})
