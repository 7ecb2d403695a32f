// SPDX-License-Identifier: Apache-2.0

// One sequence without a manager: rows of doubles, one vector for each token, in a store of 64
// tokens that is cleared and refilled. Store and row lie in the second-level cache.

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "family.h"
#include "kvfolio/token_store.h"

namespace kvfolio::bench {
namespace {

constexpr std::int32_t kTokens = 64;

// A store, and the plain array that stands beside it.
struct Fixture {
  explicit Fixture(std::int32_t dim_in)
      : dim(static_cast<std::size_t>(dim_in)),
        store(take(
            TokenStore::create({.head_dim_k = dim_in, .dtype = DType::kF64, .max_tokens = kTokens}),
            "a token store")),
        memory(kTokens * std::int64_t{dim_in} * 8),
        array(reinterpret_cast<double*>(memory.data()), kTokens * dim),
        row(dim) {}

  // Rows that differ come back as they went in, in all ways that are timed.
  void check() {
    std::vector<double> rows(array.size());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<double>(i);
    for (int round = 0; round < 2; ++round) {
      store.clear();
      for (std::int32_t i = 0; i < kTokens; ++i) {
        require(store.append(row_of(rows, i)), "append");
      }
    }
    require(!store.append(row_of(rows, 0)), "a full store takes nothing");
    for (std::int32_t i = 0; i < kTokens; ++i) {
      const std::span<const double> expected = row_of(rows, i);
      const std::span<const double> there = take(store.at<double>(i), "at");
      require(std::equal(there.begin(), there.end(), expected.begin(), expected.end()), "at");
      require(store.read(i, row), "read");
      require(std::equal(row.begin(), row.end(), expected.begin(), expected.end()), "read");
    }
    std::copy(rows.begin(), rows.end(), array.begin());
  }

  [[nodiscard]] std::span<const double> row_of(std::span<const double> rows, std::int32_t i) const {
    return {rows.data() + static_cast<std::size_t>(i) * dim, dim};
  }
  [[nodiscard]] std::size_t bytes() const { return dim * sizeof(double); }

  std::size_t dim;
  TokenStore store;
  Buffer memory;            // aligned as the store's is
  std::span<double> array;  // [kTokens, dim]
  std::vector<double> row;
};

// Nanoseconds of one call, of `repeats` rounds of one for each token.
template <typename Begin, typename Call>
double each_ns(int repeats, Begin&& begin, Call&& call) {
  return nanoseconds_of([&] {
           for (int repeat = 0; repeat < repeats; ++repeat) {
             begin();
             for (std::int32_t i = 0; i < kTokens; ++i) call(i);
           }
         }) /
         (static_cast<double>(repeats) * kTokens);
}

void appends(Session& session, Fixture& fixture, const Promise& promise, int repeats) {
  bool ok = true;
  session.measure(
      {.name = "token_store.append",
       .facts = {{"dim", static_cast<std::int64_t>(fixture.dim)}},
       .promise = promise,
       .promise_is_ratio = true,
       .note = "one row of f64 a call, the same one; ceiling: memcpy of the row to its place in a "
               "plain array"},
      [&] {
        return each_ns(
            repeats, [&] { fixture.store.clear(); },
            [&](std::int32_t) {
              keep(fixture.row.data());
              ok &= fixture.store.append(fixture.row).ok();
            });
      },
      [&] {
        return each_ns(
            repeats, [] {},
            [&](std::int32_t i) {
              keep(fixture.row.data());
              std::memcpy(fixture.array.data() + static_cast<std::size_t>(i) * fixture.dim,
                          fixture.row.data(), fixture.bytes());
            });
      });
  require(ok && fixture.store.size() == kTokens, "each append took its row");
}

void reads(Session& session, Fixture& fixture, int repeats) {
  bool ok = true;
  const auto nothing = [] {};
  // Both ends of a row, so that its address is needed and its length too.
  const auto touch = [](std::span<const double> row) {
    keep(std::bit_cast<std::uint64_t>(row.front() + row.back()));
  };
  session.measure(
      {.name = "token_store.read",
       .facts = {{"dim", static_cast<std::int64_t>(fixture.dim)}, {"by", "at"}},
       .promise = Promise{0.25, 0.5},
       .promise_is_ratio = true,
       .note = "a row of f64 in place, its first and its last element are read; ceiling: the same "
               "of a plain array"},
      [&] {
        return each_ns(repeats, nothing, [&](std::int32_t i) {
          keep(&fixture.store);
          const Result<std::span<const double>> row = fixture.store.at<double>(i);
          ok &= row.has_value();
          if (row) touch(*row);
        });
      },
      [&] {
        return each_ns(repeats, nothing, [&](std::int32_t i) {
          keep(fixture.memory.data());
          touch(fixture.row_of(fixture.array, i));
        });
      });
  session.measure(
      {.name = "token_store.read",
       .facts = {{"dim", static_cast<std::int64_t>(fixture.dim)}, {"by", "copy"}},
       .note = "a row of f64 to memory of the caller; ceiling: memcpy of it from a plain array"},
      [&] {
        return each_ns(repeats, nothing, [&](std::int32_t i) {
          keep(&fixture.store);
          ok &= fixture.store.read(i, fixture.row).ok();
          keep(fixture.row.data());
        });
      },
      [&] {
        return each_ns(repeats, nothing, [&](std::int32_t i) {
          keep(fixture.memory.data());
          std::memcpy(fixture.row.data(), fixture.row_of(fixture.array, i).data(), fixture.bytes());
          keep(fixture.row.data());
        });
      });
  require(ok, "each read gave a row");
}

void measure_token_store(Session& session) {
  struct Case {
    std::int32_t dim;
    Promise append;
  };
  for (const auto& [dim, append] :
       {Case{8, {0.3, 0.6}}, Case{64, {0.5, 0.8}}, Case{1024, {0.8, 1}}}) {
    Fixture fixture(dim);
    fixture.check();
    const int repeats = session.quick() ? 1 : 2'000;
    if (session.wants("token_store.append")) appends(session, fixture, append, repeats);
    if (session.wants("token_store.read")) reads(session, fixture, repeats);
  }
}

}  // namespace

Family token_store_family() {
  return {{"token_store.append", "token_store.read"}, measure_token_store};
}

}  // namespace kvfolio::bench
