// SPDX-License-Identifier: Apache-2.0
// See CMakeLists.txt. The messages are matched for g++ and clang++ both.
#include <utility>
#include <vector>

#include "kvfolio/ids.h"
#include "kvfolio/manager.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace {

using kvfolio::BlockId;
using kvfolio::SequenceId;
using kvfolio::Status;

[[maybe_unused]] void take_block(BlockId) {}
[[maybe_unused]] void take_sequence(SequenceId) {}
[[maybe_unused]] Status check() { return {}; }
[[maybe_unused]] kvfolio::Result<int> compute() { return 1; }

[[maybe_unused]] void misuse(kvfolio::KVCacheManager& manager) {
  take_block(BlockId(1));
  take_sequence(SequenceId(1));
  (void)manager.close(SequenceId(1));

#ifdef CASE_sequence_passed_as_block
  // error: could not convert|no matching function|no known conversion
  take_block(SequenceId(1));
#endif
#ifdef CASE_block_passed_as_sequence
  // error: could not convert|no matching function|no known conversion
  take_sequence(BlockId(1));
#endif
#ifdef CASE_integer_passed_as_block
  // error: could not convert|no matching function|no known conversion
  take_block(7);
#endif
#ifdef CASE_block_read_as_integer
  // error: cannot convert|no viable conversion
  const int from_block = BlockId(1);
  (void)from_block;
#endif
#ifdef CASE_block_plus_sequence
  // error: no match for|invalid operands
  (void)(BlockId(1) + SequenceId(1));
#endif
#ifdef CASE_block_compared_with_sequence
  // error: no match for|invalid operands
  (void)(BlockId(1) == SequenceId(1));
#endif
#ifdef CASE_ticket_compared_with_pin
  // error: no match for|invalid operands
  (void)(kvfolio::Ticket(1) == kvfolio::PinId(1));
#endif
#ifdef CASE_status_ignored
  // error: nodiscard|unused-result
  check();
#endif
#ifdef CASE_result_ignored
  // error: nodiscard|unused-result
  compute();
#endif
#ifdef CASE_result_copied
  // error: deleted
  const kvfolio::Result<int> one = compute();
  const kvfolio::Result<int> two = one;
  (void)two;
#endif
#ifdef CASE_block_closed
  // error: could not convert|cannot convert|no matching function|no known conversion|no viable
  (void)manager.close(BlockId(1));
#endif
#ifdef CASE_sequence_finished
  // error: could not convert|cannot convert|no matching function|no known conversion|no viable
  (void)manager.finish(SequenceId(1));
#endif
#ifdef CASE_group_and_block_swapped
  // error: could not convert|cannot convert|no matching function|no known conversion|no viable
  (void)manager.ref_count(BlockId(1), kvfolio::GroupId(0));
#endif
#ifdef CASE_close_not_checked
  // error: nodiscard|unused-result
  manager.close(SequenceId(1));
#endif
#ifdef CASE_manager_copied
  // error: deleted
  const kvfolio::KVCacheManager copy = manager;
#endif
#ifdef CASE_status_used_as_integer
  // error: cannot convert|no viable conversion
  const int from_status = check();
  (void)from_status;
#endif
}

}  // namespace
