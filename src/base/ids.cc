// SPDX-License-Identifier: Apache-2.0

// The texts of ids. A SequenceId and a PinId are taken apart (packed_id.h), so that a log shows
// which ids share a row, and which of them came first.

#include "kvfolio/ids.h"

#include "base/packed_id.h"
#include "base/text.h"

namespace kvfolio {
namespace {

using text::concat;

template <typename Id>
std::string numbered(std::string_view noun, Id id) {
  return id.valid() ? concat(noun, " ", id.value()) : concat("no ", noun);
}

template <typename Id>
std::string packed(std::string_view noun, Id id) {
  if (!id.valid()) return concat("no ", noun);
  const PackedId parts = PackedId::of(id.value());
  return concat(noun, " ", parts.row, ".", parts.generation,
                parts.tag == 0 ? std::string() : concat(" (tag ", parts.tag, ")"));
}

}  // namespace

std::string to_string(BlockId block) { return numbered("block", block); }
std::string to_string(GroupId group) { return numbered("group", group); }
std::string to_string(Ticket ticket) { return numbered("ticket", ticket); }
std::string to_string(SequenceId sequence) { return packed("sequence", sequence); }
std::string to_string(PinId pin) { return packed("pin", pin); }
std::string to_string(LoadId load) { return packed("load", load); }
std::string to_string(HoldId hold) { return packed("hold", hold); }

}  // namespace kvfolio
