// SPDX-License-Identifier: Apache-2.0
#include "block_map.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "kvfolio/manager.h"

namespace kvfolio::llama {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

}  // namespace

BlockMap::Group BlockMap::draw(const KVCacheManager& manager, const Scheduler& scheduler,
                               GroupId group) const {
  Group picture;
  const auto index = static_cast<std::size_t>(group.value());
  const auto num_blocks = static_cast<std::size_t>(manager.spec().groups[index].num_blocks);
  std::vector<std::int32_t> users(num_blocks);
  picture.cells.assign(num_blocks, '.');
  std::unordered_map<const Request*, char> letters;
  scheduler.for_each_sequence([&](const Request& request, SequenceId sequence) {
    const auto letter =
        letters.try_emplace(&request, kLetters[letters.size() % kLetters.size()]).first->second;
    const auto table = manager.block_table(sequence, group);
    if (!table) return;
    for (const std::int32_t block : *table) {
      if (block < 0) continue;
      const auto b = static_cast<std::size_t>(block);
      ++picture.entries;
      picture.blocks += users[b] == 0 ? 1 : 0;
      picture.most_references = std::max(picture.most_references, ++users[b]);
      picture.cells[b] = users[b] == 1 ? letter : '#';
    }
  });
  for (std::size_t b = 0; b < num_blocks; ++b) {
    if (users[b] > 0) continue;
    const auto findable = manager.is_findable(group, BlockId(static_cast<std::int32_t>(b)));
    if (findable && *findable) picture.cells[b] = '-';
  }
  return picture;
}

void BlockMap::look(const KVCacheManager& manager, const Scheduler& scheduler) {
  std::vector<Group> groups;
  std::int64_t saved = 0;
  for (std::size_t group = 0; group < manager.spec().groups.size(); ++group) {
    groups.push_back(draw(manager, scheduler, GroupId(static_cast<std::int32_t>(group))));
    saved += groups.back().entries - groups.back().blocks;
  }
  if (saved <= saved_) return;
  saved_ = saved;
  groups_ = std::move(groups);
  sequences_ = manager.num_sequences();
}

std::string BlockMap::text(std::int32_t columns) const {
  std::string out;
  const auto width = static_cast<std::size_t>(columns);
  for (const Group& group : groups_) {
    out += "blocks at the moment of most sharing: " + std::to_string(sequences_) +
           " sequences name " + std::to_string(group.entries) + " blocks, " +
           std::to_string(group.blocks) + " exist\n";
    for (std::size_t first = 0; first < group.cells.size(); first += width) {
      out += "  " + group.cells.substr(first, width) + "\n";
    }
    out += "  # shared (by up to " + std::to_string(group.most_references) +
           " sequences)   a-z of one request   - cached, nobody's   . free\n";
  }
  return out;
}

}  // namespace kvfolio::llama
