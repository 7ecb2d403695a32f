// SPDX-License-Identifier: Apache-2.0
//
// Launches of a stream as one graph.

#include "cuda_capi/cuda_capi.h"

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_cuda_graph_begin_capture(const kvfolio_cuda_device* device, void* stream,
                                         kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  return answer(error, cuda::Graph::begin_capture(device->device, stream));
}

int32_t kvfolio_cuda_graph_end_capture(const kvfolio_cuda_device* device, void* stream,
                                       kvfolio_cuda_graph** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  KVFOLIO_C_NEEDS(out);
  return give(error, cuda::Graph::end_capture(device->device, stream), out, __func__);
}

void kvfolio_cuda_graph_drop_capture(const kvfolio_cuda_device* device, void* stream) {
  const NothingThrown nothing;
  if (device == nullptr) return;
  static_cast<void>(cuda::Graph::end_capture(device->device, stream,
                                             {ErrorCode::kAborted, "the capture was dropped"}));
}

void kvfolio_cuda_graph_destroy(kvfolio_cuda_graph* graph) {
  const NothingThrown nothing;
  delete graph;
}

int32_t kvfolio_cuda_graph_launch(kvfolio_cuda_graph* graph, void* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(graph);
  return answer(error, graph->graph.launch(stream));
}

void* kvfolio_cuda_graph_handle(const kvfolio_cuda_graph* graph) {
  return graph == nullptr ? nullptr : graph->graph.handle();
}

}  // extern "C"
