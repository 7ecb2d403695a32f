# SPDX-License-Identifier: Apache-2.0
# `kvfolio prove`: the command from outside, and what it calls equal. Needs the command.
if(NOT KVFOLIO_BUILD_TOOLS)
  return()
endif()

# In parts, which run beside each other: a table takes seconds, under the sanitizers minutes, and there the first has
# what the others compute with other numbers.
function(kvfolio_add_prove_pytest name which)
  kvfolio_add_pytest(${name} FILE test_prove.py ARGS -k ${which} ${ARGN})
  if(TEST ${name})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "KVFOLIO_SANITIZED=${KVFOLIO_SANITIZE}")
  endif()
endfunction()
kvfolio_add_prove_pytest(prove "not one_hash and not row")
kvfolio_add_prove_pytest(prove_each_row "each_row or every_row" LABELS no_new_memory)
kvfolio_add_prove_pytest(prove_rows "rows and not one_hash" LABELS no_new_memory)
kvfolio_add_prove_pytest(prove_hashes "one_hash and not each_cache_type and not target" LABELS no_new_memory)
kvfolio_add_prove_pytest(prove_targets "each_target" LABELS no_new_threads no_new_memory)
kvfolio_add_prove_pytest(prove_other_targets "other_target")
if(TEST prove_other_targets)
  set_property(TEST prove_other_targets APPEND PROPERTY LABELS nightly)
endif()
if(KVFOLIO_SANITIZE)
  foreach(dtype int8 f16 bf16 e4m3 f64)
    kvfolio_add_prove_pytest(prove_types_${dtype} "each_cache_type and cache_${dtype}" LABELS no_new_threads no_new_memory)
  endforeach()
else()  # one f32 proof for all
  kvfolio_add_prove_pytest(prove_types each_cache_type)
endif()
kvfolio_add_test(comparison_test SOURCES comparison_test.cc LIBS kvfolio_tools)
