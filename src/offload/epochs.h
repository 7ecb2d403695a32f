// SPDX-License-Identifier: Apache-2.0
#pragma once

// Epochs says under which names things are stored, after what was forgotten. A root key that was
// forgotten has an epoch in its own hash. A prefix that was forgotten has one at the end of its
// last whole unit: the hash there is replaced by a hash of it and the epoch, so all that begins
// with these tokens has other names, and the root's other prefixes keep theirs.
//
// Both are entries of one list, by a digest: of the root under epoch 0, or of the prefix as it
// would be without this entry. The two are hashed under different tags, so none is taken for
// another.
//
// Invariant: base < each entry <= newest; at most Offload::kRootEpochsMax. Thread safety: none.

#include <cstdint>
#include <span>
#include <unordered_map>

#include "kvfolio/identity.h"
#include "kvfolio/offload.h"
#include "offload/digest_hash.h"

namespace kvfolio {

class Epochs {
 public:
  // `identity` outlives this. Entries that are not above `base` are left out.
  Epochs(const Identity& identity, std::uint64_t base, std::span<const RootEpoch> entries);

  [[nodiscard]] std::uint64_t newest() const noexcept { return newest_; }
  // The hash of no tokens under a root, with its epoch.
  [[nodiscard]] Digest root(const RootKey& root) const;
  // The hash of a prefix that ends with a whole unit, given what Identity::next() says.
  [[nodiscard]] Digest prefix(const Digest& hash) const;
  [[nodiscard]] NameEpochs list() const;

  // False: there is no room for an entry more, and everything was forgotten.
  bool forget_root(const RootKey& root);
  bool forget_prefix(const Digest& hash);  // as Identity::next() says
  void forget_all() noexcept;

  [[nodiscard]] Status check() const;

 private:
  bool forget(const Digest& digest);

  const Identity& identity_;
  std::uint64_t base_ = 0, newest_ = 0;
  std::unordered_map<Digest, std::uint64_t, DigestHash> entries_;
};

}  // namespace kvfolio
