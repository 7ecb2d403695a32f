// SPDX-License-Identifier: Apache-2.0
#pragma once

// Times of work on a stream. Each candidate is captured in a graph of some launches, which go over
// several sets of memory, so that no cache holds what they read; graphs are played in turn, round
// after round, and the median of a launch is kept.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "device_machine.h"

namespace kvfolio::cuda {

struct Timed {
  std::string name;
  std::function<void(cudaStream_t, int)> start;  // number of the launch
  double bytes = 0;                              // read and written
  int launches = 1;
  double us = 0;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline void time_all(std::vector<Timed>& all, int rounds) {
  cudaStream_t stream;
  cudaEvent_t before, after;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  check(cudaEventCreate(&before), "event");
  check(cudaEventCreate(&after), "event");
  std::vector<cudaGraphExec_t> graphs(all.size());
  std::vector<std::vector<double>> us(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Timed& timed = all[i];
    for (int n = 0; n < std::min(timed.launches, 2); ++n) timed.start(stream, n);
    check(cudaStreamSynchronize(stream), timed.name.c_str());
    cudaGraph_t graph;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int n = 0; n < timed.launches; ++n) timed.start(stream, n);
    check(cudaStreamEndCapture(stream, &graph), timed.name.c_str());
    check(cudaGraphInstantiate(&graphs[i], graph, 0), "graph");
    check(cudaGraphDestroy(graph), "graph");
  }
  for (int round = -2; round < rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      check(cudaEventRecord(before, stream), "event");
      check(cudaGraphLaunch(graphs[i], stream), all[i].name.c_str());
      check(cudaEventRecord(after, stream), "event");
      check(cudaEventSynchronize(after), all[i].name.c_str());
      float ms = 0;
      check(cudaEventElapsedTime(&ms, before, after), "event");
      if (round >= 0) us[i].push_back(static_cast<double>(ms) * 1e3 / all[i].launches);
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].us = median(us[i]);
    cudaGraphExecDestroy(graphs[i]);
  }
  cudaEventDestroy(before);
  cudaEventDestroy(after);
  cudaStreamDestroy(stream);
}

}  // namespace kvfolio::cuda
