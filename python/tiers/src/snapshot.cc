// SPDX-License-Identifier: Apache-2.0

// save() and restore().

#include "kvfolio/snapshot.h"

#include <memory>
#include <string>

#include "arrays.h"
#include "bridge.h"
#include "fields.h"
#include "identity.h"
#include "kvfolio/byte_stream.h"
#include "manager_state.h"
#include "open_options.h"
#include "tier_state.h"

namespace kvfolio::python {
namespace {

// A kvfolio_tiers.SnapshotSequence, with what it points into.
struct HeldSequence {
  Input<std::int32_t> tokens;
  HeldRoot root;
  std::vector<MediaSpan> media;
  SnapshotSequence sequence{};

  HeldSequence(const Fields& fields, const std::string& name)
      : tokens(fields.get("tokens"), (name + ".tokens").c_str()),
        root(fields.get("root")),
        media(media_of(fields.get("media"))) {
    Id id;
    if (!nb::try_cast(fields.get("sequence"), id)) raise_type(name + ".sequence is no int");
    sequence = {.sequence = id,
                .tokens = tokens.span(),
                .root = root.key,
                .media = media,
                .publish = parse_publish(fields.text("publish").c_str())};
  }
};

nb::object save_to(nb::handle manager, nb::handle path, nb::handle model, nb::handle sequences,
                   bool prefix_cache, nb::handle key) {
  const std::shared_ptr<ManagerState> state = manager_of(manager);
  const std::string file = text_of_path(path);
  const HeldModel held_model(model);
  const HeldKeys keys(key, nb::none());
  std::vector<std::unique_ptr<HeldSequence>> held;
  std::vector<SnapshotSequence> given;
  for (const nb::object& item : items_of(sequences, "sequences", "a list of SnapshotSequence")) {
    const std::string name = item_name("sequences", held.size());
    held.push_back(std::make_unique<HeldSequence>(Fields(item, name, "a SnapshotSequence"), name));
    given.push_back(held.back()->sequence);
  }
  const SaveOptions options{.prefix_cache = prefix_cache, .sequences = given, .keys = keys.options};
  Result<SaveStats> result = state->call_without_gil([&](KVCacheManager& m) -> Result<SaveStats> {
    const Result<Identity> identity = Identity::create(held_model.identity, m.spec());
    if (!identity) return identity.error();
    Result<FileSink> sink = FileSink::create(file);
    if (!sink) return sink.error();
    Result<SaveStats> stats = save(m, *identity, *sink, options);
    if (!stats) return stats;
    if (Status placed = sink->commit(); !placed) return placed;
    return stats;
  });
  const SaveStats stats = take(std::move(result));
  return make_tier_record(
      "SaveStats", nb::make_tuple(stats.records, stats.tokens, stats.sequences, stats.bytes));
}

// The words of `damaged`: whether a file that is damaged is refused.
constexpr Word<bool> kDamaged[] = {{"refuse", true}, {"skip", false}};

Status damage_of(const std::string& file, const RestoreStats& stats) {
  return {ErrorCode::kCorrupt,
          file + " is damaged: " + std::to_string(stats.records_refused) + " of its " +
              std::to_string(stats.records) +
              " records are not what was saved, or were sealed with another key, and " +
              std::to_string(stats.sections_damaged) +
              " of its sections are damaged. `kvfolio inspect` names them; damaged=\"skip\" takes "
              "what can be had"};
}

nb::object restore_from(nb::handle manager, nb::handle path, nb::handle model, nb::handle key,
                        nb::handle accepted_key, const char* damaged) {
  const bool refuses = parse_word("damaged", damaged, kDamaged);
  const std::shared_ptr<ManagerState> state = manager_of(manager);
  const std::string file = text_of_path(path);
  const HeldModel held_model(model);
  const HeldKeys keys(key, accepted_key);
  Result<RestoreStats> result =
      state->call_without_gil([&](KVCacheManager& m) -> Result<RestoreStats> {
        const Result<Identity> identity = Identity::create(held_model.identity, m.spec());
        if (!identity) return identity.error();
        Result<FileSource> source = FileSource::open(file);
        if (!source) return source.error();
        Result<RestoreStats> stats = restore(m, *identity, *source, {.keys = keys.options});
        if (!stats || !refuses || stats->records_refused + stats->sections_damaged == 0) {
          return stats;
        }
        for (const RestoredSequence& each : stats->sequences) {
          KVFOLIO_RETURN_IF_ERROR(m.close(each.sequence));
        }
        return damage_of(file, *stats);
      });
  const RestoreStats stats = take(std::move(result));
  nb::list sequences;
  for (const RestoredSequence& each : stats.sequences) {
    const nb::object caller = each.caller_id ? nb::cast(*each.caller_id) : nb::none();
    sequences.append(make_tier_record(
        "RestoredSequence",
        nb::make_tuple(each.sequence.value(), caller,
                       numpy_copy(std::span<const std::int32_t>(each.tokens)), each.length)));
  }
  return make_tier_record("RestoreStats",
                          nb::make_tuple(stats.records, stats.records_loaded, stats.records_refused,
                                         stats.sections_damaged, stats.paths, stats.paths_no_room,
                                         stats.tokens, sequences));
}

}  // namespace

void add_snapshot(nb::module_& m) {
  m.def(
      "save", &save_to, "manager"_a, "path"_a, "model"_a, nb::kw_only(),
      "sequences"_a = nb::make_tuple(), "prefix_cache"_a = true, "key"_a = nb::none(),
      nb::sig("def save(manager: kvfolio.Manager, path: str | bytes | os.PathLike[str], "
              "model: kvfolio_tiers._types.ModelIdentity, *, sequences: "
              "collections.abc.Sequence[kvfolio_tiers._types.SnapshotSequence] = (), "
              "prefix_cache: bool = True, key: bytes | None = None) -> "
              "kvfolio_tiers._types.SaveStats"),
      "Writes what the manager has cached, and these sequences, to a file, which appears whole or "
      "not at all, with mode 0600. FailedPrecondition: a step is open or in flight. The file has "
      "the text of all prompts: keep it as you keep them.");
  m.def(
      "restore", &restore_from, "manager"_a, "path"_a, "model"_a, nb::kw_only(),
      "key"_a = nb::none(), "accepted_key"_a = nb::none(), "damaged"_a = "refuse",
      nb::sig("def restore(manager: kvfolio.Manager, path: str | bytes | os.PathLike[str], "
              "model: kvfolio_tiers._types.ModelIdentity, *, key: bytes | None = None, "
              "accepted_key: bytes | None = None, "
              "damaged: typing.Literal[\"refuse\", \"skip\"] = \"refuse\") -> "
              "kvfolio_tiers._types.RestoreStats"),
      "Opens the sequences of a file, and fills the cache with the rest of it as long as there "
      "are free blocks. InvalidArgument names the field in which model or layout differ; Corrupt: "
      "it is no snapshot, or it has damage or records that another key sealed, or none although a "
      "key is given. Then the new sequences are closed again; what verified stays in the cache. "
      "With damaged=\"skip\" such records cost what they hold, and are counted in "
      "records_refused.");
}

}  // namespace kvfolio::python
