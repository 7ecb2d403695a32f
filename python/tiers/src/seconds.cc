// SPDX-License-Identifier: Apache-2.0

#include "seconds.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <ctime>

namespace kvfolio::python {
namespace {

constexpr double kMost = 100.0 * 365 * 24 * 3600;

std::span<const std::byte> span_of(const nb::object& bytes, const char* name) {
  if (bytes.is_none()) return {};
  if (!PyBytes_Check(bytes.ptr())) raise_type(std::string(name) + " is no bytes");
  const auto& content = nb::borrow<nb::bytes>(bytes);
  return {static_cast<const std::byte*>(content.data()), content.size()};
}

}  // namespace

std::uint64_t now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

std::uint64_t us_of(double seconds, const char* name) {
  if (!(seconds >= 0)) {
    raise_invalid(std::string(name) + " is " + std::to_string(seconds) + " s, allowed: from 0");
  }
  return static_cast<std::uint64_t>(std::min(seconds, kMost) * 1e6);
}

Until::Until(nb::handle timeout, const char* name) {
  if (timeout.is_none()) return;
  double seconds = 0;
  if (!nb::try_cast(timeout, seconds)) raise_type(std::string(name) + " is no float");
  at_us_ = now_us() + us_of(seconds, name);
}

void Until::sleep_on(int descriptor, std::uint64_t most_us) const {
  const std::uint64_t now = now_us();
  const std::uint64_t us = std::min(most_us, at_us_ > now ? at_us_ - now : 0);
  {
    const ReleasedGil release;
    pollfd event{.fd = descriptor, .events = POLLIN, .revents = 0};
    const timespec time{.tv_sec = static_cast<time_t>(us / 1'000'000),
                        .tv_nsec = static_cast<long>(us % 1'000'000 * 1000)};
    ::ppoll(&event, descriptor < 0 ? 0 : 1, &time, nullptr);
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

HeldKeys::HeldKeys(nb::handle key_in, nb::handle accepted_key_in)
    : key(nb::borrow(key_in)), accepted_key(nb::borrow(accepted_key_in)) {
  options = {.key = span_of(key, "key"), .accepted_key = span_of(accepted_key, "accepted_key")};
}

std::string text_of_path(nb::handle path) {
  const nb::object encoded = nb::module_::import_("os").attr("fsencode")(path);
  const auto& bytes = nb::borrow<nb::bytes>(encoded);
  std::string text(static_cast<const char*>(bytes.data()), bytes.size());
  if (text.find('\0') != std::string::npos) raise_invalid("the path has a zero byte");
  return text;
}

nb::object make_tier_record(const char* name, const nb::tuple& fields) {
  return new_record("kvfolio_tiers._types", name, fields);
}

}  // namespace kvfolio::python
