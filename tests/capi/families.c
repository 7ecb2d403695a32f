// SPDX-License-Identifier: Apache-2.0
//
// Each function of the families around a manager, with what it must answer.

#define _POSIX_C_SOURCE 200809L  // fileno, dup
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "capi_test.h"
#include "every_function.h"

static const int32_t kTokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static kvfolio_manager* make_manager(void) {
  const kvfolio_group_spec group = small_group();
  const kvfolio_manager_options options = {.struct_size = sizeof options,
                                           .max_sequences = 8,
                                           .max_sequence_tokens = 32,
                                           .list_findable = 1};
  kvfolio_manager* manager = NULL;
  MUST(kvfolio_manager_create(&group, 1, &options, &manager, &g_error));
  return manager;
}

// A sequence of 8 tokens, complete and findable.
static kvfolio_sequence say(kvfolio_manager* manager) {
  kvfolio_sequence sequence = 0;
  kvfolio_ticket step = 0;
  kvfolio_found found = {.struct_size = sizeof found};
  MUST(kvfolio_open(manager, NULL, kTokens, 8, NULL, 0, NULL, &sequence, &found, &g_error));
  MUST(kvfolio_begin_step(manager, 0, &step, &g_error));
  MUST(kvfolio_append(manager, sequence, kTokens + found.cached_tokens, 8 - found.cached_tokens, 0,
                      &g_error));
  MUST(kvfolio_finish(manager, step, &g_error));
  return sequence;
}

static int32_t length_of(const kvfolio_manager* manager, kvfolio_sequence sequence) {
  kvfolio_sequence_info info = {.struct_size = sizeof info};
  MUST(kvfolio_info(manager, sequence, &info, &g_error));
  return info.length;
}

static int32_t keep_bytes(void* context, const void* bytes, int64_t num_bytes) {
  (void)bytes;
  int64_t* const total = context;
  if (*total < 0) return 700;
  *total += num_bytes;
  return 0;
}

// A call, in a world of its own: it does what it says or says why not, and leaves a manager.
#define PLAIN(call)                                                                   \
  do {                                                                                \
    kvfolio_manager* const m = make_manager();                                        \
    const kvfolio_sequence sequence = say(m);                                         \
    (void)sequence;                                                                   \
    g_error.code = KVFOLIO_OK;                                                        \
    const int32_t code = (call);                                                      \
    CHECK(code == g_error.code && code >= KVFOLIO_OK && code <= KVFOLIO_ERR_CORRUPT); \
    CHECK(code == KVFOLIO_OK || strlen(g_error.message) > 12);                        \
    MUST(kvfolio_check_invariants(m, &g_error));                                      \
    kvfolio_manager_destroy(m);                                                       \
  } while (0)
#include "plain_calls.h"
#undef PLAIN

// What asks for an array, or answers what is known, is called below.
void call_each_plainly(void) { call_plainly(); }

// Two managers with the same calls write as many bytes, and more where each call is flushed, since
// each piece has a checksum of its own; a sink that fails ends the log and nothing else; a log may
// be destroyed first.
void call_op_log(void) {
  int64_t totals[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; ++i) {
    const int32_t flush_each_call = i / 2;
    kvfolio_manager* const m = make_manager();
    const kvfolio_byte_sink sink = {sizeof sink, 0, &totals[i], keep_bytes};
    kvfolio_op_log* log = NULL;
    MUST(kvfolio_op_log_create(&sink, flush_each_call, &log, &g_error));
    MUST(kvfolio_record(m, log, &g_error));
    say(m);
    CHECK(kvfolio_op_log_num_calls(log) == 4);
    MUST(kvfolio_record(m, NULL, &g_error));
    MUST(kvfolio_op_log_status(log, &g_error));
    CHECK(totals[i] > 100);
    MUST(kvfolio_record(m, log, &g_error));  // it had calls: not from the first on
    CHECK(kvfolio_op_log_status(log, &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);
    CHECK(kvfolio_op_log_flush(log, &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);
    kvfolio_op_log_destroy(log);
    kvfolio_manager_destroy(m);
  }
  CHECK(totals[0] == totals[1] && totals[2] == totals[3] && totals[0] < totals[2]);

  kvfolio_manager* const m = make_manager();
  int64_t none = -1;
  const kvfolio_byte_sink sink = {sizeof sink, 0, &none, keep_bytes};
  kvfolio_op_log* log = NULL;
  MUST(kvfolio_op_log_create(&sink, 1, &log, &g_error));
  MUST(kvfolio_record(m, log, &g_error));
  say(m);
  CHECK(kvfolio_op_log_status(log, &g_error) == KVFOLIO_ERR_UNAVAILABLE);
  CHECK(strstr(g_error.message, "returned 700") != NULL);
  kvfolio_op_log_destroy(log);
  say(m);  // the manager keeps it
  kvfolio_manager_destroy(m);

  FILE* const file = need(tmpfile());
  const int fd = dup(fileno(file));
  MUST(kvfolio_op_log_create_fd(fd, 0, &log, &g_error));
  kvfolio_manager* const other = make_manager();
  MUST(kvfolio_record(other, log, &g_error));
  say(other);
  kvfolio_op_log_destroy(log);
  kvfolio_manager_destroy(other);  // the last that has it
  CHECK(lseek(fileno(file), 0, SEEK_END) > 100 && write(fd, "", 1) < 0);
  (void)fclose(file);
}

void call_versions(void) {
  CHECK(kvfolio_abi_version() == KVFOLIO_ABI_VERSION);
  CHECK(strchr(kvfolio_version(), '.') != NULL);
  CHECK(strcmp(kvfolio_code_name(KVFOLIO_ERR_NOT_FOUND), "not found") == 0);
  CHECK(strcmp(kvfolio_code_name(-1), "invalid") == 0);
}

void call_sequences(void) {
  kvfolio_manager* const m = make_manager();
  kvfolio_root* root = NULL;
  MUST(kvfolio_root_create("m", 1, NULL, 0, NULL, 0, "salt", 4, 7, &root, &g_error));
  const kvfolio_sequence a = say(m);
  int32_t n = -1;
  MUST(kvfolio_probe(m, NULL, kTokens, 8, NULL, 0, NULL, &n, &g_error));
  CHECK(n == 7);  // the last token is computed
  MUST(kvfolio_probe(m, root, kTokens, 8, NULL, 0, NULL, &n, &g_error));
  CHECK(n == 0);
  const kvfolio_open_options announces = {.struct_size = sizeof announces, .announce = 1};
  kvfolio_sequence leader = 0;
  kvfolio_sequence by = 0;
  MUST(kvfolio_open(m, root, kTokens, 8, NULL, 0, &announces, &leader, NULL, &g_error));
  MUST(kvfolio_soon(m, root, kTokens, 8, NULL, 0, NULL, &n, &by, &g_error));
  CHECK(n == 7 && by == leader);
  kvfolio_found found = {.struct_size = sizeof found};
  MUST(kvfolio_admit_prompt(m, root, kTokens, 8, NULL, 0, NULL, 0, 0, &found, NULL, 0, &g_error));
  CHECK(found.cached_tokens == 0 && found.soon_tokens == 7 && found.soon_by == leader);
  kvfolio_sequence twin = 0;
  found.soon_by = 0;
  MUST(kvfolio_open(m, root, kTokens, 8, NULL, 0, NULL, &twin, &found, &g_error));
  CHECK(found.cached_tokens == 0 && found.soon_tokens == 7 && found.soon_by == leader);
  MUST(kvfolio_close(m, twin, &g_error));
  MUST(kvfolio_close(m, leader, &g_error));
  MUST(kvfolio_soon(m, root, kTokens, 8, NULL, 0, NULL, &n, &by, &g_error));
  CHECK(n == 0 && by == 0);
  kvfolio_root_destroy(root);

  kvfolio_sequence b = 0;
  kvfolio_i32s table = {NULL, 0};
  MUST(kvfolio_open(m, NULL, NULL, 0, NULL, 0, NULL, &b, NULL, &g_error));
  MUST(kvfolio_block_table(m, a, 0, &table, &g_error));
  const int32_t blocks[2] = {table.data[0], table.data[1]};
  const int64_t size = 2;
  MUST(kvfolio_adopt(m, b, blocks, &size, 1, 8, &g_error));
  CHECK(length_of(m, b) == 8);
  MUST(kvfolio_truncate(m, b, 5, &g_error));
  CHECK(length_of(m, b) == 5);
  MUST(kvfolio_clear(m, b, &g_error));
  CHECK(length_of(m, b) == 0);
  MUST(kvfolio_set_priority(m, b, -3, &g_error));
  MUST(kvfolio_touch(m, b, &g_error));

  kvfolio_sequence given_up = 0;
  MUST(kvfolio_open(m, NULL, NULL, 0, NULL, 0, NULL, &given_up, NULL, &g_error));
  kvfolio_ticket step = 0;
  int32_t appended = -1;
  MUST(kvfolio_begin_step(m, 0, &step, &g_error));
  MUST(kvfolio_append_prompt(m, given_up, kTokens, 8, 3, &appended, &g_error));
  CHECK(appended == 3 && length_of(m, given_up) == 3);
  MUST(kvfolio_cancel(m, given_up, &g_error));
  MUST(kvfolio_drop(m, step, &g_error));

  kvfolio_sequence c = 0;
  MUST(kvfolio_fork(m, a, NULL, &c, &g_error));
  MUST(kvfolio_trim(m, c, 1, 3, &n, &g_error));
  CHECK(n == 4);
  MUST(kvfolio_close(m, c, &g_error));
  MUST(kvfolio_preempt(m, b, &g_error));
  CHECK(kvfolio_num_sequences(m) == 1);
  MUST(kvfolio_check_invariants(m, &g_error));
  kvfolio_manager_destroy(m);
}

void call_steps(void) {
  kvfolio_manager* const m = make_manager();
  const kvfolio_sequence both[2] = {say(m), say(m)};
  const int32_t next[2] = {20, 21};
  kvfolio_ticket step = 0;
  int64_t n = -1;
  MUST(kvfolio_begin_step(m, 0, &step, &g_error));
  MUST(kvfolio_append_each(m, both, next, 2, &n, &g_error));
  CHECK(n == 2);
  MUST(kvfolio_undo(m, both[1], &g_error));
  CHECK(length_of(m, both[1]) == 8);
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  MUST(kvfolio_plan(m, NULL, &plan, NULL, 0, &g_error));
  CHECK(plan.num_tokens == 1);
  // The same in a fixed shape, where the caller says.
  int64_t memory[128];
  const int32_t stride = 3;
  kvfolio_plan_options shape = {.struct_size = sizeof shape,
                                .table_stride = {&stride, 1},
                                .padded_sequences = 2,
                                .padded_tokens = 4,
                                .int64_slots = 1};
  int64_t bytes = 0;
  MUST(kvfolio_plan_bytes(m, &shape, &bytes, &g_error));
  CHECK(bytes > 0 && bytes <= (int64_t)sizeof memory);
  shape.memory = memory;
  shape.memory_bytes = bytes;
  kvfolio_group_plan of = {.struct_size = sizeof of};
  MUST(kvfolio_plan(m, &shape, &plan, &of, 1, &g_error));
  CHECK(plan.num_tokens == 1 && plan.num_sequences == 1 && plan.rows.size == 2);
  CHECK(plan.rows.data[1] == -1 && plan.query_start.data == (const int32_t*)memory);
  CHECK(of.slot_mapping.size == 0 && of.slot_mapping_64.size == 4);
  CHECK(of.slot_mapping_64.data[0] >= 0 && of.slot_mapping_64.data[3] == -1);
  CHECK(of.block_table.size == 2 * 3 && of.block_table_stride == 3);
  MUST(kvfolio_commit(m, step, &g_error));
  MUST(kvfolio_complete(m, step, &g_error));

  kvfolio_sequence unnamed = 0;
  MUST(kvfolio_begin_step(m, 0, &step, &g_error));
  MUST(kvfolio_append_unnamed_each(m, both, 2, &n, &g_error));
  MUST(kvfolio_open_unnamed(m, NULL, 3, NULL, 0, NULL, &unnamed, &g_error));
  MUST(kvfolio_commit(m, step, &g_error));
  MUST(kvfolio_set_tokens_each(m, both, next, 2, &n, &g_error));
  CHECK(n == 2);
  MUST(kvfolio_set_tokens(m, unnamed, kTokens, 3, &g_error));
  MUST(kvfolio_complete(m, step, &g_error));

  MUST(kvfolio_begin_step(m, 0, &step, &g_error));
  MUST(kvfolio_append_unnamed(m, unnamed, 2, 2, &g_error));
  MUST(kvfolio_commit(m, step, &g_error));
  MUST(kvfolio_complete(m, step, &g_error));
  MUST(kvfolio_accept(m, unnamed, 1, &g_error));
  CHECK(length_of(m, unnamed) == 4);
  MUST(kvfolio_begin_step(m, 0, &step, &g_error));
  MUST(kvfolio_drop(m, step, &g_error));

  const kvfolio_ended* ended = NULL;
  MUST(kvfolio_begin_step(m, 0, &step, &g_error));
  MUST(kvfolio_append_each(m, both, next, 2, NULL, &g_error));
  MUST(kvfolio_commit(m, step, &g_error));
  MUST(kvfolio_fail(m, step, &ended, &n, &g_error));
  CHECK(n == 2 && ended[0].sequence == both[0] && ended[1].sequence == both[1]);
  MUST(kvfolio_check_invariants(m, &g_error));
  kvfolio_manager_destroy(m);
}

void call_room(void) {
  kvfolio_manager* const m = make_manager();
  const kvfolio_sequence a = say(m);
  int64_t wanted = 4;
  MUST(kvfolio_admit(m, &a, &wanted, 1, &g_error));
  wanted = 100;
  CHECK(kvfolio_admit(m, &a, &wanted, 1, &g_error) == KVFOLIO_ERR_NO_BLOCKS);
  CHECK(g_error.shortage.needed > g_error.shortage.free + g_error.shortage.evictable);
  kvfolio_found found = {.struct_size = sizeof found};
  int32_t blocks = -1;
  CHECK(g_error.shortage.never == 1 && g_error.shortage.kept >= 2 &&
        g_error.shortage.num_blocks > 0);
  MUST(
      kvfolio_admit_prompt(m, NULL, kTokens, 8, NULL, 0, NULL, 4, 0, &found, &blocks, 1, &g_error));
  CHECK(found.cached_tokens == 7 && blocks >= 1);
  int32_t in_chunks = -1;
  MUST(kvfolio_admit_prompt(m, NULL, kTokens, 8, NULL, 0, NULL, 4, 2, &found, &in_chunks, 1,
                            &g_error));
  CHECK(found.cached_tokens == 7 && in_chunks >= 1);
  MUST(kvfolio_admit_sequence(m, a, 4, 2, &in_chunks, 1, &g_error));
  CHECK(in_chunks >= 1);
  CHECK(kvfolio_admit_sequence(m, a, 100, 0, NULL, 0, &g_error) == KVFOLIO_ERR_NO_BLOCKS);
  MUST(kvfolio_reserve(m, a, 4, 1, &g_error));
  MUST(kvfolio_reserve(m, a, 0, 0, &g_error));

  kvfolio_pin_id pin = 0;
  int32_t pinned = -1;
  MUST(kvfolio_pin(m, NULL, kTokens, 8, NULL, 0, NULL, &pin, &pinned, &g_error));
  CHECK(pinned == 8);
  MUST(kvfolio_unpin(m, pin, &g_error));
  CHECK(kvfolio_utilization(m) > 0 && kvfolio_needs_eviction(m) == 0);
  CHECK(kvfolio_select_victim(m, KVFOLIO_POLICY_OF_OPTIONS) == a);
  const kvfolio_ended* ended = NULL;
  int64_t n = -1;
  MUST(kvfolio_preempt_to(m, 0, KVFOLIO_LONGEST, &ended, &n, &g_error));
  CHECK(n == 1 && ended[0].sequence == a);

  int32_t evicted[16];
  int32_t num_evicted = -1;
  MUST(kvfolio_evict(m, 0, 1, evicted, 16, &num_evicted, &g_error));
  CHECK(num_evicted == 1);
  int32_t pins = -1;
  MUST(kvfolio_forget(m, NULL, kTokens, 4, NULL, 0, &n, &pins, &g_error));
  CHECK(n == 1 && pins == 0);
  MUST(kvfolio_forget_root(m, NULL, &n, NULL, &g_error));
  MUST(kvfolio_reset(m, &n, &pins, &g_error));
  CHECK(n == 0 && pins == 0);
  MUST(kvfolio_check_invariants(m, &g_error));
  kvfolio_manager_destroy(m);
}

void call_transfers(void) {
  kvfolio_manager* const m = make_manager();
  kvfolio_sequence a = 0;
  MUST(kvfolio_open(m, NULL, kTokens, 8, NULL, 0, NULL, &a, NULL, &g_error));
  uint8_t has[2] = {1, 1};
  const int64_t size = 2;
  int32_t begin = -1;
  int32_t end = -1;
  int64_t to_load = -1;
  MUST(kvfolio_loadable(m, a, kTokens, 8, 8, has, &size, 1, &begin, &end, &to_load, &g_error));
  CHECK(begin == 0 && end == 8 && to_load == 2);
  kvfolio_load load = {.struct_size = sizeof load};
  MUST(kvfolio_begin_load(m, a, kTokens, 8, 8, &load, &g_error));
  CHECK(load.id != 0 && load.begin == 0 && load.end == 8);
  int32_t logical[2] = {-1, -1};
  int32_t blocks[2] = {-1, -1};
  int32_t count = -1;
  MUST(kvfolio_blocks_to_load(m, load.id, 0, logical, blocks, 2, &count, &g_error));
  CHECK(count == 2 && logical[1] == 1 && blocks[0] != blocks[1]);
  int32_t stand = -1;
  MUST(kvfolio_finish_load(m, load.id, 8, &stand, &g_error));
  CHECK(stand == 8 && length_of(m, a) == 8);

  kvfolio_hold_id hold = 0;
  MUST(kvfolio_hold_blocks(m, 0, blocks, 2, &hold, &g_error));
  MUST(kvfolio_release_hold(m, hold, &g_error));
  kvfolio_findable_block found[4];
  CHECK(kvfolio_take_findable(m, found, 4) == 2);
  uint64_t serial = 0;
  MUST(kvfolio_entry_serial(m, 0, blocks[1], &serial, &g_error));
  CHECK(serial != 0);
  int32_t path[8] = {0};
  int32_t path_tokens = -1;
  kvfolio_root* root = NULL;
  MUST(
      kvfolio_prefix_of(m, 0, blocks[1], 0, path, 8, NULL, 0, &path_tokens, NULL, &root, &g_error));
  CHECK(path_tokens == 8 && memcmp(path, kTokens, sizeof path) == 0);
  kvfolio_root_destroy(root);
  int32_t at = -1;
  MUST(kvfolio_block_at(m, 0, blocks[1], 0, 4, &at, &g_error));
  CHECK(at == blocks[0]);
  MUST(kvfolio_check_invariants(m, &g_error));
  kvfolio_manager_destroy(m);
}

static void ask_of_a_block(const kvfolio_manager* m, int32_t block) {
  int32_t answer = -1;
  MUST(kvfolio_block_state(m, 0, block, &answer, &g_error));
  CHECK(answer == KVFOLIO_BLOCK_HELD);
  MUST(kvfolio_ref_count(m, 0, block, &answer, &g_error));
  CHECK(answer == 1);
  MUST(kvfolio_is_findable(m, 0, block, &answer, &g_error));
  CHECK(answer == 1);
  MUST(kvfolio_findable_end(m, 0, block, &answer, &g_error));
  CHECK(answer == 4);
}

static void ask_of_the_manager(const kvfolio_manager* m) {
  kvfolio_group_usage usage = {.struct_size = sizeof usage};
  MUST(kvfolio_usage(m, 0, &usage, &g_error));
  CHECK(usage.num_blocks == 16 && usage.held == 2 && usage.free == 14);
  CHECK(kvfolio_bytes_total(m) == 16 * 4 * (8 + 8) * 4);
  CHECK(kvfolio_bytes_used(m) == kvfolio_bytes_total(m) / 8);
  int64_t reserved = 0;
  int64_t used = 0;
  kvfolio_metadata(m, &reserved, &used);
  CHECK(reserved >= used && used > 0);
  CHECK(kvfolio_num_rows(m) > 0 && kvfolio_num_groups(m) == 1);
  int32_t widest = -1;
  MUST(kvfolio_widest(m, 0, &widest, &g_error));
  CHECK(widest == 8);
  char text[4096];
  const int64_t bytes = kvfolio_describe(m, text, sizeof text);
  CHECK(bytes == (int64_t)strlen(text) && bytes > 0);
  kvfolio_counters counters = {.struct_size = sizeof counters};
  MUST(kvfolio_get_counters(m, &counters, &g_error));
  CHECK(counters.tokens_committed == 8);
  kvfolio_group_spec group = {.struct_size = sizeof group};
  MUST(kvfolio_get_group(m, 0, &group, &g_error));
  CHECK(group.block_size == 4 && group.num_kv_heads == 1 && group.dtype == KVFOLIO_F32);
  kvfolio_manager_options options = {.struct_size = sizeof options};
  MUST(kvfolio_get_options(m, &options, &g_error));
  CHECK(options.max_sequences == 8 && options.list_findable == 1);
}

void call_questions(void) {
  kvfolio_manager* const m = make_manager();
  const kvfolio_sequence a = say(m);
  kvfolio_i32s table = {NULL, 0};
  MUST(kvfolio_block_table(m, a, 0, &table, &g_error));
  CHECK(table.size == 2);
  int32_t slots[8];
  MUST(kvfolio_slot_mapping(m, a, 0, 0, slots, 8, &g_error));
  CHECK(slots[7] == 4 * table.data[1] + 3);
  kvfolio_sequence found = 0;
  CHECK(kvfolio_find(m, 99, &found, &g_error) == KVFOLIO_ERR_NOT_FOUND);
  CHECK(kvfolio_num_sequences(m) == 1);
  CHECK(kvfolio_sequences(m, &found, 1) == 1 && found == a);
  ask_of_a_block(m, table.data[0]);
  ask_of_the_manager(m);
  kvfolio_manager* const target = make_manager();
  MUST(kvfolio_copy_to(m, target, &g_error));
  uint64_t hashes[2] = {0, 1};
  MUST(kvfolio_state_hash(m, &hashes[0], &g_error));
  MUST(kvfolio_state_hash(target, &hashes[1], &g_error));
  CHECK(hashes[0] == hashes[1]);
  CHECK(length_of(target, a) == 8);
  MUST(kvfolio_check_invariants(target, &g_error));
  kvfolio_manager_destroy(target);
  kvfolio_manager_destroy(m);
}
