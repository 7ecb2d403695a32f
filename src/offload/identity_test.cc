// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

const ModelIdentity kToy = {.model = "toy",
                            .weights = "sha256:00",
                            .tokenizer = "bytes",
                            .model_dtype = "f32",
                            .positions = "rope 10000",
                            .engine = "example 1"};

CacheSpec toy_spec() {
  return {.groups = {{.num_layers = 2,
                      .num_kv_heads = 2,
                      .head_dim_k = 8,
                      .head_dim_v = 8,
                      .block_size = 16,
                      .num_blocks = 4}}};
}

Identity made(const ModelIdentity& model = kToy, const CacheSpec& spec = toy_spec()) {
  auto identity = Identity::create(model, spec);
  EXPECT_TRUE(identity) << identity.error();
  return *std::move(identity);
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<int>(byte) >> 4];
    text += kDigits[std::to_integer<int>(byte) & 15];
  }
  return text;
}

std::vector<std::int32_t> count_up(std::int32_t n) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// The names stand in files and servers of our users: a change of these numbers is a change of the
// format. tests/tiers/identity_vectors.py computes them from the description in identity.h.
TEST(Identity, NamesAreThoseOfTheFirstVersion) {
  const Identity identity = made();
  EXPECT_EQ(hex(identity.model_namespace()),
            "04b0412bb6281f61a354f2bab7f482d44f6aa696dba4ee213cea2ddae2db4b2c");
  EXPECT_EQ(hex(identity.layout_namespace(GroupId(0))),
            "1135b7bdd1302535be00946e0f2b99d209fdbfa9578ce1f5989f01a26a1f0f65");
  const Digest root = identity.root({.tenant_salt = "tenant"}, 0);
  EXPECT_EQ(hex(root), "46b947de4cbb241b64c7b6da302dd2dc479f09cf6d1b37c8a1ad3171e2c5a73d");
  const Digest first = identity.next(root, 0, count_up(16));
  EXPECT_EQ(hex(first), "90d3d54f773290d8c4516959e6656bbf933f770d2cceec9a9b550ca9f5b21b6d");
  MediaSpan span{.begin = 18, .end = 40, .attends_to_itself = true};
  for (std::size_t i = 0; i < 32; ++i) span.content_id[i] = static_cast<std::byte>(i);
  const std::int32_t tokens[] = {7, 8, 9};
  const Digest second = identity.next(first, 16, tokens, std::span(&span, 1));
  EXPECT_EQ(hex(second), "3ac4ef65091f02b3f714936911978fe56fe681cd43415d924c2efe8293a439e6");
  EXPECT_EQ(hex(identity.key(GroupId(0), second).bytes),
            "01000000000001001135b7bdd1302535be00946e0f2b99d2"
            "3ac4ef65091f02b3f714936911978fe56fe681cd43415d924c2efe8293a439e6"
            "00000000000000000000000000000000");
}

TEST(Identity, AnEmptyRequiredFieldIsRefusedByItsName) {
  using Field = std::string_view ModelIdentity::*;
  const std::pair<Field, const char*> required[] = {
      {&ModelIdentity::model, "model is empty"},
      {&ModelIdentity::weights, "weights is empty"},
      {&ModelIdentity::tokenizer, "tokenizer is empty"},
      {&ModelIdentity::model_dtype, "model_dtype is empty"},
      {&ModelIdentity::positions, "positions is empty"},
      {&ModelIdentity::engine, "engine is empty"}};
  for (const auto& [field, message] : required) {
    ModelIdentity model = kToy;
    model.*field = {};
    const auto identity = Identity::create(model, toy_spec());
    ASSERT_FALSE(identity) << message;
    EXPECT_EQ(identity.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(identity.error().message(), HasSubstr(message));
  }
  CacheSpec two = toy_spec();
  two.groups.push_back(two.groups[0]);
  const auto identity = Identity::create(kToy, two);
  ASSERT_FALSE(identity);
  EXPECT_THAT(identity.error().message(), HasSubstr("layers is empty"));
  ModelIdentity ranks = kToy;
  ranks.shard = 2;
  ranks.num_shards = 2;
  EXPECT_THAT(Identity::create(ranks, toy_spec()).error().message(), HasSubstr("shard is 2 of 2"));
}

// Each of these alone makes other names, and no two of them the same.
TEST(Identity, EachFieldOfModelAndLayoutMakesAnotherNamespace) {
  using Change = std::function<void(ModelIdentity&, GroupSpec&)>;
  const std::vector<Change> model_changes = {
      [](auto& model, auto&) { model.model = "toy2"; },
      [](auto& model, auto&) { model.weights = "sha256:01"; },
      [](auto& model, auto&) { model.tokenizer = "bytes2"; },
      [](auto& model, auto&) { model.model_dtype = "bf16"; },
      [](auto& model, auto&) { model.positions = "rope 20000"; },
      [](auto&, auto& group) { group.block_size = 32; },  // the unit, too
  };
  const std::vector<Change> layout_changes = {
      [](auto& model, auto&) { model.engine = "example 2"; },
      [](auto& model, auto&) { model.layers = "0-1"; },
      [](auto& model, auto&) { model.scales = "1"; },
      [](auto& model, auto&) { model.num_shards = 2; },
      [](auto& model, auto&) { model.shard = 1, model.num_shards = 2; },
      [](auto& model, auto&) { model.num_pipeline_ranks = 2; },
      [](auto& model, auto&) { model.pipeline_rank = 1, model.num_pipeline_ranks = 2; },
      [](auto& model, auto&) { model.num_context_ranks = 2; },
      [](auto& model, auto&) { model.context_rank = 1, model.num_context_ranks = 2; },
      [](auto&, auto& group) { group.num_layers = 3; },
      [](auto&, auto& group) { group.num_kv_heads = 4; },
      [](auto&, auto& group) { group.head_dim_k = 16; },
      [](auto&, auto& group) { group.head_dim_v = 16; },
      [](auto&, auto& group) { group.v_is_prefix_of_k = true; },
      [](auto&, auto& group) { group.dtype = DType::kF16; },
      [](auto&, auto& group) { group.dtype = DType::kInt8; },
      [](auto&, auto& group) { group.dtype = DType::kE4M3; },
      [](auto&, auto& group) { group.dtype = DType::kOpaque; },
      [](auto&, auto& group) { group.format = Format::kNhd; },
      [](auto&, auto& group) { group.format = Format::kGranule; },
      [](auto&, auto& group) { group.kind = AttentionKind::kSlidingWindow, group.window = 8; },
      [](auto&, auto& group) { group.kind = AttentionKind::kSlidingWindow, group.window = 9; },
      [](auto&, auto& group) {
        group.kind = AttentionKind::kSlidingWindow, group.window = 8, group.num_sinks = 1;
      }};
  const Identity toy = made();
  std::set<Digest> models = {toy.model_namespace()};
  std::set<Digest> layouts = {toy.layout_namespace(GroupId(0))};
  std::set<std::string> keys = {hex(toy.key(GroupId(0), Digest{}).bytes)};
  const auto changed = [&](const Change& change, bool of_model) {
    ModelIdentity model = kToy;
    CacheSpec spec = toy_spec();
    change(model, spec.groups[0]);
    const Identity identity = made(model, spec);
    EXPECT_EQ(models.insert(identity.model_namespace()).second, of_model);
    EXPECT_TRUE(layouts.insert(identity.layout_namespace(GroupId(0))).second);
    EXPECT_TRUE(keys.insert(hex(identity.key(GroupId(0), Digest{}).bytes)).second);
    EXPECT_FALSE(std::equal(identity.fields().begin(), identity.fields().end(),
                            toy.fields().begin(), toy.fields().end()));
  };
  for (const Change& change : model_changes) changed(change, true);
  for (const Change& change : layout_changes) changed(change, false);
}

TEST(Identity, LayersAreThoseOfTheGroupsOrRefused) {
  CacheSpec two = toy_spec();  // 2 layers
  two.groups.push_back(two.groups[0]);
  two.groups[1].num_layers = 3;
  const auto error = [&](std::string_view layers) {
    ModelIdentity model = kToy;
    model.layers = layers;
    const auto identity = Identity::create(model, two);
    if (identity) return std::string("ok");
    EXPECT_EQ(identity.error().code(), ErrorCode::kInvalidArgument);
    return std::string(identity.error().message());
  };
  for (const char* good : {"0-1;2-4", "0,1;2-3,7", "1-4/2;0-4/2", "5,3;65535,0-1", "0-1;0-2"}) {
    EXPECT_EQ(error(good), "ok") << good;
  }
  EXPECT_EQ(error("garbage"), "identity: layers is \"garbage\": layers of 1 group, the spec has 2");
  EXPECT_THAT(error("garbage;2-4"), HasSubstr("group 0 has \"garbage\", allowed: layers of 0 to"));
  for (const char* bad : {";2-4", "0-1;", "0-1;2-4;5", "0-1,;2-4", "0,,1;2-4", " 0-1;2-4",
                          "1-0;2-4", "0-1;2-6/0", "0/1,1;2-4", "0-1;-2-0", "0-1;2-65536",
                          "+0,1;2-4", "0-1;2-4-6", "0-1;2-99999999999", "a-b;2-4"}) {
    EXPECT_THAT(error(bad), HasSubstr(": ")) << bad;
    EXPECT_NE(error(bad), "ok") << bad;
  }
  EXPECT_THAT(error("0-2;2-4"), HasSubstr("group 0 has 3 layers there, its num_layers is 2"));
  EXPECT_THAT(error("0-1;2,3,2"), HasSubstr("group 1 has layer 2 twice"));
}

TEST(Identity, TheSizeOfThePoolIsNoPartOfIt) {
  CacheSpec larger = toy_spec();
  larger.groups[0].num_blocks = 1000;
  EXPECT_EQ(made().layout_namespace(GroupId(0)), made(kToy, larger).layout_namespace(GroupId(0)));
}

TEST(Identity, GroupsAreApart) {
  ModelIdentity model = kToy;
  model.layers = "0-1;2-3";
  CacheSpec two = toy_spec();
  two.groups.push_back(two.groups[0]);
  const Identity identity = made(model, two);
  EXPECT_NE(identity.layout_namespace(GroupId(0)), identity.layout_namespace(GroupId(1)));
  EXPECT_NE(identity.key(GroupId(0), Digest{}), identity.key(GroupId(1), Digest{}));
}

// Also where one field takes over what another one loses: fields are typed and framed.
TEST(Identity, EachFieldOfTheRootKeyMakesAnotherRoot) {
  const Identity identity = made();
  const RootKey keys[] = {{},
                          {.model = "a"},
                          {.adapter = "a"},
                          {.adapter_version = "a"},
                          {.tenant_salt = "a"},
                          {.adapter = "ab"},
                          {.adapter = "a", .adapter_version = "b"},
                          {.adapter_version = "ab"},
                          {.epoch = 1}};
  std::set<Digest> roots;
  for (const RootKey& key : keys) {
    EXPECT_TRUE(roots.insert(identity.root(key, 0)).second);
    EXPECT_TRUE(roots.insert(identity.root(key, 1)).second);
    EXPECT_EQ(identity.root(key, 1), made().root(key, 1));
  }
}

TEST(Identity, EachTokenItsPlaceAndTheMediaCount) {
  const Identity identity = made();
  const Digest root = identity.root({}, 0);
  std::set<Digest> seen;
  std::vector<std::int32_t> tokens = count_up(16);
  EXPECT_TRUE(seen.insert(identity.next(root, 0, tokens)).second);
  for (std::int32_t& token : tokens) {
    token += 1000;
    EXPECT_TRUE(seen.insert(identity.next(root, 0, tokens)).second);
    token -= 1000;
  }
  for (std::size_t n = 1; n < 16; ++n) {
    EXPECT_TRUE(seen.insert(identity.next(root, 0, std::span(tokens).first(n))).second);
  }
  EXPECT_TRUE(seen.insert(identity.next(identity.next(root, 0, tokens), 16, tokens)).second);
  const MediaSpan spans[] = {{.begin = 0, .end = 4},
                             {.begin = 0, .end = 5},
                             {.begin = 1, .end = 5},
                             {.begin = 0, .end = 4, .attends_to_itself = true},
                             {.begin = 0, .end = 4, .content_id = {std::byte{1}}}};
  for (const MediaSpan& span : spans) {
    EXPECT_TRUE(seen.insert(identity.next(root, 0, tokens, std::span(&span, 1))).second);
  }
  const MediaSpan elsewhere{.begin = 16, .end = 20, .content_id = {std::byte{1}}};
  EXPECT_EQ(identity.next(root, 0, tokens, std::span(&elsewhere, 1)),
            identity.next(root, 0, tokens));
}

// Looked at one by one for each unit these were 10^11 spans: minutes, where the time of the test
// ends.
TEST(Identity, SpansThatLieElsewhereCostNothing) {
  const Identity identity = made();
  constexpr std::int32_t kSpans = 1 << 21;
  std::vector<MediaSpan> media(kSpans);
  for (std::int32_t i = 0; i < kSpans; ++i) {
    media[std::size_t(i)] = {.begin = i, .end = i + 1, .content_id = {std::byte{1}}};
  }
  const std::vector<std::int32_t> tokens = count_up(16);
  Digest hash = identity.root({}, 0);
  Digest alone = hash;
  for (std::int32_t unit = 0; unit < (1 << 17); ++unit) {
    const std::int32_t begin = unit % (kSpans / 16) * 16;
    hash = identity.next(hash, begin, tokens, media);
    if (unit >= 100) continue;
    alone = identity.next(alone, begin, tokens, std::span(media).subspan(std::size_t(begin), 16));
    ASSERT_EQ(alone, hash);
  }
}

TEST(Identity, MediaAreCheckedAsOpenChecksThem) {
  const std::array<std::byte, 32> id = {std::byte{1}};
  EXPECT_TRUE(Identity::check_media({}).ok());
  const MediaSpan good[] = {{.begin = 0, .end = 4, .content_id = id},
                            {.begin = 4, .end = 5, .content_id = id}};
  EXPECT_TRUE(Identity::check_media(good).ok());
  const MediaSpan turned[] = {good[1], good[0]};
  EXPECT_EQ(
      Identity::check_media(turned).message(),
      "identity: media span 1 is [0, 4), allowed: not empty, ascending, disjoint, within 0 to "
      "1073741824");
  const MediaSpan bare[] = {good[0], {.begin = 4, .end = 5}};
  EXPECT_EQ(Identity::check_media(bare).message(),
            "identity: media span 1 has a content_id of zeros, allowed: a digest of its content");
}

// A unit of 1024 tokens and many spans are longer than what is gathered before it is hashed.
TEST(Identity, LongUnitsAndManySpansCountToo) {
  CacheSpec spec = toy_spec();
  spec.groups[0].block_size = 1024;
  const Identity identity = made(kToy, spec);
  std::vector<std::int32_t> tokens = count_up(1024);
  std::vector<MediaSpan> media;
  media.reserve(100);
  for (std::int32_t i = 0; i < 100; ++i) media.push_back({.begin = 10 * i, .end = 10 * i + 7});
  std::set<Digest> seen = {identity.next(Digest{}, 0, tokens, media)};
  for (std::size_t i = 0; i < tokens.size(); i += 97) {
    tokens[i] += 1000;
    EXPECT_TRUE(seen.insert(identity.next(Digest{}, 0, tokens, media)).second);
    tokens[i] -= 1000;
  }
  for (MediaSpan& span : media) {
    span.content_id[31] = std::byte{1};
    EXPECT_TRUE(seen.insert(identity.next(Digest{}, 0, tokens, media)).second);
    span.content_id[31] = std::byte{0};
  }
}

}  // namespace
}  // namespace kvfolio
