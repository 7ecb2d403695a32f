// SPDX-License-Identifier: Apache-2.0
//
// A manager and the life of its sequences.

#include "capi/capi.h"

namespace kvfolio::capi {

static_assert(static_cast<int>(Order::kUnordered) == KVFOLIO_UNORDERED);
static_assert(static_cast<int>(VictimPolicy::kLowestPriority) == KVFOLIO_LOWEST_PRIORITY);
static_assert(static_cast<int>(Publish::kNothing) == KVFOLIO_PUBLISH_NOTHING);

namespace {

Status read_options(std::string_view call, const kvfolio_manager_options* theirs,
                    ManagerOptions& out) {
  kvfolio_manager_options options;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", theirs, options));
  const ManagerOptions defaults;
  if (options.max_sequences != 0) out.max_sequences = options.max_sequences;
  out.max_pins = or_default(options.max_pins, defaults.max_pins);
  if (options.max_steps_in_flight != 0) out.max_steps_in_flight = options.max_steps_in_flight;
  KVFOLIO_RETURN_IF_ERROR(read_enum(call, "order", options.order, KVFOLIO_UNORDERED, out.order));
  out.prefix_cache = options.no_prefix_cache == 0;
  out.max_sequence_tokens = options.max_sequence_tokens;
  out.max_runs = options.max_runs;
  out.max_index_tokens = options.max_index_tokens;
  out.max_root_key_bytes = or_default(options.max_root_key_bytes, defaults.max_root_key_bytes);
  out.max_table_entries = options.max_table_entries;
  out.hash_seed = options.hash_seed;
  out.high_watermark = or_default(options.high_watermark, defaults.high_watermark);
  if (options.max_root_keys != 0) out.max_root_keys = options.max_root_keys;
  out.max_media_extents = or_default(options.max_media_extents, defaults.max_media_extents);
  KVFOLIO_RETURN_IF_ERROR(read_enum(call, "victim_policy", options.victim_policy,
                                    KVFOLIO_LOWEST_PRIORITY, out.victim_policy));
  if (options.id_tag < 0 || options.id_tag > UINT16_MAX) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": id_tag is ", options.id_tag, ", allowed: 0 to ", UINT16_MAX)};
  }
  out.id_tag = static_cast<std::uint16_t>(options.id_tag);
  out.max_transfers = or_default(options.max_transfers, defaults.max_transfers);
  out.list_findable = options.list_findable != 0;
  out.copies_by_host = options.copies_by_host != 0;
  out.null_block = options.null_block != 0;
  out.max_announced_tokens = options.max_announced_tokens;
  return {};
}

// What read_options() reads.
kvfolio_manager_options options_of(const ManagerOptions& options) noexcept {
  const auto zero_is = [](auto value) { return value == 0 ? -1 : value; };
  kvfolio_manager_options out{};
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

// Fails without a change: the manager is the caller's still, and so is the resource.
Status give_manager(std::string_view call, KVCacheManager& manager,
                    std::unique_ptr<CallerMemory>& resource, kvfolio_manager** out) {
  FixedArray<kvfolio_ended> ended;
  FixedArray<AppendDemand> demands;
  const std::int32_t rows = manager.num_rows();
  if (!ended.allocate_zeroed(rows) || !demands.allocate_zeroed(rows)) return no_memory(call);
  auto* const handle = new (std::nothrow) kvfolio_manager{.log = nullptr,
                                                          .resource = std::move(resource),
                                                          .manager = std::move(manager),
                                                          .storage = {},
                                                          .ended = std::move(ended),
                                                          .demands = std::move(demands),
                                                          .lifetime = std::make_shared<char>()};
  if (handle == nullptr) return no_memory(call);
  handle->storage.storage = handle->manager.storage();
  *out = handle;
  return {};
}

}  // namespace

Status check_found(std::string_view call, const kvfolio_found* found) {
  return found == nullptr ? Status() : check_out(call, "found", found);
}

void give_found(std::int32_t cached_tokens, const Soon& soon, kvfolio_found* found) noexcept {
  if (found == nullptr) return;
  write_struct(found, {.struct_size = 0,
                       .cached_tokens = cached_tokens,
                       .soon_tokens = soon.tokens,
                       .reserved = 0,
                       .soon_by = soon.by.value()});
}

}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

KVCacheManager& kvfolio::manager_of(kvfolio_manager& handle) noexcept { return handle.manager; }
std::weak_ptr<const void> kvfolio::lifetime_of(const kvfolio_manager& handle) {
  return handle.lifetime;
}
const RootKey& kvfolio::root_key_of(const kvfolio_root& handle) noexcept { return handle.key; }

extern "C" {

int32_t kvfolio_manager_create(const kvfolio_group_spec* groups, int32_t num_groups,
                               const kvfolio_manager_options* options, kvfolio_manager** out,
                               kvfolio_error* error) {
  KVFOLIO_C_NEEDS(out);
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, groups, num_groups, spec));
  ManagerOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_options(__func__, options, ours));
  Result<KVCacheManager> manager = KVCacheManager::create(spec, ours);
  if (!manager) return answer(error, manager.error());
  std::unique_ptr<CallerMemory> none;
  return answer(error, give_manager(__func__, *manager, none, out));
}

int32_t kvfolio_manager_create_with_storage(kvfolio_storage** storage,
                                            const kvfolio_manager_options* options,
                                            kvfolio_manager** out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(storage);
  KVFOLIO_C_NEEDS(out);
  kvfolio_storage* const handle = *storage;
  if (handle == nullptr) return answer(error, null_argument(__func__, "*storage"));
  if (!handle->own) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": the storage belongs to a manager already")});
  }
  ManagerOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_options(__func__, options, ours));
  Result<KVCacheManager> manager = KVCacheManager::create(std::move(*handle->own), ours);
  if (!manager) return answer(error, manager.error());
  if (const Status given = give_manager(__func__, *manager, handle->resource, out); !given.ok()) {
    *handle->own = std::move(*manager->storage());
    return answer(error, given);
  }
  kvfolio_storage_destroy(handle);
  *storage = nullptr;
  return KVFOLIO_OK;
}

void kvfolio_manager_destroy(kvfolio_manager* manager) { delete manager; }

kvfolio_storage* kvfolio_manager_storage(kvfolio_manager* manager) {
  if (manager == nullptr || manager->storage.storage == nullptr) return nullptr;
  return &manager->storage;
}

int32_t kvfolio_root_create(const char* model, int64_t model_bytes, const char* adapter,
                            int64_t adapter_bytes, const char* adapter_version,
                            int64_t adapter_version_bytes, const char* tenant_salt,
                            int64_t tenant_salt_bytes, uint64_t epoch, kvfolio_root** out,
                            kvfolio_error* error) {
  KVFOLIO_C_NEEDS(out);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "model", model, model_bytes));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "adapter", adapter, adapter_bytes));
  KVFOLIO_C_RETURN_IF_ERROR(
      check_array(__func__, "adapter_version", adapter_version, adapter_version_bytes));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "tenant_salt", tenant_salt, tenant_salt_bytes));
  constexpr std::int64_t kMostBytes = 1 << 16;  // of a RootKey
  if (model_bytes + adapter_bytes + adapter_version_bytes + tenant_salt_bytes > kMostBytes) {
    return answer(error,
                  {ErrorCode::kInvalidArgument,
                   concat(__func__, ": the strings have ",
                          model_bytes + adapter_bytes + adapter_version_bytes + tenant_salt_bytes,
                          " bytes together, allowed: 0 to ", kMostBytes)});
  }
  std::unique_ptr<kvfolio_root> root(new (std::nothrow) kvfolio_root);
  if (!root) return answer(error, no_memory(__func__));
  const auto string_of = [](const char* data, std::int64_t bytes) {
    return bytes == 0 ? std::string() : std::string(data, static_cast<std::size_t>(bytes));
  };
  root->bytes = {string_of(model, model_bytes), string_of(adapter, adapter_bytes),
                 string_of(adapter_version, adapter_version_bytes),
                 string_of(tenant_salt, tenant_salt_bytes)};
  root->key = {.model = root->bytes[0],
               .adapter = root->bytes[1],
               .adapter_version = root->bytes[2],
               .tenant_salt = root->bytes[3],
               .epoch = epoch};
  *out = root.release();
  return KVFOLIO_OK;
}

void kvfolio_root_destroy(kvfolio_root* root) { delete root; }

int32_t kvfolio_open(kvfolio_manager* manager, const kvfolio_root* root, const int32_t* tokens,
                     int64_t num_tokens, const kvfolio_media_span* media, int64_t num_media,
                     const kvfolio_open_options* options, kvfolio_sequence* out,
                     kvfolio_found* found, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  KVFOLIO_C_RETURN_IF_ERROR(check_found(__func__, found));
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, options, prompt));
  const Result<Opened> opened = manager->manager.open(prompt.tokens, prompt.options);
  if (!opened) return answer(error, opened.error());
  *out = opened->sequence.value();
  give_found(opened->cached_tokens, opened->soon, found);
  return KVFOLIO_OK;
}

int32_t kvfolio_probe(const kvfolio_manager* manager, const kvfolio_root* root,
                      const int32_t* tokens, int64_t num_tokens, const kvfolio_media_span* media,
                      int64_t num_media, const kvfolio_open_options* options,
                      int32_t* cached_tokens, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(cached_tokens);
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, options, prompt));
  const Result<std::int32_t> found = manager->manager.probe(prompt.tokens, prompt.options);
  if (!found) return answer(error, found.error());
  *cached_tokens = *found;
  return KVFOLIO_OK;
}

int32_t kvfolio_soon(const kvfolio_manager* manager, const kvfolio_root* root,
                     const int32_t* tokens, int64_t num_tokens, const kvfolio_media_span* media,
                     int64_t num_media, const kvfolio_open_options* options, int32_t* soon_tokens,
                     kvfolio_sequence* by, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(soon_tokens);
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, options, prompt));
  const Result<Soon> soon = manager->manager.soon(prompt.tokens, prompt.options);
  if (!soon) return answer(error, soon.error());
  *soon_tokens = soon->tokens;
  if (by != nullptr) *by = soon->by.value();
  return KVFOLIO_OK;
}

int32_t kvfolio_open_unnamed(kvfolio_manager* manager, const kvfolio_root* root, int64_t num_tokens,
                             const kvfolio_media_span* media, int64_t num_media,
                             const kvfolio_open_options* options, kvfolio_sequence* out,
                             kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, nullptr, 0, media, num_media, options, prompt));
  const Result<SequenceId> opened = manager->manager.open_unnamed(num_tokens, prompt.options);
  if (!opened) return answer(error, opened.error());
  *out = opened->value();
  return KVFOLIO_OK;
}

int32_t kvfolio_fork(kvfolio_manager* manager, kvfolio_sequence parent,
                     const kvfolio_fork_options* options, kvfolio_sequence* out,
                     kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  kvfolio_fork_options theirs;
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(__func__, "options", options, theirs));
  ForkOptions ours{.priority = theirs.priority};
  if (theirs.has_caller_id != 0) ours.caller_id = theirs.caller_id;
  const Result<SequenceId> child = manager->manager.fork(SequenceId(parent), ours);
  if (!child) return answer(error, child.error());
  *out = child->value();
  return KVFOLIO_OK;
}

int32_t kvfolio_adopt(kvfolio_manager* manager, kvfolio_sequence sequence, const int32_t* tables,
                      const int64_t* table_sizes, int32_t num_tables, int32_t num_tokens,
                      kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "table_sizes", table_sizes, num_tables));
  if (num_tables > kMaxGroups) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": ", num_tables, " tables, allowed: one for each of ",
                                 manager->manager.spec().groups.size(), " groups")});
  }
  std::array<std::span<const std::int32_t>, kMaxGroups> spans;
  const std::int32_t* at = tables;
  for (std::int32_t g = 0; g < num_tables; ++g) {
    KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "tables", at, table_sizes[g]));
    spans[static_cast<std::size_t>(g)] = span_of(at, table_sizes[g]);
    if (at != nullptr) at += table_sizes[g];
  }
  return answer(error,
                manager->manager.adopt(SequenceId(sequence),
                                       std::span(spans).first(static_cast<std::size_t>(num_tables)),
                                       num_tokens));
}

int32_t kvfolio_truncate(kvfolio_manager* manager, kvfolio_sequence sequence, int32_t num_tokens,
                         kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.truncate(SequenceId(sequence), num_tokens));
}

int32_t kvfolio_clear(kvfolio_manager* manager, kvfolio_sequence sequence, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.clear(SequenceId(sequence)));
}

int32_t kvfolio_trim(kvfolio_manager* manager, kvfolio_sequence sequence, int64_t num_sinks,
                     int64_t window, int32_t* dropped, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  const Result<std::int32_t> count =
      manager->manager.trim(SequenceId(sequence), {.num_sinks = num_sinks, .window = window});
  if (!count) return answer(error, count.error());
  if (dropped != nullptr) *dropped = *count;
  return KVFOLIO_OK;
}

int32_t kvfolio_close(kvfolio_manager* manager, kvfolio_sequence sequence, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.close(SequenceId(sequence)));
}

int32_t kvfolio_preempt(kvfolio_manager* manager, kvfolio_sequence sequence, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.preempt(SequenceId(sequence)));
}

int32_t kvfolio_touch(kvfolio_manager* manager, kvfolio_sequence sequence, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.touch(SequenceId(sequence)));
}

int32_t kvfolio_cancel(kvfolio_manager* manager, kvfolio_sequence sequence, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.cancel(SequenceId(sequence)));
}

int32_t kvfolio_set_priority(kvfolio_manager* manager, kvfolio_sequence sequence, int32_t priority,
                             kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.set_priority(SequenceId(sequence), priority));
}

int32_t kvfolio_copy_to(const kvfolio_manager* manager, kvfolio_manager* target,
                        kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(target);
  return answer(error, manager->manager.copy_to(target->manager));
}

int32_t kvfolio_get_options(const kvfolio_manager* manager, kvfolio_manager_options* out,
                            kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  write_struct(out, options_of(manager->manager.options()));
  return KVFOLIO_OK;
}

}  // extern "C"
