// SPDX-License-Identifier: Apache-2.0

#include "offload/model_layers.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"

namespace kvfolio {
namespace {

using text::concat;

constexpr std::int32_t kMostLayer = 65535;

// The part in front of the next separator, which both go from `rest`.
std::string_view take(std::string_view& rest, char separator) {
  const std::size_t at = std::min(rest.find(separator), rest.size());
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return part;
}

std::optional<std::int32_t> number(std::string_view text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_plain = !text.empty() && text.front() >= '0' && text.front() <= '9';
  if (!is_plain || error != std::errc() || end != text.data() + text.size()) return {};
  if (value > kMostLayer) return {};
  return value;
}

// Adds the layers of one range; false: it is none.
bool add_range(std::string_view range, std::vector<std::int32_t>& layers) {
  const bool has_step = range.find('/') != std::string_view::npos;
  const bool has_end = range.find('-') != std::string_view::npos;
  if (has_step && !has_end) return false;
  std::string_view rest = range;
  const std::string_view ends = take(rest, '/');
  const std::optional<std::int32_t> step = has_step ? number(rest) : 1;
  rest = ends;
  const std::optional<std::int32_t> first = number(take(rest, '-'));
  const std::optional<std::int32_t> last = has_end ? number(rest) : first;
  if (!first || !last || !step || *step < 1 || *last < *first) return false;
  for (std::int32_t layer = *first; layer <= *last; layer += *step) layers.push_back(layer);
  return true;
}

}  // namespace

Status check_layers(std::string_view layers, std::span<const GroupSpec> groups) {
  const auto refused = [&](const auto&... why) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("identity: layers is \"", layers, "\": ", why...));
  };
  const auto num_parts = 1 + std::count(layers.begin(), layers.end(), ';');
  if (num_parts != std::ssize(groups)) {
    return refused("layers of ", num_parts, num_parts == 1 ? " group" : " groups",
                   ", the spec has ", groups.size());
  }
  std::string_view rest = layers;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::string_view part = take(rest, ';');
    std::vector<std::int32_t> named;
    std::string_view ranges = part;
    do {
      const std::string_view range = take(ranges, ',');
      if (add_range(range, named)) continue;
      return refused(
          "group ", g, " has \"", range,
          "\", allowed: layers of 0 to 65535 and ranges, such as \"0,4-7\" or \"1-31/2\"");
    } while (!ranges.empty());
    if (part.back() == ',') return refused("group ", g, " ends with a comma");
    if (std::cmp_not_equal(named.size(), groups[g].num_layers)) {
      return refused("group ", g, " has ", named.size(), " layers there, its num_layers is ",
                     groups[g].num_layers);
    }
    std::sort(named.begin(), named.end());
    const auto twice = std::adjacent_find(named.begin(), named.end());
    if (twice != named.end()) return refused("group ", g, " has layer ", *twice, " twice");
  }
  return {};
}

}  // namespace kvfolio
