// SPDX-License-Identifier: Apache-2.0
#include "core_class.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace kvfolio::bench {
namespace {

TEST(CoreClass, IsThatOfFamilyAndModelAndUnknownForOthers) {
  struct Case {
    const char* vendor;
    int family;
    int model;
    const char* expected;
  };
  const Case cases[] = {
      {"AuthenticAMD", 23, 0x01, "Zen"},            // EPYC 7001
      {"AuthenticAMD", 23, 0x31, "Zen 2"},          // EPYC 7002
      {"AuthenticAMD", 25, 0x01, "Zen 3"},          // EPYC 7003
      {"AuthenticAMD", 25, 0x21, "Zen 3"},          // Ryzen 5000
      {"AuthenticAMD", 25, 0x50, "Zen 3"},          // Ryzen 5000 with graphics
      {"AuthenticAMD", 25, 0x11, "Zen 4"},          // EPYC 9004
      {"AuthenticAMD", 25, 0x61, "Zen 4"},          // Ryzen 7000
      {"AuthenticAMD", 25, 0x74, "Zen 4"},          // Ryzen 7040
      {"AuthenticAMD", 25, 0xa0, "Zen 4"},          // EPYC 9004, many cores
      {"AuthenticAMD", 26, 0x02, "Zen 5"},          // EPYC 9005
      {"AuthenticAMD", 26, 0x44, "Zen 5"},          // Ryzen 9000
      {"AuthenticAMD", 26, 0x24, "Zen 5"},          // Ryzen AI 300
      {"AuthenticAMD", 25, 0x80, "unknown"},        //
      {"AuthenticAMD", 26, 0x50, "unknown"},        // a later one
      {"AuthenticAMD", 27, 0x00, "unknown"},        //
      {"GenuineIntel", 6, 85, "Skylake"},           //
      {"GenuineIntel", 6, 106, "Ice Lake"},         //
      {"GenuineIntel", 6, 143, "Sapphire Rapids"},  //
      {"GenuineIntel", 6, 207, "Emerald Rapids"},   //
      {"GenuineIntel", 6, 173, "Granite Rapids"},   //
      {"GenuineIntel", 25, 0x01, "unknown"},        // numbers of the other maker
      {"GenuineIntel", 6, 0, "unknown"},            //
      {"", -1, -1, "unknown"},                      // what says nothing
  };
  for (const Case& at : cases) {
    EXPECT_EQ(core_class({.vendor = at.vendor, .family = at.family, .model = at.model}),
              at.expected)
        << at.vendor << " family " << at.family << " model " << at.model;
  }
}

TEST(CoreClass, IsReadFromTheFirstProcessorAlone) {
  std::istringstream text(
      "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n"
      "model name\t: AMD EPYC 7B13\nflags\t\t: fpu: vme\npower management:\n\n"
      "processor\t: 1\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n");
  const CoreId core = read_core_id(text);
  EXPECT_EQ(core.vendor, "AuthenticAMD");
  EXPECT_EQ(core.family, 25);
  EXPECT_EQ(core.model, 1);
  EXPECT_EQ(core.name, "AMD EPYC 7B13");
  EXPECT_EQ(core_class(core), "Zen 3");
}

TEST(CoreClass, OfAProcessorThatSaysOtherThingsIsUnknown) {
  std::istringstream arm("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n");
  EXPECT_EQ(core_class(read_core_id(arm)), "unknown");
  std::istringstream nothing("");
  EXPECT_EQ(read_core_id(nothing).name, "unknown");
}

TEST(CoreClass, PromisesAreThoseOfTheClassAndOfWhatItComputes) {
  EXPECT_EQ(promised_core("Zen 5", 260), PromisedCore::kZen5);
  EXPECT_EQ(promised_core("Zen 5", 120), PromisedCore::kZen4);
  EXPECT_EQ(promised_core("Zen 4", 120), PromisedCore::kZen4);
  EXPECT_EQ(promised_core("Zen 4", 260), PromisedCore::kZen4);
  EXPECT_EQ(promised_core("Zen 3", 110), PromisedCore::kNone);
  EXPECT_EQ(promised_core("Emerald Rapids", 230), PromisedCore::kNone);
  EXPECT_EQ(promised_core("unknown", 230), PromisedCore::kNone);
}

}  // namespace
}  // namespace kvfolio::bench
