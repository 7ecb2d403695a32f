// SPDX-License-Identifier: Apache-2.0

// The names of blocks: of our own prefixes, and of an engine's hashes.

#include "identity.h"

#include "arrays.h"
#include "fields.h"
#include "kvfolio/foreign_identity.h"
#include "tier_state.h"

namespace kvfolio::python {

HeldModel::HeldModel(nb::handle object) {
  const Fields fields(object, "model", "a ModelIdentity");
  model = fields.bytes("model");
  weights = fields.bytes("weights");
  tokenizer = fields.bytes("tokenizer");
  model_dtype = fields.bytes("model_dtype");
  positions = fields.bytes("positions");
  engine = fields.bytes("engine");
  layers = fields.bytes("layers");
  scales = fields.bytes("scales");
  identity = {.model = model,
              .weights = weights,
              .tokenizer = tokenizer,
              .model_dtype = model_dtype,
              .positions = positions,
              .engine = engine,
              .layers = layers,
              .scales = scales,
              .shard = fields.number("shard"),
              .num_shards = fields.number("num_shards"),
              .pipeline_rank = fields.number("pipeline_rank"),
              .num_pipeline_ranks = fields.number("num_pipeline_ranks"),
              .context_rank = fields.number("context_rank"),
              .num_context_ranks = fields.number("num_context_ranks")};
}

nb::list fields_of(std::span<const IdentityField> fields) {
  nb::list list;
  for (const IdentityField& field : fields) {
    const nb::object value = nb::steal(PyUnicode_DecodeUTF8(
        field.value.data(), static_cast<Py_ssize_t>(field.value.size()), "backslashreplace"));
    list.append(nb::make_tuple(field.name, value));
  }
  return list;
}

namespace {

// The spec is that of the groups, for the sizes of blocks.
struct IdentityObject {
  Identity identity;
  CacheSpec spec;
};

std::string group_range(std::int32_t count) { return "0 to " + std::to_string(count - 1); }

GroupId group_within(Int group, std::int32_t count) {
  const std::int32_t number = i32(group, "group");
  if (number < 0 || number >= count) {
    raise_invalid("group is " + std::to_string(number) + ", allowed: " + group_range(count));
  }
  return GroupId(number);
}

// The keys of the whole blocks of a prompt: the hash goes from unit to unit.
nb::list keys(const IdentityObject& self, nb::handle tokens, Int group, nb::handle root,
              nb::handle media, Int epoch) {
  const Identity& identity = self.identity;
  const GroupId id = group_within(group, identity.num_groups());
  const Input<std::int32_t> numbers(tokens, "tokens");
  const HeldRoot held(root);
  const std::vector<MediaSpan> spans = media_of(media);
  check(Identity::check_media(spans));
  const auto epochs = static_cast<std::uint64_t>(within(epoch, "epoch", 0, INT64_MAX));
  const std::int32_t unit = identity.unit();
  const std::int32_t block = self.spec.groups[static_cast<std::size_t>(id.value())].block_size;
  Digest hash = identity.root(held.key, epochs);
  nb::list list;
  for (std::int32_t end = unit; end <= static_cast<std::int64_t>(numbers.size()); end += unit) {
    hash = identity.next(hash, end - unit,
                         numbers.span().subspan(static_cast<std::size_t>(end - unit),
                                                static_cast<std::size_t>(unit)),
                         spans);
    if (end % block == 0) list.append(bytes_of(identity.key(id, hash).bytes));
  }
  return list;
}

void add_own(nb::module_& m) {
  nb::class_<IdentityObject>(
      m, "Identity",
      "Names of blocks that last: the same on every machine and in every process, and different "
      "wherever the bytes could be. A required field that is empty is refused by its name.")
      .def(
          "__init__",
          [](IdentityObject* self, nb::handle model, nb::handle groups) {
            const HeldModel held(model);
            CacheSpec spec = spec_of(groups);
            Identity identity = take(Identity::create(held.identity, spec));
            new (self) IdentityObject{std::move(identity), std::move(spec)};
          },
          "model"_a, "groups"_a,
          nb::sig("def __init__(self, model: kvfolio_tiers._types.ModelIdentity, groups: "
                  "collections.abc.Sequence[kvfolio._types.GroupSpec]) -> None"))
      .def("keys", &keys, "tokens"_a, nb::kw_only(), "group"_a = Int{0}, "root"_a = nb::none(),
           "media"_a = nb::make_tuple(), "epoch"_a = Int{0},
           nb::sig("def keys(self, tokens: kvfolio._types.Int32Input, *, group: int = 0, "
                   "root: kvfolio._types.RootKey | None = None, "
                   "media: collections.abc.Sequence[kvfolio._types.MediaSpan] = (), "
                   "epoch: int = 0) -> list[bytes]"),
           "The keys of the whole blocks of a prompt in a group: each stands for all tokens up to "
           "the end of its block. An Offload stores under them.")
      .def(
          "check_spec",
          [](const IdentityObject& self, nb::handle groups) {
            check(self.identity.check_spec(spec_of(groups)));
          },
          "groups"_a,
          nb::sig("def check_spec(self, groups: "
                  "collections.abc.Sequence[kvfolio._types.GroupSpec]) -> None"),
          "InvalidArgument names the first group and field that are not those of this identity.")
      .def_prop_ro(
          "unit", [](const IdentityObject& self) { return self.identity.unit(); },
          "The smallest block size.")
      .def_prop_ro(
          "model_namespace",
          [](const IdentityObject& self) { return bytes_of(self.identity.model_namespace()); },
          "A SHA-256 of what decides the bytes of the model.")
      .def_prop_ro(
          "fields", [](const IdentityObject& self) { return fields_of(self.identity.fields()); },
          nb::sig("def fields(self) -> list[tuple[str, str]]"), "All that went into the names.");
}

void make_foreign(ForeignIdentity* self, const std::string& engine, const std::string& model,
                  const std::string& weights, const std::string& model_dtype,
                  const std::string& hash, const std::string& hash_seed, const std::string& layout,
                  const std::string& scales, Int num_groups, Int shard, Int num_shards) {
  const ForeignModel given{.engine = engine,
                           .model = model,
                           .weights = weights,
                           .model_dtype = model_dtype,
                           .hash = hash,
                           .hash_seed = hash_seed,
                           .layout = layout,
                           .scales = scales,
                           .num_groups = i32(num_groups, "num_groups"),
                           .shard = i32(shard, "shard"),
                           .num_shards = i32(num_shards, "num_shards")};
  new (self) ForeignIdentity(take(ForeignIdentity::create(given)));
}

nb::bytes foreign_key(const ForeignIdentity& self, const nb::bytes& engine_hash,
                      const nb::bytes& salt, Int group) {
  const GroupId id = group_within(group, self.num_groups());
  const std::string_view salt_text(static_cast<const char*>(salt.data()), salt.size());
  const auto* hash = static_cast<const std::byte*>(engine_hash.data());
  return bytes_of(self.key(id, salt_text, {hash, engine_hash.size()}).bytes);
}

void add_foreign(nb::module_& m) {
  nb::class_<ForeignIdentity>(
      m, "ForeignIdentity",
      "Names of blocks that an engine has hashed by itself, as vLLM and SGLang do: for engines "
      "that use a tier alone. Two blocks have one name only if all of these fields are equal, the "
      "salt, and the engine's hash. All texts but `scales` are required.")
      .def(
          "__init__", &make_foreign, nb::kw_only(), "engine"_a, "model"_a, "weights"_a,
          "model_dtype"_a, "hash"_a, "hash_seed"_a, "layout"_a, "scales"_a = "",
          "num_groups"_a = Int{1}, "shard"_a = Int{0}, "num_shards"_a = Int{1},
          nb::sig("def __init__(self, *, engine: str, model: str, weights: str, "
                  "model_dtype: str, hash: str, hash_seed: str, layout: str, scales: str = '', "
                  "num_groups: int = 1, shard: int = 0, num_shards: int = 1) -> None"),
          "hash: the algorithm of the engine's hashes; hash_seed: what its first hash begins "
          "with, 'none' if there is nothing. layout: element type, heads, block size, axes, ranks: "
          "all that decides the bytes of a block.")
      .def("key", &foreign_key, "engine_hash"_a, nb::kw_only(), "salt"_a = nb::bytes(""),
           "group"_a = Int{0},
           nb::sig("def key(self, engine_hash: bytes, *, salt: bytes = b'', group: int = 0) -> "
                   "bytes"),
           "The key of a block. `salt` keeps tenants apart: it comes from the server's knowledge "
           "of them.")
      .def_prop_ro("model_namespace",
                   [](const ForeignIdentity& self) { return bytes_of(self.model_namespace()); })
      .def_prop_ro(
          "fields", [](const ForeignIdentity& self) { return fields_of(self.fields()); },
          nb::sig("def fields(self) -> list[tuple[str, str]]"), "All that went into the names.");
}

}  // namespace

void add_identity(nb::module_& m) {
  add_own(m);
  add_foreign(m);
}

}  // namespace kvfolio::python
