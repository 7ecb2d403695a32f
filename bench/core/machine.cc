// SPDX-License-Identifier: Apache-2.0

// What the machine can do: copying, filling and reading plain memory, by size. GB/s of payload: a
// copy of n bytes counts n.

#include <algorithm>
#include <cstring>

#include "family.h"

namespace kvfolio::bench {
namespace {

// Vector registers as wide as they come: a ceiling must not be the compiler's. Not under the
// sanitizers: the choice is made before their runtime is up.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
std::uint64_t
sum_of(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[32] = {};
  for (std::size_t i = 0; i + 32 <= count; i += 32) {
    for (std::size_t j = 0; j < 32; ++j) sums[j] += words[i + j];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) sum += part;
  return sum;
}

void measure_machine(Session& session) {
  struct Size {
    const char* text;
    std::int64_t bytes;
  };
  const Size sizes[] = {{"512KiB", std::int64_t{512} << 10},
                        {"8MiB", std::int64_t{8} << 20},
                        {"256MiB", std::int64_t{256} << 20}};
  for (const Size& size : sizes) {
    const std::int64_t bytes =
        session.quick() ? std::min<std::int64_t>(size.bytes, 1 << 20) : size.bytes;
    const Buffer from(bytes);
    const Buffer to(bytes);
    const auto count = from.size() / 8;
    for (std::size_t i = 0; i < count; ++i) std::memcpy(from.data() + i * 8, &i, 8);
    std::memset(to.data(), 0, to.size());
    std::memcpy(to.data(), from.data(), from.size());
    require(std::memcmp(to.data(), from.data(), from.size()) == 0, "memcpy");
    const auto* words = reinterpret_cast<const std::uint64_t*>(from.data());
    require(sum_of(words, count) == std::uint64_t{count} * (count - 1) / 2, "the sum of all words");

    const int repeats = session.quick() ? 1 : static_cast<int>((std::int64_t{512} << 20) / bytes);
    const auto rate = [&](auto&& call) {
      const double taken = nanoseconds_of([&] {
        for (int i = 0; i < repeats; ++i) call();
      });
      return static_cast<double>(bytes) * repeats / taken;
    };
    const auto figure = [&](const char* name) {
      return Figure{
          .name = name, .facts = {{"bytes", size.text}}, .unit = "GB/s", .lower_is_better = false};
    };
    session.measure(figure("machine.memcpy"), [&] {
      return rate([&] {
        std::memcpy(to.data(), from.data(), from.size());
        keep(to.data());
      });
    });
    session.measure(figure("machine.fill"), [&] {
      return rate([&] {
        std::memset(to.data(), 1, to.size());
        keep(to.data());
      });
    });
    session.measure(figure("machine.read"),
                    [&] { return rate([&] { keep(sum_of(words, count)); }); });
  }
}

}  // namespace

Family machine_family() {
  return {{"machine.memcpy", "machine.fill", "machine.read"}, measure_machine};
}

}  // namespace kvfolio::bench
