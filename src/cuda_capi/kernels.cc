// SPDX-License-Identifier: Apache-2.0
//
// Kernels, and what they move.

#include "capi/read_rows.h"
#include "cuda_capi/cuda_capi.h"

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_cuda_kernels_load(const kvfolio_cuda_device* device,
                                  const kvfolio_cuda_kernel_options* options,
                                  kvfolio_cuda_kernels** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  KVFOLIO_C_NEEDS(out);
  kvfolio_cuda_kernel_options ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(__func__, "options", options, ours));
  const cuda::KernelOptions with{.check_pointers = ours.no_pointer_checks == 0};
  return give(error, cuda::Kernels::load(device->device, with), out, __func__);
}

void kvfolio_cuda_kernels_destroy(kvfolio_cuda_kernels* kernels) {
  const NothingThrown nothing;
  delete kernels;
}

int32_t kvfolio_cuda_slot_fault(const kvfolio_view* cache, uint64_t fault, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(cache);
  return answer(error, cuda::slot_fault(view_of(*cache), fault));
}

int32_t kvfolio_cuda_table_fault(const kvfolio_view* cache, uint64_t fault, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(cache);
  return answer(error, cuda::table_fault(view_of(*cache), fault));
}

int32_t kvfolio_cuda_append(const kvfolio_cuda_kernels* kernels, kvfolio_view* cache, int32_t layer,
                            const void* k, const kvfolio_rows* k_rows, const void* v,
                            const kvfolio_rows* v_rows, const int32_t* slots, int64_t num_slots,
                            void* stream, uint64_t* fault, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "slots", slots, num_slots));
  ConstRowsView k_view;
  ConstRowsView v_view;
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "k", k, k_rows, k_view));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "v", v, v_rows, v_view));
  return answer(error, cuda::append(*kernels->kernels, view_of(*cache), layer, k_view, v_view,
                                    span_of(slots, num_slots), stream, fault_of(fault)));
}

int32_t kvfolio_cuda_gather(const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
                            const int32_t* block_table, int64_t num_entries,
                            const kvfolio_gather_options* options, void* k,
                            const kvfolio_rows* k_rows, void* v, const kvfolio_rows* v_rows,
                            void* stream, uint64_t* fault, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(cache);
  GatherArgs args;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_gather(__func__, view_of(*cache), block_table, num_entries, options, args));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "k", k, k_rows, args.k));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "v", v, v_rows, args.v));
  return answer(error, cuda::gather(*kernels->kernels, args, stream, fault_of(fault)));
}

int32_t kvfolio_cuda_copy_blocks(const kvfolio_cuda_kernels* kernels, kvfolio_view* cache,
                                 const int32_t* src, const int32_t* dst, int64_t num_blocks,
                                 void* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "src", src, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "dst", dst, num_blocks));
  return answer(error,
                cuda::copy_blocks(*kernels->kernels, view_of(*cache), span_of(src, num_blocks),
                                  span_of(dst, num_blocks), stream));
}

int32_t kvfolio_cuda_convert_blocks(const kvfolio_cuda_kernels* kernels, const kvfolio_view* from,
                                    kvfolio_view* to, const int32_t* src, const int32_t* dst,
                                    int64_t num_blocks, void* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(from);
  KVFOLIO_C_NEEDS(to);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "src", src, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "dst", dst, num_blocks));
  return answer(error,
                cuda::convert_blocks(*kernels->kernels, view_of(*from), view_of(*to),
                                     span_of(src, num_blocks), span_of(dst, num_blocks), stream));
}

int32_t kvfolio_cuda_fill(const kvfolio_cuda_kernels* kernels, kvfolio_view* cache, uint8_t value,
                          void* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(kernels);
  KVFOLIO_C_NEEDS(cache);
  return answer(error, cuda::fill(*kernels->kernels, view_of(*cache), std::byte{value}, stream));
}

}  // extern "C"
