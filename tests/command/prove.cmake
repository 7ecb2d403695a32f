# SPDX-License-Identifier: Apache-2.0
# `kvfolio prove`: the command from outside, and what it calls equal. Needs the command.
if(NOT KVFOLIO_BUILD_TOOLS)
  return()
endif()

# In parts, which run beside each other: a table takes seconds, under the sanitizers minutes.
function(kvfolio_add_prove_pytest name which)
  kvfolio_add_pytest(${name} FILE test_prove.py ARGS -k ${which})
  if(TEST ${name})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "KVFOLIO_SANITIZED=${KVFOLIO_SANITIZE}")
  endif()
endfunction()
kvfolio_add_prove_pytest(prove "not one_hash and not row")
kvfolio_add_prove_pytest(prove_each_row "each_row or every_row")
kvfolio_add_prove_pytest(prove_rows "rows and not one_hash")
kvfolio_add_prove_pytest(prove_hashes "one_hash and not each_cache_type and not each_target")
foreach(dtype f32 f16 bf16 int8)
  kvfolio_add_prove_pytest(prove_targets_${dtype} "each_target and cache_${dtype}")
endforeach()
foreach(dtype int8 f16 bf16 f64)
  kvfolio_add_prove_pytest(prove_types_${dtype} "each_cache_type and cache_${dtype}")
endforeach()
kvfolio_add_test(comparison_test SOURCES comparison_test.cc LIBS kvfolio_tools)
