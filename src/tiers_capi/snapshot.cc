// SPDX-License-Identifier: Apache-2.0
//
// Save and restore.

#include "kvfolio/byte_stream.h"
#include "tiers_capi/tiers_capi.h"

namespace kvfolio::capi {
namespace {

class CallerSink final : public ByteSink {
 public:
  explicit CallerSink(const kvfolio_byte_sink& sink) noexcept : sink_(sink) {}
  Status write(std::span<const std::byte> bytes) noexcept override {
    const auto n = static_cast<std::int64_t>(bytes.size());
    return status_of(sink_.write(sink_.context, bytes.data(), n), "write()");
  }

 private:
  kvfolio_byte_sink sink_;
};

class CallerSource final : public ByteSource {
 public:
  explicit CallerSource(const kvfolio_byte_source& source) noexcept : source_(source) {}
  [[nodiscard]] std::int64_t size() const override { return source_.size; }
  Status read_at(std::int64_t offset, std::span<std::byte> out) noexcept override {
    const auto n = static_cast<std::int64_t>(out.size());
    return status_of(source_.read_at(source_.context, offset, out.data(), n), "read_at()");
  }

 private:
  kvfolio_byte_source source_;
};

// What a save takes beside its sink.
struct SaveArguments {
  SaveOptions options;
  std::vector<SnapshotSequence> sequences;
};

Status read_save(std::string_view call, const kvfolio_save_list* list,
                 const kvfolio_save_options* options, const kvfolio_save_stats* stats,
                 SaveArguments& out) {
  kvfolio_save_options ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", options, ours));
  if (stats != nullptr) KVFOLIO_RETURN_IF_ERROR(check_out(call, "stats", stats));
  if (list != nullptr) {
    for (const auto& item : list->items) {
      const auto& [model, adapter, version, salt] = item->root;
      out.sequences.push_back({.sequence = item->sequence,
                               .tokens = item->tokens,
                               .root = {model, adapter, version, salt, item->epoch},
                               .media = item->media});
    }
  }
  out.options = {.prefix_cache = ours.no_prefix_cache == 0,
                 .sequences = out.sequences,
                 .keys = {.key = secret_of(ours.record_key)}};
  return {};
}

void give_stats(const SaveStats& from, kvfolio_save_stats* out) noexcept {
  if (out == nullptr) return;
  write_struct(out, {.struct_size = 0,
                     .reserved = 0,
                     .records = from.records,
                     .tokens = from.tokens,
                     .sequences = from.sequences,
                     .bytes = from.bytes});
}

Status restore_into(std::string_view call, kvfolio_manager& manager, kvfolio_identity& identity,
                    ByteSource& source, const kvfolio_restore_options* options,
                    kvfolio_restored** out) {
  kvfolio_restore_options ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", options, ours));
  std::unique_ptr<kvfolio_restored> handle(new (std::nothrow) kvfolio_restored);
  if (!handle) return no_memory(call);
  const RestoreOptions with{.keys = {.key = secret_of(ours.record_key),
                                     .accepted_key = secret_of(ours.accepted_record_key)}};
  Result<RestoreStats> stats = restore(manager_of(manager), *identity.identity, source, with);
  if (!stats) return stats.error();
  handle->stats = *std::move(stats);
  *out = handle.release();
  return {};
}

std::int32_t restore_source(const char* call, kvfolio_manager* manager, kvfolio_identity* identity,
                            const kvfolio_byte_source* source,
                            const kvfolio_restore_options* options, kvfolio_restored** out,
                            kvfolio_error* error) {
  if (manager == nullptr) return answer(error, null_argument(call, "manager"));
  if (identity == nullptr) return answer(error, null_argument(call, "identity"));
  if (source == nullptr) return answer(error, null_argument(call, "source"));
  if (out == nullptr) return answer(error, null_argument(call, "out"));
  kvfolio_byte_source ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(call, "source", source, ours));
  if (ours.read_at == nullptr) return answer(error, null_argument(call, "source->read_at"));
  if (ours.size < 0) {
    return answer(error,
                  {ErrorCode::kInvalidArgument, concat(call, ": source->size is ", ours.size)});
  }
  CallerSource from(ours);
  return answer(error, restore_into(call, *manager, *identity, from, options, out));
}

std::int32_t restore_file(const char* call, kvfolio_manager* manager, kvfolio_identity* identity,
                          const char* path, const kvfolio_restore_options* options,
                          kvfolio_restored** out, kvfolio_error* error) {
  if (manager == nullptr) return answer(error, null_argument(call, "manager"));
  if (identity == nullptr) return answer(error, null_argument(call, "identity"));
  if (path == nullptr) return answer(error, null_argument(call, "path"));
  if (out == nullptr) return answer(error, null_argument(call, "out"));
  Result<FileSource> file = FileSource::open(path);
  if (!file) return answer(error, file.error());
  return answer(error, restore_into(call, *manager, *identity, *file, options, out));
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_save_list_create(kvfolio_save_list** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(out);
  auto* const list = new (std::nothrow) kvfolio_save_list;
  if (list == nullptr) return answer(error, no_memory(__func__));
  *out = list;
  return KVFOLIO_OK;
}

void kvfolio_save_list_destroy(kvfolio_save_list* list) { delete list; }

int32_t kvfolio_save_list_add(kvfolio_save_list* list, kvfolio_sequence sequence,
                              const kvfolio_root* root, const int32_t* tokens, int64_t num_tokens,
                              const kvfolio_media_span* media, int64_t num_media,
                              kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(list);
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, nullptr, prompt));
  auto item = std::make_unique<kvfolio_save_list::Item>();
  item->sequence = SequenceId(sequence);
  item->tokens.assign(prompt.tokens.begin(), prompt.tokens.end());
  const RootKey& key = prompt.options.root;
  item->root[0] = key.model;
  item->root[1] = key.adapter;
  item->root[2] = key.adapter_version;
  item->root[3] = key.tenant_salt;
  item->epoch = key.epoch;
  item->media = std::move(prompt.media);
  list->items.push_back(std::move(item));
  return KVFOLIO_OK;
}

int32_t kvfolio_save(kvfolio_manager* manager, kvfolio_identity* identity,
                     const kvfolio_byte_sink* sink, const kvfolio_save_list* list,
                     const kvfolio_save_options* options, kvfolio_save_stats* stats,
                     kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(identity);
  KVFOLIO_C_NEEDS(sink);
  kvfolio_byte_sink ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(__func__, "sink", sink, ours));
  if (ours.write == nullptr) return answer(error, null_argument(__func__, "sink->write"));
  SaveArguments arguments;
  KVFOLIO_C_RETURN_IF_ERROR(read_save(__func__, list, options, stats, arguments));
  CallerSink to(ours);
  const Result<SaveStats> saved =
      save(manager_of(*manager), *identity->identity, to, arguments.options);
  if (!saved) return answer(error, saved.error());
  give_stats(*saved, stats);
  return KVFOLIO_OK;
}

int32_t kvfolio_save_file(kvfolio_manager* manager, kvfolio_identity* identity, const char* path,
                          const kvfolio_save_list* list, const kvfolio_save_options* options,
                          kvfolio_save_stats* stats, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(identity);
  KVFOLIO_C_NEEDS(path);
  SaveArguments arguments;
  KVFOLIO_C_RETURN_IF_ERROR(read_save(__func__, list, options, stats, arguments));
  Result<FileSink> file = FileSink::create(path);
  if (!file) return answer(error, file.error());
  const Result<SaveStats> saved =
      save(manager_of(*manager), *identity->identity, *file, arguments.options);
  if (!saved) return answer(error, saved.error());
  KVFOLIO_C_RETURN_IF_ERROR(file->commit());
  give_stats(*saved, stats);
  return KVFOLIO_OK;
}

int32_t kvfolio_restore(kvfolio_manager* manager, kvfolio_identity* identity,
                        const kvfolio_byte_source* source, kvfolio_restored** out,
                        kvfolio_error* error) {
  const NothingThrown nothing;
  return restore_source(__func__, manager, identity, source, nullptr, out, error);
}

int32_t kvfolio_restore_with(kvfolio_manager* manager, kvfolio_identity* identity,
                             const kvfolio_byte_source* source,
                             const kvfolio_restore_options* options, kvfolio_restored** out,
                             kvfolio_error* error) {
  const NothingThrown nothing;
  return restore_source(__func__, manager, identity, source, options, out, error);
}

int32_t kvfolio_restore_file(kvfolio_manager* manager, kvfolio_identity* identity, const char* path,
                             kvfolio_restored** out, kvfolio_error* error) {
  const NothingThrown nothing;
  return restore_file(__func__, manager, identity, path, nullptr, out, error);
}

int32_t kvfolio_restore_file_with(kvfolio_manager* manager, kvfolio_identity* identity,
                                  const char* path, const kvfolio_restore_options* options,
                                  kvfolio_restored** out, kvfolio_error* error) {
  const NothingThrown nothing;
  return restore_file(__func__, manager, identity, path, options, out, error);
}

void kvfolio_restored_destroy(kvfolio_restored* restored) { delete restored; }

int32_t kvfolio_restored_stats(const kvfolio_restored* restored, kvfolio_restore_stats* out,
                               kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(restored);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const RestoreStats& stats = restored->stats;
  write_struct(out, {.struct_size = 0,
                     .reserved = 0,
                     .records = stats.records,
                     .records_loaded = stats.records_loaded,
                     .records_refused = stats.records_refused,
                     .sections_damaged = stats.sections_damaged,
                     .paths = stats.paths,
                     .paths_no_room = stats.paths_no_room,
                     .tokens = stats.tokens});
  return KVFOLIO_OK;
}

int32_t kvfolio_restored_num_sequences(const kvfolio_restored* restored) {
  return restored == nullptr ? 0 : static_cast<std::int32_t>(restored->stats.sequences.size());
}

int32_t kvfolio_restored_get(const kvfolio_restored* restored, int32_t index,
                             kvfolio_restored_sequence* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(restored);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const std::vector<RestoredSequence>& all = restored->stats.sequences;
  if (index < 0 || static_cast<std::size_t>(index) >= all.size()) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": index is ", index, ", allowed: 0 to ",
                                 static_cast<std::int64_t>(all.size()) - 1)});
  }
  const RestoredSequence& one = all[static_cast<std::size_t>(index)];
  write_struct(out, {.struct_size = 0,
                     .length = one.length,
                     .sequence = one.sequence.value(),
                     .caller_id = one.caller_id.value_or(0),
                     .has_caller_id = one.caller_id ? 1 : 0,
                     .reserved = 0,
                     .tokens = {.data = one.tokens.data(),
                                .size = static_cast<std::int64_t>(one.tokens.size())}});
  return KVFOLIO_OK;
}

}  // extern "C"
