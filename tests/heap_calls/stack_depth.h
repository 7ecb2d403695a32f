// SPDX-License-Identifier: Apache-2.0
#pragma once

// How deep a call reaches into the stack, for calls that promise a bound. Not for builds with a
// sanitizer, whose frames are larger and which want a stack of their own kind.

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>

namespace kvfolio::testing_heap {

// The bytes that `work` uses of the stack of a thread of its own, what the thread itself needs
// included: subtract those of a `work` that does nothing.
inline std::size_t stack_of(const std::function<void()>& work) {
  constexpr std::size_t kBytes = std::size_t{256} << 10;
  constexpr unsigned char kPaint = 0xa5;
  const std::unique_ptr<void, decltype(&std::free)> stack(std::aligned_alloc(4096, kBytes),
                                                          &std::free);
  auto* bytes = static_cast<unsigned char*>(stack.get());
  std::fill_n(bytes, kBytes, kPaint);
  pthread_attr_t attributes;
  EXPECT_EQ(pthread_attr_init(&attributes), 0);
  EXPECT_EQ(pthread_attr_setstack(&attributes, bytes, kBytes), 0);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  EXPECT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)),
            0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_EQ(pthread_attr_destroy(&attributes), 0);
  const auto* used =
      std::find_if(bytes, bytes + kBytes, [](unsigned char b) { return b != kPaint; });
  return static_cast<std::size_t>(bytes + kBytes - used);
}

}  // namespace kvfolio::testing_heap
