// SPDX-License-Identifier: Apache-2.0

// dlopen() and dlsym() of this library alone: whatever src/cuda/driver.cc loads is the driver that
// is none. Its kernels are the text of the real ones, so the table of images only has their names.

#include <dlfcn.h>

#include <string_view>

#include "cuda/fake_driver.h"
#include "cuda/images.h"
#include "cuda/library/host_kernels.h"
#include "fake_cuda.h"

namespace kvfolio::cuda {
namespace {

FakeDriver& driver() {
  static FakeDriver* const fake = [] {
    auto* const made = new FakeDriver;  // never deleted: a program may end before its handles
    made->minor = 0;
    made->touchable = true;
    made->kernel = either(moves_on_host(), general_attention_on_host());
    return made;
  }();
  return *fake;
}

}  // namespace

std::span<const KernelImage> kernel_images() {
  static constexpr int kImage = 0;
  static constexpr KernelImage kImages[] = {{"moves", &kImage, 4}, {"attend", &kImage, 4}};
  return kImages;
}

}  // namespace kvfolio::cuda

using kvfolio::cuda::FakeDriver;

extern "C" {

void* dlopen(const char*, int) noexcept { return &kvfolio::cuda::driver(); }

void* dlsym(void*, const char* name) noexcept {
  const kvfolio::cuda::DriverCalls calls = FakeDriver::calls();
#define KVFOLIO_FAKE_SYMBOL(member, symbol, arguments) \
  if (std::string_view(name) == (symbol)) return reinterpret_cast<void*>(calls.member);
  KVFOLIO_DRIVER_CALLS(KVFOLIO_FAKE_SYMBOL)
#undef KVFOLIO_FAKE_SYMBOL
  return nullptr;
}

int64_t kvfolio_fake_cuda_open(void) {
  return static_cast<int64_t>(kvfolio::cuda::driver().open());
}

void kvfolio_fake_cuda_fail(int32_t after, int32_t result) {
  FakeDriver& fake = kvfolio::cuda::driver();
  fake.count = 0;
  fake.fail_at = after + 1;
  fake.fail_with = result;
}

}  // extern "C"
