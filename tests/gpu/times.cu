// SPDX-License-Identifier: Apache-2.0

// Times of decode and prefill beside a read of the same blocks, in one run: medians of rounds.

#include <algorithm>
#include <utility>

#include "timing.h"

namespace kvfolio::cuda {
namespace {

void time_decode(const TimedShape& shape) {
  ProblemSet set;
  build_sets(shape, set);
  const double bytes = set.problems[0]->kv_bytes;
  const int launches = std::max(static_cast<int>(set.problems.size()), bytes > 1e9 ? 2 : 4);
  int sms = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  uint32_t* sink = static_cast<uint32_t*>(set.arena.bytes(256));
  std::vector<Timed> all;
  for (const int each : {4, 8, 16}) all.push_back(probe_of(set, each * sms, sink, launches));
  if (shape.mask.rule == Rule::kFull) all.push_back(leaf_probe_of(set, sink, launches));
  all.push_back(attend_of(set, "nodes", {.num_sms = sms, .stream = false}, launches));
  all.push_back(attend_of(set, "default", {.num_sms = sms}, launches));
  if (!has_scales(shape.element) && shape.group_size <= 8) {
    for (const auto& [name, blocks] :
         {std::pair{"stream", 3 * sms},
          {"stream of 2 an SM", 2 * sms},
          {"stream of whole", shape.heads * static_cast<int>(shape.lens.size())}})
      if (blocks <= 3 * sms)
        all.push_back(attend_of(set, name, {.stream_blocks = blocks}, launches));
  }
  time_all(all);
  double roof = 1e30;
  std::string parts;
  for (const Timed& t : all) {
    if (t.name.rfind("read", 0) == 0) roof = std::min(roof, t.median());
    char text[80];
    std::snprintf(text, sizeof text, "%s\"%s\": %.2f", parts.empty() ? "" : ", ", t.name.c_str(),
                  t.median());
    parts += text;
  }
  double best = 0;
  for (const Timed& t : all)
    if (t.name == "default") best = t.median();
  std::printf(
      "J|{\"part\": \"decode\", \"shape\": \"%s\", \"kv_bytes\": %.0f, \"roof_us\": %.2f, "
      "\"roof_gbs\": %.0f, \"us\": %.2f, \"of_roof\": %.3f, \"all_us\": {%s}}\n",
      name_of(shape).c_str(), bytes, roof, bytes / roof * 1e-3, best, roof / best, parts.c_str());
  std::fflush(stdout);
}

void time_prefill(const TimedShape& shape) {
  ProblemSet set;
  build_sets(shape, set);
  std::vector<Timed> all;
  all.push_back(attend_of(set, "default", {}, 2));
  if (shape.dim == 128 && !has_scales(shape.element))
    all.push_back(attend_of(set, "no wgmma", {.wgmma = false}, 2));
  if (shape.dim == 64 || (shape.dim == 128 && has_scales(shape.element)))
    all.push_back(attend_of(set, "wgmma tiles", {.wgmma_tiles = true}, 2));
  time_all(all);
  for (const Timed& t : all)
    std::printf(
        "J|{\"part\": \"prefill\", \"shape\": \"%s\", \"way\": \"%s\", "
        "\"us\": %.1f, \"tflops\": %.0f}\n",
        name_of(shape).c_str(), t.name.c_str(), t.median(), flop_of(shape) / t.median() * 1e-6);
  std::fflush(stdout);
}

}  // namespace

void run_decode(bool quick) {
  for (const TimedShape& shape : decode_shapes(quick)) time_decode(shape);
}

void run_prefill(bool quick) {
  for (const TimedShape& shape : prefill_shapes(quick)) time_prefill(shape);
}

}  // namespace kvfolio::cuda
