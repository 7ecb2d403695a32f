// SPDX-License-Identifier: Apache-2.0

// The input is the file model.safetensors of a folder. It is refused with a sentence, or each of
// its tensors lies inside the file and can be read or is refused.

#include <cstdint>
#include <cstdio>
#include <string_view>

#include "kvfolio/status.h"
#include "tensor_files.h"
#include "test_checkpoint.h"

namespace {

using namespace kvfolio;
using namespace kvfolio::llama;

void read_all(const TensorFiles& files, std::int64_t file_bytes) {
  for (const auto& [name, info] : files.tensors()) {
    KVFOLIO_CHECK(info.begin >= 8 && info.bytes >= 0 && info.begin + info.bytes <= file_bytes);
    if (info.bytes == 0 || info.shape.empty() || info.shape.size() > 2) continue;
    std::int64_t num_rows = 0;
    const Status status =
        files.read(name, info.shape, [&](std::int32_t, const float*) { ++num_rows; });
    KVFOLIO_CHECK(!status.ok() || num_rows == (info.shape.size() == 2 ? info.shape[0] : 1));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TempFolder folder;
  folder.write("model.safetensors", {reinterpret_cast<const char*>(data), size});
  const Result<TensorFiles> files = TensorFiles::open(folder.path());
  if (files) {
    read_all(*files, static_cast<std::int64_t>(size));
  } else {
    KVFOLIO_CHECK(!files.error().message().empty());
  }
  return 0;
}
