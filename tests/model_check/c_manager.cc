// SPDX-License-Identifier: Apache-2.0
//
// From C++ to C and back.

#include "model_check/c_manager.h"

namespace kvfolio::model_check {
namespace {

// A call's code and error, as a Status.
class Answer {
 public:
  kvfolio_error* error() { return &error_; }
  [[nodiscard]] Status status(std::int32_t code) const {
    if (code == KVFOLIO_OK) return {};
    KVFOLIO_CHECK(code == error_.code);
    if (code != KVFOLIO_ERR_NO_BLOCKS || error_.shortage.needed == 0) {
      return {static_cast<ErrorCode>(code), error_.message};
    }
    const kvfolio_shortage& s = error_.shortage;
    // C says never() itself, and not what it is made of.
    const std::int32_t spared = s.never != 0 ? 0 : std::max(0, s.needed + s.kept - s.num_blocks);
    return Shortage{.group = s.group,
                    .needed = s.needed,
                    .free = s.free,
                    .evictable = s.evictable,
                    .pinned = s.pinned,
                    .retiring = s.retiring,
                    .sequences = s.sequences,
                    .pins = s.pins,
                    .reserved = s.reserved,
                    .loads = s.loads,
                    .holds = s.holds,
                    .num_blocks = s.num_blocks,
                    .kept = s.kept,
                    .spared = spared};
  }

 private:
  kvfolio_error error_ = KVFOLIO_ERROR_INIT;
};

// What a call about a prompt takes in C.
struct CPrompt {
  explicit CPrompt(const OpenOptions& options) {
    const RootKey& key = options.root;
    const auto bytes = [](std::string_view text) { return static_cast<std::int64_t>(text.size()); };
    Answer answer;
    status = answer.status(kvfolio_root_create(
        key.model.data(), bytes(key.model), key.adapter.data(), bytes(key.adapter),
        key.adapter_version.data(), bytes(key.adapter_version), key.tenant_salt.data(),
        bytes(key.tenant_salt), key.epoch, &root, answer.error()));
    for (const MediaSpan& span : options.media) {
      kvfolio_media_span& to = media.emplace_back();
      to = {sizeof(to), span.begin, span.end, span.attends_to_itself ? 1 : 0, {}};
      std::memcpy(to.content_id, span.content_id.data(), sizeof(to.content_id));
    }
    open.struct_size = sizeof(open);
    open.no_prefix_cache = options.prefix_cache ? 0 : 1;
    open.no_look_up = options.look_up ? 0 : 1;
    open.publish = static_cast<std::int32_t>(options.publish);
    open.has_caller_id = options.caller_id ? 1 : 0;
    open.caller_id = options.caller_id.value_or(0);
    open.max_tokens = options.max_tokens;
    open.priority = options.priority;
    open.late_names = options.late_names ? 1 : 0;
    open.announce = options.announce ? 1 : 0;
  }
  CPrompt(const CPrompt&) = delete;
  CPrompt& operator=(const CPrompt&) = delete;
  ~CPrompt() { kvfolio_root_destroy(root); }

  [[nodiscard]] std::int64_t num_media() const { return static_cast<std::int64_t>(media.size()); }

  Status status;  // a key that is too long is refused here, and not by the call
  kvfolio_root* root = nullptr;
  std::vector<kvfolio_media_span> media;
  kvfolio_open_options open{};
};

std::int64_t size_of(std::span<const std::int32_t> array) {
  return static_cast<std::int64_t>(array.size());
}

std::vector<kvfolio_group_spec> groups_of(const CacheSpec& spec) {
  std::vector<kvfolio_group_spec> groups;
  for (const GroupSpec& group : spec.groups) {
    groups.push_back(capi::group_of(group));
    groups.back().struct_size = sizeof(kvfolio_group_spec);
  }
  return groups;
}

kvfolio_manager_options options_of(const ManagerOptions& options) {
  const auto zero_is = [](auto value) { return value == 0 ? -1 : value; };
  kvfolio_manager_options out{};
  out.struct_size = sizeof(out);
  out.max_sequences = options.max_sequences;
  out.max_pins = zero_is(options.max_pins);
  out.max_steps_in_flight = options.max_steps_in_flight;
  out.order = static_cast<std::int32_t>(options.order);
  out.no_prefix_cache = options.prefix_cache ? 0 : 1;
  out.max_sequence_tokens = options.max_sequence_tokens;
  out.max_runs = options.max_runs;
  out.max_index_tokens = options.max_index_tokens;
  out.max_root_key_bytes = zero_is(options.max_root_key_bytes);
  out.max_table_entries = options.max_table_entries;
  out.hash_seed = options.hash_seed;
  out.high_watermark = zero_is(options.high_watermark);
  out.max_root_keys = options.max_root_keys;
  out.max_media_extents = zero_is(options.max_media_extents);
  out.victim_policy = static_cast<std::int32_t>(options.victim_policy);
  out.id_tag = options.id_tag;
  out.max_transfers = zero_is(options.max_transfers);
  out.list_findable = options.list_findable ? 1 : 0;
  out.copies_by_host = options.copies_by_host ? 1 : 0;
  out.null_block = options.null_block ? 1 : 0;
  out.max_announced_tokens = options.max_announced_tokens;
  return out;
}

std::span<const std::int32_t> span_of(const kvfolio_i32s& array) {
  return {array.data, static_cast<std::size_t>(array.size)};
}

GroupPlan group_plan_of(const kvfolio_group_plan& plan) {
  return {.slot_mapping = span_of(plan.slot_mapping),
          .slot_mapping_64 = {plan.slot_mapping_64.data,
                              static_cast<std::size_t>(plan.slot_mapping_64.size)},
          .block_table = span_of(plan.block_table),
          .block_table_stride = plan.block_table_stride,
          .kv_indptr = span_of(plan.kv_indptr),
          .kv_indices = span_of(plan.kv_indices),
          .kv_last_page_len = span_of(plan.kv_last_page_len),
          .copy_src = span_of(plan.copy_src),
          .copy_dst = span_of(plan.copy_dst),
          .shared_prefixes = {reinterpret_cast<const SharedPrefix*>(plan.shared_prefixes),
                              static_cast<std::size_t>(plan.num_shared_prefixes)},
          .changed_rows = span_of(plan.changed_rows),
          .changed_columns = span_of(plan.changed_columns),
          .changed_blocks = span_of(plan.changed_blocks)};
}

kvfolio_plan_options options_of(const PlanOptions& options) {
  kvfolio_plan_options out{};
  out.struct_size = sizeof(out);
  out.pad_with_zero = options.pad == 0 ? 1 : 0;
  out.no_block_tables = options.block_tables ? 0 : 1;
  out.changed_entries = options.changed_entries ? 1 : 0;
  out.flashinfer = options.flashinfer ? 1 : 0;
  out.shared_prefixes = options.shared_prefixes ? 1 : 0;
  out.positions = options.positions ? 1 : 0;
  out.caller_ids = options.caller_ids ? 1 : 0;
  out.table_stride = {options.table_stride.data(),
                      static_cast<std::int64_t>(options.table_stride.size())};
  out.padded_sequences = options.padded_sequences;
  out.padded_tokens = options.padded_tokens;
  out.int64_slots = options.int64_slots ? 1 : 0;
  out.memory = options.memory.data();
  out.memory_bytes = static_cast<std::int64_t>(options.memory.size());
  return out;
}

// All arrays of a plan.
Numbers numbers_of(const kvfolio_step_plan& step, const std::vector<kvfolio_group_plan>& groups) {
  Numbers all(step.ticket, step.num_tokens,
              std::span<const SequenceId>(capi::ids_of(step.sequences, step.num_sequences)));
  for (const kvfolio_i32s& array : {step.rows, step.query_start, step.kv_lens, step.trim_sinks,
                                    step.trim_first_kept, step.positions}) {
    all = Numbers(all, span_of(array));
  }
  for (const kvfolio_group_plan& g : groups) {
    all = Numbers(all, g.block_table_stride);
    for (const kvfolio_i32s& array :
         {g.slot_mapping, g.block_table, g.kv_indptr, g.kv_indices, g.kv_last_page_len, g.copy_src,
          g.copy_dst, g.changed_rows, g.changed_columns, g.changed_blocks}) {
      all = Numbers(all, span_of(array));
    }
    for (std::int64_t i = 0; i < g.num_shared_prefixes; ++i) {
      const kvfolio_shared_prefix& prefix = g.shared_prefixes[i];
      all = Numbers(all, prefix.first_sequence, prefix.num_sequences, prefix.num_blocks);
    }
  }
  return all;
}

// What create() was given, as C has it.
Numbers numbers_of(const std::vector<kvfolio_group_spec>& groups,
                   const kvfolio_manager_options& o) {
  Numbers all(groups.size());
  for (const kvfolio_group_spec& g : groups) {
    all = Numbers(all, g.num_layers, g.num_kv_heads, g.head_dim_k, g.head_dim_v, g.v_is_prefix_of_k,
                  g.block_size, g.dtype, g.format, g.kind, g.window, g.num_sinks, g.num_blocks);
  }
  return Numbers(all, o.max_sequences, o.max_pins, o.max_steps_in_flight, o.order,
                 o.no_prefix_cache, o.max_sequence_tokens, o.max_runs, o.max_index_tokens,
                 o.max_root_key_bytes, o.max_table_entries, o.hash_seed, o.high_watermark,
                 o.max_root_keys, o.max_media_extents, o.victim_policy, o.id_tag, o.max_transfers,
                 o.copies_by_host);
}

std::int32_t policy_of(std::optional<VictimPolicy> policy) {
  return policy ? static_cast<std::int32_t>(*policy) : KVFOLIO_POLICY_OF_OPTIONS;
}

}  // namespace

// ---- sequences ----

Result<CManager> CManager::create(const CacheSpec& spec, const ManagerOptions& options) {
  Answer answer;
  const std::vector<kvfolio_group_spec> groups = groups_of(spec);
  const kvfolio_manager_options ours = options_of(options);
  kvfolio_manager* manager = nullptr;
  const Status status = answer.status(kvfolio_manager_create(
      groups.data(), static_cast<std::int32_t>(groups.size()), &ours, &manager, answer.error()));
  if (!status.ok()) return status;
  CManager made(manager, std::exchange(next_record, nullptr));
  made.record_("create", status, numbers_of(groups, ours));
  return made;
}

Result<CManager> CManager::create(KVStorage storage, const ManagerOptions& options) {
  Answer answer;
  auto* handle = new kvfolio_storage;
  const std::vector<kvfolio_group_spec> groups = groups_of(storage.spec());
  handle->own.emplace(std::move(storage));
  handle->storage = &*handle->own;
  const kvfolio_manager_options ours = options_of(options);
  kvfolio_manager* manager = nullptr;
  const Status status =
      answer.status(kvfolio_manager_create_with_storage(&handle, &ours, &manager, answer.error()));
  kvfolio_storage_destroy(handle);  // null, unless that failed
  if (!status.ok()) return status;
  CManager made(manager, std::exchange(next_record, nullptr));
  made.record_("create_with_storage", status, numbers_of(groups, ours));
  return made;
}

Result<Opened> CManager::open(std::span<const std::int32_t> tokens, const OpenOptions& options) {
  Answer answer;
  const CPrompt prompt(options);
  if (!prompt.status.ok()) return prompt.status;
  kvfolio_sequence sequence = 0;
  kvfolio_found found{};
  found.struct_size = sizeof(found);
  const Status status = answer.status(
      kvfolio_open(get(), prompt.root, tokens.data(), size_of(tokens), prompt.media.data(),
                   prompt.num_media(), &prompt.open, &sequence, &found, answer.error()));
  if (record_.is_on())
    record_("open", status, Numbers(tokens, options), Numbers(sequence, found.cached_tokens));
  if (!status.ok()) return status;
  return Opened{.sequence = SequenceId(sequence),
                .cached_tokens = found.cached_tokens,
                .soon = {found.soon_tokens, SequenceId(found.soon_by)}};
}

Result<std::int32_t> CManager::probe(std::span<const std::int32_t> tokens,
                                     const OpenOptions& options) const {
  Answer answer;
  const CPrompt prompt(options);
  if (!prompt.status.ok()) return prompt.status;
  std::int32_t cached = 0;
  Status status = answer.status(kvfolio_probe(get(), prompt.root, tokens.data(), size_of(tokens),
                                              prompt.media.data(), prompt.num_media(), &prompt.open,
                                              &cached, answer.error()));
  if (record_.is_on()) record_("probe", status, Numbers(tokens, options), Numbers(cached));
  if (!status.ok()) return status;
  return cached;
}

Result<SequenceId> CManager::fork(SequenceId parent, const ForkOptions& options) {
  Answer answer;
  const kvfolio_fork_options ours{sizeof(ours), options.caller_id ? 1 : 0,
                                  options.caller_id.value_or(0), options.priority, 0};
  kvfolio_sequence child = 0;
  const Status status =
      answer.status(kvfolio_fork(get(), parent.value(), &ours, &child, answer.error()));
  if (record_.is_on())
    record_("fork", status, Numbers(parent, options.caller_id, options.priority), Numbers(child));
  if (!status.ok()) return status;
  return SequenceId(child);
}

Status CManager::adopt(SequenceId sequence, std::span<const std::span<const std::int32_t>> tables,
                       std::int32_t num_tokens) {
  Answer answer;
  std::vector<std::int32_t> all;
  std::vector<std::int64_t> sizes;
  for (const std::span<const std::int32_t> table : tables) {
    all.insert(all.end(), table.begin(), table.end());
    sizes.push_back(size_of(table));
  }
  Status status = answer.status(kvfolio_adopt(get(), sequence.value(), all.data(), sizes.data(),
                                              static_cast<std::int32_t>(sizes.size()), num_tokens,
                                              answer.error()));
  if (record_.is_on())
    record_("adopt", status,
            Numbers(sequence, std::span<const std::int32_t>(all),
                    std::span<const std::int64_t>(sizes), num_tokens));
  return status;
}

Status CManager::truncate(SequenceId sequence, std::int32_t n) {
  Answer answer;
  Status status = answer.status(kvfolio_truncate(get(), sequence.value(), n, answer.error()));
  if (record_.is_on()) record_("truncate", status, Numbers(sequence, n));
  return status;
}

Status CManager::clear(SequenceId sequence) {
  Answer answer;
  Status status = answer.status(kvfolio_clear(get(), sequence.value(), answer.error()));
  if (record_.is_on()) record_("clear", status, Numbers(sequence));
  return status;
}

Result<std::int32_t> CManager::trim(SequenceId sequence, const TrimOptions& options) {
  Answer answer;
  std::int32_t dropped = 0;
  Status status = answer.status(kvfolio_trim(get(), sequence.value(), options.num_sinks,
                                             options.window, &dropped, answer.error()));
  if (record_.is_on())
    record_("trim", status, Numbers(sequence, options.num_sinks, options.window), Numbers(dropped));
  if (!status.ok()) return status;
  return dropped;
}

Status CManager::close(SequenceId sequence) {
  Answer answer;
  Status status = answer.status(kvfolio_close(get(), sequence.value(), answer.error()));
  if (record_.is_on()) record_("close", status, Numbers(sequence));
  return status;
}

Status CManager::preempt(SequenceId sequence) {
  Answer answer;
  Status status = answer.status(kvfolio_preempt(get(), sequence.value(), answer.error()));
  if (record_.is_on()) record_("preempt", status, Numbers(sequence));
  return status;
}

Status CManager::set_priority(SequenceId sequence, std::int32_t priority) {
  Answer answer;
  Status status =
      answer.status(kvfolio_set_priority(get(), sequence.value(), priority, answer.error()));
  if (record_.is_on()) record_("set_priority", status, Numbers(sequence, priority));
  return status;
}

// ---- steps ----

Result<Ticket> CManager::begin_step(const StepOptions& options) {
  Answer answer;
  kvfolio_ticket ticket = 0;
  const Status status =
      answer.status(kvfolio_begin_step(get(), options.now_us, &ticket, answer.error()));
  if (record_.is_on()) record_("begin_step", status, Numbers(options.now_us), Numbers(ticket));
  if (!status.ok()) return status;
  return Ticket(ticket);
}

Status CManager::append(SequenceId sequence, std::span<const std::int32_t> tokens,
                        const AppendOptions& options) {
  Answer answer;
  Status status = answer.status(kvfolio_append(get(), sequence.value(), tokens.data(),
                                               size_of(tokens), options.draft, answer.error()));
  if (record_.is_on()) record_("append", status, Numbers(sequence, tokens, options.draft));
  return status;
}

Status CManager::append_unnamed(SequenceId sequence, std::int64_t num_tokens,
                                const AppendOptions& options) {
  Answer answer;
  Status status = answer.status(
      kvfolio_append_unnamed(get(), sequence.value(), num_tokens, options.draft, answer.error()));
  if (record_.is_on())
    record_("append_unnamed", status, Numbers(sequence, num_tokens, options.draft));
  return status;
}

Status CManager::append_each(std::span<const SequenceId> sequences,
                             std::span<const std::int32_t> tokens, std::int32_t* num_appended) {
  // In C there is one count.
  if (sequences.size() != tokens.size()) {
    return get()->manager.append_each(sequences, tokens, num_appended);
  }
  Answer answer;
  std::int64_t done = 0;
  Status status = answer.status(
      kvfolio_append_each(get(), reinterpret_cast<const kvfolio_sequence*>(sequences.data()),
                          tokens.data(), size_of(tokens), &done, answer.error()));
  if (num_appended != nullptr) *num_appended = static_cast<std::int32_t>(done);
  if (record_.is_on()) record_("append_each", status, Numbers(sequences, tokens));
  return status;
}

Status CManager::append_unnamed_each(std::span<const SequenceId> sequences,
                                     std::int32_t* num_appended) {
  Answer answer;
  std::int64_t done = 0;
  Status status = answer.status(kvfolio_append_unnamed_each(
      get(), reinterpret_cast<const kvfolio_sequence*>(sequences.data()),
      static_cast<std::int64_t>(sequences.size()), &done, answer.error()));
  if (num_appended != nullptr) *num_appended = static_cast<std::int32_t>(done);
  if (record_.is_on()) record_("append_unnamed_each", status, Numbers(sequences));
  return status;
}

// Not recorded: what is recorded draws no batches.
Status CManager::set_tokens_each(std::span<const SequenceId> sequences,
                                 std::span<const std::int32_t> tokens, std::int32_t* num_named) {
  Answer answer;
  std::int64_t done = 0;
  Status status = answer.status(
      kvfolio_set_tokens_each(get(), reinterpret_cast<const kvfolio_sequence*>(sequences.data()),
                              tokens.data(), size_of(tokens), &done, answer.error()));
  if (num_named != nullptr) *num_named = static_cast<std::int32_t>(done);
  return status;
}

Result<SequenceId> CManager::open_unnamed(std::int64_t num_tokens, const OpenOptions& options) {
  Answer answer;
  const CPrompt prompt(options);
  if (!prompt.status.ok()) return prompt.status;
  kvfolio_sequence sequence = 0;
  Status status = answer.status(kvfolio_open_unnamed(get(), prompt.root, num_tokens,
                                                     prompt.media.data(), prompt.num_media(),
                                                     &prompt.open, &sequence, answer.error()));
  if (record_.is_on())
    record_("open_unnamed", status, Numbers(num_tokens, options), Numbers(sequence));
  if (!status.ok()) return status;
  return SequenceId(sequence);
}

Status CManager::set_tokens(SequenceId sequence, std::span<const std::int32_t> tokens) {
  Answer answer;
  Status status = answer.status(
      kvfolio_set_tokens(get(), sequence.value(), tokens.data(), size_of(tokens), answer.error()));
  if (record_.is_on()) record_("set_tokens", status, Numbers(sequence, tokens));
  return status;
}

Status CManager::undo(SequenceId sequence) {
  Answer answer;
  Status status = answer.status(kvfolio_undo(get(), sequence.value(), answer.error()));
  if (record_.is_on()) record_("undo", status, Numbers(sequence));
  return status;
}

Result<std::int64_t> CManager::plan_bytes(const PlanOptions& options) const {
  Answer answer;
  const kvfolio_plan_options ours = options_of(options);
  std::int64_t bytes = 0;
  const Status status = answer.status(kvfolio_plan_bytes(get(), &ours, &bytes, answer.error()));
  if (!status.ok()) return status;
  return bytes;
}

Result<const StepPlan*> CManager::plan(const PlanOptions& options) {
  Answer answer;
  // C has no pad but these two.
  if (options.pad != 0 && options.pad != -1) return get()->manager.plan(options);
  const kvfolio_plan_options ours = options_of(options);
  kvfolio_step_plan step{};
  step.struct_size = sizeof(step);
  std::vector<kvfolio_group_plan> groups(static_cast<std::size_t>(kvfolio_num_groups(get())));
  for (kvfolio_group_plan& group : groups) group.struct_size = sizeof(group);
  const Status status =
      answer.status(kvfolio_plan(get(), &ours, &step, groups.data(),
                                 static_cast<std::int32_t>(groups.size()), answer.error()));
  if (record_.is_on()) {
    record_("plan", status,
            Numbers(ours.pad_with_zero, ours.no_block_tables, ours.changed_entries, ours.flashinfer,
                    ours.shared_prefixes, ours.positions),
            status.ok() ? numbers_of(step, groups) : Numbers());
  }
  if (!status.ok()) return status;
  if (plans_.empty() || plans_.back().ticket != step.ticket) plans_.emplace_back();
  if (plans_.size() > 80) plans_.pop_front();  // more than are ever in flight
  Plan& to = plans_.back();
  to.ticket = step.ticket;
  to.groups.clear();
  for (const kvfolio_group_plan& group : groups) to.groups.push_back(group_plan_of(group));
  to.plan = {.ticket = Ticket(step.ticket),
             .num_tokens = step.num_tokens,
             .sequences = capi::ids_of(step.sequences, step.num_sequences),
             .rows = span_of(step.rows),
             .query_start = span_of(step.query_start),
             .positions = span_of(step.positions),
             .kv_lens = span_of(step.kv_lens),
             .trim_sinks = span_of(step.trim_sinks),
             .trim_first_kept = span_of(step.trim_first_kept),
             .groups = to.groups,
             .rewinds = span_of(step.rewinds)};
  return &to.plan;
}

Status CManager::run_copies() {
  Answer answer;
  Status status = answer.status(kvfolio_run_copies(get(), answer.error()));
  if (record_.is_on()) record_("run_copies", status, Numbers());
  return status;
}

Status CManager::commit(Ticket ticket) {
  Answer answer;
  Status status = answer.status(kvfolio_commit(get(), ticket.value(), answer.error()));
  if (record_.is_on()) record_("commit", status, Numbers(ticket));
  return status;
}

Status CManager::complete(Ticket ticket) {
  Answer answer;
  Status status = answer.status(kvfolio_complete(get(), ticket.value(), answer.error()));
  if (record_.is_on()) record_("complete", status, Numbers(ticket));
  return status;
}

Status CManager::finish(Ticket ticket) {
  Answer answer;
  Status status = answer.status(kvfolio_finish(get(), ticket.value(), answer.error()));
  if (record_.is_on()) record_("finish", status, Numbers(ticket));
  return status;
}

Status CManager::drop(Ticket ticket) {
  Answer answer;
  Status status = answer.status(kvfolio_drop(get(), ticket.value(), answer.error()));
  if (record_.is_on()) record_("drop", status, Numbers(ticket));
  return status;
}

std::span<const EndedSequence> CManager::ended(const kvfolio_ended* list, std::int64_t size) {
  ended_.clear();
  for (std::int64_t i = 0; i < size; ++i) {
    ended_.push_back({.sequence = SequenceId(list[i].sequence)});
    if (list[i].has_caller_id != 0) ended_.back().caller_id = list[i].caller_id;
  }
  return ended_;
}

Result<std::span<const EndedSequence>> CManager::fail(Ticket ticket) {
  Answer answer;
  const kvfolio_ended* list = nullptr;
  std::int64_t size = 0;
  const Status status =
      answer.status(kvfolio_fail(get(), ticket.value(), &list, &size, answer.error()));
  if (record_.is_on())
    record_("fail", status, Numbers(ticket),
            Numbers(std::span<const EndedSequence>(ended(list, size))));
  if (!status.ok()) return status;
  return ended(list, size);
}

Status CManager::accept(SequenceId sequence, std::int32_t num_accepted) {
  Answer answer;
  Status status =
      answer.status(kvfolio_accept(get(), sequence.value(), num_accepted, answer.error()));
  if (record_.is_on()) record_("accept", status, Numbers(sequence, num_accepted));
  return status;
}

// ---- room ----

Status CManager::admit(std::span<const AppendDemand> demands) {
  Answer answer;
  std::vector<kvfolio_sequence> sequences;
  std::vector<std::int64_t> num_tokens;
  for (const AppendDemand& demand : demands) {
    sequences.push_back(demand.sequence.value());
    num_tokens.push_back(demand.num_tokens);
  }
  Status status =
      answer.status(kvfolio_admit(get(), sequences.data(), num_tokens.data(),
                                  static_cast<std::int64_t>(sequences.size()), answer.error()));
  if (record_.is_on())
    record_("admit", status,
            Numbers(std::span<const kvfolio_sequence>(sequences),
                    std::span<const std::int64_t>(num_tokens)));
  return status;
}

Status CManager::admit(SequenceId sequence, std::int64_t num_tokens) {
  const AppendDemand one{sequence, num_tokens};
  return admit({&one, 1});
}

Result<Admission> CManager::admit(SequenceId sequence, std::int64_t num_tokens,
                                  const ReserveOptions& chunks) const {
  Answer answer;
  Admission admission;
  const Status status = answer.status(
      kvfolio_admit_sequence(get(), sequence.value(), num_tokens, chunks.most_per_step,
                             admission.blocks.data(), kvfolio_num_groups(get()), answer.error()));
  if (!status.ok()) return status;
  return admission;
}

Result<Admission> CManager::admit(std::span<const std::int32_t> tokens, const OpenOptions& options,
                                  std::int64_t num_more, const ReserveOptions& chunks) const {
  Answer answer;
  const CPrompt prompt(options);
  if (!prompt.status.ok()) return prompt.status;
  Admission admission;
  kvfolio_found found{};
  found.struct_size = sizeof(found);
  const Status status = answer.status(
      kvfolio_admit_prompt(get(), prompt.root, tokens.data(), size_of(tokens), prompt.media.data(),
                           prompt.num_media(), &prompt.open, num_more, chunks.most_per_step, &found,
                           admission.blocks.data(), kvfolio_num_groups(get()), answer.error()));
  admission.cached_tokens = found.cached_tokens;
  admission.soon = {found.soon_tokens, SequenceId(found.soon_by)};
  if (record_.is_on() && chunks.most_per_step == 0)
    record_("admit_prompt", status, Numbers(tokens, options, num_more),
            Numbers(admission.cached_tokens,
                    std::span<const std::int32_t>(admission.blocks)
                        .first(static_cast<std::size_t>(kvfolio_num_groups(get())))));
  if (!status.ok()) return status;
  return admission;
}

Status CManager::reserve(SequenceId sequence, std::int64_t num_tokens,
                         const ReserveOptions& options) {
  Answer answer;
  Status status = answer.status(
      kvfolio_reserve(get(), sequence.value(), num_tokens, options.most_per_step, answer.error()));
  if (record_.is_on())
    record_("reserve", status, Numbers(sequence, num_tokens, options.most_per_step));
  return status;
}

Result<std::int32_t> CManager::evict(GroupId group, std::int32_t num_blocks,
                                     std::span<std::int32_t> evicted) {
  Answer answer;
  std::int32_t count = 0;
  const Status status = answer.status(kvfolio_evict(
      get(), group.value(), num_blocks, evicted.data(), size_of(evicted), &count, answer.error()));
  if (record_.is_on())
    record_("evict", status, Numbers(group, num_blocks, evicted.size()),
            Numbers(count, std::span<const std::int32_t>(evicted).first(
                               std::min(evicted.size(), static_cast<std::size_t>(count)))));
  if (!status.ok()) return status;
  return count;
}

Forgotten CManager::reset() {
  Answer answer;
  Forgotten forgotten;
  KVFOLIO_CHECK(kvfolio_reset(get(), &forgotten.blocks, &forgotten.pins, answer.error()) ==
                KVFOLIO_OK);
  if (record_.is_on()) record_("reset", {}, Numbers(), Numbers(forgotten.blocks, forgotten.pins));
  return forgotten;
}

Forgotten CManager::forget(const RootKey& root) {
  Answer answer;
  const CPrompt prompt({.root = root});
  Forgotten forgotten;
  KVFOLIO_CHECK(kvfolio_forget_root(get(), prompt.root, &forgotten.blocks, &forgotten.pins,
                                    answer.error()) == KVFOLIO_OK);
  if (record_.is_on())
    record_("forget_root", {}, Numbers(OpenOptions{.root = root}),
            Numbers(forgotten.blocks, forgotten.pins));
  return forgotten;
}

Result<Forgotten> CManager::forget(std::span<const std::int32_t> tokens,
                                   const OpenOptions& options) {
  Answer answer;
  const CPrompt prompt(options);
  if (!prompt.status.ok()) return prompt.status;
  Forgotten forgotten;
  const Status status = answer.status(
      kvfolio_forget(get(), prompt.root, tokens.data(), size_of(tokens), prompt.media.data(),
                     prompt.num_media(), &forgotten.blocks, &forgotten.pins, answer.error()));
  if (record_.is_on())
    record_("forget", status, Numbers(tokens, options), Numbers(forgotten.blocks, forgotten.pins));
  if (!status.ok()) return status;
  return forgotten;
}

Result<Pinned> CManager::pin(std::span<const std::int32_t> tokens, const OpenOptions& options) {
  Answer answer;
  const CPrompt prompt(options);
  if (!prompt.status.ok()) return prompt.status;
  kvfolio_pin_id pin = 0;
  Pinned pinned;
  const Status status = answer.status(
      kvfolio_pin(get(), prompt.root, tokens.data(), size_of(tokens), prompt.media.data(),
                  prompt.num_media(), &prompt.open, &pin, &pinned.pinned_tokens, answer.error()));
  if (record_.is_on())
    record_("pin", status, Numbers(tokens, options), Numbers(pin, pinned.pinned_tokens));
  if (!status.ok()) return status;
  pinned.pin = PinId(pin);
  return pinned;
}

Status CManager::unpin(PinId pin) {
  Answer answer;
  Status status = answer.status(kvfolio_unpin(get(), pin.value(), answer.error()));
  if (record_.is_on()) record_("unpin", status, Numbers(pin));
  return status;
}

// ---- transfers ----

Result<Load> CManager::begin_load(SequenceId sequence, std::span<const std::int32_t> prompt,
                                  std::int32_t end) {
  Answer answer;
  kvfolio_load load{};
  load.struct_size = sizeof(load);
  const Status status = answer.status(kvfolio_begin_load(
      get(), sequence.value(), prompt.data(), size_of(prompt), end, &load, answer.error()));
  if (record_.is_on())
    record_("begin_load", status, Numbers(sequence, prompt, end),
            Numbers(load.id, load.begin, load.end));
  if (!status.ok()) return status;
  return Load{LoadId(load.id), load.begin, load.end};
}

Result<std::int32_t> CManager::blocks_to_load(LoadId load, GroupId group,
                                              std::span<LoadBlock> out) const {
  Answer answer;
  std::vector<std::int32_t> logical(out.size());
  std::vector<std::int32_t> blocks(out.size());
  std::int32_t count = 0;
  const Status status =
      answer.status(kvfolio_blocks_to_load(get(), load.value(), group.value(), logical.data(),
                                           blocks.data(), size_of(blocks), &count, answer.error()));
  if (record_.is_on()) record_("blocks_to_load", status, Numbers(load, group), Numbers(count));
  if (!status.ok()) return status;
  for (std::size_t i = 0; i < std::min(out.size(), static_cast<std::size_t>(count)); ++i) {
    out[i] = {logical[i], BlockId(blocks[i])};
  }
  return count;
}

Result<std::int32_t> CManager::finish_load(LoadId load, std::int32_t num_tokens) {
  Answer answer;
  std::int32_t stand = 0;
  const Status status =
      answer.status(kvfolio_finish_load(get(), load.value(), num_tokens, &stand, answer.error()));
  if (record_.is_on()) record_("finish_load", status, Numbers(load, num_tokens), Numbers(stand));
  if (!status.ok()) return status;
  return stand;
}

Result<HoldId> CManager::hold_blocks(GroupId group, std::span<const std::int32_t> blocks) {
  Answer answer;
  kvfolio_hold_id hold = 0;
  const Status status = answer.status(kvfolio_hold_blocks(get(), group.value(), blocks.data(),
                                                          size_of(blocks), &hold, answer.error()));
  if (record_.is_on()) record_("hold_blocks", status, Numbers(group, blocks), Numbers(hold));
  if (!status.ok()) return status;
  return HoldId(hold);
}

Status CManager::release_hold(HoldId hold) {
  Answer answer;
  Status status = answer.status(kvfolio_release_hold(get(), hold.value(), answer.error()));
  if (record_.is_on()) record_("release_hold", status, Numbers(hold));
  return status;
}

double CManager::utilization() const { return kvfolio_utilization(get()); }
bool CManager::needs_eviction() const { return kvfolio_needs_eviction(get()) != 0; }

std::optional<SequenceId> CManager::select_victim(std::optional<VictimPolicy> policy) {
  const kvfolio_sequence victim = kvfolio_select_victim(get(), policy_of(policy));
  if (record_.is_on()) record_("select_victim", {}, Numbers(policy_of(policy)), Numbers(victim));
  return victim == 0 ? std::nullopt : std::optional(SequenceId(victim));
}

Result<std::span<const EndedSequence>> CManager::preempt_to(double target,
                                                            std::optional<VictimPolicy> policy) {
  Answer answer;
  const kvfolio_ended* list = nullptr;
  std::int64_t size = 0;
  const Status status = answer.status(
      kvfolio_preempt_to(get(), target, policy_of(policy), &list, &size, answer.error()));
  if (record_.is_on())
    record_("preempt_to", status, Numbers(target, policy_of(policy)),
            Numbers(std::span<const EndedSequence>(ended(list, size))));
  if (!status.ok()) return status;
  return ended(list, size);
}

// ---- questions ----

Result<SequenceInfo> CManager::info(SequenceId sequence) const {
  Answer answer;
  kvfolio_sequence_info info{};
  info.struct_size = sizeof(info);
  const Status status = answer.status(kvfolio_info(get(), sequence.value(), &info, answer.error()));
  if (record_.takes_question())
    record_("info", status, Numbers(sequence),
            Numbers(info.length, info.accepted_length, info.published_length, info.trim_sinks,
                    info.trim_first_kept, info.in_open_step, info.num_unnamed, info.reserved_tokens,
                    info.has_caller_id, info.caller_id, info.max_tokens, info.last_use,
                    info.use_count, info.priority));
  if (!status.ok()) return status;
  SequenceInfo out{.length = info.length,
                   .accepted_length = info.accepted_length,
                   .published_length = info.published_length,
                   .trim_sinks = info.trim_sinks,
                   .trim_first_kept = info.trim_first_kept,
                   .in_open_step = info.in_open_step != 0,
                   .num_unnamed = info.num_unnamed,
                   .reserved_tokens = info.reserved_tokens,
                   .max_tokens = info.max_tokens,
                   .priority = info.priority,
                   .last_use = info.last_use,
                   .use_count = info.use_count,
                   .load = LoadId(info.load),
                   .rewinds = info.rewinds,
                   .rewind_from = info.rewind_from};
  if (info.has_caller_id != 0) out.caller_id = info.caller_id;
  return out;
}

Result<std::span<const std::int32_t>> CManager::block_table(SequenceId sequence,
                                                            GroupId group) const {
  Answer answer;
  kvfolio_i32s table{};
  const Status status = answer.status(
      kvfolio_block_table(get(), sequence.value(), group.value(), &table, answer.error()));
  if (record_.takes_question())
    record_("block_table", status, Numbers(sequence, group), Numbers(span_of(table)));
  if (!status.ok()) return status;
  return span_of(table);
}

Status CManager::slot_mapping(SequenceId sequence, GroupId group, std::int32_t begin,
                              std::span<std::int32_t> out) const {
  Answer answer;
  return answer.status(kvfolio_slot_mapping(get(), sequence.value(), group.value(), begin,
                                            out.data(), size_of(out), answer.error()));
}

Result<SequenceId> CManager::find(std::uint64_t caller_id) const {
  Answer answer;
  kvfolio_sequence found = 0;
  const Status status = answer.status(kvfolio_find(get(), caller_id, &found, answer.error()));
  if (record_.takes_question()) record_("find", status, Numbers(caller_id), Numbers(found));
  if (!status.ok()) return status;
  return SequenceId(found);
}

std::int32_t CManager::num_sequences() const { return kvfolio_num_sequences(get()); }

std::int32_t CManager::sequences(std::span<SequenceId> out) const {
  return kvfolio_sequences(get(), reinterpret_cast<kvfolio_sequence*>(out.data()),
                           static_cast<std::int64_t>(out.size()));
}

Result<GroupUsage> CManager::usage(GroupId group) const {
  Answer answer;
  kvfolio_group_usage usage{};
  usage.struct_size = sizeof(usage);
  const Status status = answer.status(kvfolio_usage(get(), group.value(), &usage, answer.error()));
  if (record_.takes_question())
    record_("usage", status, Numbers(group),
            Numbers(usage.num_blocks, usage.free, usage.held, usage.cached, usage.retiring,
                    usage.evictable, usage.reserved));
  if (!status.ok()) return status;
  return GroupUsage{.num_blocks = usage.num_blocks,
                    .free = usage.free,
                    .held = usage.held,
                    .cached = usage.cached,
                    .retiring = usage.retiring,
                    .evictable = usage.evictable,
                    .reserved = usage.reserved,
                    .loading = usage.loading,
                    .on_hold = usage.on_hold};
}

Result<std::int32_t> CManager::ref_count(GroupId group, BlockId block) const {
  Answer answer;
  std::int32_t count = 0;
  const Status status =
      answer.status(kvfolio_ref_count(get(), group.value(), block.value(), &count, answer.error()));
  if (record_.takes_question()) record_("ref_count", status, Numbers(group, block), Numbers(count));
  if (!status.ok()) return status;
  return count;
}

Result<bool> CManager::is_findable(GroupId group, BlockId block) const {
  Answer answer;
  std::int32_t findable = 0;
  std::int32_t end = 0;
  const Status status = answer.status(
      kvfolio_is_findable(get(), group.value(), block.value(), &findable, answer.error()));
  if (record_.takes_question())
    record_("is_findable", status, Numbers(group, block), Numbers(findable));
  if (!status.ok()) return status;
  KVFOLIO_CHECK(kvfolio_findable_end(get(), group.value(), block.value(), &end, answer.error()) ==
                    KVFOLIO_OK &&
                (end > 0) == (findable != 0));
  return findable != 0;
}

Result<BlockState> CManager::block_state(GroupId group, BlockId block) const {
  Answer answer;
  std::int32_t state = 0;
  const Status status = answer.status(
      kvfolio_block_state(get(), group.value(), block.value(), &state, answer.error()));
  if (record_.takes_question())
    record_("block_state", status, Numbers(group, block), Numbers(state));
  if (!status.ok()) return status;
  return static_cast<BlockState>(state);
}

std::int32_t CManager::num_rows() const { return kvfolio_num_rows(get()); }

const Counters& CManager::counters() const {
  kvfolio_counters c{};
  c.struct_size = sizeof(c);
  Answer answer;
  KVFOLIO_CHECK(kvfolio_get_counters(get(), &c, answer.error()) == KVFOLIO_OK);
  counters_ = {.blocks_allocated = c.blocks_allocated,
               .blocks_freed = c.blocks_freed,
               .blocks_evicted = c.blocks_evicted,
               .blocks_unhung = c.blocks_unhung,
               .block_copies = c.block_copies,
               .sequences_opened = c.sequences_opened,
               .sequences_closed = c.sequences_closed,
               .sequences_preempted = c.sequences_preempted,
               .sequences_aborted = c.sequences_aborted,
               .forks = c.forks,
               .tokens_loaded = c.tokens_loaded,
               .tokens_looked_up = c.tokens_looked_up,
               .tokens_reused = c.tokens_reused,
               .tokens_committed = c.tokens_committed,
               .blocks_published = c.blocks_published,
               .publications_skipped = c.publications_skipped,
               .blocks_used_peak = c.blocks_used_peak,
               .announcements_skipped = c.announcements_skipped};
  return counters_;
}

std::string CManager::describe() const {
  std::string text(static_cast<std::size_t>(kvfolio_describe(get(), nullptr, 0)), ' ');
  const auto with_end = static_cast<std::int64_t>(text.size()) + 1;
  KVFOLIO_CHECK(kvfolio_describe(get(), text.data(), with_end) == with_end - 1);
  return text;
}

Status CManager::copy_to(CManager& target) const {
  Answer answer;
  return answer.status(kvfolio_copy_to(get(), target.get(), answer.error()));
}

Status CManager::check_invariants() const {
  Answer answer;
  return answer.status(kvfolio_check_invariants(get(), answer.error()));
}

}  // namespace kvfolio::model_check
