// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/identity.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/invalid.h"
#include "base/media.h"
#include "base/mutants.h"
#include "base/text.h"
#include "offload/canonical_fields.h"
#include "offload/model_layers.h"
#include "offload/sha256.h"

namespace kvfolio {
namespace {

using text::concat;

constexpr std::size_t kTextMax = 64 << 10;
constexpr std::string_view kModel = "kvfolio/model/1";
constexpr std::string_view kLayout = "kvfolio/layout/1";
constexpr std::string_view kRoot = "kvfolio/root/1";
constexpr std::string_view kBlock = "kvfolio/block/1";
constexpr std::string_view kAgain = "kvfolio/again/1";

using Fields = CanonicalFields;

Status check(const ModelIdentity& model, std::span<const GroupSpec> groups) {
  struct Text {
    std::string_view name, value;
    bool required;
  };
  const Text texts[] = {{"model", model.model, true},
                        {"weights", model.weights, true},
                        {"tokenizer", model.tokenizer, true},
                        {"model_dtype", model.model_dtype, true},
                        {"positions", model.positions, true},
                        {"engine", model.engine, true},
                        {"layers", model.layers, groups.size() > 1},
                        {"scales", model.scales, false}};
  std::size_t total = 0;
  for (const auto& [name, value, required] : texts) {
    total += value.size();
    if (!required || !value.empty()) continue;
    return invalid(concat("identity: ", name, " is empty, and required",
                          name == "layers" ? " where there are several groups" : ""));
  }
  if (total > kTextMax) {
    return invalid(concat("identity: ", total, " bytes of text, allowed: ", kTextMax));
  }
  if (!model.layers.empty()) KVFOLIO_RETURN_IF_ERROR(check_layers(model.layers, groups));
  struct Rank {
    std::string_view name;
    std::int32_t value, count;
  };
  const Rank ranks[] = {{"shard", model.shard, model.num_shards},
                        {"pipeline_rank", model.pipeline_rank, model.num_pipeline_ranks},
                        {"context_rank", model.context_rank, model.num_context_ranks}};
  for (const auto& [name, value, count] : ranks) {
    if (count >= 1 && count <= 65535 && value >= 0 && value < count) continue;
    return invalid(concat("identity: ", name, " is ", value, " of ", count,
                          ", allowed: 0 to one below the count, and counts of 1 to 65535"));
  }
  return {};
}

Fields model_fields(const ModelIdentity& model, std::int32_t unit) {
  Fields fields;
  fields.number("format_version", 1);
  fields.text("model", model.model);
  fields.text("weights", model.weights);
  fields.text("tokenizer", model.tokenizer);
  fields.text("model_dtype", model.model_dtype);
  fields.text("positions", model.positions);
  fields.number("unit", unit);
  return fields;
}

Fields layout_fields(const ModelIdentity& model, const GroupSpec& group, std::int32_t index,
                     std::size_t num_groups) {
  Fields fields;
  fields.text("engine", model.engine);
  fields.text("layers", model.layers);
  fields.number("group", index);
  fields.number("num_groups", static_cast<std::int64_t>(num_groups));
  fields.number("num_layers", group.num_layers);
  fields.number("num_kv_heads", group.num_kv_heads);
  fields.number("head_dim_k", group.head_dim_k);
  fields.number("head_dim_v", group.head_dim_v);
  fields.number("v_is_prefix_of_k", group.v_is_prefix_of_k ? 1 : 0);
  fields.number("block_size", group.block_size);
  fields.text("dtype", mutant(Mutant::kKeyWithoutDtype) ? "" : to_string(group.dtype));
  fields.text("quantization", has_scales(group.dtype) ? "f32 scale per token and head" : "none");
  fields.text("scales", model.scales);
  fields.text("format", to_string(group.format));
  fields.text("attention", to_string(group.kind));
  fields.number("window", group.window);
  fields.number("num_sinks", group.num_sinks);
  fields.number("shard", model.shard);
  fields.number("num_shards", model.num_shards);
  fields.number("pipeline_rank", model.pipeline_rank);
  fields.number("num_pipeline_ranks", model.num_pipeline_ranks);
  fields.number("context_rank", model.context_rank);
  fields.number("num_context_ranks", model.num_context_ranks);
  fields.text("compression", "none");
  fields.text("byte_order", std::endian::native == std::endian::little ? "little" : "big");
  return fields;
}

}  // namespace

class Identity::Hash : public Sha256 {};

namespace {

// Little-endian integers in memory of the stack.
class Bytes {
 public:
  template <typename Integer>
  void add(Integer value) noexcept {
    for (std::size_t i = 0; i < sizeof value; ++i) {
      bytes_[size_++] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
    }
  }
  void add(std::span<const std::byte> bytes) noexcept {
    std::memcpy(bytes_.data() + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
  }
  [[nodiscard]] bool room_for(std::size_t bytes) const noexcept {
    return size_ + bytes <= bytes_.size();
  }
  [[nodiscard]] const std::byte* data() const noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  void clear() noexcept { size_ = 0; }

 private:
  std::array<std::byte, 256> bytes_;
  std::size_t size_ = 0;
};

constexpr std::size_t kMediaFrame = 1 + 32 + 4 + 1 + 4;

// What a unit sees of a span: which media, how long, and where the unit lies in it.
void add_media(Bytes& out, const MediaSpan& span, std::int32_t begin) noexcept {
  out.add(std::uint8_t{'m'});
  out.add(std::span<const std::byte>(span.content_id));
  out.add(static_cast<std::uint32_t>(span.end - span.begin));
  out.add(static_cast<std::uint8_t>(span.attends_to_itself ? 1 : 0));
  out.add(static_cast<std::uint32_t>(begin - span.begin));
}

}  // namespace

Identity::Identity() noexcept = default;
Identity::Identity(Identity&&) noexcept = default;
Identity& Identity::operator=(Identity&&) noexcept = default;
Identity::~Identity() = default;

Result<Identity> Identity::create(const ModelIdentity& model, const CacheSpec& spec) {
  KVFOLIO_RETURN_IF_ERROR(validate(spec));
  KVFOLIO_RETURN_IF_ERROR(check(model, spec.groups));
  Identity identity;
  identity.hash_ = std::make_unique<Hash>();
  if (!identity.hash_->create()) {
    return Status(ErrorCode::kUnavailable, "identity: libcrypto has no SHA-256");
  }
  Hash& hash = *identity.hash_;
  identity.unit_ = unit_of(spec);
  identity.shard_ = static_cast<std::uint16_t>(model.shard);
  identity.num_shards_ = static_cast<std::uint16_t>(model.num_shards);
  const Fields fields = model_fields(model, identity.unit_);
  identity.model_ = hash.begin().add(kModel).add(fields.bytes()).end();
  identity.fields_ = fields.list();
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    const Fields layout =
        layout_fields(model, spec.groups[g], static_cast<std::int32_t>(g), spec.groups.size());
    identity.groups_.push_back(spec.groups[g]);
    identity.layouts_.push_back(
        hash.begin().add(kLayout).add(identity.model_).add(layout.bytes()).end());
    for (const IdentityField& field : layout.list()) {
      identity.fields_.push_back({concat("group ", g, " ", field.name), field.value});
    }
  }
  return identity;
}

Status Identity::check_spec(const CacheSpec& spec) const {
  if (spec.groups.size() != groups_.size()) {
    return invalid(concat("identity: made for ", groups_.size(), " groups, the cache has ",
                          spec.groups.size()));
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    // The fields that the namespace has of a group, made anew; those of the model do not matter.
    const auto index = static_cast<std::int32_t>(g);
    const Fields here = layout_fields({}, spec.groups[g], index, groups_.size());
    const Fields made = layout_fields({}, groups_[g], index, groups_.size());
    for (std::size_t i = 0; i < here.list().size(); ++i) {
      if (here.list()[i] == made.list()[i]) continue;
      return invalid(concat("identity: group ", g, " ", made.list()[i].name, " is \"",
                            made.list()[i].value, "\", that of the cache \"", here.list()[i].value,
                            "\""));
    }
  }
  return {};
}

Status Identity::check_media(std::span<const MediaSpan> media) {
  return kvfolio::check_media("identity", media);
}

Digest Identity::root(const RootKey& root, std::uint64_t epoch) const noexcept {
  hash_->begin().add(kRoot).add(model_);
  struct Field {
    char type;
    std::string_view value;
  };
  const Field fields[] = {
      {'n', root.model}, {'a', root.adapter}, {'v', root.adapter_version}, {'t', root.tenant_salt}};
  for (const auto& [type, value] : fields) {
    if (type == 'a' && mutant(Mutant::kKeyWithoutAdapter)) continue;
    Bytes frame;
    frame.add(static_cast<std::uint8_t>(type));
    frame.add(static_cast<std::uint32_t>(value.size()));
    hash_->add(frame.data(), frame.size()).add(value);
  }
  Bytes epochs;
  epochs.add(std::uint8_t{'e'});
  epochs.add(root.epoch);
  epochs.add(std::uint8_t{'f'});
  epochs.add(mutant(Mutant::kKeyWithoutEpoch) ? std::uint64_t{0} : epoch);
  return hash_->add(epochs.data(), epochs.size()).end();
}

// For 16 tokens without media this hashes 119 bytes, which with their padding fill two blocks of
// SHA-256.
Digest Identity::next(const Digest& before, std::int32_t begin,
                      std::span<const std::int32_t> tokens,
                      std::span<const MediaSpan> media) const noexcept {
  KVFOLIO_DCHECK(begin % unit_ == 0 && !tokens.empty() &&
                 tokens.size() <= static_cast<std::size_t>(unit_));
  Bytes bytes;
  bytes.add(std::as_bytes(std::span(kBlock)));
  bytes.add(std::span<const std::byte>(before));
  bytes.add(static_cast<std::uint32_t>(tokens.size()));
  hash_->begin();
  const auto flush_for = [&](std::size_t more) {
    if (bytes.room_for(more)) return;
    hash_->add(bytes.data(), bytes.size());
    bytes.clear();
  };
  for (const std::int32_t token : tokens) {
    flush_for(sizeof token);
    bytes.add(static_cast<std::uint32_t>(token));
  }
  const std::int32_t end = begin + static_cast<std::int32_t>(tokens.size());
  const std::span<const MediaSpan> within = spans_within(media, begin, end);
  flush_for(sizeof(std::uint32_t));
  bytes.add(static_cast<std::uint32_t>(within.size()));
  for (const MediaSpan& span : within) {
    flush_for(kMediaFrame);
    add_media(bytes, span, begin);
  }
  return hash_->add(bytes.data(), bytes.size()).end();
}

Digest Identity::again(const Digest& tokens, std::uint64_t epoch) const noexcept {
  Bytes bytes;
  bytes.add(std::as_bytes(std::span(kAgain)));
  bytes.add(std::span<const std::byte>(tokens));
  bytes.add(epoch);
  return hash_->begin().add(bytes.data(), bytes.size()).end();
}

TierKey Identity::key(GroupId group, const Digest& tokens) const noexcept {
  return tier_key_of(group, shard_, num_shards_, layout_namespace(group), tokens);
}

}  // namespace kvfolio
