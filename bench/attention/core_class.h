// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which core this is, by what the processor says of itself: a peak alone tells a slow core of one
// kind from a fast one of another only by luck.

#include <istream>
#include <string>

namespace kvfolio::bench {

// The first processor of /proc/cpuinfo.
struct CoreId {
  std::string vendor = {};
  int family = -1;
  int model = -1;
  std::string name = "unknown";
};
[[nodiscard]] CoreId read_core_id(std::istream& cpuinfo);

// "Zen 3", "Sapphire Rapids" and so on; "unknown" for what is in no table.
[[nodiscard]] std::string core_class(const CoreId& core);

// What is promised of decode was found on these two.
enum class PromisedCore {
  kNone,
  kZen4,  // 512 bits of arithmetic in two halves
  kZen5,  // two 512-bit units
};
// `f32_peak`: measured, giga-operations per second of one core. A Zen 5 that does less than 200, as
// those for notebooks, computes like a Zen 4.
[[nodiscard]] PromisedCore promised_core(const std::string& core_class, double f32_peak);

}  // namespace kvfolio::bench
