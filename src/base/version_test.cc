// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/version.h"

#include <gtest/gtest.h>

#include <string>

namespace kvfolio {
namespace {

TEST(Version, TheTextIsThatOfTheMacros) {
  EXPECT_EQ(std::string(version()), std::to_string(KVFOLIO_VERSION_MAJOR) + "." +
                                        std::to_string(KVFOLIO_VERSION_MINOR) + "." +
                                        std::to_string(KVFOLIO_VERSION_PATCH));
  static_assert(KVFOLIO_VERSION < KVFOLIO_MAKE_VERSION(KVFOLIO_VERSION_MAJOR + 1, 0, 0));
  static_assert(KVFOLIO_MAKE_VERSION(1, 2, 3) == 1002003);
}

}  // namespace
}  // namespace kvfolio
