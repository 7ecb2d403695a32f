// SPDX-License-Identifier: Apache-2.0

// fit(): num_blocks for a budget of bytes. One number, the scale, gives the blocks of every group:
// blocks(g) = scale * weight(g) / largest weight, or scale / block size if there are no weights. It
// grows by at most one block of each group when the scale grows by one, so the largest scale that
// fits, found by bisection, is the ratio as exactly as whole blocks allow. What is left is less
// than one more block of each group; it is given away by division, the largest blocks first, so
// that a group with small blocks gets no more than a part of one large block.
//
// The bytes of a block do not depend on num_blocks, so total = sum of blocks(g) * bytes_per_block.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "base/checked.h"
#include "base/slots.h"
#include "base/text.h"
#include "kvfolio/spec.h"

namespace kvfolio {
namespace {

using text::concat;

struct Share {
  std::int64_t times = 1;  // blocks = scale * times / divided_by, at least 1
  std::int64_t divided_by = 1;
  std::int64_t most = 1;  // blocks whose slots fit int32
  std::int64_t block_bytes = 0;
  std::int64_t blocks = 1;

  // Requires: 0 <= scale < 2^31.
  [[nodiscard]] std::int64_t at(std::int64_t scale) const noexcept {
    return std::clamp<std::int64_t>(scale * times / divided_by, 1, most);
  }
};

Status check_weights(const CacheSpec& spec) {
  const auto zero = [](const GroupSpec& group) { return group.num_blocks == 0; };
  if (std::all_of(spec.groups.begin(), spec.groups.end(), zero)) return {};
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    const std::int32_t weight = spec.groups[g].num_blocks;
    if (weight >= 1) continue;
    return {ErrorCode::kInvalidArgument,
            concat("group ", g, ": num_blocks is ", weight,
                   ", allowed as a weight: at least 1, or 0 in every group")};
  }
  return {};
}

std::vector<Share> shares_of(const CacheSpec& spec, const std::vector<GroupLayout>& layouts) {
  std::int64_t largest = 0;
  for (const GroupSpec& group : spec.groups) {
    largest = std::max<std::int64_t>(largest, group.num_blocks);
  }
  std::vector<Share> shares;
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    const GroupSpec& group = spec.groups[g];
    shares.push_back({.times = largest > 0 ? group.num_blocks : 1,
                      .divided_by = largest > 0 ? largest : group.block_size,
                      .most = kMaxSlots / group.block_size,
                      .block_bytes = layouts[g].bytes_per_block});
  }
  return shares;
}

bool fits(const std::vector<Share>& shares, std::int64_t scale, std::int64_t bytes) {
  Checked total(0);
  for (const Share& share : shares) total = total + Checked(share.at(scale)) * share.block_bytes;
  return total.ok() && total.value() <= bytes;
}

}  // namespace

Result<CacheSpec> fit(const CacheSpec& spec, std::int64_t bytes) {
  KVFOLIO_RETURN_IF_ERROR(check_weights(spec));
  CacheSpec result = spec;
  for (GroupSpec& group : result.groups) group.num_blocks = 1;
  const Result<std::vector<GroupLayout>> layouts = plan_layouts(result);
  if (!layouts) return layouts.error();
  std::vector<Share> shares = shares_of(spec, *layouts);
  if (!fits(shares, 0, bytes)) {
    std::int64_t least = 0;
    for (const Share& share : shares) least += share.block_bytes;
    return Status(ErrorCode::kInvalidArgument,
                  concat("the budget is ", bytes, " bytes, one block of each of the ",
                         shares.size(), " groups takes ", least));
  }
  std::int64_t scale = 0;
  for (std::int64_t step = std::int64_t{1} << 30; step > 0; step /= 2) {
    if (fits(shares, scale + step, bytes)) scale += step;
  }
  std::int64_t left = bytes;
  for (Share& share : shares) {
    share.blocks = share.at(scale);
    left -= share.blocks * share.block_bytes;
  }
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return shares[a].block_bytes > shares[b].block_bytes;
  });
  for (const std::size_t g : order) {
    Share& share = shares[g];
    const std::int64_t more = std::min(left / share.block_bytes, share.most - share.blocks);
    share.blocks += more;
    left -= more * share.block_bytes;
  }
  for (std::size_t g = 0; g < shares.size(); ++g) {
    result.groups[g].num_blocks = static_cast<std::int32_t>(shares[g].blocks);
  }
  return result;
}

}  // namespace kvfolio
