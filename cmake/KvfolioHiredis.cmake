# SPDX-License-Identifier: Apache-2.0
include_guard(GLOBAL)
# KVFOLIO_HIREDIS: what RedisTier links, if hiredis is there. Without it the library has a RedisTier
# that says so.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(HIREDIS QUIET IMPORTED_TARGET hiredis)
endif()
set(KVFOLIO_HIREDIS)
set(KVFOLIO_HIREDIS_PC)
if(HIREDIS_FOUND)
  set(KVFOLIO_HIREDIS OpenSSL::SSL PkgConfig::HIREDIS)
  set(KVFOLIO_HIREDIS_PC " libssl hiredis")
endif()
