// SPDX-License-Identifier: Apache-2.0
//
// Devices, streams and events.

#include "cuda_capi/cuda_capi.h"

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

uint32_t kvfolio_cuda_abi_version(void) { return KVFOLIO_CUDA_ABI_VERSION; }

int32_t kvfolio_cuda_kernel_revision(void) { return cuda::kKernelRevision; }

int32_t kvfolio_cuda_available(kvfolio_error* error) {
  const NothingThrown nothing;
  return answer(error, cuda::available());
}

int32_t kvfolio_cuda_num_devices(int32_t* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(out);
  const Result<std::int32_t> count = cuda::num_devices();
  if (!count) return answer(error, count.error());
  *out = *count;
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_device_open(int32_t ordinal, kvfolio_cuda_device** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(out);
  Result<std::shared_ptr<cuda::Device>> device = cuda::Device::open(ordinal);
  std::string target = device ? (*device)->target() : "";
  return give(error, std::move(device), out, __func__, std::move(target));
}

void kvfolio_cuda_device_destroy(kvfolio_cuda_device* device) {
  const NothingThrown nothing;
  delete device;
}

const char* kvfolio_cuda_device_name(const kvfolio_cuda_device* device) {
  return device == nullptr ? nullptr : device->device->name().c_str();
}

const char* kvfolio_cuda_device_target(const kvfolio_cuda_device* device) {
  return device == nullptr ? nullptr : device->target.c_str();
}

int32_t kvfolio_cuda_device_get_info(const kvfolio_cuda_device* device,
                                     kvfolio_cuda_device_info* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const cuda::Device& of = *device->device;
  write_struct(out, {.struct_size = 0,
                     .ordinal = of.ordinal(),
                     .capability_major = of.capability_major(),
                     .capability_minor = of.capability_minor(),
                     .num_multiprocessors = of.num_multiprocessors()});
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_device_status(const kvfolio_cuda_device* device, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  return answer(error, device->device->status());
}

int32_t kvfolio_cuda_device_synchronize(const kvfolio_cuda_device* device, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  return answer(error, device->device->synchronize());
}

int32_t kvfolio_cuda_stream_create(const kvfolio_cuda_device* device, kvfolio_cuda_stream** out,
                                   kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  KVFOLIO_C_NEEDS(out);
  return give(error, cuda::Stream::create(device->device), out, __func__);
}

void kvfolio_cuda_stream_destroy(kvfolio_cuda_stream* stream) {
  const NothingThrown nothing;
  delete stream;
}

void* kvfolio_cuda_stream_handle(const kvfolio_cuda_stream* stream) {
  return stream == nullptr ? nullptr : stream->stream.handle();
}

int32_t kvfolio_cuda_stream_done(kvfolio_cuda_stream* stream, int32_t* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(stream);
  KVFOLIO_C_NEEDS(out);
  const Result<bool> done = stream->stream.done();
  if (!done) return answer(error, done.error());
  *out = *done ? 1 : 0;
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_stream_synchronize(kvfolio_cuda_stream* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(stream);
  return answer(error, stream->stream.synchronize());
}

int32_t kvfolio_cuda_event_create(const kvfolio_cuda_device* device, kvfolio_cuda_event** out,
                                  kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(device);
  KVFOLIO_C_NEEDS(out);
  return give(error, cuda::Event::create(device->device), out, __func__);
}

void kvfolio_cuda_event_destroy(kvfolio_cuda_event* event) {
  const NothingThrown nothing;
  delete event;
}

void* kvfolio_cuda_event_handle(const kvfolio_cuda_event* event) {
  return event == nullptr ? nullptr : event->event.handle();
}

int32_t kvfolio_cuda_event_record(kvfolio_cuda_event* event, void* stream, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(event);
  return answer(error, event->event.record(stream));
}

int32_t kvfolio_cuda_event_passed(kvfolio_cuda_event* event, int32_t* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(event);
  KVFOLIO_C_NEEDS(out);
  const Result<bool> passed = event->event.passed();
  if (!passed) return answer(error, passed.error());
  *out = *passed ? 1 : 0;
  return KVFOLIO_OK;
}

int32_t kvfolio_cuda_event_synchronize(kvfolio_cuda_event* event, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(event);
  return answer(error, event->event.synchronize());
}

int32_t kvfolio_cuda_event_hold_back(kvfolio_cuda_event* event, void* stream,
                                     kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(event);
  return answer(error, event->event.hold_back(stream));
}

}  // extern "C"
