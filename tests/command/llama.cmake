# SPDX-License-Identifier: Apache-2.0
# The example engine: its model against NumPy and transformers, hostile checkpoints.
add_executable(llama_logits_dump logits_dump.cc)
target_link_libraries(llama_logits_dump PRIVATE kvfolio_options kvfolio_llama)
set_target_properties(llama_logits_dump PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# kvfolio_add_pytest, with the path of llama_logits_dump in the environment.
function(kvfolio_add_model_pytest name)
  kvfolio_add_pytest(${name} ${ARGN})
  if(TEST ${name})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
      "KVFOLIO_LOGITS_DUMP=$<TARGET_FILE:llama_logits_dump>;KVFOLIO_SANITIZED=${KVFOLIO_SANITIZE}")
  endif()
endfunction()

kvfolio_add_model_pytest(llama_model FILE test_model.py)
if(TARGET kvfolio_cli)
  kvfolio_add_model_pytest(llama_forward FILE test_forward.py)
  if(NOT KVFOLIO_SANITIZE MATCHES thread)  # one thread reads; this would only be slow
    # In three: under the sanitizers each case takes the command a second or more to start.
    kvfolio_add_model_pytest(llama_hostile_sizes FILE test_hostile_checkpoints.py ARGS -k wrong_sizes)
    # Both programs have one reader: each kind of a header as large as it may be goes through one of them.
    kvfolio_add_model_pytest(llama_hostile_100_mb FILE test_hostile_checkpoints.py ARGS -k "100_mb and not command-")
    kvfolio_add_model_pytest(llama_hostile_100_mb_command FILE test_hostile_checkpoints.py
      ARGS -k "100_mb and command-" LABELS nightly)
    kvfolio_add_model_pytest(llama_hostile FILE test_hostile_checkpoints.py
      ARGS -k "not wrong_sizes and not 100_mb")
  endif()
endif()

# The same engine over a device that is none.
kvfolio_add_test(llama_device_test
  SOURCES device_compute_test.cc
  LIBS kvfolio_llama_device kvfolio_cuda_on_host
  INCLUDE ${PROJECT_SOURCE_DIR}/examples/llama TIMEOUT 600)
