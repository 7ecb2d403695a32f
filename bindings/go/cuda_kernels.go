// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package kvfolio

// #include <kvfolio/kvfolio_cuda.h>
//
// // Streams and addresses of a device are numbers in Go; handles as numbers: see steps.go.
// static int32_t kvfolio_go_cuda_append(
//     const kvfolio_cuda_kernels* kernels, uintptr_t cache, int32_t layer, uintptr_t k,
//     const kvfolio_rows* k_rows, uintptr_t v, const kvfolio_rows* v_rows, uintptr_t slots,
//     int64_t num_slots, uintptr_t stream, uintptr_t fault, kvfolio_error* error) {
//   return kvfolio_cuda_append(kernels, (kvfolio_view*)cache, layer, (const void*)k, k_rows,
//                              (const void*)v, v_rows, (const int32_t*)slots, num_slots,
//                              (void*)stream, (uint64_t*)fault, error);
// }
// static int32_t kvfolio_go_cuda_gather(
//     const kvfolio_cuda_kernels* kernels, uintptr_t cache, uintptr_t block_table,
//     int64_t num_entries, const kvfolio_gather_options* options, uintptr_t k,
//     const kvfolio_rows* k_rows, uintptr_t v, const kvfolio_rows* v_rows, uintptr_t stream,
//     uintptr_t fault, kvfolio_error* error) {
//   return kvfolio_cuda_gather(kernels, (const kvfolio_view*)cache, (const int32_t*)block_table,
//                              num_entries, options, (void*)k, k_rows, (void*)v, v_rows,
//                              (void*)stream, (uint64_t*)fault, error);
// }
// static int32_t kvfolio_go_cuda_copy_blocks(
//     const kvfolio_cuda_kernels* kernels, uintptr_t cache, const int32_t* src, const int32_t* dst,
//     int64_t n, uintptr_t stream, kvfolio_error* error) {
//   return kvfolio_cuda_copy_blocks(kernels, (kvfolio_view*)cache, src, dst, n, (void*)stream,
//                                   error);
// }
// static int32_t kvfolio_go_cuda_convert_blocks(
//     const kvfolio_cuda_kernels* kernels, uintptr_t from, uintptr_t to, const int32_t* src,
//     const int32_t* dst, int64_t n, uintptr_t stream, kvfolio_error* error) {
//   return kvfolio_cuda_convert_blocks(kernels, (const kvfolio_view*)from, (kvfolio_view*)to, src,
//                                      dst, n, (void*)stream, error);
// }
// static int32_t kvfolio_go_cuda_fill(const kvfolio_cuda_kernels* kernels, uintptr_t cache,
//                                     uint8_t value, uintptr_t stream, kvfolio_error* error) {
//   return kvfolio_cuda_fill(kernels, (kvfolio_view*)cache, value, (void*)stream, error);
// }
// // The addresses of a call of attention, as numbers.
// typedef struct {
//   uintptr_t block_table, query_start, kv_lens, trim_sinks, trim_first_kept, q, out, lse;
//   uintptr_t slopes, logits;
//   int32_t block_table_stride, q_heads;
// } kvfolio_go_attention;
// static kvfolio_cuda_attention kvfolio_go_on_device(const kvfolio_go_attention* a) {
//   const kvfolio_cuda_attention there = {
//       sizeof there, a->block_table_stride, (const int32_t*)a->block_table,
//       (const int32_t*)a->query_start, (const int32_t*)a->kv_lens, (const int32_t*)a->trim_sinks,
//       (const int32_t*)a->trim_first_kept, (const void*)a->q, (void*)a->out, (float*)a->lse};
//   return there;
// }
// static kvfolio_attention_options kvfolio_go_options(const kvfolio_attention_options* options,
//                                                     const kvfolio_go_attention* a) {
//   kvfolio_attention_options all = *options;
//   all.alibi_slopes = (const float*)a->slopes;
//   all.num_alibi_slopes = a->slopes != 0 ? a->q_heads : 0;
//   all.sink_logits = (const float*)a->logits;
//   all.num_sink_logits = a->logits != 0 ? a->q_heads : 0;
//   return all;
// }
// static int32_t kvfolio_go_cuda_plan_attend(
//     const kvfolio_cuda_kernels* kernels, uintptr_t cache, const kvfolio_attention_options* options,
//     const kvfolio_go_attention* a, int32_t n, const int32_t* query_start, const int32_t* kv_lens,
//     const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
//     const kvfolio_rows* out_rows, kvfolio_cuda_attend_plan** out, kvfolio_error* error) {
//   const kvfolio_cuda_attention there = kvfolio_go_on_device(a);
//   const kvfolio_attention_options all = kvfolio_go_options(options, a);
//   return kvfolio_cuda_plan_attend(kernels, (const kvfolio_view*)cache, &all, &there, n,
//                                   query_start, kv_lens, trim_sinks, trim_first_kept, q_rows,
//                                   out_rows, out, error);
// }
// static int32_t kvfolio_go_cuda_plan_attend_padded(
//     const kvfolio_cuda_kernels* kernels, uintptr_t cache, const kvfolio_attention_options* options,
//     const kvfolio_go_attention* a, int32_t n, const int32_t* query_start, const int32_t* kv_lens,
//     const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
//     const kvfolio_rows* out_rows, const kvfolio_cuda_attend_capacity* capacity,
//     kvfolio_cuda_attend_plan** out, kvfolio_error* error) {
//   const kvfolio_cuda_attention there = kvfolio_go_on_device(a);
//   const kvfolio_attention_options all = kvfolio_go_options(options, a);
//   return kvfolio_cuda_plan_attend_padded(kernels, (const kvfolio_view*)cache, &all, &there, n,
//                                          query_start, kv_lens, trim_sinks, trim_first_kept, q_rows,
//                                          out_rows, capacity, out, error);
// }
// static int32_t kvfolio_go_cuda_plan_on_device(
//     const kvfolio_cuda_kernels* kernels, uintptr_t cache, const kvfolio_attention_options* options,
//     const kvfolio_go_attention* a, int32_t n, const int32_t* query_start, const int32_t* kv_lens,
//     const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
//     const kvfolio_rows* out_rows, const kvfolio_cuda_attend_plan* plan, uintptr_t image,
//     uintptr_t workspace, uintptr_t stream, uintptr_t counts, uintptr_t fault,
//     kvfolio_error* error) {
//   const kvfolio_cuda_attention there = kvfolio_go_on_device(a);
//   const kvfolio_attention_options all = kvfolio_go_options(options, a);
//   return kvfolio_cuda_plan_on_device(kernels, (const kvfolio_view*)cache, &all, &there, n,
//                                      query_start, kv_lens, trim_sinks, trim_first_kept, q_rows,
//                                      out_rows, plan, (void*)image, (void*)workspace, (void*)stream,
//                                      (const int32_t*)counts, (uint64_t*)fault, error);
// }
// static int32_t kvfolio_go_cuda_attend(
//     const kvfolio_cuda_kernels* kernels, uintptr_t cache, const kvfolio_attention_options* options,
//     const kvfolio_go_attention* a, int32_t n, const int32_t* query_start, const int32_t* kv_lens,
//     const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
//     const kvfolio_rows* out_rows, const kvfolio_cuda_attend_plan* plan, uintptr_t image,
//     uintptr_t workspace, uintptr_t stream, kvfolio_error* error) {
//   const kvfolio_cuda_attention there = kvfolio_go_on_device(a);
//   const kvfolio_attention_options all = kvfolio_go_options(options, a);
//   return kvfolio_cuda_attend(kernels, (const kvfolio_view*)cache, &all, &there, n, query_start,
//                              kv_lens, trim_sinks, trim_first_kept, q_rows, out_rows, plan,
//                              (const void*)image, (void*)workspace, (void*)stream, error);
// }
// static int32_t kvfolio_go_cuda_upload(
//     const kvfolio_cuda_kernels* kernels, const kvfolio_cuda_attend_plan* plan, uintptr_t pinned,
//     int64_t pinned_bytes, uintptr_t image, uintptr_t workspace, uintptr_t stream,
//     kvfolio_error* error) {
//   return kvfolio_cuda_upload(kernels, plan, (void*)pinned, pinned_bytes, (void*)image,
//                              (void*)workspace, (void*)stream, error);
// }
import "C"

import (
	"runtime"
	"unsafe"
)

// CUDANoEntry is what the word for the first wrong entry has before a call, and after one that saw none.
const CUDANoEntry = ^uint64(0)

// CUDAKernelRevision is another number where a kernel may write other bits than before: part of the name
// of what is computed with them.
func CUDAKernelRevision() int { return int(C.kvfolio_cuda_kernel_revision()) }

// DeviceRows are [NumTokens, NumHeads, HeadDim] elements in the memory of a device, f32, f16 or bf16.
// The zero value stands for none. Strides are in bytes; both 0: without gaps.
type DeviceRows struct {
	Data        DevicePointer
	DType       DType
	NumTokens   int
	NumHeads    int
	HeadDim     int
	TokenStride int
	HeadStride  int
}

func (r *DeviceRows) toC(out *C.kvfolio_rows) *C.kvfolio_rows {
	if *r == (DeviceRows{}) {
		return nil
	}
	*out = C.kvfolio_rows{
		struct_size:  C.sizeof_kvfolio_rows,
		dtype:        C.int32_t(r.DType),
		num_tokens:   i32(r.NumTokens),
		num_heads:    i32(r.NumHeads),
		head_dim:     i32(r.HeadDim),
		token_stride: C.int64_t(r.TokenStride),
		head_stride:  C.int64_t(r.HeadStride),
	}
	return out
}

// CUDAKernels are the kernels of one device, loaded. Several goroutines may use them at a time.
//
// Its calls check arguments, start kernels on a stream and return. What they write has the bits of the
// functions of the same names over views of the host. Until the stream has passed, the memory that they
// read and write stays, and nothing else writes the one or touches the other. Slots and entries of
// tables cannot be checked: a kernel leaves alone what a wrong one names, and writes the first one to
// the word `fault` of the device, CUDANoEntry before (0: it is not wanted); CUDASlotFault and
// CUDATableFault say what it means.
type CUDAKernels struct {
	c *C.kvfolio_cuda_kernels
	birth
}

// LoadKernels loads the kernels. With checkPointers the driver is asked whose memory each pointer of a
// call is, and a wrong one is ErrInvalidArgument by name. ErrUnavailable: the library was built without
// nvcc and has no kernels, or the driver refuses them.
func (d *CUDADevice) LoadKernels(checkPointers bool) (*CUDAKernels, error) {
	options := C.kvfolio_cuda_kernel_options{
		struct_size:       C.sizeof_kvfolio_cuda_kernel_options,
		no_pointer_checks: b32(!checkPointers),
	}
	s := take()
	var out *C.kvfolio_cuda_kernels
	code := C.kvfolio_cuda_kernels_load(d.p(), &options, &out, &s.err)
	if err := d.done(s, code); err != nil {
		return nil, err
	}
	k := &CUDAKernels{c: out, birth: bornOf()}
	runtime.SetFinalizer(k, func(k *CUDAKernels) { k.leaked("CUDAKernels") })
	return k, nil
}

func (k *CUDAKernels) p() *C.kvfolio_cuda_kernels {
	if k == nil {
		return nil
	}
	return k.c
}

// done: the first null pointer that the library names is that of the kernels.
func (k *CUDAKernels) done(s *scratch, code C.int32_t, views ...*View) error {
	return s.giveWith(code, k.p() == nil, "CUDAKernels", views)
}

// giveWith is give for a call that was handed views, too: the first null pointer that the library
// names is the receiver's, then a view's.
func (s *scratch) giveWith(code C.int32_t, closed bool, name string, views []*View) error {
	if closed {
		return s.give(code, true, name)
	}
	for _, view := range views {
		if view.p() == nil {
			return view.done(s, code)
		}
	}
	err := s.give(code, false, "")
	for _, view := range views {
		runtime.KeepAlive(view)
	}
	return err
}

// Close unloads them, after the work that they started has passed.
func (k *CUDAKernels) Close() {
	if k.p() == nil {
		return
	}
	runtime.SetFinalizer(k, nil)
	C.kvfolio_cuda_kernels_destroy(k.c)
	k.c = nil
}

// CUDASlotFault says what the word of Append means, once it is on the host; nil for CUDANoEntry.
func CUDASlotFault(cache *View, fault uint64) error {
	s := take()
	err := cache.done(s, C.kvfolio_cuda_slot_fault(cache.p(), C.uint64_t(fault), &s.err))
	runtime.KeepAlive(cache)
	return err
}

// CUDATableFault says what the word of Gather means, as CUDASlotFault does.
func CUDATableFault(cache *View, fault uint64) error {
	s := take()
	err := cache.done(s, C.kvfolio_cuda_table_fault(cache.p(), C.uint64_t(fault), &s.err))
	runtime.KeepAlive(cache)
	return err
}

// Append is AppendRows on the device: slots has numSlots int32 there.
func (k *CUDAKernels) Append(cache *View, layer int, kRows, vRows DeviceRows, slots DevicePointer,
	numSlots int, stream CUDAStreamHandle, fault DevicePointer) error {
	s := take()
	return k.done(s, C.kvfolio_go_cuda_append(k.p(), cache.h(), i32(layer), C.uintptr_t(kRows.Data),
		kRows.toC(&s.rows[0]), C.uintptr_t(vRows.Data), vRows.toC(&s.rows[1]), C.uintptr_t(slots),
		C.int64_t(numSlots), C.uintptr_t(stream), C.uintptr_t(fault), &s.err), cache)
}

// Gather is Gather of the host on the device: blockTable has numEntries int32 there.
func (k *CUDAKernels) Gather(cache *View, blockTable DevicePointer, numEntries int,
	options GatherOptions, kRows, vRows DeviceRows, stream CUDAStreamHandle,
	fault DevicePointer) error {
	o := options.toC()
	s := take()
	return k.done(s, C.kvfolio_go_cuda_gather(k.p(), cache.h(), C.uintptr_t(blockTable),
		C.int64_t(numEntries), &o, C.uintptr_t(kRows.Data), kRows.toC(&s.rows[0]),
		C.uintptr_t(vRows.Data), vRows.toC(&s.rows[1]), C.uintptr_t(stream), C.uintptr_t(fault),
		&s.err), cache)
}

// CopyBlocks is CopyBlocks of the host on the device. The lists are of the host.
func (k *CUDAKernels) CopyBlocks(cache *View, src, dst []int32, stream CUDAStreamHandle) error {
	if len(src) != len(dst) {
		return failf(ErrInvalidArgument, "CopyBlocks: %d sources for %d destinations", len(src),
			len(dst))
	}
	s := take()
	return k.done(s, C.kvfolio_go_cuda_copy_blocks(k.p(), cache.h(), first(src), first(dst),
		C.int64_t(len(src)), C.uintptr_t(stream), &s.err), cache)
}

// ConvertBlocks is ConvertBlocks of the host on the device. The lists are of the host.
func (k *CUDAKernels) ConvertBlocks(from, to *View, src, dst []int32,
	stream CUDAStreamHandle) error {
	if len(src) != len(dst) {
		return failf(ErrInvalidArgument, "ConvertBlocks: %d sources for %d destinations", len(src),
			len(dst))
	}
	s := take()
	return k.done(s, C.kvfolio_go_cuda_convert_blocks(k.p(), from.h(), to.h(), first(src),
		first(dst), C.int64_t(len(src)), C.uintptr_t(stream), &s.err), from, to)
}

// Fill sets every byte of every row and scale.
func (k *CUDAKernels) Fill(cache *View, value byte, stream CUDAStreamHandle) error {
	s := take()
	return k.done(s, C.kvfolio_go_cuda_fill(k.p(), cache.h(), C.uint8_t(value), C.uintptr_t(stream),
		&s.err), cache)
}

// DeviceAttention is one layer of a batch of n sequences. Lengths are told twice: on the host, where the
// work is cut, and the same numbers in the memory of the device, for the kernels.
type DeviceAttention struct {
	Cache *View
	// Not of a device: a target, a slice, slices of slopes and logits.
	Options       AttentionOptions
	QueryStart    []int32 // [n + 1]
	KVLens        []int32 // [n]
	TrimSinks     []int32 // [n], or both nil
	TrimFirstKept []int32
	// On the device.
	BlockTable       DevicePointer // [n, BlockTableStride]; trusted
	BlockTableStride int
	QueryStartThere  DevicePointer // the same numbers
	KVLensThere      DevicePointer
	TrimSinksThere   DevicePointer // 0 without trims
	TrimFirstThere   DevicePointer
	AlibiSlopes      DevicePointer // f32 for each query head; 0: none
	SinkLogits       DevicePointer // the same
	Q                DeviceRows    // [QueryStart[n], query heads, head dim of K], aligned to 16 bytes
	Out              DeviceRows    // [QueryStart[n], query heads, head dim of V], the same
	LSE              DevicePointer // f32 [QueryStart[n], query heads]; 0: not wanted
}

func (a *DeviceAttention) check(call string) error {
	n := len(a.KVLens)
	if len(a.QueryStart) != n+1 {
		return failf(ErrInvalidArgument, "%s: QueryStart has %d entries, allowed: %d", call,
			len(a.QueryStart), n+1)
	}
	trims := len(a.TrimSinks)
	if trims != len(a.TrimFirstKept) || trims != 0 && trims != n {
		return failf(ErrInvalidArgument, "%s: trims have %d and %d entries, allowed: %d or 0 in both",
			call, trims, len(a.TrimFirstKept), n)
	}
	if len(a.Options.AlibiSlopes) > 0 || len(a.Options.SinkLogits) > 0 {
		return failf(ErrInvalidArgument, "%s: slopes and logits of the options are memory of the host",
			call)
	}
	return nil
}

func (a *DeviceAttention) toC() C.kvfolio_go_attention {
	return C.kvfolio_go_attention{
		block_table:        C.uintptr_t(a.BlockTable),
		query_start:        C.uintptr_t(a.QueryStartThere),
		kv_lens:            C.uintptr_t(a.KVLensThere),
		trim_sinks:         C.uintptr_t(a.TrimSinksThere),
		trim_first_kept:    C.uintptr_t(a.TrimFirstThere),
		q:                  C.uintptr_t(a.Q.Data),
		out:                C.uintptr_t(a.Out.Data),
		lse:                C.uintptr_t(a.LSE),
		slopes:             C.uintptr_t(a.AlibiSlopes),
		logits:             C.uintptr_t(a.SinkLogits),
		block_table_stride: i32(a.BlockTableStride),
		q_heads:            i32(a.Q.NumHeads),
	}
}

// CUDAAttendPlan says how the work of a batch is cut: good for every layer of the same shapes and
// strides.
type CUDAAttendPlan struct {
	c *C.kvfolio_cuda_attend_plan
	birth
}

func (p *CUDAAttendPlan) p() *C.kvfolio_cuda_attend_plan {
	if p == nil {
		return nil
	}
	return p.c
}

// Close frees the plan.
func (p *CUDAAttendPlan) Close() {
	if p.p() == nil {
		return
	}
	runtime.SetFinalizer(p, nil)
	C.kvfolio_cuda_attend_plan_destroy(p.c)
	p.c = nil
}

// Image returns what the kernels read of the plan, valid until Close: Upload brings it to the device.
func (p *CUDAAttendPlan) Image() []byte {
	s := take()
	data := C.kvfolio_cuda_attend_plan_image(p.p(), &s.i64[0])
	n := int(s.i64[0])
	scratches.Put(s)
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(data), n)
}

// WorkspaceBytes returns the bytes of the device that Attend writes, aligned to 16.
func (p *CUDAAttendPlan) WorkspaceBytes() int {
	return int(C.kvfolio_cuda_attend_plan_workspace_bytes(p.p()))
}

// ZeroedBytes returns how many of them, the first ones, are zero before the first call; each call leaves
// them so.
func (p *CUDAAttendPlan) ZeroedBytes() int {
	return int(C.kvfolio_cuda_attend_plan_zeroed_bytes(p.p()))
}

// Target returns "cuda-sm90-general" or "cuda-sm90-tiles": rows of one name have one set of bits.
func (p *CUDAAttendPlan) Target() string {
	return C.GoString(C.kvfolio_cuda_attend_plan_target(p.p()))
}

// PlanAttend checks a call and cuts its work; nothing on the device.
func (k *CUDAKernels) PlanAttend(a *DeviceAttention) (*CUDAAttendPlan, error) {
	if a == nil {
		return nil, failf(ErrInvalidArgument, "PlanAttend: no DeviceAttention")
	}
	if err := a.check("PlanAttend"); err != nil {
		return nil, err
	}
	there := a.toC()
	s := take()
	s.attention = a.Options.toC()
	var out *C.kvfolio_cuda_attend_plan
	code := C.kvfolio_go_cuda_plan_attend(k.p(), a.Cache.h(), &s.attention, &there,
		i32(len(a.KVLens)), first(a.QueryStart), first(a.KVLens), first(a.TrimSinks),
		first(a.TrimFirstKept), a.Q.toC(&s.rows[0]), a.Out.toC(&s.rows[1]), &out, &s.err)
	if err := k.done(s, code, a.Cache); err != nil {
		return nil, err
	}
	return newAttendPlan(out), nil
}

func newAttendPlan(c *C.kvfolio_cuda_attend_plan) *CUDAAttendPlan {
	plan := &CUDAAttendPlan{c: c, birth: bornOf()}
	runtime.SetFinalizer(plan, func(p *CUDAAttendPlan) { p.leaked("CUDAAttendPlan") })
	return plan
}

// PlanAttendPadded is PlanAttend, padded: one captured Attend serves every batch within the capacity
// whose plan was brought to the same place, or made there. Arrays of lengths on the device, the block
// table, q and out have room for the capacity; where the batch has no rows, the first two entries of
// QueryStartThere are 0. ErrInvalidArgument, with both numbers: the capacity; a batch that is larger; a
// row of the block table that holds less than MaxSequenceTokens; an image above 4 GiB.
func (k *CUDAKernels) PlanAttendPadded(a *DeviceAttention,
	capacity AttendCapacity) (*CUDAAttendPlan, error) {
	if a == nil {
		return nil, failf(ErrInvalidArgument, "PlanAttendPadded: no DeviceAttention")
	}
	if err := a.check("PlanAttendPadded"); err != nil {
		return nil, err
	}
	there, largest := a.toC(), C.kvfolio_cuda_attend_capacity{
		struct_size:         C.sizeof_kvfolio_cuda_attend_capacity,
		max_sequences:       i32(capacity.MaxSequences),
		max_sequence_tokens: i32(capacity.MaxSequenceTokens),
		max_queries:         i32(capacity.MaxQueries),
		max_tokens:          C.int64_t(capacity.MaxTokens),
	}
	s := take()
	s.attention = a.Options.toC()
	var out *C.kvfolio_cuda_attend_plan
	code := C.kvfolio_go_cuda_plan_attend_padded(k.p(), a.Cache.h(), &s.attention, &there,
		i32(len(a.KVLens)), first(a.QueryStart), first(a.KVLens), first(a.TrimSinks),
		first(a.TrimFirstKept), a.Q.toC(&s.rows[0]), a.Out.toC(&s.rows[1]), &largest, &out, &s.err)
	if err := k.done(s, code, a.Cache); err != nil {
		return nil, err
	}
	return newAttendPlan(out), nil
}

// PlanOnDevice makes the image of a padded plan by one kernel, from the lengths that lie on the device,
// and zeroes ZeroedBytes of the workspace: a graph that has it in front of Attend needs no plan of the
// host (cuda_kernels.h says the rules). counts: how many sequences there are, an int32 of the device
// (DevicePlanArrays.Counts); 0: as many as the capacity has, the last ones without rows. A batch over
// the capacity, which only the device sees, makes an empty plan and is reported to the word `fault` of
// the device, CUDANoEntry before (0: it is not wanted); CUDAPlanFault says what it means. Where no
// sequence that lies there is within the capacity, it is read before Attend. ErrFailedPrecondition: the
// plan is not padded.
func (k *CUDAKernels) PlanOnDevice(a *DeviceAttention, plan *CUDAAttendPlan, image,
	workspace DevicePointer, stream CUDAStreamHandle, counts, fault DevicePointer) error {
	if a == nil {
		return failf(ErrInvalidArgument, "PlanOnDevice: no DeviceAttention")
	}
	if err := a.check("PlanOnDevice"); err != nil {
		return err
	}
	if k.p() != nil && plan.p() == nil {
		return failf(ErrFailedPrecondition, "the CUDAAttendPlan is closed")
	}
	there := a.toC()
	s := take()
	s.attention = a.Options.toC()
	return k.done(s, C.kvfolio_go_cuda_plan_on_device(k.p(), a.Cache.h(), &s.attention, &there,
		i32(len(a.KVLens)), first(a.QueryStart), first(a.KVLens), first(a.TrimSinks),
		first(a.TrimFirstKept), a.Q.toC(&s.rows[0]), a.Out.toC(&s.rows[1]), plan.p(),
		C.uintptr_t(image), C.uintptr_t(workspace), C.uintptr_t(stream), C.uintptr_t(counts),
		C.uintptr_t(fault), &s.err), a.Cache)
}

// Upload brings the image of a plan to the device, through pinned, which is not written again before the
// stream has passed, and zeroes ZeroedBytes of the workspace.
func (k *CUDAKernels) Upload(plan *CUDAAttendPlan, pinned *CUDAPinned, image,
	workspace DevicePointer, stream CUDAStreamHandle) error {
	if k.p() != nil && plan.p() == nil {
		return failf(ErrFailedPrecondition, "the CUDAAttendPlan is closed")
	}
	s := take()
	return k.done(s, C.kvfolio_go_cuda_upload(k.p(), plan.p(),
		C.uintptr_t(uintptr(C.kvfolio_cuda_pinned_data(pinned.p()))),
		C.kvfolio_cuda_pinned_bytes(pinned.p()), C.uintptr_t(image), C.uintptr_t(workspace),
		C.uintptr_t(stream), &s.err))
}

// Attend computes softmax(scale * q k^T + mask) v of every row. The arguments are those of the plan's
// call, of another layer perhaps; Upload or PlanOnDevice has filled image and workspace.
func (k *CUDAKernels) Attend(a *DeviceAttention, plan *CUDAAttendPlan, image,
	workspace DevicePointer, stream CUDAStreamHandle) error {
	if a == nil {
		return failf(ErrInvalidArgument, "Attend: no DeviceAttention")
	}
	if err := a.check("Attend"); err != nil {
		return err
	}
	if k.p() != nil && plan.p() == nil {
		return failf(ErrFailedPrecondition, "the CUDAAttendPlan is closed")
	}
	there := a.toC()
	s := take()
	s.attention = a.Options.toC()
	return k.done(s, C.kvfolio_go_cuda_attend(k.p(), a.Cache.h(), &s.attention, &there,
		i32(len(a.KVLens)), first(a.QueryStart), first(a.KVLens), first(a.TrimSinks),
		first(a.TrimFirstKept), a.Q.toC(&s.rows[0]), a.Out.toC(&s.rows[1]), plan.p(),
		C.uintptr_t(image), C.uintptr_t(workspace), C.uintptr_t(stream), &s.err), a.Cache)
}
