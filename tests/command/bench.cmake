# SPDX-License-Identifier: Apache-2.0
# The command `kvfolio bench` from outside. Needs the command.
if(NOT KVFOLIO_BUILD_TOOLS)
  return()
endif()

kvfolio_add_pytest(bench_core FILE test_bench.py LABELS slow)

if(TARGET kvfolio_bench_peer)
  kvfolio_add_pytest(bench_peers FILE test_peers.py LABELS slow)
  if(TEST bench_peers)
    set_property(TEST bench_peers APPEND PROPERTY ENVIRONMENT
      "KVFOLIO_BENCH_PEER=$<TARGET_FILE:kvfolio_bench_peer>")
  endif()
endif()
if(TARGET kvfolio_bench_peer_disk)
  kvfolio_add_pytest(bench_peers_disk FILE test_peers_disk.py LABELS slow)
  if(TEST bench_peers_disk)
    set_property(TEST bench_peers_disk APPEND PROPERTY ENVIRONMENT
      "KVFOLIO_BENCH_PEER_DISK=$<TARGET_FILE:kvfolio_bench_peer_disk>")
  endif()
endif()
