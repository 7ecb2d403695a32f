// SPDX-License-Identifier: Apache-2.0

// Manager: how it is made, and what it is.

#include "arrays.h"
#include "bridge.h"
#include "manager_state.h"
#include "storage.h"

namespace kvfolio::python {
namespace {

constexpr Word<Order> kOrders[] = {{"in_order", Order::kInOrder}, {"unordered", Order::kUnordered}};

// What `Manager(...)` takes, as numbers of Python.
struct Given {
  Int max_sequences, max_pins, max_steps_in_flight;
  const char* order;
  bool prefix_cache;
  Int max_sequence_tokens, max_index_tokens, max_runs, max_root_keys;
  nb::handle max_root_key_bytes;
  Int max_media_extents, max_table_entries;
  Id hash_seed;
  double high_watermark;
  nb::handle victim_policy;
  nb::handle id_tag;
  bool copies_by_host;
  Int max_announced_tokens;
  bool list_findable;
  bool null_block;
};

IdTag tag_of(nb::handle id_tag) {
  if (id_tag.is_none()) return IdTag::next();
  Int number;
  if (!nb::try_cast(id_tag, number)) raise_type("id_tag is no int");
  return IdTag(static_cast<std::uint16_t>(within(number, "id_tag", 0, UINT16_MAX)));
}

ManagerOptions options_of(const Given& given, const IdTag& tag) {
  ManagerOptions options;
  options.max_sequences = i32(given.max_sequences, "max_sequences");
  options.max_pins = i32(given.max_pins, "max_pins");
  options.max_steps_in_flight = i32(given.max_steps_in_flight, "max_steps_in_flight");
  options.order = parse_word("order", given.order, kOrders);
  options.prefix_cache = given.prefix_cache;
  options.max_sequence_tokens = i32(given.max_sequence_tokens, "max_sequence_tokens");
  options.max_index_tokens = given.max_index_tokens.value;
  options.max_runs = i32(given.max_runs, "max_runs");
  options.max_root_keys = i32(given.max_root_keys, "max_root_keys");
  options.max_root_key_bytes = parse_bytes(given.max_root_key_bytes, "max_root_key_bytes");
  options.max_media_extents = i32(given.max_media_extents, "max_media_extents");
  options.max_table_entries = given.max_table_entries.value;
  options.hash_seed = given.hash_seed.value;
  options.high_watermark = given.high_watermark;
  options.victim_policy =
      parse_policy("victim_policy", given.victim_policy).value_or(VictimPolicy::kLru);
  options.id_tag = tag.value();
  options.copies_by_host = given.copies_by_host;
  options.max_announced_tokens = given.max_announced_tokens.value;
  options.list_findable = given.list_findable;
  options.null_block = given.null_block;
  return options;
}

// Over the memory of a kvfolio.cuda.Storage, which stays in use, too.
std::shared_ptr<ManagerState> over_device(nb::handle device_storage, const ManagerOptions& options,
                                          IdTag tag) {
  const nb::object capsule = device_storage.attr("_storage_bridge")();
  StorageBridge& bridge = storage_bridge_of(capsule);
  if (*bridge.taken) {
    raise(Status(ErrorCode::kFailedPrecondition, "another manager has taken this storage"));
  }
  auto state = std::make_shared<ManagerState>(
      take(KVCacheManager::create(*std::move(bridge.storage), options)), std::move(tag),
      held(device_storage));
  *bridge.taken = true;
  return state;
}

std::shared_ptr<ManagerState> create(nb::handle spec, const Given& given) {
  IdTag tag = tag_of(given.id_tag);
  const ManagerOptions options = options_of(given, tag);
  if (nb::isinstance<Storage>(spec)) {
    return object_of<Storage>(spec, "spec", "a Storage").give(options, std::move(tag));
  }
  if (nb::hasattr(spec, "_storage_bridge")) return over_device(spec, options, std::move(tag));
  return std::make_shared<ManagerState>(
      take(KVCacheManager::create(spec_of(spec, "spec"), options)), std::move(tag));
}

// What help() says of the options.
constexpr const char* kOptionsDoc =
    "A list of GroupSpec: ids only, the engine owns the bytes and runs the copies of each plan. "
    "A Storage: the manager takes it, and commit() refuses a step whose copies "
    "run_copies() has not run, unless copies_by_host says that the engine runs them. "
    "A kvfolio.cuda.Storage: the same, and both stay alive as long as one of them; copies wait "
    "for what was enqueued on the storage. "
    "The options:\n\n"
    "- max_sequences: open at once, 1 to 2^23.\n"
    "- max_pins: pins at once, 0 to 2^24.\n"
    "- max_steps_in_flight: committed and not complete, 1 to 64.\n"
    "- order: \"in_order\" for one stream, where complete() completes the earlier steps, too; "
    "\"unordered\": steps complete in any order, and a sequence takes no append before the step "
    "of its last one is complete.\n"
    "- prefix_cache: False: nothing is ever findable.\n"
    "- max_sequence_tokens: the length that a sequence is expected to have, up to 2^30, and no "
    "limit: max_table_entries and widest() depend on it. 0: the tokens of the largest group "
    "without a window, or 32,768.\n"
    "- max_index_tokens, max_runs: what the index of findable prompts has room for: tokens, up "
    "to 2^32, and runs of tokens between two places where prompts part, 2 to 2^29. 0: enough "
    "for every block. Where it is full, the next victims are evicted; if that does not help, "
    "nothing is published, which publications_skipped counts.\n"
    "- max_root_keys, max_root_key_bytes: root keys in use at once, from 1, and their bytes, "
    "with up to 29 more for each. While there are too many, a sequence of a new one neither "
    "finds nor publishes.\n"
    "- max_media_extents: pieces of media spans in the index, 0 to 2^28.\n"
    "- max_table_entries: int32 words, up to 2^33, for the block tables, unpublished tokens "
    "and media of open sequences, and for pins. 0: enough for a full pool and for "
    "max_sequences tables of max_sequence_tokens tokens, of which 2^26 words count.\n"
    "- hash_seed: of the hashes in the index. Managers that must give the same answers need "
    "the same one; a server that fears prompts made to collide takes a random one.\n"
    "- high_watermark: needs_eviction is True from this utilization on, 0 to 1.\n"
    "- victim_policy: whom select_victim() and preempt_to() choose unless they are told.\n"
    "- id_tag: a number within each id, 0 to 65,535. None: one that no manager has that lives, "
    "so that none takes an id of another. There are 32,767 of them: those of managers that are "
    "gone come again in turn, and ResourceExhausted says that all are taken.\n"
    "- copies_by_host: with a Storage: the engine runs the copies of each plan itself.\n"
    "- max_announced_tokens: of open(announce=True), not published yet, all together, up to "
    "2^30. 0: the tokens of the largest group.\n"
    "- list_findable: an Offload of kvfolio.tiers may stand over it; 16 bytes for each block.\n"
    "- null_block: block 0 of each group is never given out and counts nowhere, and plans are "
    "padded with 0.";

void add_options(nb::class_<Manager>& c) {
  c.def(
      "__init__",
      [](Manager* self, nb::handle spec, Int max_sequences, Int max_pins, Int max_steps_in_flight,
         const char* order, bool prefix_cache, Int max_sequence_tokens, Int max_index_tokens,
         Int max_runs, Int max_root_keys, nb::handle max_root_key_bytes, Int max_media_extents,
         Int max_table_entries, Id hash_seed, double high_watermark, nb::handle victim_policy,
         nb::handle id_tag, bool copies_by_host, Int max_announced_tokens, bool list_findable,
         bool null_block) {
        const Given given{max_sequences,       max_pins,
                          max_steps_in_flight, order,
                          prefix_cache,        max_sequence_tokens,
                          max_index_tokens,    max_runs,
                          max_root_keys,       max_root_key_bytes,
                          max_media_extents,   max_table_entries,
                          hash_seed,           high_watermark,
                          victim_policy,       id_tag,
                          copies_by_host,      max_announced_tokens,
                          list_findable,       null_block};
        new (self) Manager(create(spec, given));
      },
      "spec"_a, nb::kw_only(), "max_sequences"_a = Int{1024}, "max_pins"_a = Int{256},
      "max_steps_in_flight"_a = Int{2}, "order"_a = "in_order", "prefix_cache"_a = true,
      "max_sequence_tokens"_a = Int{0}, "max_index_tokens"_a = Int{0}, "max_runs"_a = Int{0},
      "max_root_keys"_a = Int{1024}, "max_root_key_bytes"_a = 1 << 20,
      "max_media_extents"_a = Int{4096}, "max_table_entries"_a = Int{0}, "hash_seed"_a = Id{0},
      "high_watermark"_a = 0.90, "victim_policy"_a = "lru", "id_tag"_a = nb::none(),
      "copies_by_host"_a = false, "max_announced_tokens"_a = Int{0}, "list_findable"_a = false,
      "null_block"_a = false,
      nb::sig("def __init__(self, spec: collections.abc.Sequence[kvfolio._types.GroupSpec] | "
              "Storage | kvfolio._types.DeviceStorage, *, max_sequences: int = 1024, max_pins: int "
              "= 256, "
              "max_steps_in_flight: int = 2, order: kvfolio._types.Order = 'in_order', "
              "prefix_cache: bool = True, max_sequence_tokens: int = 0, "
              "max_index_tokens: int = 0, max_runs: int = 0, max_root_keys: int = 1024, "
              "max_root_key_bytes: int | str = 1048576, max_media_extents: int = 4096, "
              "max_table_entries: int = 0, hash_seed: int = 0, high_watermark: float = 0.9, "
              "victim_policy: kvfolio._types.VictimPolicy = 'lru', id_tag: int | None = None, "
              "copies_by_host: bool = False, max_announced_tokens: int = 0, "
              "list_findable: bool = False, "
              "null_block: bool = False) -> None"),
      kOptionsDoc);
}

// "4 of 64 blocks held", of each group.
std::string blocks_in_words(KVCacheManager& m) {
  std::string text;
  for (std::size_t i = 0; i < m.spec().groups.size(); ++i) {
    const auto usage = m.usage(GroupId(static_cast<std::int32_t>(i)));
    text += ", " + std::to_string(usage->held) + " of " + std::to_string(usage->num_blocks);
  }
  return text + " blocks held";
}

}  // namespace

void add_manager(nb::module_& m) {
  nb::class_<Manager> c(
      m, "Manager",
      "Keeps the KV cache of many sequences: which block holds which tokens, what is shared, what "
      "is found again. One call of a manager runs at a time: the GIL or, while run_copies() and "
      "check_invariants() run without it, a mutex sees to that. But a step is several calls, so "
      "threads that share a manager agree among themselves whose step is open.");
  add_options(c);
  c.def("_bridge", [](const Manager& manager) { return make_bridge(manager.state()); });
  c.def("__repr__", [](const Manager& manager) {
    return manager.call([](KVCacheManager& m) {
      return "<kvfolio.Manager: " + counted(m.num_sequences(), "sequence") + blocks_in_words(m) +
             ">";
    });
  });
  add_sequences(c);
  add_steps_of_manager(c);
  add_room(c);
  add_questions(c);
  add_op_log(c);
}

}  // namespace kvfolio::python
