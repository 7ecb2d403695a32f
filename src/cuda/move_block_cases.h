// SPDX-License-Identifier: Apache-2.0
#pragma once

// The cases of move_cases.h for calls that take whole blocks: copies, conversions, images, fills,
// and the entries of a table that changed.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/changed_entries.h"
#include "cuda/move_twins.h"

namespace kvfolio::cuda::cases {

inline std::vector<std::int32_t> draw_blocks(Random& random, std::size_t count,
                                             std::int32_t blocks) {
  std::vector<std::int32_t> result(count);
  for (std::int32_t& block : result) block = draw(random, 0, blocks - 1);
  return result;
}

// Pairs that read what an earlier pair wrote, and that write what an earlier one read or wrote.
inline std::string copy_case(Machine& machine, unsigned seed) {
  Random random(seed);
  CacheTwin cache(machine, draw_shape(random, kElements[seed % 5]), random);
  cache.upload();
  const auto count = static_cast<std::size_t>(draw(random, 0, 9));
  const std::vector<std::int32_t> src = draw_blocks(random, count, cache.shape().blocks);
  const std::vector<std::int32_t> dst = draw_blocks(random, count, cache.shape().blocks);
  const Status cpu = kvfolio::copy_blocks(cache.host, src, dst);
  const Status device = cuda::copy_blocks(cache.device, src, dst, machine.queue());
  std::string text = both_ok(cpu, device);
  if (text.empty()) text = cache.differs();
  return text.empty() ? machine.reset() : text;
}

inline std::string convert_case(Machine& machine, unsigned seed) {
  Random random(seed);
  const Element source = kElements[seed % 5], target = kElements[seed / 5 % 5];
  const CacheShape shape = draw_shape(random, source);
  CacheTwin from(machine, shape, random);
  CacheShape other = draw_shape(random, target);
  other.layers = shape.layers;
  other.heads = shape.heads;
  other.block_size = shape.block_size;
  other.blocks = draw(random, 1, shape.blocks);
  other.dim_k = shape.dim_k;
  other.dim_v = shape.dim_v;
  other.prefix = shape.prefix && draw(random, 0, 1) == 0;
  if (other.prefix || other.dim_v == 0) other.joined = false;
  CacheTwin to(machine, other, random);
  if (source == Element::kE4M3) clean_e4m3(from.host);
  from.upload();
  to.upload();
  const auto count = static_cast<std::size_t>(draw(random, 1, 5));
  const std::vector<std::int32_t> src = draw_blocks(random, count, shape.blocks);
  const std::vector<std::int32_t> dst = draw_blocks(random, count, other.blocks);
  const Status cpu = kvfolio::convert_blocks(from.host, to.host, src, dst);
  const Status device = cuda::convert_blocks(from.device, to.device, src, dst, machine.queue());
  std::string text = both_ok(cpu, device);
  if (text.empty()) text = to.differs();
  if (text.empty()) text = from.differs();
  return text.empty() ? machine.reset() : concat(text, "; from ", shape.text());
}

inline CacheSpec spec_of(const CacheShape& shape, Format format) {
  GroupSpec group;
  group.num_layers = shape.layers;
  group.num_blocks = shape.blocks;
  group.block_size = shape.block_size;
  group.num_kv_heads = shape.heads;
  group.head_dim_k = shape.dim_k;
  group.head_dim_v = shape.dim_v;
  group.v_is_prefix_of_k = shape.prefix;
  group.dtype = dtype_of(shape.element);
  group.format = format;
  return {.groups = {group}};
}

// fill(), and images out of one cache and into another of other strides.
inline std::string image_case(Machine& machine, unsigned seed) {
  Random random(seed);
  const Element element = kElements[seed % 5];
  const CacheShape shape = draw_shape(random, element);
  const Format format = draw(random, 0, 1) == 0 ? Format::kHnd : Format::kNhd;
  CacheShape other = draw_shape(random, element);
  other.layers = shape.layers;
  other.heads = shape.heads;
  other.block_size = shape.block_size;
  other.blocks = shape.blocks;
  other.dim_k = shape.dim_k;
  other.dim_v = shape.dim_v;
  other.prefix = shape.prefix;
  other.joined = other.order == 0 && shape.joined;
  CacheTwin from(machine, shape, random), to(machine, other, random);
  from.upload();
  to.upload();
  const CacheSpec spec = spec_of(shape, format);
  const BorrowedGroup from_group = from.borrowed(), to_group = to.borrowed();
  Result<KVStorage> source = KVStorage::borrow(spec, {&from_group, 1});
  Result<KVStorage> target = KVStorage::borrow(spec, {&to_group, 1});
  if (!source || !target) return concat("borrow: ", (source ? target : source).error().message());
  std::vector<std::int32_t> blocks;
  for (std::int32_t b = 0; b < shape.blocks; ++b) {
    if (draw(random, 0, 2) > 0) blocks.push_back(b);
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  const std::int64_t of_one = source->block_image_bytes(GroupId(0));
  if (of_one != image_bytes(from.device)) {
    return concat("an image has ", image_bytes(from.device), " bytes, the CPU's ", of_one);
  }
  const std::int64_t bytes = of_one * static_cast<std::int64_t>(blocks.size());
  const std::int64_t skew = draw(random, 0, 3) == 0 ? 4 : 0;
  Twin images(machine, skew + bytes, random);
  images.upload();
  const std::span<std::byte> all(images.host() + skew, static_cast<std::size_t>(bytes));
  Status cpu = source->read_blocks(GroupId(0), blocks, all);
  Status device = pack_blocks(from.device, format, blocks, images.device() + skew, machine.queue());
  std::string text = both_ok(cpu, device);
  if (text.empty()) text = images.differs("images");
  if (text.empty()) {
    cpu = target->write_blocks(GroupId(0), blocks, all);
    device = unpack_blocks(to.device, format, blocks, images.device() + skew, machine.queue());
    text = both_ok(cpu, device);
  }
  if (text.empty()) text = to.differs();
  if (text.empty()) {
    const auto value = static_cast<std::byte>(random() & 0xffu);
    cpu = source->fill(value);
    device = cuda::fill(from.device, value, machine.queue());
    text = both_ok(cpu, device);
  }
  if (text.empty()) text = from.differs();
  if (text.empty()) return machine.reset();
  return concat(text, "; ", shape.text(), "; to ", other.text(), ", ", blocks.size(),
                " blocks, format ", format == Format::kNhd ? "NHD" : "HND");
}

inline std::string entries_case(Machine& machine, unsigned seed) {
  Random random(seed);
  DeviceTable table{nullptr, draw(random, 1, 40), draw(random, 1, 50)};
  const std::int32_t entries = table.num_rows * table.num_columns;
  Twin memory(machine, std::int64_t{entries} * 4, random);
  memory.upload();
  table.entries = reinterpret_cast<std::int32_t*>(memory.device());
  std::vector<std::int32_t> places(static_cast<std::size_t>(entries));
  for (std::int32_t i = 0; i < entries; ++i) places[static_cast<std::size_t>(i)] = i;
  std::shuffle(places.begin(), places.end(), random);
  places.resize(static_cast<std::size_t>(draw(random, 0, entries)));
  std::vector<std::int32_t> rows, columns, blocks;
  for (const std::int32_t place : places) {
    rows.push_back(place / table.num_columns);
    columns.push_back(place % table.num_columns);
    blocks.push_back(draw(random, -1, 1 << 20));
    std::memcpy(memory.host() + std::int64_t{place} * 4, &blocks.back(), 4);
  }
  const std::int64_t bytes = changed_entries_bytes(rows.size());
  std::vector<std::byte> upload(static_cast<std::size_t>(bytes));
  const Status packed = pack_changed_entries(table, rows, columns, blocks, upload);
  if (!packed.ok()) return packed.message();
  std::byte* const there = machine.allocate(bytes);
  machine.upload(there, upload.data(), bytes);
  const Status set = set_changed_entries(table, there, rows.size(), machine.queue());
  if (!set.ok()) return set.message();
  const std::string text = memory.differs("table");
  return text.empty() ? machine.reset() : text;
}

}  // namespace kvfolio::cuda::cases
