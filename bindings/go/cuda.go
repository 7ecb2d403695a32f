// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package kvfolio

// Memory of NVIDIA cards (kvfolio_cuda.h), with the build tag cuda, which links libkvfolio_cuda.

// #include <kvfolio/kvfolio_cuda.h>
//
// // Streams and addresses of a device are numbers in Go, which the collector never takes for its own.
// static int32_t kvfolio_go_event_record(kvfolio_cuda_event* event, uintptr_t stream,
//                                        kvfolio_error* error) {
//   return kvfolio_cuda_event_record(event, (void*)stream, error);
// }
// static int32_t kvfolio_go_event_hold_back(kvfolio_cuda_event* event, uintptr_t stream,
//                                           kvfolio_error* error) {
//   return kvfolio_cuda_event_hold_back(event, (void*)stream, error);
// }
// static int32_t kvfolio_go_cuda_memory_create(
//     const kvfolio_cuda_device* device, const kvfolio_cuda_kernels* kernels, int32_t source,
//     int64_t staging_bytes, uintptr_t lent, int64_t lent_bytes, kvfolio_cuda_memory** out,
//     kvfolio_error* error) {
//   const kvfolio_cuda_memory_options options = {sizeof options, source, staging_bytes, (void*)lent,
//                                                lent_bytes};
//   return kvfolio_cuda_memory_create(device, kernels, &options, out, error);
// }
// static int32_t kvfolio_go_cuda_allocate(kvfolio_cuda_memory* memory, int64_t bytes,
//                                         uint64_t* out, kvfolio_error* error) {
//   void* piece = 0;
//   const int32_t code = kvfolio_cuda_memory_allocate(memory, bytes, &piece, error);
//   *out = (uintptr_t)piece;
//   return code;
// }
// static void kvfolio_go_cuda_deallocate(kvfolio_cuda_memory* memory, uintptr_t piece,
//                                        int64_t bytes) {
//   kvfolio_cuda_memory_deallocate(memory, (void*)piece, bytes);
// }
// static int32_t kvfolio_go_cuda_copy_in(kvfolio_cuda_memory* memory, uintptr_t dst,
//                                        const uint8_t* src, int64_t bytes, kvfolio_error* error) {
//   return kvfolio_cuda_memory_copy_in(memory, (void*)dst, src, bytes, error);
// }
// static int32_t kvfolio_go_cuda_copy_out(kvfolio_cuda_memory* memory, uint8_t* dst, uintptr_t src,
//                                         int64_t bytes, kvfolio_error* error) {
//   return kvfolio_cuda_memory_copy_out(memory, dst, (const void*)src, bytes, error);
// }
// static int32_t kvfolio_go_cuda_copy(kvfolio_cuda_memory* memory, uintptr_t dst, uintptr_t src,
//                                     int64_t bytes, kvfolio_error* error) {
//   return kvfolio_cuda_memory_copy(memory, (void*)dst, (const void*)src, bytes, error);
// }
// static int32_t kvfolio_go_cuda_resource(kvfolio_cuda_memory* memory, void** functions,
//                                         kvfolio_error* error) {
//   kvfolio_memory_resource r = {sizeof r, 0, 0, 0, 0, 0, 0, 0, 0};
//   const int32_t code = kvfolio_cuda_memory_resource(memory, &r, error);
//   functions[0] = r.context;
//   functions[1] = (void*)r.allocate;
//   functions[2] = (void*)r.deallocate;
//   functions[3] = (void*)r.copy;
//   functions[4] = (void*)r.copy_batch;
//   functions[5] = (void*)r.copy_in;
//   functions[6] = (void*)r.copy_out;
//   return code;
// }
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// DevicePointer is an address in the memory of a device (CUdeviceptr), which Go may not follow. 0 is
// none.
type DevicePointer uintptr

// CUDAStreamHandle is a CUstream or cudaStream_t; 0 is the legacy default stream of the device.
type CUDAStreamHandle uintptr

// CUDAAvailable returns nil if there is a driver that is new enough, and at least one device;
// ErrUnavailable says what is missing.
func CUDAAvailable() error {
	s := take()
	return s.give(C.kvfolio_cuda_available(&s.err), false, "")
}

// CUDANumDevices returns how many devices the driver has. The errors of CUDAAvailable.
func CUDANumDevices() (int, error) {
	s := take()
	code := C.kvfolio_cuda_num_devices(&s.i32[0], &s.err)
	n := int(s.i32[0])
	return n, s.give(code, false, "")
}

// CUDADevice is one card, through its primary context. Several goroutines may use it at a time. What
// was made with it goes on when it is closed.
type CUDADevice struct {
	c        *C.kvfolio_cuda_device
	captures int32 // open ones, which need it to end
	birth
}

// OpenCUDA opens a device. ErrUnavailable: see CUDAAvailable. ErrInvalidArgument: there is no device of
// this number. ErrUnsupported: a card below compute capability 8.0.
func OpenCUDA(ordinal int) (*CUDADevice, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	s := take()
	var out *C.kvfolio_cuda_device
	if err := s.give(C.kvfolio_cuda_device_open(i32(ordinal), &out, &s.err), false, ""); err != nil {
		return nil, err
	}
	d := &CUDADevice{c: out, birth: bornOf()}
	runtime.SetFinalizer(d, func(d *CUDADevice) { d.leaked("CUDADevice") })
	return d, nil
}

func (d *CUDADevice) p() *C.kvfolio_cuda_device {
	if d == nil {
		return nil
	}
	return d.c
}

func (d *CUDADevice) done(s *scratch, code C.int32_t) error {
	return s.give(code, d.p() == nil, "CUDADevice")
}

// Close frees the handle. ErrFailedPrecondition: a Capture of the device is open, which needs it to end;
// nothing is freed. Nil otherwise, behind an earlier Close too.
func (d *CUDADevice) Close() error {
	if d.p() == nil {
		return nil
	}
	if n := atomic.LoadInt32(&d.captures); n > 0 {
		return failf(ErrFailedPrecondition,
			"Close: captures of the CUDADevice that are open: %d; close it behind them", n)
	}
	runtime.SetFinalizer(d, nil)
	C.kvfolio_cuda_device_destroy(d.c)
	d.c = nil
	return nil
}

// Name returns "NVIDIA H100 80GB HBM3".
func (d *CUDADevice) Name() string { return C.GoString(C.kvfolio_cuda_device_name(d.p())) }

// Target returns "cuda-sm90": the architecture, since others may round otherwise.
func (d *CUDADevice) Target() string { return C.GoString(C.kvfolio_cuda_device_target(d.p())) }

// CUDADeviceInfo is numbers of a device.
type CUDADeviceInfo struct {
	Ordinal            int
	CapabilityMajor    int // compute capability: 9 and 0 of an H100
	CapabilityMinor    int
	NumMultiprocessors int
}

// Info returns the numbers of the device.
func (d *CUDADevice) Info() (CUDADeviceInfo, error) {
	s := take()
	info := C.kvfolio_cuda_device_info{struct_size: C.sizeof_kvfolio_cuda_device_info}
	code := C.kvfolio_cuda_device_get_info(d.p(), &info, &s.err)
	return CUDADeviceInfo{
		Ordinal:            int(info.ordinal),
		CapabilityMajor:    int(info.capability_major),
		CapabilityMinor:    int(info.capability_minor),
		NumMultiprocessors: int(info.num_multiprocessors),
	}, d.done(s, code)
}

// Status returns nil, or ErrUnavailable with what ended the context. Asks no driver.
func (d *CUDADevice) Status() error {
	s := take()
	return d.done(s, C.kvfolio_cuda_device_status(d.p(), &s.err))
}

// Synchronize waits for all that was started on the device. The one call that does.
func (d *CUDADevice) Synchronize() error {
	s := take()
	return d.done(s, C.kvfolio_cuda_device_synchronize(d.p(), &s.err))
}

// CUDAStream is a stream that does not wait for the legacy default one. It belongs to one goroutine at a time.
type CUDAStream struct {
	c *C.kvfolio_cuda_stream
	birth
}

// NewStream makes a stream.
func (d *CUDADevice) NewStream() (*CUDAStream, error) {
	s := take()
	var out *C.kvfolio_cuda_stream
	if err := d.done(s, C.kvfolio_cuda_stream_create(d.p(), &out, &s.err)); err != nil {
		return nil, err
	}
	stream := &CUDAStream{c: out, birth: bornOf()}
	runtime.SetFinalizer(stream, func(s *CUDAStream) { s.leaked("CUDAStream") })
	return stream, nil
}

func (s *CUDAStream) p() *C.kvfolio_cuda_stream {
	if s == nil {
		return nil
	}
	return s.c
}

func (s *CUDAStream) done(w *scratch, code C.int32_t) error {
	return w.give(code, s.p() == nil, "CUDAStream")
}

// Close ends the stream.
func (s *CUDAStream) Close() {
	if s.p() == nil {
		return
	}
	runtime.SetFinalizer(s, nil)
	C.kvfolio_cuda_stream_destroy(s.c)
	s.c = nil
}

// Handle returns the CUstream, valid until Close.
func (s *CUDAStream) Handle() CUDAStreamHandle {
	return CUDAStreamHandle(uintptr(C.kvfolio_cuda_stream_handle(s.p())))
}

// Done reports whether all that it was given is done. Does not wait.
func (s *CUDAStream) Done() (bool, error) {
	w := take()
	code := C.kvfolio_cuda_stream_done(s.p(), &w.i32[0], &w.err)
	is := w.i32[0] != 0
	return is, s.done(w, code)
}

// Synchronize waits until it is.
func (s *CUDAStream) Synchronize() error {
	w := take()
	return s.done(w, C.kvfolio_cuda_stream_synchronize(s.p(), &w.err))
}

// CUDAEvent is a point in a stream. It belongs to one goroutine at a time.
type CUDAEvent struct {
	c *C.kvfolio_cuda_event
	birth
}

// NewEvent makes an event, which has passed until it is recorded.
func (d *CUDADevice) NewEvent() (*CUDAEvent, error) {
	s := take()
	var out *C.kvfolio_cuda_event
	if err := d.done(s, C.kvfolio_cuda_event_create(d.p(), &out, &s.err)); err != nil {
		return nil, err
	}
	event := &CUDAEvent{c: out, birth: bornOf()}
	runtime.SetFinalizer(event, func(e *CUDAEvent) { e.leaked("CUDAEvent") })
	return event, nil
}

func (e *CUDAEvent) p() *C.kvfolio_cuda_event {
	if e == nil {
		return nil
	}
	return e.c
}

func (e *CUDAEvent) done(s *scratch, code C.int32_t) error {
	return s.give(code, e.p() == nil, "CUDAEvent")
}

// Close ends the event.
func (e *CUDAEvent) Close() {
	if e.p() == nil {
		return
	}
	runtime.SetFinalizer(e, nil)
	C.kvfolio_cuda_event_destroy(e.c)
	e.c = nil
}

// Handle returns the CUevent, valid until Close.
func (e *CUDAEvent) Handle() uintptr { return uintptr(C.kvfolio_cuda_event_handle(e.p())) }

// Record is the point behind all that the stream was given so far.
func (e *CUDAEvent) Record(stream CUDAStreamHandle) error {
	s := take()
	return e.done(s, C.kvfolio_go_event_record(e.p(), C.uintptr_t(stream), &s.err))
}

// Passed reports whether it has passed. Does not wait.
func (e *CUDAEvent) Passed() (bool, error) {
	s := take()
	code := C.kvfolio_cuda_event_passed(e.p(), &s.i32[0], &s.err)
	is := s.i32[0] != 0
	return is, e.done(s, code)
}

// Synchronize waits until it has passed.
func (e *CUDAEvent) Synchronize() error {
	s := take()
	return e.done(s, C.kvfolio_cuda_event_synchronize(e.p(), &s.err))
}

// HoldBack lets what the stream is given from now on begin when the event has passed.
func (e *CUDAEvent) HoldBack(stream CUDAStreamHandle) error {
	s := take()
	return e.done(s, C.kvfolio_go_event_hold_back(e.p(), C.uintptr_t(stream), &s.err))
}

// CUDAPinned is memory of the host that every device reads and writes while the host goes on.
type CUDAPinned struct {
	c *C.kvfolio_cuda_pinned
	birth
}

// NewPinned allocates pinned memory of any content.
func (d *CUDADevice) NewPinned(bytes int) (*CUDAPinned, error) {
	s := take()
	var out *C.kvfolio_cuda_pinned
	code := C.kvfolio_cuda_pinned_allocate(d.p(), C.int64_t(bytes), &out, &s.err)
	if err := d.done(s, code); err != nil {
		return nil, err
	}
	pinned := &CUDAPinned{c: out, birth: bornOf()}
	runtime.SetFinalizer(pinned, func(m *CUDAPinned) { m.leaked("CUDAPinned") })
	return pinned, nil
}

func (m *CUDAPinned) p() *C.kvfolio_cuda_pinned {
	if m == nil {
		return nil
	}
	return m.c
}

// Bytes returns the memory, valid until Close.
func (m *CUDAPinned) Bytes() []byte {
	n := int(C.kvfolio_cuda_pinned_bytes(m.p()))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(C.kvfolio_cuda_pinned_data(m.p())), n)
}

// Close frees the memory, after the work that uses it has passed.
func (m *CUDAPinned) Close() {
	if m.p() == nil {
		return
	}
	runtime.SetFinalizer(m, nil)
	C.kvfolio_cuda_pinned_destroy(m.c)
	m.c = nil
}

// CUDASource says where the memory of a CUDAMemory comes from.
type CUDASource int32

// Sources of memory.
const (
	CUDAPlain CUDASource = C.KVFOLIO_CUDA_PLAIN // cuMemAlloc: freeing it waits for the device
	// CUDAPool is the device's pool: neither call waits for other streams. What uses the memory has
	// ended before it is given back.
	CUDAPool CUDASource = C.KVFOLIO_CUDA_POOL
	CUDALent CUDASource = C.KVFOLIO_CUDA_LENT // a piece that the caller owns
)

// CUDAMemoryOptions are options of NewMemory.
type CUDAMemoryOptions struct {
	Source       CUDASource
	StagingBytes int // pinned, of both pieces together; 0: 16 MiB
	// Kernels of the same device, or nil. With them many copies are one copy and one kernel.
	Kernels *CUDAKernels
	// CUDALent: memory of the device, aligned to 64 bytes, that outlives this.
	Lent      DevicePointer
	LentBytes int64
}

// CUDAMemory is memory of a device. Several goroutines may use it at a time; their calls wait for each
// other. Copies have arrived when a call returns. Close it after the storages, stores and pieces that
// were made with it.
type CUDAMemory struct {
	c *C.kvfolio_cuda_memory
	birth
}

// NewMemory makes a memory. Nil options are defaults.
func (d *CUDADevice) NewMemory(options *CUDAMemoryOptions) (*CUDAMemory, error) {
	if options == nil {
		options = &CUDAMemoryOptions{}
	}
	if options.Kernels != nil && options.Kernels.p() == nil {
		return nil, failf(ErrFailedPrecondition, "the CUDAKernels is closed")
	}
	s := take()
	var out *C.kvfolio_cuda_memory
	code := C.kvfolio_go_cuda_memory_create(d.p(), options.Kernels.p(), C.int32_t(options.Source),
		C.int64_t(options.StagingBytes), C.uintptr_t(options.Lent), C.int64_t(options.LentBytes), &out,
		&s.err)
	if err := d.done(s, code); err != nil {
		return nil, err
	}
	memory := &CUDAMemory{c: out, birth: bornOf()}
	runtime.SetFinalizer(memory, func(m *CUDAMemory) { m.leaked("CUDAMemory") })
	return memory, nil
}

func (m *CUDAMemory) p() *C.kvfolio_cuda_memory {
	if m == nil {
		return nil
	}
	return m.c
}

func (m *CUDAMemory) done(s *scratch, code C.int32_t) error {
	return s.give(code, m.p() == nil, "CUDAMemory")
}

// Close gives back what it has.
func (m *CUDAMemory) Close() {
	if m.p() == nil {
		return
	}
	runtime.SetFinalizer(m, nil)
	C.kvfolio_cuda_memory_destroy(m.c)
	m.c = nil
}

// Resource returns what NewStorage takes, so that K and V are on the device. TakeError has the sentence
// of a copy that failed.
func (m *CUDAMemory) Resource() (*MemoryResource, error) {
	s := take()
	var functions [7]unsafe.Pointer
	code := C.kvfolio_go_cuda_resource(m.p(), &functions[0], &s.err)
	if err := m.done(s, code); err != nil {
		return nil, err
	}
	return &MemoryResource{
		Kind:       Device,
		Context:    functions[0],
		Allocate:   functions[1],
		Deallocate: functions[2],
		Copy:       functions[3],
		CopyBatch:  functions[4],
		CopyIn:     functions[5],
		CopyOut:    functions[6],
	}, nil
}

// TakeError returns the first failure since the last call, or nil: also of freeing, which says nothing
// itself.
func (m *CUDAMemory) TakeError() error {
	s := take()
	return m.done(s, C.kvfolio_cuda_memory_take_error(m.p(), &s.err))
}

// Allocate returns bytes >= 1 of the device, aligned to 64 or more, for rows, slots and tables.
func (m *CUDAMemory) Allocate(bytes int) (DevicePointer, error) {
	s := take()
	code := C.kvfolio_go_cuda_allocate(m.p(), C.int64_t(bytes), &s.id, &s.err)
	out := DevicePointer(s.id)
	return out, m.done(s, code)
}

// Deallocate takes back what Allocate gave for as many bytes. 0 is nothing.
func (m *CUDAMemory) Deallocate(piece DevicePointer, bytes int) {
	C.kvfolio_go_cuda_deallocate(m.p(), C.uintptr_t(piece), C.int64_t(bytes))
}

// CopyIn copies src to the device. It waits for nothing that was started on a stream.
func (m *CUDAMemory) CopyIn(dst DevicePointer, src []byte) error {
	s := take()
	return m.done(s, C.kvfolio_go_cuda_copy_in(m.p(), C.uintptr_t(dst), firstByte(src),
		C.int64_t(len(src)), &s.err))
}

// CopyOut fills dst from the device. It waits for nothing that was started on a stream.
func (m *CUDAMemory) CopyOut(dst []byte, src DevicePointer) error {
	s := take()
	return m.done(s, C.kvfolio_go_cuda_copy_out(m.p(), firstByte(dst), C.uintptr_t(src),
		C.int64_t(len(dst)), &s.err))
}

// Copy copies within the device.
func (m *CUDAMemory) Copy(dst, src DevicePointer, bytes int) error {
	s := take()
	return m.done(s, C.kvfolio_go_cuda_copy(m.p(), C.uintptr_t(dst), C.uintptr_t(src),
		C.int64_t(bytes), &s.err))
}
