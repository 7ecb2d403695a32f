// SPDX-License-Identifier: Apache-2.0

// Bytes: writing rows of an engine into blocks, reading them back, and the first fill of a new
// cache. GB/s of payload.

#include <algorithm>

#include "family.h"
#include "prompts.h"
#include "storage_fixture.h"

namespace kvfolio::bench {
namespace {

// The time of a call that moves so many bytes, repeated until a quarter of a GiB has gone by.
template <typename Call>
double bytes_per_ns(Session& session, std::int64_t bytes, Call&& call) {
  const int repeats =
      session.quick() ? 1 : std::max(1, static_cast<int>((std::int64_t{256} << 20) / bytes));
  return static_cast<double>(bytes) * repeats / nanoseconds_of([&] {
           for (int i = 0; i < repeats; ++i) call();
         });
}

// The shape of a case. A short run keeps the two sizes apart.
std::int32_t num_tokens(Session& session, std::int32_t full) {
  return session.size(full, full > 256 ? 128 : 64);
}

std::vector<std::pair<std::string, Fact>> facts(std::int32_t tokens, std::int64_t bytes,
                                                Format format, DType dtype) {
  return {{"tokens", std::int64_t{tokens}},
          {"bytes", bytes},
          {"format", to_string(format)},
          {"dtype", to_string(dtype)}};
}

// Why it may be slower than memcpy.
std::string why_slower(Format format) {
  if (format != Format::kHnd) return {};
  return "; the heads of a token lie apart: it moves 512 bytes at a time";
}

void rows(Session& session) {
  if (!session.wants("storage.append") && !session.wants("storage.gather")) return;
  for (const std::int32_t full : {256, 16'384}) {
    const std::int32_t tokens = num_tokens(session, full);
    for (const Format format : {Format::kHnd, Format::kNhd}) {
      const StorageFixture fixture(format, DType::kF32, tokens, kBlockSize);
      fixture.check();
      const auto bytes = static_cast<std::int64_t>(fixture.rows.size());
      const auto rate = [&](auto&& call) { return bytes_per_ns(session, bytes, call); };
      const auto figure = [&](const char* name) {
        return Figure{.name = name,
                      .facts = facts(tokens, bytes, format, DType::kF32),
                      .unit = "GB/s",
                      .lower_is_better = false,
                      .promise = Promise{0.8, 0.9},
                      .promise_is_ratio = true,
                      .note =
                          "8 heads of 128 in K and in V, blocks of 16 in random order; ceiling: "
                          "memcpy of the rows" +
                          why_slower(format)};
      };
      // memcpy writes where append does and reads where gather does: without padding the cache is
      // as large as the rows.
      std::byte* const cache = fixture.cache.k;
      session.measure(
          figure("storage.append"), [&] { return rate([&] { fixture.run_append(); }); },
          [&] {
            return rate([&] {
              std::memcpy(cache, fixture.rows.data(), fixture.rows.size());
              keep(cache);
            });
          });
      fixture.run_append();
      session.measure(
          figure("storage.gather"), [&] { return rate([&] { fixture.run_gather(); }); },
          [&] {
            return rate([&] {
              std::memcpy(fixture.back.data(), cache, fixture.back.size());
              keep(fixture.back.data());
            });
          });
    }
  }
}

// A call for each token, as decode makes it.
void tokens_alone(Session& session) {
  if (!session.wants("storage.append_token")) return;
  for (const std::int32_t full : {256, 32'768}) {
    const std::int32_t tokens = num_tokens(session, full);
    for (const Format format : {Format::kHnd, Format::kNhd}) {
      StorageFixture fixture(format, DType::kF32, tokens, kBlockSize);
      fixture.check_tokens();
      const auto bytes = static_cast<std::int64_t>(fixture.rows.size());
      const auto token_bytes = fixture.rows.size() / static_cast<std::size_t>(tokens);
      session.measure(
          {.name = "storage.append_token",
           .facts = facts(tokens, bytes, format, DType::kF32),
           .unit = "GB/s",
           .lower_is_better = false,
           .note = "8 heads of 128 in K and in V, blocks of 16 in random order; ceiling: memcpy of "
                   "8 KiB a token, in order. Each call checks its view, rows and slot first" +
                   why_slower(format)},
          [&] { return bytes_per_ns(session, bytes, [&] { fixture.run_append_tokens(); }); },
          [&] {
            return bytes_per_ns(session, bytes, [&] {
              for (std::size_t at = 0; at < fixture.rows.size(); at += token_bytes) {
                std::memcpy(fixture.cache.k + at, fixture.rows.data() + at, token_bytes);
              }
              keep(fixture.cache.k);
            });
          });
    }
  }
}

// K and V of one head of one layer, each in its turn, so that the next one is in no cache.
void one_head(Session& session) {
  if (!session.wants("storage.gather_head")) return;
  constexpr std::int32_t kLayers = 4;
  constexpr std::int32_t kHeads = StorageFixture::kHeads;
  const std::int32_t tokens = session.size(8192, 64);
  for (const Format format : {Format::kHnd, Format::kNhd}) {
    const StorageFixture fixture(format, DType::kF32, tokens, kBlockSize, false, kLayers);
    fixture.check_heads();
    // The cache is as large as the rows of its layers.
    const std::size_t head_bytes = fixture.rows.size() / kHeads;
    const auto each_us = [&](auto&& call) {
      return nanoseconds_of([&] {
               for (std::int32_t i = 0; i < kLayers * kHeads; ++i) call(i);
             }) /
             (kLayers * kHeads) / 1000;
    };
    session.measure(
        {.name = "storage.gather_head",
         .facts = facts(tokens, static_cast<std::int64_t>(head_bytes), format, DType::kF32),
         .unit = "us",
         .note = "K and V of one head of 128, of 4 layers of 8 heads in turn, blocks of 16 in "
                 "random order; ceiling: memcpy of as many bytes, out of the same cache"},
        [&] {
          return each_us([&](std::int32_t i) { fixture.gather_head(i / kHeads, i % kHeads); });
        },
        [&] {
          return each_us([&](std::int32_t i) {
            std::memcpy(fixture.back.data(),
                        fixture.cache.k + static_cast<std::size_t>(i) * head_bytes, head_bytes);
            keep(fixture.back.data());
          });
        });
  }
}

// Tiles of 16 tokens, and int8 with its scales. What is quantized is f32 rows: a quarter of them is
// written, so no promise is made against memcpy of all of them.
void tiles(Session& session) {
  if (!session.wants("storage.append_tiles") && !session.wants("storage.gather_tiles")) return;
  for (const std::int32_t full : {256, 16'384}) {
    const std::int32_t tokens = num_tokens(session, full);
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
            .facts = facts(tokens, bytes, Format::kGranule, dtype),
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
    // The first touch of memory that the machine itself has to find belongs to neither side.
    fixture.first_fill();
    session.measure(
        {.name = "storage.first_fill",
         .facts =
             facts(tokens, static_cast<std::int64_t>(fixture.rows.size()), format, DType::kF32),
         .unit = "GB/s",
         .lower_is_better = false,
         .promise = Promise{0.8, 0.95},
         .promise_is_ratio = true,
         .note =
             "create, append, give back; ceiling: memset of a fresh mapping on huge pages. Most "
             "of that is the kernel's clearing of the pages, in another time from run to run; "
             "append reads its rows besides, and goes past the caches, where what was cleared "
             "still lies; plain memcpy into such a mapping is little faster" +
             why_slower(format)},
        [&] { return bytes / nanoseconds_of([&] { fixture.first_fill(); }); },
        [&] { return bytes / nanoseconds_of([&] { fixture.plain_first_fill(); }); });
  }
}

void measure_storage(Session& session) {
  rows(session);
  tokens_alone(session);
  one_head(session);
  tiles(session);
  first_fill(session);
}

}  // namespace

Family storage_family() {
  return {{"storage.append", "storage.gather", "storage.append_token", "storage.gather_head",
           "storage.append_tiles", "storage.gather_tiles", "storage.first_fill"},
          measure_storage};
}

}  // namespace kvfolio::bench
