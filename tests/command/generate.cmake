# SPDX-License-Identifier: Apache-2.0
# The command `kvfolio generate` from outside. Needs the command.
if(NOT KVFOLIO_BUILD_TOOLS)
  return()
endif()

function(kvfolio_add_generate_pytest name)
  kvfolio_add_pytest(${name} ${ARGN})
  if(TEST ${name})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "KVFOLIO_SANITIZED=${KVFOLIO_SANITIZE}")
  endif()
endfunction()

# no_new_threads: what has threads there, others of these run too, so the night alone runs it under the thread
# sanitizer. no_new_memory: what reads and writes there, others of these and the tests of the library run too; the same
# with the address sanitizer.
kvfolio_add_generate_pytest(generate_bits FILE test_bits.py LABELS slow)
kvfolio_add_generate_pytest(generate_cli FILE test_cli.py LABELS no_new_threads)
kvfolio_add_generate_pytest(generate_demo FILE test_demo.py LABELS slow)
kvfolio_add_generate_pytest(generate_hostile FILE test_hostile.py ARGS -k "not signal and not control_character" LABELS no_new_threads)
kvfolio_add_generate_pytest(generate_terminal FILE test_hostile.py ARGS -k control_character LABELS no_new_threads no_new_memory)
kvfolio_add_generate_pytest(generate_signals FILE test_hostile.py ARGS -k signal LABELS no_new_memory)  # waits most of the time
kvfolio_add_generate_pytest(generate_identity FILE test_identity.py LABELS no_new_threads no_new_memory)
kvfolio_add_generate_pytest(generate_metrics FILE test_metrics.py LABELS no_new_threads)
kvfolio_add_generate_pytest(generate_inspect FILE test_inspect.py LABELS no_new_threads)
kvfolio_add_generate_pytest(generate_sharing FILE test_sharing.py LABELS no_new_threads no_new_memory)
kvfolio_add_generate_pytest(generate_tiers FILE test_tiers.py)
if(KVFOLIO_HIREDIS)
  kvfolio_add_generate_pytest(generate_redis FILE test_redis.py LABELS no_new_memory)
endif()
kvfolio_add_test(whole_file_test SOURCES whole_file_test.cc LIBS kvfolio_tools)
