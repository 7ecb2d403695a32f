// SPDX-License-Identifier: Apache-2.0

// Bytes: writing rows of an engine into blocks, reading them back, and the first fill of a new
// cache. GB/s of payload.

#include <algorithm>

#include "family.h"
#include "prompts.h"
#include "storage_fixture.h"

namespace kvfolio::bench {
namespace {

// Of a call that moves so many bytes, repeated until a quarter of a GiB has gone by.
template <typename Call>
double bytes_per_ns(Session& session, std::int64_t bytes, Call&& call) {
  const int repeats =
      session.quick() ? 1 : std::max(1, static_cast<int>((std::int64_t{256} << 20) / bytes));
  return static_cast<double>(bytes) * repeats / nanoseconds_of([&] {
           for (int i = 0; i < repeats; ++i) call();
         });
}

void rows(Session& session) {
  if (!session.wants("storage.append") && !session.wants("storage.gather")) return;
  for (const std::int32_t full : {256, 16'384}) {
    const std::int32_t tokens = session.size(full, 64);
    for (const Format format : {Format::kHnd, Format::kNhd}) {
      const StorageFixture fixture(format, DType::kF32, tokens, kBlockSize);
      fixture.check();
      const auto bytes = static_cast<std::int64_t>(fixture.rows.size());
      const auto rate = [&](auto&& call) { return bytes_per_ns(session, bytes, call); };
      const auto figure = [&](const char* name, std::optional<Earlier> earlier) {
        return Figure{.name = name,
                      .facts = {{"tokens", std::int64_t{tokens}},
                                {"bytes", bytes},
                                {"format", to_string(format)},
                                {"dtype", "f32"}},
                      .unit = "GB/s",
                      .lower_is_better = false,
                      .promise = Promise{0.8, 0.9},
                      .promise_is_ratio = true,
                      .earlier = std::move(earlier),
                      .note =
                          "8 heads of 128 in K and in V, blocks of 16 in random order; ceiling: "
                          "memcpy of the rows"};
      };
      // memcpy writes where append does and reads where gather does: without padding the cache is
      // as large as the rows.
      std::byte* const cache = fixture.cache.k;
      const bool large = full > 256;
      session.measure(
          figure("storage.append",
                 large ? Earlier{"llama_rs", "8192 tokens, warm, huge pages (memcpy: 24-28)", 9.5,
                                 "GB/s"}
                       : Earlier{"cjc", "1 token, 256-token cache (memcpy: 80.8)", 76.4, "GB/s"}),
          [&] { return rate([&] { fixture.run_append(); }); },
          [&] {
            return rate([&] {
              std::memcpy(cache, fixture.rows.data(), fixture.rows.size());
              keep(cache);
            });
          });
      fixture.run_append();
      session.measure(
          figure(
              "storage.gather",
              large ? Earlier{"cjc", "as_tensor, 256 MiB, kind malloc (memcpy: 20.5)", 18.5, "GB/s"}
                    : Earlier{"cjc", "as_tensor, 2 MiB (memcpy: 63)", 59, "GB/s"}),
          [&] { return rate([&] { fixture.run_gather(); }); },
          [&] {
            return rate([&] {
              std::memcpy(fixture.back.data(), cache, fixture.back.size());
              keep(fixture.back.data());
            });
          });
    }
  }
}

// Tiles of 16 tokens, and int8 with its scales. What is quantized is f32 rows: a quarter of them is
// written, so no promise is made against memcpy of all of them.
void tiles(Session& session) {
  if (!session.wants("storage.append_tiles") && !session.wants("storage.gather_tiles")) return;
  for (const std::int32_t full : {256, 16'384}) {
    const std::int32_t tokens = session.size(full, 64);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
      const StorageFixture fixture(Format::kGranule, dtype, tokens, kBlockSize);
      fixture.check();
      const auto bytes = static_cast<std::int64_t>(fixture.rows.size());
      const auto rate = [&](auto&& call) { return bytes_per_ns(session, bytes, call); };
      const auto copy = [&](std::byte* to, const std::byte* from) {
        return [=, &fixture, &rate] {
          return rate([&] {
            std::memcpy(to, from, fixture.rows.size());
            keep(to);
          });
        };
      };
      const auto figure = [&](const char* name, bool promised) {
        Figure result{
            .name = name,
            .facts = {{"tokens", std::int64_t{tokens}},
                      {"bytes", bytes},
                      {"format", "granule"},
                      {"dtype", to_string(dtype)}},
            .unit = "GB/s",
            .lower_is_better = false,
            .promise_is_ratio = true,
            .note =
                "8 heads of 128 in K and in V, blocks of 16 in random order; bytes of the "
                "rows (f32 for int8); ceiling: memcpy of them"};
        if (promised) result.promise = Promise{0.5, 0.7};
        return result;
      };
      const bool scaled = dtype == DType::kInt8;
      std::byte* const back = fixture.back.data();
      session.measure(
          figure("storage.append_tiles", !scaled),
          [&] { return rate([&] { fixture.run_append(); }); },
          copy(scaled ? back : fixture.cache.k, fixture.rows.data()));
      fixture.run_append();
      session.measure(
          figure("storage.gather_tiles", false),
          [&] { return rate([&] { fixture.run_gather(); }); },
          copy(back, scaled ? fixture.rows.data() : fixture.cache.k));
    }
  }
}

void first_fill(Session& session) {
  if (!session.wants("storage.first_fill")) return;
  const std::int32_t tokens = session.size(16'384, 64);
  for (const Format format : {Format::kHnd, Format::kNhd}) {
    const StorageFixture fixture(format, DType::kF32, tokens, kBlockSize, true);
    fixture.check();
    const auto bytes = static_cast<double>(fixture.rows.size());
    // The first touch of memory that the machine itself has to find is nobody's merit.
    fixture.first_fill();
    session.measure(
        {.name = "storage.first_fill",
         .facts = {{"tokens", std::int64_t{tokens}},
                   {"bytes", static_cast<std::int64_t>(fixture.rows.size())},
                   {"format", to_string(format)},
                   {"dtype", "f32"}},
         .unit = "GB/s",
         .lower_is_better = false,
         .promise = Promise{0.8, 0.95},
         .promise_is_ratio = true,
         .earlier = Earlier{"cjc", "1 token, first fill, kind malloc + huge pages (fill: 27.1)",
                            24.8, "GB/s"},
         .note = "create, append, give back; ceiling: memset of a fresh mapping on huge pages"},
        [&] { return bytes / nanoseconds_of([&] { fixture.first_fill(); }); },
        [&] { return bytes / nanoseconds_of([&] { fixture.plain_first_fill(); }); });
  }
}

void run(Session& session) {
  rows(session);
  tiles(session);
  first_fill(session);
}

}  // namespace

Family storage_family() {
  return {{"storage.append", "storage.gather", "storage.append_tiles", "storage.gather_tiles",
           "storage.first_fill"},
          run};
}

}  // namespace kvfolio::bench
