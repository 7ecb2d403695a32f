// SPDX-License-Identifier: Apache-2.0

// The input is a config.json. It is refused with a sentence, or what it says can be computed with:
// no size is zero, nothing overflows, every angle of RoPE is finite.

#include <cmath>
#include <cstdint>
#include <string_view>

#include "config.h"
#include "kvfolio/status.h"

namespace {

using namespace kvfolio::llama;

void check(const ModelConfig& config) {
  KVFOLIO_CHECK(config.num_layers >= 1 && config.hidden >= 1 && config.intermediate >= 1);
  KVFOLIO_CHECK(config.vocab >= 1 && config.max_positions >= 1 && config.sliding_window >= 0);
  KVFOLIO_CHECK(config.num_kv_heads >= 1 && config.num_q_heads % config.num_kv_heads == 0);
  KVFOLIO_CHECK(config.head_dim >= 2 && config.head_dim % 2 == 0);
  KVFOLIO_CHECK(std::int64_t{config.num_q_heads} * config.head_dim * 3 < (1 << 30));
  KVFOLIO_CHECK(std::isfinite(config.rms_norm_eps));
  for (const std::int32_t id : config.eos_ids) KVFOLIO_CHECK(id >= 0 && id < config.vocab);
  for (const double frequency : rope_inverse_frequencies(config)) {
    KVFOLIO_CHECK(frequency >= 0.0 && std::isfinite(frequency * config.max_positions));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_config(text, "config.json");
  if (config) {
    check(*config);
  } else {
    KVFOLIO_CHECK(!config.error().message().empty());
  }
  return 0;
}
