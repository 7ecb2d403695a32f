// SPDX-License-Identifier: Apache-2.0
#pragma once

// Children finds the child of a run that a query goes on with. It compares tokens and media; it
// knows neither blocks nor entries.
//
// Two structures hold the same children:
//   - one hash table for the whole tree, keyed by the path up to the end of a run's first unit, for
//     an exact next unit (run_table.h). Such a key needs the query alone, so those of several units
//     can be looked for at once (look_ahead()), and no split changes it. The roots are in it too,
//     under the hashes of their keys.
//   - a treap per run, ordered position by position by (token, medium), for the neighbour that
//     shares most with a query inside the unit. Priorities are hashes of the run's name, so the
//     shape does not depend on the order of insertion and no prompt can steer it.
// Invariants, see check_run(): a run is in the table if it has a unit of tokens or is a root; no
// sibling is a prefix of another, so any two differ inside their first unit and comparing never
// goes deeper than that. Thread safety: none; const calls write nothing. Nothing allocates after
// allocate().

#include <cstdint>
#include <span>

#include "kvfolio/root_key.h"
#include "prefix/media_extents.h"
#include "prefix/run_store.h"
#include "prefix/run_table.h"

namespace kvfolio {

class Children {
 public:
  static constexpr std::int32_t kNone = -1;

  struct Neighbours {
    std::int32_t best = kNone;  // the child that shares most
    std::int32_t common = 0;
  };

  // Both outlive the object.
  Children(RunStore& runs, const MediaExtents& media) noexcept : runs_(runs), media_(media) {}
  // False: no memory. `unit`: tokens.
  [[nodiscard]] bool allocate(std::int32_t max_runs, std::int32_t unit,
                              std::uint64_t seed) noexcept;

  // ---- comparing and hashing ----

  [[nodiscard]] static std::int32_t same_tokens(const std::int32_t* a, const std::int32_t* b,
                                                std::int32_t n) noexcept;
  // Tokens of the run from position `at` on that equal the query's.
  [[nodiscard]] std::int32_t common_prefix(std::int32_t r, std::int32_t at,
                                           std::span<const std::int32_t> tokens,
                                           std::span<const MediaSpan> media) const noexcept;
  // The hash of a path one unit on, from its hash up to position `at`: of a query's tokens.
  [[nodiscard]] std::uint32_t next_hash(std::uint32_t chain, std::int32_t at,
                                        const std::int32_t* tokens,
                                        std::span<const MediaSpan> media) const noexcept;
  // Hashes of the path up to the end of a run's first unit, and of its last whole one.
  [[nodiscard]] std::uint32_t first_hash(std::int32_t r) const noexcept;
  [[nodiscard]] std::uint32_t chain_of(std::int32_t r) const noexcept;

  // ---- the table ----

  // Under run(r).hash. Requires: it is not there.
  void index(std::int32_t r) noexcept;
  void unindex(std::int32_t r) noexcept;  // if it is there
  void prefetch(std::uint32_t hash) const noexcept { table_.prefetch(hash); }
  template <typename IsIt>
  [[nodiscard]] std::int32_t find_by_hash(std::uint32_t hash, const IsIt& is_it) const noexcept {
    return table_.find(hash, is_it);
  }
  // The child whose first unit is the query's, or kNone. `hash`: next_hash() of the query at the
  // parent's end, where that is known. Requires: the query has a unit of tokens.
  [[nodiscard]] std::int32_t find(std::int32_t parent, std::span<const std::int32_t> tokens,
                                  std::span<const MediaSpan> media,
                                  const std::uint32_t* hash = nullptr) const noexcept;

  // ---- the order ----

  // The child that shares most with the query, if some shares a token.
  [[nodiscard]] Neighbours nearest(std::int32_t parent, std::span<const std::int32_t> tokens,
                                   std::span<const MediaSpan> media) const noexcept;
  // `tokens` and `media` are the run's. Requires: no sibling begins with them, nor they with one.
  void insert(std::int32_t parent, std::int32_t r, std::span<const std::int32_t> tokens,
              std::span<const MediaSpan> media) noexcept;
  void remove(std::int32_t r) noexcept;
  // A fresh run takes the place of another one among its siblings.
  void replace(std::int32_t old_run, std::int32_t new_run) noexcept;
  // The first child of a run, and the sibling behind or in front of another; kNone: there is none.
  [[nodiscard]] std::int32_t first(std::int32_t parent) const noexcept;
  [[nodiscard]] std::int32_t next(std::int32_t r) const noexcept;
  [[nodiscard]] std::int32_t before(std::int32_t r) const noexcept;

  // Becomes an equal of `other`; the runs are copied apart. Requires: allocated alike.
  void copy_from(const Children& other) noexcept;
  // ok, or which rule a run breaks as a child and as a parent.
  [[nodiscard]] Status check_run(std::int32_t r) const;

  [[nodiscard]] MemoryUse memory() const noexcept { return table_.memory(); }

 private:
  struct Compared {
    std::int32_t common;  // positions on which both agree
    std::int32_t order;   // < 0: the query comes first
  };

  [[nodiscard]] Run& run(std::int32_t r) noexcept { return runs_.run(r); }
  [[nodiscard]] const Run& run(std::int32_t r) const noexcept {
    return static_cast<const RunStore&>(runs_).run(r);
  }
  [[nodiscard]] Compared compare(std::int32_t r, std::span<const std::int32_t> tokens,
                                 std::span<const MediaSpan> media) const noexcept;
  // The same of a run. `extent`: its first that ends behind `at`, which moves on with it.
  [[nodiscard]] std::uint32_t next_hash(std::uint32_t chain, std::int32_t at, std::int32_t r,
                                        std::int32_t& extent) const noexcept;
  [[nodiscard]] std::uint64_t seed_of(std::uint32_t chain) const noexcept;
  void rotate_up(std::int32_t r) noexcept;
  [[nodiscard]] Status check_order(std::int32_t parent) const;

  RunStore& runs_;
  const MediaExtents& media_;
  RunTable table_;
  std::int32_t unit_ = 1;
  std::uint64_t seed_ = 0;
};

}  // namespace kvfolio
