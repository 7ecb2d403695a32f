// SPDX-License-Identifier: Apache-2.0

// Specs, root keys and media spans: dataclasses of Python, read when a call gets them.

#include <cstring>

#include "bindings.h"

namespace kvfolio::python {
namespace {

constexpr Word<DType> kDTypes[] = {{"f64", DType::kF64},
                                   {"f32", DType::kF32},
                                   {"f16", DType::kF16},
                                   {"bf16", DType::kBF16},
                                   {"int8", DType::kInt8}};
constexpr Word<Format> kFormats[] = {
    {"hnd", Format::kHnd}, {"nhd", Format::kNhd}, {"granule", Format::kGranule}};
constexpr Word<VictimPolicy> kPolicies[] = {{"lru", VictimPolicy::kLru},
                                            {"lfu", VictimPolicy::kLfu},
                                            {"longest", VictimPolicy::kLongest},
                                            {"lowest_priority", VictimPolicy::kLowestPriority}};

nb::object field(nb::handle object, const char* name) {
  if (!nb::hasattr(object, name)) {
    raise_type(std::string(nb::inst_name(object).c_str()) + " has no attribute " + name);
  }
  return nb::getattr(object, name);
}

std::int64_t int64_field(nb::handle object, const char* name) {
  Int number;
  if (!nb::try_cast(field(object, name), number)) raise_type(std::string(name) + " is no int");
  return number.value;
}

// str as UTF-8, or bytes.
std::string bytes_field(nb::handle object, const char* name) {
  const nb::object value = field(object, name);
  if (PyBytes_Check(value.ptr())) {
    const auto& bytes = nb::borrow<nb::bytes>(value);
    return {static_cast<const char*>(bytes.data()), bytes.size()};
  }
  if (PyUnicode_Check(value.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    return {text, static_cast<std::size_t>(size)};
  }
  raise_type(std::string(name) + " is neither bytes nor str");
}

GroupSpec group_of(nb::handle object) {
  GroupSpec group;
  group.num_layers = int_field(object, "num_layers");
  group.num_kv_heads = int_field(object, "num_kv_heads");
  group.head_dim_k = int_field(object, "head_dim");
  group.head_dim_v = int_field(object, "head_dim_v");
  group.v_is_prefix_of_k = nb::cast<bool>(field(object, "v_is_prefix_of_k"));
  group.block_size = int_field(object, "block_size");
  group.dtype = parse_dtype("dtype", text_field(object, "dtype").c_str());
  group.format = parse_format(text_field(object, "format").c_str());
  group.window = int_field(object, "window");
  group.num_sinks = int_field(object, "num_sinks");
  group.kind = group.window == 0 ? AttentionKind::kFull : AttentionKind::kSlidingWindow;
  group.num_blocks = int_field(object, "num_blocks");
  return group;
}

}  // namespace

DType parse_dtype(const char* name, const char* word) { return parse_word(name, word, kDTypes); }
Format parse_format(const char* word) { return parse_word("format", word, kFormats); }
std::optional<VictimPolicy> parse_policy(nb::handle word) {
  if (word.is_none()) return std::nullopt;
  if (!PyUnicode_Check(word.ptr())) raise_type("the policy is no str");
  return parse_word("policy", nb::borrow<nb::str>(word).c_str(), kPolicies);
}

std::int32_t int_field(nb::handle object, const char* name) {
  return i32(Int{int64_field(object, name)}, name);
}

std::string text_field(nb::handle object, const char* name) {
  const nb::object value = field(object, name);
  if (!PyUnicode_Check(value.ptr())) raise_type(std::string(name) + " is no str");
  return nb::borrow<nb::str>(value).c_str();
}

CacheSpec spec_of(nb::handle groups) {
  if (!PyList_Check(groups.ptr()) && !PyTuple_Check(groups.ptr())) {
    raise_type("the spec is a list of GroupSpec, not " +
               std::string(nb::inst_name(groups).c_str()));
  }
  CacheSpec spec;
  for (const nb::handle group : nb::borrow<nb::object>(groups)) {
    spec.groups.push_back(group_of(group));
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
    groups.append(make(**fields));
  }
  return groups;
}

HeldRoot::HeldRoot(nb::handle root) {
  if (root.is_none()) return;
  model = bytes_field(root, "model");
  adapter = bytes_field(root, "adapter");
  adapter_version = bytes_field(root, "adapter_version");
  tenant_salt = bytes_field(root, "tenant_salt");
  Id epoch;
  const nb::object number = field(root, "epoch");
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
  for (const nb::handle item : nb::borrow<nb::object>(media)) {
    MediaSpan span;
    span.begin = int_field(item, "begin");
    span.end = int_field(item, "end");
    const std::string content = bytes_field(item, "content_id");
    if (content.size() != span.content_id.size()) {
      raise_invalid("content_id has " + std::to_string(content.size()) + " bytes, wanted: 32");
    }
    std::memcpy(span.content_id.data(), content.data(), content.size());
    span.attends_to_itself = nb::cast<bool>(field(item, "attends_to_itself"));
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
      [](nb::handle groups, Int bytes) {
        return groups_of(take(fit(spec_of(groups), bytes.value)));
      },
      "groups"_a, "bytes"_a,
      nb::sig("def fit(groups: collections.abc.Sequence[kvfolio._types.GroupSpec], bytes: int) -> "
              "list[kvfolio._types.GroupSpec]"),
      "The groups with num_blocks filled in, so that together they take at most `bytes`. Values "
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
