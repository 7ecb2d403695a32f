// SPDX-License-Identifier: Apache-2.0
//
// Steps and their plans.

#include "capi/capi.h"

namespace kvfolio::capi {

static_assert(sizeof(SharedPrefix) == sizeof(kvfolio_shared_prefix));

namespace {

// The C++ calls count in int32: no step has more sequences.
Status check_each(std::string_view call, const kvfolio_sequence* sequences,
                  const std::int32_t* tokens, bool has_tokens, std::int64_t size) {
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "sequences", sequences, size));
  return has_tokens ? check_array(call, "tokens", tokens, size) : Status();
}

void give_count(std::int64_t* to, std::int32_t count) noexcept {
  if (to != nullptr) *to = count;
}

kvfolio_group_plan plan_of(const GroupPlan& group) noexcept {
  return {.struct_size = 0,
          .block_table_stride = group.block_table_stride,
          .slot_mapping = array_of(group.slot_mapping),
          .block_table = array_of(group.block_table),
          .kv_indptr = array_of(group.kv_indptr),
          .kv_indices = array_of(group.kv_indices),
          .kv_last_page_len = array_of(group.kv_last_page_len),
          .copy_src = array_of(group.copy_src),
          .copy_dst = array_of(group.copy_dst),
          .changed_rows = array_of(group.changed_rows),
          .changed_columns = array_of(group.changed_columns),
          .changed_blocks = array_of(group.changed_blocks),
          .shared_prefixes =
              reinterpret_cast<const kvfolio_shared_prefix*>(group.shared_prefixes.data()),
          .num_shared_prefixes = static_cast<std::int64_t>(group.shared_prefixes.size()),
          .kv_first_live = array_of(group.kv_first_live),
          .slot_mapping_64 = {group.slot_mapping_64.data(),
                              static_cast<std::int64_t>(group.slot_mapping_64.size())}};
}

kvfolio_step_plan plan_of(const StepPlan& plan) noexcept {
  return {.struct_size = 0,
          .num_tokens = plan.num_tokens,
          .ticket = plan.ticket.value(),
          .sequences = reinterpret_cast<const kvfolio_sequence*>(plan.sequences.data()),
          .num_sequences = static_cast<std::int64_t>(plan.sequences.size()),
          .rows = array_of(plan.rows),
          .query_start = array_of(plan.query_start),
          .kv_lens = array_of(plan.kv_lens),
          .trim_sinks = array_of(plan.trim_sinks),
          .trim_first_kept = array_of(plan.trim_first_kept),
          .positions = array_of(plan.positions),
          .rewinds = array_of(plan.rewinds),
          .caller_ids = plan.caller_ids.data(),
          .number = plan.number,
          .follows = plan.follows};
}

// `options` may be null, and of another size.
Status read_plan_options(std::string_view call, const kvfolio_plan_options* options,
                         PlanOptions& out) {
  kvfolio_plan_options ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", options, ours));
  KVFOLIO_RETURN_IF_ERROR(
      check_array(call, "options->table_stride", ours.table_stride.data, ours.table_stride.size));
  if (ours.memory_bytes < 0 || (ours.memory == nullptr && ours.memory_bytes > 0)) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": options->memory", ours.memory == nullptr ? " is null and" : "", " has ",
                   ours.memory_bytes, " bytes")};
  }
  out = {.pad = ours.pad_with_zero != 0 ? 0 : -1,
         .block_tables = ours.no_block_tables == 0,
         .changed_entries = ours.changed_entries != 0,
         .flashinfer = ours.flashinfer != 0,
         .shared_prefixes = ours.shared_prefixes != 0,
         .positions = ours.positions != 0,
         .caller_ids = ours.caller_ids != 0,
         .table_stride = span_of(ours.table_stride.data, ours.table_stride.size),
         .padded_sequences = ours.padded_sequences,
         .padded_tokens = ours.padded_tokens,
         .int64_slots = ours.int64_slots != 0,
         .memory = span_of(static_cast<std::byte*>(ours.memory), ours.memory_bytes)};
  return {};
}

}  // namespace

std::int32_t give_ended(kvfolio_manager& manager, std::span<const EndedSequence> from,
                        const kvfolio_ended** ended, std::int64_t* num_ended) noexcept {
  KVFOLIO_CHECK(from.size() <= manager.ended.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    manager.ended[i] = {.sequence = from[i].sequence.value(),
                        .caller_id = from[i].caller_id.value_or(0),
                        .has_caller_id = from[i].caller_id ? 1 : 0,
                        .reserved = 0};
  }
  if (ended != nullptr) *ended = manager.ended.data();
  if (num_ended != nullptr) *num_ended = static_cast<std::int64_t>(from.size());
  return KVFOLIO_OK;
}

}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_begin_step(kvfolio_manager* manager, uint64_t now_us, kvfolio_ticket* out,
                           kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  const Result<Ticket> ticket = manager->manager.begin_step({.now_us = now_us});
  if (!ticket) return answer(error, ticket.error());
  *out = ticket->value();
  return KVFOLIO_OK;
}

int32_t kvfolio_append(kvfolio_manager* manager, kvfolio_sequence sequence, const int32_t* tokens,
                       int64_t num_tokens, int32_t draft, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "tokens", tokens, num_tokens));
  return answer(error, manager->manager.append(SequenceId(sequence), span_of(tokens, num_tokens),
                                               {.draft = draft}));
}

int32_t kvfolio_append_prompt(kvfolio_manager* manager, kvfolio_sequence sequence,
                              const int32_t* prompt, int64_t num_tokens, int64_t at_most,
                              int32_t* num_appended, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "prompt", prompt, num_tokens));
  const Result<std::int32_t> count =
      manager->manager.append_prompt(SequenceId(sequence), span_of(prompt, num_tokens), at_most);
  if (!count) return answer(error, count.error());
  if (num_appended != nullptr) *num_appended = *count;
  return KVFOLIO_OK;
}

int32_t kvfolio_append_unnamed(kvfolio_manager* manager, kvfolio_sequence sequence,
                               int64_t num_tokens, int32_t draft, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(
      error, manager->manager.append_unnamed(SequenceId(sequence), num_tokens, {.draft = draft}));
}

int32_t kvfolio_append_each(kvfolio_manager* manager, const kvfolio_sequence* sequences,
                            const int32_t* tokens, int64_t num_sequences, int64_t* num_appended,
                            kvfolio_error* error) {
  give_count(num_appended, 0);
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_each(__func__, sequences, tokens, true, num_sequences));
  std::int32_t done = 0;
  const Status status = manager->manager.append_each(ids_of(sequences, num_sequences),
                                                     span_of(tokens, num_sequences), &done);
  give_count(num_appended, done);
  return answer(error, status);
}

int32_t kvfolio_append_unnamed_each(kvfolio_manager* manager, const kvfolio_sequence* sequences,
                                    int64_t num_sequences, int64_t* num_appended,
                                    kvfolio_error* error) {
  give_count(num_appended, 0);
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_each(__func__, sequences, nullptr, false, num_sequences));
  std::int32_t done = 0;
  const Status status =
      manager->manager.append_unnamed_each(ids_of(sequences, num_sequences), &done);
  give_count(num_appended, done);
  return answer(error, status);
}

int32_t kvfolio_set_tokens(kvfolio_manager* manager, kvfolio_sequence sequence,
                           const int32_t* tokens, int64_t num_tokens, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "tokens", tokens, num_tokens));
  return answer(error,
                manager->manager.set_tokens(SequenceId(sequence), span_of(tokens, num_tokens)));
}

int32_t kvfolio_set_tokens_each(kvfolio_manager* manager, const kvfolio_sequence* sequences,
                                const int32_t* tokens, int64_t num_sequences, int64_t* num_named,
                                kvfolio_error* error) {
  give_count(num_named, 0);
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_each(__func__, sequences, tokens, true, num_sequences));
  std::int32_t done = 0;
  const Status status = manager->manager.set_tokens_each(ids_of(sequences, num_sequences),
                                                         span_of(tokens, num_sequences), &done);
  give_count(num_named, done);
  return answer(error, status);
}

int32_t kvfolio_undo(kvfolio_manager* manager, kvfolio_sequence sequence, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.undo(SequenceId(sequence)));
}

int32_t kvfolio_plan(kvfolio_manager* manager, const kvfolio_plan_options* options,
                     kvfolio_step_plan* out, kvfolio_group_plan* groups, int32_t num_groups,
                     kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const auto most = static_cast<std::int32_t>(manager->manager.spec().groups.size());
  if (num_groups < 0 || num_groups > most) {
    return answer(error,
                  {ErrorCode::kInvalidArgument,
                   concat(__func__, ": num_groups is ", num_groups, ", allowed: 0 to ", most)});
  }
  KVFOLIO_C_RETURN_IF_ERROR(check_elements(__func__, "groups", groups, num_groups));
  PlanOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_plan_options(__func__, options, ours));
  const Result<const StepPlan*> plan = manager->manager.plan(ours);
  if (!plan) return answer(error, plan.error());
  write_struct(out, plan_of(**plan));
  for (std::int32_t g = 0; g < num_groups; ++g) {
    write_struct(element(groups, g), plan_of((*plan)->groups[static_cast<std::size_t>(g)]));
  }
  return KVFOLIO_OK;
}

int32_t kvfolio_plan_bytes(const kvfolio_manager* manager, const kvfolio_plan_options* options,
                           int64_t* bytes, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(bytes);
  PlanOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_plan_options(__func__, options, ours));
  const Result<std::int64_t> needed = manager->manager.plan_bytes(ours);
  if (!needed) return answer(error, needed.error());
  *bytes = *needed;
  return KVFOLIO_OK;
}

int32_t kvfolio_run_copies(kvfolio_manager* manager, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.run_copies());
}

int32_t kvfolio_commit(kvfolio_manager* manager, kvfolio_ticket ticket, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.commit(Ticket(ticket)));
}

int32_t kvfolio_complete(kvfolio_manager* manager, kvfolio_ticket ticket, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.complete(Ticket(ticket)));
}

int32_t kvfolio_finish(kvfolio_manager* manager, kvfolio_ticket ticket, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.finish(Ticket(ticket)));
}

int32_t kvfolio_drop(kvfolio_manager* manager, kvfolio_ticket ticket, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.drop(Ticket(ticket)));
}

int32_t kvfolio_fail(kvfolio_manager* manager, kvfolio_ticket ticket, const kvfolio_ended** ended,
                     int64_t* num_ended, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  const Result<std::span<const EndedSequence>> closed = manager->manager.fail(Ticket(ticket));
  if (!closed) return answer(error, closed.error());
  return give_ended(*manager, *closed, ended, num_ended);
}

int32_t kvfolio_accept(kvfolio_manager* manager, kvfolio_sequence sequence, int32_t num_accepted,
                       kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.accept(SequenceId(sequence), num_accepted));
}

}  // extern "C"
