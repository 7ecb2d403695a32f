// SPDX-License-Identifier: Apache-2.0
#include "offload/epochs.h"

#include <gtest/gtest.h>

#include <vector>

#include "offload/offload_test_cache.h"

namespace kvfolio {
namespace {

const Identity& toy() {
  static const Identity identity = *Identity::create(test::toy_of(test::full(4)), test::full(4));
  return identity;
}

TEST(Epochs, WhatIsForgottenHasAnotherNameAndTheRestKeepsTheirs) {
  Epochs epochs(toy(), 3, {});
  const RootKey a{.tenant_salt = "a"}, b{.tenant_salt = "b"};
  const Digest before = epochs.root(a), other = epochs.root(b);
  const Digest tokens = toy().next(before, 0, test::prompt_of(1, 8));
  EXPECT_EQ(epochs.prefix(tokens), tokens);
  EXPECT_TRUE(epochs.forget_root(a));
  EXPECT_NE(epochs.root(a), before);
  EXPECT_EQ(epochs.root(b), other);
  EXPECT_TRUE(epochs.forget_prefix(tokens));
  const Digest once = epochs.prefix(tokens);
  EXPECT_NE(once, tokens);
  EXPECT_TRUE(epochs.forget_prefix(tokens));
  EXPECT_NE(epochs.prefix(tokens), once) << "forgotten again, named again";
  EXPECT_EQ(epochs.newest(), 6u);
  EXPECT_TRUE(epochs.check().ok());
  epochs.forget_all();
  EXPECT_EQ(epochs.prefix(tokens), tokens);
  EXPECT_NE(epochs.root(b), other);
  EXPECT_EQ(epochs.newest(), 7u);
  EXPECT_TRUE(epochs.check().ok());
}

TEST(Epochs, TheListMakesTheSameNamesInTheNextProcess) {
  Epochs epochs(toy(), 0, {});
  const RootKey roots[] = {{.tenant_salt = "a"}, {.tenant_salt = "b"}, {.tenant_salt = "c"}};
  for (const RootKey& root : {roots[0], roots[1], roots[0]}) EXPECT_TRUE(epochs.forget_root(root));
  const NameEpochs list = epochs.list();
  EXPECT_EQ(list.roots.size(), 2u);
  const Epochs next(toy(), list.epoch, list.roots);
  for (const RootKey& root : roots) EXPECT_EQ(next.root(root), epochs.root(root));
  EXPECT_EQ(next.newest(), epochs.newest());
  // Whatever the host kept beside it: an older epoch brings no older name back.
  std::vector<RootEpoch> more = list.roots;
  more.push_back({list.roots[0].root, 1});
  const Epochs same(toy(), list.epoch, more);
  for (const RootKey& root : roots) EXPECT_EQ(same.root(root), epochs.root(root));
  EXPECT_TRUE(same.check().ok());
}

TEST(Epochs, WithoutRoomForOneMoreAllIsForgotten) {
  std::vector<RootEpoch> full(Offload::kRootEpochsMax);
  for (std::size_t i = 0; i < full.size(); ++i) {
    full[i].root[0] = std::byte(i & 255);
    full[i].root[1] = std::byte(i >> 8);
    full[i].epoch = 2;
  }
  Epochs epochs(toy(), 1, full);
  EXPECT_TRUE(epochs.check().ok());
  EXPECT_TRUE(epochs.forget_prefix(full[7].root)) << "it has a place already";
  const Digest before = epochs.root({});
  EXPECT_FALSE(epochs.forget_root({.tenant_salt = "new"}));
  EXPECT_TRUE(epochs.list().roots.empty());
  EXPECT_NE(epochs.root({}), before);
  EXPECT_TRUE(epochs.check().ok());
}

}  // namespace
}  // namespace kvfolio
