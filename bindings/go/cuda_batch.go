// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package kvfolio

// #include <kvfolio/kvfolio_cuda.h>
//
// // Streams and addresses of a device are numbers in Go; handles as numbers: see steps.go.
// static int32_t kvfolio_go_paged_kv_view(uintptr_t k, uintptr_t v, int32_t layout,
//                                         const int32_t* sizes, int32_t dtype, kvfolio_view** out,
//                                         kvfolio_error* error) {
//   const kvfolio_cuda_paged_kv tensors = {sizeof tensors, layout,   (void*)k, (void*)v, sizes[0],
//                                          sizes[1],       sizes[2], sizes[3], dtype,    0};
//   return kvfolio_cuda_paged_kv_view(&tensors, out, error);
// }
// static int32_t kvfolio_go_batch_plan(
//     uintptr_t attention, const kvfolio_cuda_batch_attention_params* params, int32_t n,
//     const int32_t* qo_indptr, const int32_t* kv_indptr, const int32_t* kv_indices,
//     int64_t num_kv_indices, const int32_t* kv_last_page_len, uintptr_t paged_kv, uintptr_t stream,
//     kvfolio_error* error) {
//   return kvfolio_cuda_batch_attention_plan(
//       (kvfolio_cuda_batch_attention*)attention, params, n, qo_indptr, kv_indptr, kv_indices,
//       num_kv_indices, kv_last_page_len, (const kvfolio_view*)paged_kv, (void*)stream, error);
// }
// static int32_t kvfolio_go_batch_run(uintptr_t attention, uintptr_t q, const kvfolio_rows* q_rows,
//                                     uintptr_t paged_kv, int32_t layer, uintptr_t out,
//                                     const kvfolio_rows* out_rows, uintptr_t lse, uintptr_t stream,
//                                     kvfolio_error* error) {
//   return kvfolio_cuda_batch_attention_run(
//       (kvfolio_cuda_batch_attention*)attention, (const void*)q, q_rows,
//       (const kvfolio_view*)paged_kv, layer, (void*)out, out_rows, (float*)lse, (void*)stream, error);
// }
// static int32_t kvfolio_go_begin_capture(const kvfolio_cuda_device* device, uintptr_t stream,
//                                         kvfolio_error* error) {
//   return kvfolio_cuda_graph_begin_capture(device, (void*)stream, error);
// }
// static int32_t kvfolio_go_end_capture(const kvfolio_cuda_device* device, uintptr_t stream,
//                                       kvfolio_cuda_graph** out, kvfolio_error* error) {
//   return kvfolio_cuda_graph_end_capture(device, (void*)stream, out, error);
// }
// static void kvfolio_go_drop_capture(const kvfolio_cuda_device* device, uintptr_t stream) {
//   kvfolio_cuda_graph_drop_capture(device, (void*)stream);
// }
// static int32_t kvfolio_go_launch(kvfolio_cuda_graph* graph, uintptr_t stream,
//                                  kvfolio_error* error) {
//   return kvfolio_cuda_graph_launch(graph, (void*)stream, error);
// }
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// PagedKV is an engine's tensors of one layer, without gaps, in the memory of a device.
type PagedKV struct {
	// NHD: [NumPages, PageSize, NumKVHeads, HeadDim]; HND: [NumPages, NumKVHeads, PageSize, HeadDim].
	K          DevicePointer
	V          DevicePointer // 0: one tensor [NumPages, 2, ...] at K, of which index 0 is K and 1 is V
	Layout     Format
	NumPages   int
	PageSize   int
	NumKVHeads int
	HeadDim    int
	DType      DType // F32, F16 or BF16; 0: BF16
}

// foreign is memory of an engine: it is there as long as the caller says.
type foreign struct{}

func (foreign) isClosed() bool { return false }

// View returns what BatchAttention and CUDAKernels take; the tensors outlive it. ErrInvalidArgument: no
// K, a count below 1, another layout. ErrUnsupported: another element type.
func (t *PagedKV) View() (*View, error) {
	if t == nil {
		t = &PagedKV{}
	}
	s := take()
	sizes := [4]int32{int32(i32(t.NumPages)), int32(i32(t.PageSize)), int32(i32(t.NumKVHeads)),
		int32(i32(t.HeadDim))}
	var out *C.kvfolio_view
	code := C.kvfolio_go_paged_kv_view(C.uintptr_t(t.K), C.uintptr_t(t.V), C.int32_t(t.Layout),
		first(sizes[:]), C.int32_t(t.DType), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	dtype := t.DType
	if dtype == 0 {
		dtype = BF16
	}
	group := GroupSpec{NumKVHeads: t.NumKVHeads, HeadDimK: t.HeadDim, HeadDimV: t.HeadDim,
		BlockSize: t.PageSize, NumBlocks: t.NumPages, DType: dtype, Format: t.Layout}
	return newView(out, foreign{}, group, bornOf()), nil
}

// BatchAttentionOptions are options of NewBatchAttention.
type BatchAttentionOptions struct {
	MaxSequences       int // of a step
	MaxPagesOfSequence int
	MaxImageBytes      int64 // for how a step's work is cut; 0: 4 MiB
	WorkspaceBytes     int64 // for parts of rows that are merged; 0: 128 MiB
	// Plans are padded to these sequences and pages, so that Shape is one for all steps of the same view
	// and heads, and one captured Run serves them. A step that is larger is refused with the numbers, and
	// so is one of another Causal (where MaxQueries is above 1), SMScale, Window or LogitsSoftCap than
	// the first one.
	Padded    bool
	MaxTokens int64 // of K and V of a padded step; 0: what all pages have room for
	// Rows of one sequence of a padded step; 0: 1, a decode. Above 1 each step has a QOIndptr.
	MaxQueries int
}

// BatchAttentionPlan is what Plan is told, by FlashInfer's names. The arrays are of the host.
type BatchAttentionPlan struct {
	QOIndptr      []int32 // [n + 1]: rows of q of each sequence, its last tokens; nil: a decode
	KVIndptr      []int32 // [n + 1]
	KVIndices     []int32 // [KVIndptr[n]]: pages
	KVLastPageLen []int32 // [n]
	NumQOHeads    int
	Causal        bool
	Window        int     // tokens that a row sees, itself included: window_left + 1; 0: all
	SMScale       float64 // 0: 1 / sqrt(head dim)
	LogitsSoftCap float64 // 0: none
	QDataType     DType   // 0: BF16
	ODataType     DType   // 0: BF16
}

// BatchAttention is attention in the call shape of FlashInfer's paged wrappers: planned once for a step,
// run for each layer (cuda_wrapper.h says the rules). It belongs to one goroutine at a time.
type BatchAttention struct {
	c *C.kvfolio_cuda_batch_attention
	birth
}

// NewBatchAttention takes all its memory. ErrInvalidArgument: the options. ErrOutOfMemory,
// ErrUnavailable.
func (k *CUDAKernels) NewBatchAttention(options BatchAttentionOptions) (*BatchAttention, error) {
	c := C.kvfolio_cuda_batch_attention_options{
		struct_size:           C.sizeof_kvfolio_cuda_batch_attention_options,
		max_sequences:         i32(options.MaxSequences),
		max_pages_of_sequence: i32(options.MaxPagesOfSequence),
		max_image_bytes:       C.int64_t(options.MaxImageBytes),
		workspace_bytes:       C.int64_t(options.WorkspaceBytes),
		padded:                b32(options.Padded),
		max_queries:           i32(options.MaxQueries),
		max_tokens:            C.int64_t(options.MaxTokens),
	}
	s := take()
	var out *C.kvfolio_cuda_batch_attention
	code := C.kvfolio_cuda_batch_attention_create(k.p(), &c, &out, &s.err)
	if err := k.done(s, code); err != nil {
		return nil, err
	}
	a := &BatchAttention{c: out, birth: bornOf()}
	runtime.SetFinalizer(a, func(a *BatchAttention) { a.leaked("BatchAttention") })
	return a, nil
}

func (a *BatchAttention) p() *C.kvfolio_cuda_batch_attention {
	if a == nil {
		return nil
	}
	return a.c
}

func (a *BatchAttention) h() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(a.p()))) }

func (a *BatchAttention) done(s *scratch, code C.int32_t, views ...*View) error {
	return s.giveWith(code, a.p() == nil, "BatchAttention", views)
}

// Close waits for copies that are under way. Kernels of runs have ended before.
func (a *BatchAttention) Close() {
	if a.p() == nil {
		return
	}
	runtime.SetFinalizer(a, nil)
	C.kvfolio_cuda_batch_attention_destroy(a.c)
	a.c = nil
}

// Plan cuts the work of a step and sends it; pagedKV is a view of any layer. ErrInvalidArgument,
// ErrUnsupported, ErrFailedPrecondition (the stream is being captured): the plan before stays.
// ErrUnavailable: the driver's; then there is none.
func (a *BatchAttention) Plan(step *BatchAttentionPlan, pagedKV *View,
	stream CUDAStreamHandle) error {
	if a.p() == nil {
		return failf(ErrFailedPrecondition, "the BatchAttention is closed")
	}
	if step == nil {
		return failf(ErrInvalidArgument, "Plan: no BatchAttentionPlan")
	}
	n := len(step.KVLastPageLen)
	if len(step.KVIndptr) != n+1 {
		return failf(ErrInvalidArgument, "Plan: KVIndptr has %d entries, allowed: %d",
			len(step.KVIndptr), n+1)
	}
	if len(step.QOIndptr) != n+1 && len(step.QOIndptr) != 0 {
		return failf(ErrInvalidArgument, "Plan: QOIndptr has %d entries, allowed: %d or 0",
			len(step.QOIndptr), n+1)
	}
	params := C.kvfolio_cuda_batch_attention_params{
		struct_size:     C.sizeof_kvfolio_cuda_batch_attention_params,
		num_qo_heads:    i32(step.NumQOHeads),
		causal:          b32(step.Causal),
		window:          i32(step.Window),
		sm_scale:        C.double(step.SMScale),
		logits_soft_cap: C.double(step.LogitsSoftCap),
		q_data_type:     C.int32_t(step.QDataType),
		o_data_type:     C.int32_t(step.ODataType),
	}
	s := take()
	return a.done(s, C.kvfolio_go_batch_plan(a.h(), &params, i32(n), first(step.QOIndptr),
		first(step.KVIndptr), first(step.KVIndices), C.int64_t(len(step.KVIndices)),
		first(step.KVLastPageLen), pagedKV.h(), C.uintptr_t(stream), &s.err), pagedKV)
}

// Run computes one layer of what was planned; a graph may have it in it. q and out have [rows,
// NumQOHeads, head dim], lse is f32 [rows, NumQOHeads] with natural logarithms, or 0.
// ErrFailedPrecondition: there is no plan. ErrInvalidArgument: another shape, stride or element type
// than the plan's.
func (a *BatchAttention) Run(q DeviceRows, pagedKV *View, layer int, out DeviceRows,
	lse DevicePointer, stream CUDAStreamHandle) error {
	s := take()
	return a.done(s, C.kvfolio_go_batch_run(a.h(), C.uintptr_t(q.Data), q.toC(&s.rows[0]),
		pagedKV.h(), i32(layer), C.uintptr_t(out.Data), out.toC(&s.rows[1]), C.uintptr_t(lse),
		C.uintptr_t(stream), &s.err), pagedKV)
}

// AttendShape is what the launches of a plan depend on beside the call: a graph that captured
// CUDAKernels.Attend or BatchAttention.Run serves each plan of an equal shape. That of a padded plan
// (AttendCapacity) is one for all batches.
type AttendShape struct {
	NumSequences int
	NumRows      int // of q
	rest         [8]C.int32_t
}

func shapeOf(c *C.kvfolio_cuda_attend_shape) AttendShape {
	return AttendShape{int(c.num_sequences), int(c.num_rows), [8]C.int32_t{c.items, c.groups,
		c.prefill_items, c.segments, c.segments_per_block, c.states, c.many_nodes, c.merges}}
}

// Shape returns that of the last plan, by which a captured Run is known.
func (a *BatchAttention) Shape() (AttendShape, error) {
	s := take()
	out := C.kvfolio_cuda_attend_shape{struct_size: C.sizeof_kvfolio_cuda_attend_shape}
	code := C.kvfolio_cuda_batch_attention_get_shape(a.p(), &out, &s.err)
	return shapeOf(&out), a.done(s, code)
}

// Shape changes with the lengths of a batch, where more or less work is started for them; that of a
// padded plan follows from its capacity.
func (p *CUDAAttendPlan) Shape() (AttendShape, error) {
	s := take()
	out := C.kvfolio_cuda_attend_shape{struct_size: C.sizeof_kvfolio_cuda_attend_shape}
	code := C.kvfolio_cuda_attend_plan_get_shape(p.p(), &out, &s.err)
	return shapeOf(&out), s.give(code, p.p() == nil, "CUDAAttendPlan")
}

// Target returns CUDAAttendPlan.Target of the last plan; empty without one.
func (a *BatchAttention) Target() string {
	return C.GoString(C.kvfolio_cuda_batch_attention_target(a.p()))
}

// DeviceBytes returns the bytes that it has on the device.
func (a *BatchAttention) DeviceBytes() int64 {
	return int64(C.kvfolio_cuda_batch_attention_device_bytes(a.p()))
}

// PinnedBytes returns the bytes of pinned memory that it has.
func (a *BatchAttention) PinnedBytes() int64 {
	return int64(C.kvfolio_cuda_batch_attention_pinned_bytes(a.p()))
}

// CUDAGraph is what a stream was given once, started again as one. cuda_graph.h says what may be
// captured: Append, Gather, PlanOnDevice and Attend of CUDAKernels, Apply of a DevicePlan, Run of a BatchAttention; and
// what goes in front of a launch.
type CUDAGraph struct {
	c *C.kvfolio_cuda_graph
	birth
}

// Capture calls record, which gives the stream its work, of which none runs. An error of it is the
// answer, and nothing is kept. ErrInvalidArgument: stream 0, since the legacy one cannot be captured.
// ErrUnavailable: what was given cannot be captured; the stream is usable. The goroutine keeps its
// thread meanwhile, and the device is not closed.
func (d *CUDADevice) Capture(stream CUDAStreamHandle, record func() error) (*CUDAGraph, error) {
	if d.p() != nil && record == nil {
		return nil, failf(ErrInvalidArgument, "Capture: no function")
	}
	if d.p() != nil {
		atomic.AddInt32(&d.captures, 1)
		defer atomic.AddInt32(&d.captures, -1)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := take()
	if err := d.done(s, C.kvfolio_go_begin_capture(d.p(), C.uintptr_t(stream), &s.err)); err != nil {
		return nil, err
	}
	open := true
	defer func() { // also where record panics
		if open {
			C.kvfolio_go_drop_capture(d.p(), C.uintptr_t(stream))
		}
	}()
	if err := record(); err != nil {
		return nil, err
	}
	open = false
	s = take()
	var out *C.kvfolio_cuda_graph
	code := C.kvfolio_go_end_capture(d.p(), C.uintptr_t(stream), &out, &s.err)
	if err := d.done(s, code); err != nil {
		return nil, err
	}
	g := &CUDAGraph{c: out, birth: bornOf()}
	runtime.SetFinalizer(g, func(g *CUDAGraph) { g.leaked("CUDAGraph") })
	return g, nil
}

func (g *CUDAGraph) p() *C.kvfolio_cuda_graph {
	if g == nil {
		return nil
	}
	return g.c
}

// Close ends the graph, after its launches.
func (g *CUDAGraph) Close() {
	if g.p() == nil {
		return
	}
	runtime.SetFinalizer(g, nil)
	C.kvfolio_cuda_graph_destroy(g.c)
	g.c = nil
}

// Launch starts it on a stream of the same device, behind what that was given. Waits for nothing.
func (g *CUDAGraph) Launch(stream CUDAStreamHandle) error {
	s := take()
	return s.give(C.kvfolio_go_launch(g.p(), C.uintptr_t(stream), &s.err), g.p() == nil, "CUDAGraph")
}

// Handle returns the CUgraphExec, valid until Close.
func (g *CUDAGraph) Handle() uintptr { return uintptr(C.kvfolio_cuda_graph_handle(g.p())) }
