// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/foreign_identity.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

namespace kvfolio {
namespace {

ForeignModel foreign_model() {
  return {.engine = "vllm 0.33 cuda sm90",
          .model = "llama-3-8b",
          .weights = "sha256:1234",
          .model_dtype = "bf16",
          .hash = "sha256_cbor",
          .hash_seed = "none",
          .layout = "bf16 HND 16x8x128 tp2 pp1"};
}

std::array<std::byte, 32> engine_hash() {
  std::array<std::byte, 32> hash{};
  for (std::size_t i = 0; i < hash.size(); ++i) hash[i] = static_cast<std::byte>(i);
  return hash;
}

std::string hex_text(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

TierKey key_with(const ForeignModel& model, std::int32_t group = 0, std::string_view salt = "",
                 std::span<const std::byte> hash = engine_hash()) {
  const Result<ForeignIdentity> names = ForeignIdentity::create(model);
  EXPECT_TRUE(names);
  return names->key(GroupId(group), salt, hash);
}

// What other programs must compute, by Python's hashlib and struct.
TEST(ForeignIdentity, TheNamesAreFixed) {
  ForeignModel model = foreign_model();
  EXPECT_EQ(hex_text(ForeignIdentity::create(model)->model_namespace()),
            "135e624035ea6655366a0aaa180944a93121c3404740132c33d75ce0378b31b7");
  EXPECT_EQ(hex_text(key_with(model).bytes),
            "010000000000010028679d7e5085c4016e53e2447721c32e"
            "a573145c8313f1c9421a8e65016e0828878a971eefecbc5cadf1cfd401fc9b72"
            "00000000000000000000000000000000");
  EXPECT_EQ(hex_text(key_with(model, 0, "alice", {}).bytes),
            "010000000000010028679d7e5085c4016e53e2447721c32e"
            "cc02dd084524f4b7473282c636ce76b18a341d63c18dd3c025fe270dda91fefc"
            "00000000000000000000000000000000");
  model.num_groups = 3;
  model.shard = 1;
  model.num_shards = 2;
  EXPECT_EQ(hex_text(key_with(model, 2, "alice").bytes),
            "0100020001000200b02d2b88e4d699e4745f96f1c205ff99"
            "f59f50485cb1f6171001eb68cabdc483caef3182606fddcae3b6541dc2775fe2"
            "00000000000000000000000000000000");
}

TEST(ForeignIdentity, WhateverDiffersGivesAnotherName) {
  std::set<std::string> names;
  const auto add = [&](const TierKey& key) {
    EXPECT_TRUE(names.insert(hex_text(key.bytes)).second) << names.size();
  };
  const ForeignModel model = foreign_model();
  add(key_with(model));
  for (std::string_view ForeignModel::*field :
       {&ForeignModel::engine, &ForeignModel::model, &ForeignModel::weights,
        &ForeignModel::model_dtype, &ForeignModel::hash, &ForeignModel::hash_seed,
        &ForeignModel::layout, &ForeignModel::scales}) {
    ForeignModel other = model;
    other.*field = "x";
    add(key_with(other));
  }
  ForeignModel two = model;
  two.num_groups = 2;
  add(key_with(two, 0));
  add(key_with(two, 1));
  ForeignModel shards = model;
  shards.num_shards = 2;
  add(key_with(shards));
  shards.shard = 1;
  add(key_with(shards));
  add(key_with(model, 0, "alice"));
  const std::array<std::byte, 32> hash = engine_hash();
  add(key_with(model, 0, "", std::span(hash).first(31)));
  add(key_with(model, 0, "", {}));
  const std::vector<std::byte> longer(100, std::byte{7});  // an engine's hashes may have any length
  add(key_with(model, 0, "", longer));
}

// Each part has its length in front: no byte of one passes for one of another.
TEST(ForeignIdentity, ASaltIsNoPartOfAHash) {
  const std::array<std::byte, 3> abc{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  const ForeignModel model = foreign_model();
  EXPECT_NE(key_with(model, 0, "", abc), key_with(model, 0, "a", std::span(abc).subspan(1)));
  EXPECT_NE(key_with(model, 0, "abc", {}), key_with(model, 0, "", abc));
}

TEST(ForeignIdentity, WhatSaysTooLittleIsRefusedByName) {
  const auto refused = [](const ForeignModel& model) {
    const Result<ForeignIdentity> names = ForeignIdentity::create(model);
    return names ? std::string() : std::string(names.error().message());
  };
  ForeignModel model = foreign_model();
  model.hash_seed = "";
  EXPECT_EQ(refused(model), "foreign identity: hash_seed is empty, and required");
  model = foreign_model();
  model.layout = "";
  EXPECT_EQ(refused(model), "foreign identity: layout is empty, and required");
  model = foreign_model();
  model.num_groups = 0;
  EXPECT_EQ(refused(model), "foreign identity: num_groups is 0, allowed: 1 to 65535");
  model = foreign_model();
  model.shard = 2;
  model.num_shards = 2;
  EXPECT_EQ(refused(model),
            "foreign identity: shard is 2 of 2, allowed: 0 to one below the count, and counts of 1 "
            "to 65535");
  const std::string text(70'000, 'x');
  model = foreign_model();
  model.layout = text;
  EXPECT_EQ(refused(model).substr(0, 30), "foreign identity: 70059 bytes ");
}

}  // namespace
}  // namespace kvfolio
