// SPDX-License-Identifier: Apache-2.0

// Specs, root keys and media spans: dataclasses of Python, read when a call gets them.

#include <cstring>

#include "bindings.h"
#include "fields.h"

namespace kvfolio::python {
namespace {

constexpr Word<DType> kDTypes[] = {{"f64", DType::kF64},      {"f32", DType::kF32},
                                   {"f16", DType::kF16},      {"bf16", DType::kBF16},
                                   {"int8", DType::kInt8},    {"e4m3", DType::kE4M3},
                                   {"opaque", DType::kOpaque}};
constexpr Word<Format> kFormats[] = {
    {"hnd", Format::kHnd}, {"nhd", Format::kNhd}, {"granule", Format::kGranule}};
constexpr Word<VictimPolicy> kPolicies[] = {{"lru", VictimPolicy::kLru},
                                            {"lfu", VictimPolicy::kLfu},
                                            {"longest", VictimPolicy::kLongest},
                                            {"lowest_priority", VictimPolicy::kLowestPriority}};

GroupSpec group_of(const Fields& fields) {
  GroupSpec group;
  group.num_layers = fields.number("num_layers");
  group.num_kv_heads = fields.number("num_kv_heads");
  group.head_dim_k = fields.number("head_dim");
  group.head_dim_v = fields.number("head_dim_v");
  group.v_is_prefix_of_k = fields.flag("v_is_prefix_of_k");
  group.block_size = fields.number("block_size");
  group.dtype = parse_dtype("dtype", fields.text("dtype").c_str());
  group.format = parse_format(fields.text("format").c_str());
  group.window = fields.number("window");
  group.num_sinks = fields.number("num_sinks");
  group.kind = group.window == 0 ? AttentionKind::kFull : AttentionKind::kSlidingWindow;
  group.num_blocks = fields.number("num_blocks");
  group.rewind = fields.number("rewind");
  return group;
}

}  // namespace

DType parse_dtype(const char* name, const char* word) { return parse_word(name, word, kDTypes); }
Format parse_format(const char* word) { return parse_word("format", word, kFormats); }
std::optional<VictimPolicy> parse_policy(const char* name, nb::handle word) {
  if (word.is_none()) return std::nullopt;
  if (!PyUnicode_Check(word.ptr())) raise_wanted(word, name, "a str or None");
  return parse_word(name, nb::borrow<nb::str>(word).c_str(), kPolicies);
}

CacheSpec spec_of(nb::handle groups, const char* name) {
  if (!PyList_Check(groups.ptr()) && !PyTuple_Check(groups.ptr())) {
    raise_wanted(groups, name, "a list of GroupSpec");
  }
  CacheSpec spec;
  for (const nb::handle group : nb::borrow<nb::object>(groups)) {
    spec.groups.push_back(
        group_of(Fields(group, item_name(name, spec.groups.size()), "a GroupSpec")));
  }
  return spec;
}

nb::list groups_of(const CacheSpec& spec) {
  const nb::object make = nb::module_::import_("kvfolio._types").attr("GroupSpec");
  nb::list groups;
  for (const GroupSpec& group : spec.groups) {
    nb::dict fields;
    fields["num_layers"] = group.num_layers;
    fields["num_kv_heads"] = group.num_kv_heads;
    fields["head_dim"] = group.head_dim_k;
    fields["head_dim_v"] = group.head_dim_v;
    fields["v_is_prefix_of_k"] = group.v_is_prefix_of_k;
    fields["block_size"] = group.block_size;
    fields["dtype"] = to_string(group.dtype);
    for (const Word<Format>& each : kFormats) {
      if (each.value == group.format) fields["format"] = each.text;
    }
    fields["window"] = group.window;
    fields["num_sinks"] = group.num_sinks;
    fields["num_blocks"] = group.num_blocks;
    fields["rewind"] = group.rewind;
    groups.append(make(**fields));
  }
  return groups;
}

HeldRoot::HeldRoot(nb::handle root) {
  if (root.is_none()) return;
  const Fields fields(root, "root", "a RootKey or None");
  model = fields.bytes("model");
  adapter = fields.bytes("adapter");
  adapter_version = fields.bytes("adapter_version");
  tenant_salt = fields.bytes("tenant_salt");
  Id epoch;
  const nb::object number = fields.get("epoch");
  if (!nb::try_cast(number, epoch) || !nb::cast(epoch).equal(number)) {
    raise_invalid("epoch is not within 0 to 2^64 - 1");
  }
  key = {.model = model,
         .adapter = adapter,
         .adapter_version = adapter_version,
         .tenant_salt = tenant_salt,
         .epoch = epoch.value};
}

std::vector<MediaSpan> media_of(nb::handle media) {
  std::vector<MediaSpan> spans;
  for (const nb::handle item : items_of(media, "media", "a list of MediaSpan")) {
    const Fields fields(item, item_name("media", spans.size()), "a MediaSpan");
    MediaSpan span;
    span.begin = fields.number("begin");
    span.end = fields.number("end");
    const std::string content = fields.bytes("content_id");
    if (content.size() != span.content_id.size()) {
      raise_invalid("content_id has " + std::to_string(content.size()) + " bytes, wanted: 32");
    }
    std::memcpy(span.content_id.data(), content.data(), content.size());
    span.attends_to_itself = fields.flag("attends_to_itself");
    spans.push_back(span);
  }
  return spans;
}

void add_spec(nb::module_& m) {
  m.def(
      "validate", [](nb::handle groups) { check(validate(spec_of(groups))); }, "groups"_a,
      nb::sig("def validate(groups: collections.abc.Sequence[kvfolio._types.GroupSpec]) -> None"),
      "Raises InvalidArgument with the group, the field, the value and what is allowed.");
  m.def(
      "fit",
      [](nb::handle groups, nb::handle bytes) {
        const CacheSpec spec = spec_of(groups);
        return groups_of(take(fit(spec, parse_bytes(bytes, "bytes"))));
      },
      "groups"_a, "bytes"_a,
      nb::sig("def fit(groups: collections.abc.Sequence[kvfolio._types.GroupSpec], "
              "bytes: int | str) -> "
              "list[kvfolio._types.GroupSpec]"),
      "The groups with num_blocks filled in, so that together they take at most `bytes`, an int "
      "or text such as \"2GiB\". Values "
      "of num_blocks are weights; if all are 0, all groups get room for equally many tokens.");
  m.def(
      "bytes_per_block",
      [](nb::handle groups) {
        nb::list bytes;
        for (const GroupLayout& layout : take(plan_layouts(spec_of(groups)))) {
          bytes.append(layout.bytes_per_block);
        }
        return bytes;
      },
      "groups"_a,
      nb::sig("def bytes_per_block(groups: collections.abc.Sequence[kvfolio._types.GroupSpec]) -> "
              "list[int]"),
      "Of each group, as the library lays it out: all layers, padding included.");
}

}  // namespace kvfolio::python
