// SPDX-License-Identifier: Apache-2.0

// The input is a request file; its first byte chooses the vocabulary. It is refused with a sentence
// that names the file, or every request in it can be queued as it is.

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <unordered_set>

#include "kvfolio/status.h"
#include "request.h"

namespace {

using namespace kvfolio::llama;

void check(const Request& request, const Vocabulary& vocabulary) {
  KVFOLIO_CHECK(!request.id.empty() && request.id.size() <= kMaxIdBytes);
  KVFOLIO_CHECK(!request.prompt.empty());
  for (const std::int32_t id : request.prompt) KVFOLIO_CHECK(id >= 0 && id < vocabulary.size);
  for (const std::int32_t id : request.stop_ids) KVFOLIO_CHECK(id >= 0 && id < vocabulary.size);
  KVFOLIO_CHECK(request.max_new_tokens >= 1 && request.max_new_tokens <= kMaxNewTokens);
  KVFOLIO_CHECK(request.samples >= 1 && request.samples <= kMaxSamples);
  KVFOLIO_CHECK(request.beams >= 1 && request.beams <= kMaxBeams);
  KVFOLIO_CHECK(request.beams <= vocabulary.size);
  KVFOLIO_CHECK(request.temperature >= 0.0 && request.temperature <= 1e6);
  KVFOLIO_CHECK(request.top_p > 0.0 && request.top_p <= 1.0);
  KVFOLIO_CHECK(request.seed >= 0);
  KVFOLIO_CHECK(validate(request, vocabulary).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Vocabulary vocabulary{.size = data[0] % 2 == 0 ? 256 : 1000};
  std::istringstream input(std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  const auto requests = read_requests(input, "requests", {}, vocabulary);
  if (!requests) {
    KVFOLIO_CHECK(requests.error().message().rfind("requests", 0) == 0);
    return 0;
  }
  std::unordered_set<std::string> ids;
  for (const Request& request : *requests) {
    check(request, vocabulary);
    KVFOLIO_CHECK(ids.insert(request.id).second);
  }
  return 0;
}
