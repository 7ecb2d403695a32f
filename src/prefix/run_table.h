// SPDX-License-Identifier: Apache-2.0
#pragma once

// RunTable finds a run by a hash: the names of all runs of a tree that are looked up so, five cells
// for four runs at most. The hash stands beside the name, so runs of other hashes are passed by
// without a look at them; who asks compares the rest. It knows neither tokens nor parents.
//
// Open addressing with linear probing; removal shifts back, so there are no tombstones.
// Invariant, see check(): between the home of a run and its cell there is no empty cell.
// Thread safety: none. Nothing allocates after allocate().

#include <cstdint>

#include "kvfolio/fixed_array.h"
#include "kvfolio/prefetch.h"

namespace kvfolio {

class RunTable {
 public:
  static constexpr std::int32_t kNone = -1;

  // False: no memory. Requires: 1 <= max_runs <= 2^29.
  [[nodiscard]] bool allocate(std::int32_t max_runs) noexcept {
    num_cells_ =
        static_cast<std::uint32_t>(max_runs) + static_cast<std::uint32_t>(max_runs) / 4 + 1;
    return cells_.allocate_zeroed(num_cells_);
  }

  // Requires: less than max_runs runs are in.
  void insert(std::int32_t run, std::uint32_t hash) noexcept {
    std::uint32_t at = home(hash);
    while (cells_[at].run != 0) at = next(at);
    cells_[at] = {run + 1, hash};
  }

  // Requires: it is in, under this hash.
  void erase(std::int32_t run, std::uint32_t hash) noexcept {
    std::uint32_t hole = home(hash);
    while (cells_[hole].run != run + 1) hole = next(hole);
    // A run that may stand nearer to its home moves up.
    for (std::uint32_t at = next(hole); cells_[at].run != 0; at = next(at)) {
      if (distance(home(cells_[at].hash), at) >= distance(hole, at)) {
        cells_[hole] = cells_[at];
        hole = at;
      }
    }
    cells_[hole] = {};
  }

  // Asks for the memory that find() reads first.
  void prefetch(std::uint32_t hash) const noexcept { prefetch_to_read(&cells_[home(hash)]); }

  // The first run of this hash for which `is_it` says so, or kNone.
  template <typename IsIt>
  [[nodiscard]] std::int32_t find(std::uint32_t hash, const IsIt& is_it) const noexcept {
    for (std::uint32_t at = home(hash); cells_[at].run != 0; at = next(at)) {
      if (cells_[at].hash == hash && is_it(cells_[at].run - 1)) return cells_[at].run - 1;
    }
    return kNone;
  }

  // Every run that is in can be found. O(max_runs) and more where runs of cells are long.
  [[nodiscard]] bool check() const noexcept {
    for (std::uint32_t at = 0; at < num_cells_; ++at) {
      if (cells_[at].run == 0) continue;
      for (std::uint32_t before = home(cells_[at].hash); before != at; before = next(before)) {
        if (cells_[before].run == 0) return false;
      }
    }
    return true;
  }

  [[nodiscard]] MemoryUse memory() const noexcept { return MemoryUse::whole(cells_.bytes()); }
  // Becomes an equal of `other`. Requires: allocated for as many runs.
  void copy_from(const RunTable& other) noexcept { cells_.copy_from(other.cells_); }

 private:
  struct Cell {
    std::int32_t run;  // + 1; 0: empty
    std::uint32_t hash;
  };

  [[nodiscard]] std::uint32_t home(std::uint32_t hash) const noexcept {
    return static_cast<std::uint32_t>(std::uint64_t{hash} * num_cells_ >> 32);
  }
  [[nodiscard]] std::uint32_t next(std::uint32_t at) const noexcept {
    return at + 1 == num_cells_ ? 0 : at + 1;
  }
  // Steps of next() from one cell to the other.
  [[nodiscard]] std::uint32_t distance(std::uint32_t from, std::uint32_t to) const noexcept {
    return to >= from ? to - from : to + num_cells_ - from;
  }

  FixedArray<Cell> cells_;
  std::uint32_t num_cells_ = 0;
};

}  // namespace kvfolio
