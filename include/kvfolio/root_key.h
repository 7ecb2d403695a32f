// SPDX-License-Identifier: Apache-2.0
#pragma once

// What makes two equal token strings different prompts: the model that computed them, the adapter,
// the tenant, the epoch of the weights, and the media behind placeholder tokens. All fields are
// compared in full; no hash decides equality. Nothing here knows a model or looks into media: the
// caller's bytes are taken as they are.
// Thread safety: values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvfolio/export.h"

namespace kvfolio {

// Fields are typed and length-framed: {.adapter = "ab"} never equals {.adapter = "a",
// .adapter_version = "b"}; an absent field is an empty one.
// Strings are bytes, not text: any content, at most 64 KiB together. The views are read during the
// call only.
struct RootKey {
  std::string_view model{};
  std::string_view adapter{};          // for example a LoRA; empty: the base model
  std::string_view adapter_version{};  // same name, new weights: another version
  std::string_view tenant_salt{};      // set by the server, never by the client
  std::uint64_t epoch = 0;             // bump it when weights change in place
};

// Media (an image, a sound) behind the placeholder tokens [begin, end) of a sequence.
struct MediaSpan {
  std::int32_t begin = 0;  // position of its first token
  std::int32_t end = 0;    // one past its last
  // A digest of the content. All zeros are refused: spans that were not filled in would be equal,
  // and prompts with different media would find each other's K and V.
  std::array<std::byte, 32> content_id{};
  // True if tokens of the span attend to later tokens of the span. Then no prefix hit ends inside
  // the span. Tokens from its begin on are findable only if one step computed the whole span, and
  // not after a truncate() to its inside. Equal content_ids must mean equal tokens, too.
  bool attends_to_itself = false;
};

}  // namespace kvfolio
