# SPDX-License-Identifier: Apache-2.0
# Processes over all tiers that are killed, and whose files, servers and I/O go wrong. They have
# threads of the disk; the program that starts them has none.
if(TARGET kvfolio_tiers)
  kvfolio_add_test(chaos_test
    SOURCES chaos_test.cc damage.cc life.cc scripted_server.cc
    LIBS kvfolio_token_rows kvfolio_tiers
    INCLUDE ${PROJECT_SOURCE_DIR}/tests
    THREADS
  )
endif()
