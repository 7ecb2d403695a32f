// SPDX-License-Identifier: Apache-2.0
#pragma once

// Random calls of append() and gather(), each beside the CPU's function on the same bytes: all
// memory is compared, also what lies between rows. A Machine is where the kernels run: the CPU in
// move_test.cc, a GPU in tests/cuda. A case answers "" or a sentence on what differs; its seed
// draws all.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/move_twins.h"

namespace kvfolio::cuda::cases {

// -1 now and then, else slots that differ.
inline std::vector<std::int32_t> draw_slots(Random& random, std::int32_t count,
                                            std::int32_t slots) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(slots));
  for (std::int32_t i = 0; i < slots; ++i) all[static_cast<std::size_t>(i)] = i;
  if (draw(random, 0, 2) > 0) std::shuffle(all.begin(), all.end(), random);
  all.resize(static_cast<std::size_t>(count));
  for (std::int32_t& slot : all) {
    if (draw(random, 0, 9) == 0) slot = -1;
  }
  return all;
}

inline std::string append_case(Machine& machine, unsigned seed) {
  Random random(seed);
  const Element element = kElements[seed % 5];
  CacheTwin cache(machine, draw_shape(random, element), random);
  const CacheShape& shape = cache.shape();
  const bool own_v = shape.dim_v > 0 && !shape.prefix;
  const std::int32_t slots = shape.blocks * shape.block_size;
  const std::int32_t tokens = std::min(slots, draw(random, 1, 40));
  const DType from = dtype_of(pick(random, kRowElements));
  const DType v_from = draw(random, 0, 5) == 0 ? dtype_of(pick(random, kRowElements)) : from;
  RowsTwin k(machine, tokens, shape.heads, shape.dim_k, from, 1, random);
  RowsTwin v(machine, tokens, shape.heads, own_v ? shape.dim_v : 8, v_from, 1, random);
  const Ints places(machine, draw_slots(random, tokens, slots));
  const std::int32_t layer = draw(random, 0, shape.layers - 1);
  cache.upload();
  k.upload();
  v.upload();
  const ConstRowsView none;
  const Status cpu = kvfolio::append(cache.host, layer, k.host, own_v ? v.host : none, places.host);
  const Status device = cuda::append(cache.device, layer, k.device, own_v ? v.device : none,
                                     places.device, places.host.size(), machine.queue());
  std::string text = both_ok(cpu, device);
  if (text.empty()) text = cache.differs();
  if (text.empty()) text = k.differs("rows of k");
  if (text.empty()) return machine.reset();
  return concat(text, "; rows of ", std::string_view(to_string(from)), ", ", tokens, " tokens");
}

inline std::string gather_case(Machine& machine, unsigned seed) {
  Random random(seed);
  const Element element = kElements[seed % 5];
  CacheTwin cache(machine, draw_shape(random, element), random);
  const CacheShape& shape = cache.shape();
  if (element == Element::kE4M3) clean_e4m3(cache.host);
  kvfolio::GatherArgs args{.cache = cache.host};
  args.length = draw(random, 1, 60);
  args.first = draw(random, 0, args.length - 1);
  args.count = draw(random, 1, args.length - args.first);
  std::vector<std::int32_t> table(
      static_cast<std::size_t>((args.length + shape.block_size - 1) / shape.block_size), -1);
  for (std::int32_t i = args.first / shape.block_size;
       i <= (args.first + args.count - 1) / shape.block_size; ++i) {
    table[static_cast<std::size_t>(i)] = draw(random, 0, shape.blocks - 1);
  }
  const Ints places(machine, table);
  args.first_layer = draw(random, 0, shape.layers - 1);
  args.num_layers = draw(random, 1, shape.layers - args.first_layer);
  args.first_head = draw(random, 0, shape.heads - 1);
  const std::int32_t heads = draw(random, 1, shape.heads - args.first_head);
  const std::int32_t v_heads =
      draw(random, 0, 3) == 0 ? draw(random, 1, shape.heads - args.first_head) : heads;
  const DType to = dtype_of(pick(random, kRowElements));
  const DType v_to = draw(random, 0, 5) == 0 ? dtype_of(pick(random, kRowElements)) : to;
  RowsTwin k(machine, args.count, heads, shape.dim_k, to, args.num_layers, random);
  RowsTwin v(machine, args.count, v_heads, std::max(8, shape.dim_v), v_to, args.num_layers, random);
  const std::int32_t wanted = draw(random, 0, 5);
  const bool wants_v = shape.dim_v > 0 && wanted != 1, wants_k = wanted != 0 || !wants_v;
  cache.upload();
  k.upload();
  v.upload();
  args.block_table = places.host;
  args.k_layer_stride = k.copy_stride;
  args.v_layer_stride = v.copy_stride;
  if (wants_k) args.k = k.host;
  if (wants_v) args.v = v.host;
  const Status cpu = kvfolio::gather(args);
  args.block_table = {places.device, places.host.size()};
  if (wants_k) args.k = k.device;
  if (wants_v) args.v = v.device;
  const Status device = cuda::gather(cache.device, args, machine.queue());
  std::string text = both_ok(cpu, device);
  if (text.empty()) text = cache.differs();
  if (text.empty()) text = k.differs("k");
  if (text.empty()) text = v.differs("v");
  if (text.empty()) return machine.reset();
  return concat(text, "; ", shape.text(), ", positions ", args.first, " + ", args.count, ", heads ",
                args.first_head, " + ", heads);
}

}  // namespace kvfolio::cuda::cases
