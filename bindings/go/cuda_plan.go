// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package kvfolio

// #include <stdlib.h>
// #include <kvfolio/kvfolio_cuda.h>
//
// // Streams and addresses of a device are numbers in Go; handles as numbers: see steps.go.
// static int32_t kvfolio_go_plan_upload(uintptr_t plan, uintptr_t step, uintptr_t groups, int32_t n,
//                                       uintptr_t stream, kvfolio_error* error) {
//   return kvfolio_cuda_plan_upload((kvfolio_cuda_plan*)plan, (const kvfolio_step_plan*)step,
//                                   (const kvfolio_group_plan*)groups, n, (void*)stream, error);
// }
// static int32_t kvfolio_go_plan_send(uintptr_t plan, uintptr_t step, uintptr_t groups, int32_t n,
//                                     uintptr_t stream, kvfolio_error* error) {
//   return kvfolio_cuda_plan_send((kvfolio_cuda_plan*)plan, (const kvfolio_step_plan*)step,
//                                 (const kvfolio_group_plan*)groups, n, (void*)stream, error);
// }
// static int32_t kvfolio_go_plan_verify(uintptr_t plan, uintptr_t step, uintptr_t groups, int32_t n,
//                                       uintptr_t stream, kvfolio_error* error) {
//   return kvfolio_cuda_plan_verify((kvfolio_cuda_plan*)plan, (const kvfolio_step_plan*)step,
//                                   (const kvfolio_group_plan*)groups, n, (void*)stream, error);
// }
// static int32_t kvfolio_go_plan_needs(uintptr_t plan, uintptr_t step, uintptr_t groups, int32_t n,
//                                      int32_t* out, kvfolio_error* error) {
//   return kvfolio_cuda_plan_needs_block_tables((kvfolio_cuda_plan*)plan,
//                                               (const kvfolio_step_plan*)step,
//                                               (const kvfolio_group_plan*)groups, n, out, error);
// }
// static int32_t kvfolio_go_plan_apply(uintptr_t plan, uintptr_t stream, kvfolio_error* error) {
//   return kvfolio_cuda_plan_apply((kvfolio_cuda_plan*)plan, (void*)stream, error);
// }
import "C"

import (
	"runtime"
	"unsafe"
)

// DevicePlanGroup is what a DevicePlan is told of a group.
type DevicePlanGroup struct {
	BlockSize   int
	TableStride int // columns of its tables: Cache.Widest, or a bound that the host keeps
}

// DevicePlanOptions are options of NewDevicePlan.
type DevicePlanOptions struct {
	MaxSequences  int               // of a step, padding included
	MaxTokens     int               // the same
	NumRows       int               // Cache.NumRows
	Groups        []DevicePlanGroup // of the cache
	StepsInFlight int               // pieces of pinned memory; 0: 2
	// As in PlanOptions of the plans.
	PadWithZero bool
	Positions   bool
	Int64Slots  bool
	FlashInfer  bool
	// No block tables in the order of the plan.
	NoBatchTables bool
	// Entries that one upload may set, all groups together, rows that are sent whole included; 0: none
	// is refused. At least the columns of a row of each group, a quarter more with FlashInfer: where a
	// plan is refused, undo sequences of the step and send them in the next ones.
	MaxChangedEntries int64
}

// DevicePlan is the plan of a step in the memory of a device: arrays that keep their addresses, for
// captured graphs, and block tables that stay there, of which a step sends only what changed
// (cuda_plan.h says the rules). Its plans are made with ChangedEntries; without block tables while
// NeedsBlockTables says no. It belongs to one goroutine at a time.
type DevicePlan struct {
	c      *C.kvfolio_cuda_plan
	step   *C.kvfolio_step_plan
	groups *C.kvfolio_group_plan
	n      int
	// Arrays of the plan that C reads: memory that Go does not move.
	arrays unsafe.Pointer
	room   int
	birth
}

// NewDevicePlan waits for the device. ErrInvalidArgument: the options. ErrOutOfMemory, ErrUnavailable.
func (k *CUDAKernels) NewDevicePlan(options *DevicePlanOptions) (*DevicePlan, error) {
	if options == nil {
		options = &DevicePlanOptions{}
	}
	c := C.kvfolio_cuda_plan_options{
		struct_size:         C.sizeof_kvfolio_cuda_plan_options,
		max_sequences:       i32(options.MaxSequences),
		max_tokens:          i32(options.MaxTokens),
		num_rows:            i32(options.NumRows),
		steps_in_flight:     i32(options.StepsInFlight),
		pad_with_zero:       b32(options.PadWithZero),
		positions:           b32(options.Positions),
		int64_slots:         b32(options.Int64Slots),
		no_batch_tables:     b32(options.NoBatchTables),
		flashinfer:          b32(options.FlashInfer),
		max_changed_entries: C.int64_t(options.MaxChangedEntries),
	}
	n := len(options.Groups)
	sizes, strides := make([]int32, n), make([]int32, n)
	for i, g := range options.Groups {
		sizes[i], strides[i] = int32(i32(g.BlockSize)), int32(i32(g.TableStride))
	}
	s := take()
	var out *C.kvfolio_cuda_plan
	code := C.kvfolio_cuda_plan_create(k.p(), &c, first(sizes), first(strides), i32(n), &out, &s.err)
	if err := k.done(s, code); err != nil {
		return nil, err
	}
	plan := &DevicePlan{c: out, n: n, birth: bornOf()}
	plan.step = (*C.kvfolio_step_plan)(C.calloc(1, C.sizeof_kvfolio_step_plan))
	plan.groups = (*C.kvfolio_group_plan)(C.calloc(C.size_t(n), C.sizeof_kvfolio_group_plan))
	runtime.SetFinalizer(plan, func(p *DevicePlan) { p.leaked("DevicePlan") })
	return plan, nil
}

func (p *DevicePlan) p() *C.kvfolio_cuda_plan {
	if p == nil {
		return nil
	}
	return p.c
}

func (p *DevicePlan) h() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(p.p()))) }

func (p *DevicePlan) done(s *scratch, code C.int32_t) error {
	return s.give(code, p.p() == nil, "DevicePlan")
}

// Close waits for copies that are under way. Kernels that read the arrays have ended before.
func (p *DevicePlan) Close() {
	if p.p() == nil {
		return
	}
	runtime.SetFinalizer(p, nil)
	C.kvfolio_cuda_plan_destroy(p.c)
	C.free(unsafe.Pointer(p.step))
	C.free(unsafe.Pointer(p.groups))
	C.free(p.arrays)
	*p = DevicePlan{}
}

// DevicePlanArrays are addresses of a device, the same as long as the plan; 0: not wanted. What is behind
// the step's own is padding.
type DevicePlanArrays struct {
	QueryStart    DevicePointer // int32 [MaxSequences + 1]
	Rows          DevicePointer // int32 [MaxSequences]
	KVLens        DevicePointer
	TrimSinks     DevicePointer
	TrimFirstKept DevicePointer
	Positions     DevicePointer // int32 [MaxTokens]
	Counts        DevicePointer // int32 [2]: sequences and tokens of the step, without padding
}

// Arrays returns where the arrays of all groups lie.
func (p *DevicePlan) Arrays() (DevicePlanArrays, error) {
	s := take()
	out := C.kvfolio_cuda_plan_arrays{struct_size: C.sizeof_kvfolio_cuda_plan_arrays}
	code := C.kvfolio_cuda_plan_get_arrays(p.p(), &out, &s.err)
	at := func(a *C.int32_t) DevicePointer { return DevicePointer(uintptr(unsafe.Pointer(a))) }
	return DevicePlanArrays{
		QueryStart:    at(out.query_start),
		Rows:          at(out.rows),
		KVLens:        at(out.kv_lens),
		TrimSinks:     at(out.trim_sinks),
		TrimFirstKept: at(out.trim_first_kept),
		Positions:     at(out.positions),
		Counts:        at(out.counts),
	}, p.done(s, code)
}

// DeviceGroupPlan is the same of one group.
type DeviceGroupPlan struct {
	TableStride   int
	SlotMapping   DevicePointer // int32 [MaxTokens], or
	SlotMapping64 DevicePointer // int64 [MaxTokens]
	Table         DevicePointer // int32 [NumRows, TableStride]: row Rows[i] is the i-th sequence's
	BatchTable    DevicePointer // int32 [MaxSequences, TableStride], in the order of the plan
	KVIndptr      DevicePointer // FlashInfer: int32 [MaxSequences + 1]
	KVIndices     DevicePointer // int32 [MaxSequences * TableStride]
	KVLastPageLen DevicePointer // int32 [MaxSequences]
	KVFirstLive   DevicePointer // int32 [MaxSequences]
}

// Group returns where the arrays of a group lie. ErrInvalidArgument: there is no such group.
func (p *DevicePlan) Group(group int) (DeviceGroupPlan, error) {
	s := take()
	out := C.kvfolio_cuda_plan_group{struct_size: C.sizeof_kvfolio_cuda_plan_group}
	code := C.kvfolio_cuda_plan_get_group(p.p(), i32(group), &out, &s.err)
	at := func(a *C.int32_t) DevicePointer { return DevicePointer(uintptr(unsafe.Pointer(a))) }
	return DeviceGroupPlan{
		TableStride:   int(out.table_stride),
		SlotMapping:   at(out.slot_mapping),
		SlotMapping64: DevicePointer(uintptr(unsafe.Pointer(out.slot_mapping_64))),
		Table:         at(out.table),
		BatchTable:    at(out.batch_table),
		KVIndptr:      at(out.kv_indptr),
		KVIndices:     at(out.kv_indices),
		KVLastPageLen: at(out.kv_last_page_len),
		KVFirstLive:   at(out.kv_first_live),
	}, p.done(s, code)
}

// DeviceBytes returns the bytes that it has on the device.
func (p *DevicePlan) DeviceBytes() int64 { return int64(C.kvfolio_cuda_plan_device_bytes(p.p())) }

// PinnedBytes returns the bytes of pinned memory that it has.
func (p *DevicePlan) PinnedBytes() int64 { return int64(C.kvfolio_cuda_plan_pinned_bytes(p.p())) }

// writer copies arrays of a plan, which may be memory of Go, to memory of C. Without memory it counts.
type writer struct {
	to unsafe.Pointer
	at int
}

func (w *writer) write(from unsafe.Pointer, n, size int) unsafe.Pointer {
	at := w.at
	w.at += (n*size + 7) / 8 * 8
	if w.to == nil || n == 0 {
		return nil
	}
	to := unsafe.Add(w.to, at)
	copy(unsafe.Slice((*byte)(to), n*size), unsafe.Slice((*byte)(from), n*size))
	return to
}

func (w *writer) i32s(s []int32) C.kvfolio_i32s {
	if len(s) == 0 {
		return C.kvfolio_i32s{}
	}
	to := w.write(unsafe.Pointer(&s[0]), len(s), 4)
	return C.kvfolio_i32s{data: (*C.int32_t)(to), size: C.int64_t(len(s))}
}

func (w *writer) i64s(s []int64) C.kvfolio_i64s {
	if len(s) == 0 {
		return C.kvfolio_i64s{}
	}
	to := w.write(unsafe.Pointer(&s[0]), len(s), 8)
	return C.kvfolio_i64s{data: (*C.int64_t)(to), size: C.int64_t(len(s))}
}

// put writes what C reads of a plan. Requires: as many groups.
func (p *DevicePlan) put(w *writer, plan *Plan) {
	step := C.kvfolio_step_plan{
		struct_size:     C.sizeof_kvfolio_step_plan,
		num_tokens:      i32(plan.NumTokens),
		ticket:          C.kvfolio_ticket(plan.Ticket),
		num_sequences:   C.int64_t(len(plan.Sequences)),
		rows:            w.i32s(plan.Rows),
		query_start:     w.i32s(plan.QueryStart),
		kv_lens:         w.i32s(plan.KVLens),
		trim_sinks:      w.i32s(plan.TrimSinks),
		trim_first_kept: w.i32s(plan.TrimFirstKept),
		positions:       w.i32s(plan.Positions),
		number:          C.uint64_t(plan.Number),
		follows:         C.uint64_t(plan.Follows),
	}
	if len(plan.Sequences) > 0 {
		ids := w.write(unsafe.Pointer(&plan.Sequences[0]), len(plan.Sequences), 8)
		step.sequences = (*C.kvfolio_sequence)(ids)
	}
	groups := unsafe.Slice(p.groups, p.n)
	for i := range plan.Groups {
		g := &plan.Groups[i]
		group := C.kvfolio_group_plan{
			struct_size:        C.sizeof_kvfolio_group_plan,
			block_table_stride: i32(g.BlockTableStride),
			slot_mapping:       w.i32s(g.SlotMapping),
			slot_mapping_64:    w.i64s(g.SlotMapping64),
			block_table:        w.i32s(g.BlockTable),
			kv_indptr:          w.i32s(g.KVIndptr),
			kv_indices:         w.i32s(g.KVIndices),
			kv_last_page_len:   w.i32s(g.KVLastPageLen),
			kv_first_live:      w.i32s(g.KVFirstLive),
			changed_rows:       w.i32s(g.ChangedRows),
			changed_columns:    w.i32s(g.ChangedColumns),
			changed_blocks:     w.i32s(g.ChangedBlocks),
		}
		if w.to != nil {
			groups[i] = group
		}
	}
	if w.to != nil {
		*p.step = step
	}
}

// read brings a plan to where C reads it. Answers where that is, as numbers.
func (p *DevicePlan) read(call string, plan *Plan) (step, groups C.uintptr_t, err error) {
	if p.p() == nil {
		return 0, 0, failf(ErrFailedPrecondition, "the DevicePlan is closed")
	}
	if plan == nil {
		return 0, 0, failf(ErrInvalidArgument, "%s: no Plan", call)
	}
	if len(plan.Groups) != p.n {
		return 0, 0, failf(ErrInvalidArgument, "%s: the plan has %d groups, the DevicePlan %d", call,
			len(plan.Groups), p.n)
	}
	var sizes writer
	p.put(&sizes, plan)
	if sizes.at > p.room || p.arrays == nil {
		C.free(p.arrays)
		p.room = sizes.at + sizes.at/2 + 64
		p.arrays = C.malloc(C.size_t(p.room))
	}
	p.put(&writer{to: p.arrays}, plan)
	return C.uintptr_t(uintptr(unsafe.Pointer(p.step))),
		C.uintptr_t(uintptr(unsafe.Pointer(p.groups))), nil
}

// Upload brings a plan to the device. It waits for nothing, and has read the plan when it returns.
// ErrFailedPrecondition: it is older than the last one, block tables are needed, or a plan was sent and
// not applied. ErrResourceExhausted: all pieces of pinned memory are on their way.
func (p *DevicePlan) Upload(plan *Plan, stream CUDAStreamHandle) error {
	step, groups, err := p.read("Upload", plan)
	if err != nil {
		return err
	}
	s := take()
	return p.done(s, C.kvfolio_go_plan_upload(p.h(), step, groups, i32(p.n), C.uintptr_t(stream),
		&s.err))
}

// Send is the first half of it, which is not to be captured.
func (p *DevicePlan) Send(plan *Plan, stream CUDAStreamHandle) error {
	step, groups, err := p.read("Send", plan)
	if err != nil {
		return err
	}
	s := take()
	return p.done(s, C.kvfolio_go_plan_send(p.h(), step, groups, i32(p.n), C.uintptr_t(stream),
		&s.err))
}

// Apply is the second half, which a graph may have in it. It runs once behind each Send.
// ErrFailedPrecondition: stream 0 while a blocking stream is being captured; what was sent stays to be
// applied.
func (p *DevicePlan) Apply(stream CUDAStreamHandle) error {
	s := take()
	return p.done(s, C.kvfolio_go_plan_apply(p.h(), C.uintptr_t(stream), &s.err))
}

// Applied says that a graph which has the second half in it was launched behind the last Send, which
// this does not see. Where the launch failed: Resend.
func (p *DevicePlan) Applied() { C.kvfolio_cuda_plan_applied(p.p()) }

// NeedsBlockTables reports whether Upload would refuse the plan for want of block tables.
func (p *DevicePlan) NeedsBlockTables(plan *Plan) (bool, error) {
	step, groups, err := p.read("NeedsBlockTables", plan)
	if err != nil {
		return false, err
	}
	s := take()
	code := C.kvfolio_go_plan_needs(p.h(), step, groups, i32(p.n), &s.i32[0], &s.err)
	needs := s.i32[0] != 0
	return needs, p.done(s, code)
}

// Wait waits until a piece of pinned memory is free.
func (p *DevicePlan) Wait() error {
	s := take()
	return p.done(s, C.kvfolio_cuda_plan_wait(p.p(), &s.err))
}

// UploadInfo is what the last upload sent.
type UploadInfo struct {
	Bytes          int64 // of the one copy
	ChangedEntries int64 // from the cache's lists
	WholeRows      int64 // rows of a group that were sent whole
	WholeEntries   int64 // the entries of these
}

// LastUpload returns what the last upload sent.
func (p *DevicePlan) LastUpload() (UploadInfo, error) {
	s := take()
	out := C.kvfolio_cuda_upload_info{struct_size: C.sizeof_kvfolio_cuda_upload_info}
	code := C.kvfolio_cuda_plan_last_upload(p.p(), &out, &s.err)
	return UploadInfo{
		Bytes:          int64(out.bytes),
		ChangedEntries: int64(out.changed_entries),
		WholeRows:      int64(out.whole_rows),
		WholeEntries:   int64(out.whole_entries),
	}, p.done(s, code)
}

// Resend sends every row whole when a plan has it next: after memory of the device was lost, or before
// the plans of another cache.
func (p *DevicePlan) Resend() { C.kvfolio_cuda_plan_resend(p.p()) }

// Verify is for tests: it waits for the stream, reads all back and compares it with the plan that was
// uploaded last, which has block tables. ErrCorrupt, with the first difference.
func (p *DevicePlan) Verify(plan *Plan, stream CUDAStreamHandle) error {
	step, groups, err := p.read("Verify", plan)
	if err != nil {
		return err
	}
	s := take()
	return p.done(s, C.kvfolio_go_plan_verify(p.h(), step, groups, i32(p.n), C.uintptr_t(stream),
		&s.err))
}
