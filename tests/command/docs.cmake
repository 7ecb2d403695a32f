# SPDX-License-Identifier: Apache-2.0
# The documents: code blocks are sources that run, links and paths lead somewhere. Not under the thread sanitizer,
# and of the others in release alone: what they run are examples, which are tests of their own.
if(KVFOLIO_SANITIZE MATCHES "thread")
  return()
endif()
add_executable(docs_worked_step worked_step.cc)
kvfolio_compile_soon(docs_worked_step)
target_link_libraries(docs_worked_step PRIVATE kvfolio_options kvfolio::kvfolio)
set_target_properties(docs_worked_step PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

kvfolio_add_pytest(docs FILE test_docs.py LABELS toolchain)
if(TEST docs)
  set(programs "KVFOLIO_DOCS_WORKED_STEP=$<TARGET_FILE:docs_worked_step>")
  if(TARGET example_readme)
    list(APPEND programs "KVFOLIO_DOCS_README=$<TARGET_FILE:example_readme>"
      "KVFOLIO_DOCS_TOKEN_STORE=$<TARGET_FILE:example_token_store>")
  endif()
  set_property(TEST docs APPEND PROPERTY ENVIRONMENT
    "${programs}" "KVFOLIO_SANITIZED=${KVFOLIO_SANITIZE}")
endif()
