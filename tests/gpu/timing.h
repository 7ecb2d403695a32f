// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is timed, and how: replays of captured graphs, in turn, round after round, so that all meet
// the same clocks. Inputs rotate over more memory than the L2 holds.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/attention/launch.h"
#include "problem.h"

namespace kvfolio::cuda {

struct Timed {
  std::string name;
  std::function<void(cudaStream_t, int)> launch;  // (stream, number of the launch)
  int launches = 1;
  cudaGraphExec_t graph = nullptr;
  std::vector<double> us;
  [[nodiscard]] double median() const {
    std::vector<double> sorted = us;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

// The graph of a Timed, captured on `stream`.
void capture(cudaStream_t stream, Timed& timed);
// Replays the graph once: us of one launch.
double replay(cudaStream_t stream, cudaEvent_t before, cudaEvent_t after, const Timed& timed);
// kRounds of all in turn, after two that do not count.
constexpr int kRounds = 9;
void time_all(std::vector<Timed>& all);

// A tile of 64 tokens of a sequence.
struct ProbeTile {
  int sequence, first, count;
};
// What is timed: a decode, or a prefill where queries are named.
struct TimedShape {
  Element element = Element::kBF16;
  int group_size = 8;
  int heads = 8;
  int dim = 128;
  int block_size = 16;
  bool nhd = false;
  std::vector<int> lens;
  std::string lens_name;
  Mask mask = {};
  std::vector<int> queries = {};  // of each sequence; empty: one
};
std::string name_of(const TimedShape& shape);
std::vector<TimedShape> decode_shapes(bool quick);
std::vector<TimedShape> prefill_shapes(bool quick);
// Operations of the two products of a prefill.
double flop_of(const TimedShape& shape);

// Problems of one shape with other data and blocks.
struct ProblemSet {
  Arena arena;
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<const ProbeTile*> tiles;
  int num_tiles = 0;
};

void build_sets(const TimedShape& shape, ProblemSet& set);
// Two reads of all that a decode reads: the second is faster where there is much to read.
Timed probe_of(const ProblemSet& set, int grid, uint32_t* sink, int launches);
Timed leaf_probe_of(ProblemSet& set, uint32_t* sink, int launches);
Timed attend_of(ProblemSet& set, const char* name, const KernelChoice& choice, int launches);

}  // namespace kvfolio::cuda
