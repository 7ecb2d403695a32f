// SPDX-License-Identifier: Apache-2.0
#pragma once

// Time, secrets and records, as the calls of tiers have them. Python says seconds, the library
// microseconds of one clock, the steady one.

#include <cstdint>
#include <limits>

#include "bindings.h"
#include "kvfolio/record.h"

namespace kvfolio::python {

// How long a wait sleeps at a time where there is no descriptor to wait for.
inline constexpr std::uint64_t kNapUs = 1'000;

std::uint64_t now_us();
// InvalidArgument: negative, or no number. What is beyond a hundred years is that.
std::uint64_t us_of(double seconds, const char* name);

// A moment until which a call waits.
class Until {
 public:
  // From now on; None: for ever.
  Until(nb::handle timeout, const char* name);

  [[nodiscard]] std::uint64_t at_us() const { return at_us_; }
  [[nodiscard]] bool is_over() const { return now_us() >= at_us_; }
  // Without the GIL until the descriptor is readable (-1: there is none), at most `most_us`. Raises
  // what a handler of a signal raises, such as KeyboardInterrupt.
  void sleep_on(int descriptor, std::uint64_t most_us) const;

 private:
  std::uint64_t at_us_ = std::numeric_limits<std::uint64_t>::max();
};

// RecordKeyOptions over bytes of Python, which it keeps. TypeError: not bytes.
struct HeldKeys {
  nb::object key, accepted_key;
  RecordKeyOptions options{};

  HeldKeys(nb::handle key_in, nb::handle accepted_key_in);
};

std::string text_of_path(nb::handle path);  // as the file system has it
// A NamedTuple of kvfolio_tiers/_types.py.
nb::object make_tier_record(const char* name, const nb::tuple& fields);
template <typename Bytes>
nb::bytes bytes_of(const Bytes& bytes) {
  return nb::bytes(static_cast<const void*>(bytes.data()), bytes.size());
}

}  // namespace kvfolio::python
