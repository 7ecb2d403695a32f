# SPDX-License-Identifier: Apache-2.0
if(NOT KVFOLIO_HIREDIS)
  message(STATUS "The tests with Redis are left out: no libhiredis-dev")
  return()
endif()
kvfolio_add_test(redis_tier_test
  SOURCES redis_tier_test.cc tls_test.cc offload_redis_test.cc hostile_server_test.cc owner.cc proxy.cc
    scripted_server.cc servers.cc
  LIBS kvfolio_token_rows kvfolio_tiers OpenSSL::SSL
  INCLUDE ${PROJECT_SOURCE_DIR}/tests
  TIMEOUT 120
)
# Alone: of eight sources it is the one that includes manager.h and what stands on it.
set_source_files_properties(offload_redis_test.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(NOT TARGET redis_tier_test)
  return()  # the thread sanitizer: the tier has no threads
endif()
target_compile_definitions(redis_tier_test PRIVATE
  KVFOLIO_REDIS_HERE="${PROJECT_SOURCE_DIR}/build/redis"
  KVFOLIO_EXAMPLES="$<TARGET_FILE_DIR:example_shared_prefix>")
add_dependencies(redis_tier_test example_shared_prefix)
