# SPDX-License-Identifier: Apache-2.0
include_guard(GLOBAL)
# KVFOLIO_HIREDIS: what RedisTier links, if hiredis is there. Without it the library has a RedisTier
# that says so. pkg-config knows the libraries of this processor only.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND AND NOT CMAKE_CROSSCOMPILING)
  pkg_check_modules(HIREDIS QUIET IMPORTED_TARGET hiredis)
endif()
set(KVFOLIO_HIREDIS)
if(HIREDIS_FOUND)
  set(KVFOLIO_HIREDIS OpenSSL::SSL PkgConfig::HIREDIS)
endif()
