// SPDX-License-Identifier: Apache-2.0

// The input is model.safetensors.index.json of a folder with two good shards. It is refused with a
// sentence, or it names exactly the tensors of the shards that it names.

#include <cstdint>
#include <string>
#include <string_view>

#include "kvfolio/status.h"
#include "tensor_files.h"
#include "test_checkpoint.h"

namespace {

using namespace kvfolio::llama;

std::string shard(std::string_view tensor) {
  return safetensors_file(
      "{\"" + std::string(tensor) + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "12");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TempFolder folder;
  static const bool written = [] {
    folder.write("s1", shard("a"));
    folder.write("s2", shard("b"));
    return true;
  }();
  KVFOLIO_CHECK(written);
  const std::string_view index(reinterpret_cast<const char*>(data), size);
  folder.write("model.safetensors.index.json", index);
  const auto files = TensorFiles::open(folder.path());
  if (!files) {
    KVFOLIO_CHECK(!files.error().message().empty());
    return 0;
  }
  for (const auto& [name, info] : files->tensors()) {
    KVFOLIO_CHECK((name == "a" || name == "b") && info.bytes == 2);
  }
  return 0;
}
