// SPDX-License-Identifier: Apache-2.0
#include "core_class.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace kvfolio::bench {
namespace {

struct Models {
  const char* vendor;
  int family;
  int first;
  int last;
  const char* name;
};

// As Linux has them: arch/x86/kernel/cpu/amd.c, arch/x86/include/asm/intel-family.h.
constexpr Models kModels[] = {
    {"AuthenticAMD", 0x17, 0x00, 0x2f, "Zen"},
    {"AuthenticAMD", 0x17, 0x30, 0xff, "Zen 2"},
    {"AuthenticAMD", 0x19, 0x00, 0x0f, "Zen 3"},
    {"AuthenticAMD", 0x19, 0x10, 0x1f, "Zen 4"},
    {"AuthenticAMD", 0x19, 0x20, 0x5f, "Zen 3"},
    {"AuthenticAMD", 0x19, 0x60, 0x7f, "Zen 4"},
    {"AuthenticAMD", 0x19, 0xa0, 0xaf, "Zen 4"},
    {"AuthenticAMD", 0x1a, 0x00, 0x2f, "Zen 5"},
    {"AuthenticAMD", 0x1a, 0x40, 0x4f, "Zen 5"},
    {"AuthenticAMD", 0x1a, 0x60, 0x7f, "Zen 5"},
    {"GenuineIntel", 6, 0x3f, 0x3f, "Haswell"},
    {"GenuineIntel", 6, 0x4f, 0x4f, "Broadwell"},
    {"GenuineIntel", 6, 0x55, 0x55, "Skylake"},  // and Cascade Lake, Cooper Lake
    {"GenuineIntel", 6, 0x56, 0x56, "Broadwell"},
    {"GenuineIntel", 6, 0x6a, 0x6a, "Ice Lake"},
    {"GenuineIntel", 6, 0x6c, 0x6c, "Ice Lake"},
    {"GenuineIntel", 6, 0x8f, 0x8f, "Sapphire Rapids"},
    {"GenuineIntel", 6, 0xad, 0xae, "Granite Rapids"},
    {"GenuineIntel", 6, 0xaf, 0xaf, "Sierra Forest"},
    {"GenuineIntel", 6, 0xcf, 0xcf, "Emerald Rapids"},
};

}  // namespace

CoreId read_core_id(std::istream& cpuinfo) {
  CoreId core;
  for (std::string line; std::getline(cpuinfo, line) && !line.empty();) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = line.substr(colon + 2);
    if (key == "vendor_id") core.vendor = value;
    if (key == "cpu family") core.family = std::atoi(value.c_str());
    if (key == "model") core.model = std::atoi(value.c_str());
    if (key == "model name") core.name = value;
  }
  return core;
}

std::string core_class(const CoreId& core) {
  const auto* const found =
      std::find_if(std::begin(kModels), std::end(kModels), [&](const Models& models) {
        return core.vendor == models.vendor && core.family == models.family &&
               core.model >= models.first && core.model <= models.last;
      });
  return found == std::end(kModels) ? "unknown" : found->name;
}

PromisedCore promised_core(const std::string& core_class, double f32_peak) {
  if (core_class == "Zen 5") return f32_peak >= 200 ? PromisedCore::kZen5 : PromisedCore::kZen4;
  return core_class == "Zen 4" ? PromisedCore::kZen4 : PromisedCore::kNone;
}

}  // namespace kvfolio::bench
