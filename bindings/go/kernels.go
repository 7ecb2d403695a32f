// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <stdlib.h>
// #include <kvfolio/kvfolio.h>
//
// // Rows are void* in C. cgo looks for pointers in the whole object behind an unsafe.Pointer, and
// // would refuse rows that lie in a struct beside a Go pointer. These take bytes, of which it
// // knows that they hold none. For handles as numbers see steps.go.
// typedef uint8_t u8;
// static int32_t kvfolio_go_append_rows(
//     uintptr_t cache, int32_t layer, const u8* k, const kvfolio_rows* k_rows,
//     const u8* v, const kvfolio_rows* v_rows, const int32_t* slots, int64_t num_slots,
//     kvfolio_error* error) {
//   return kvfolio_append_rows((kvfolio_view*)cache, layer, k, k_rows, v, v_rows, slots,
//                              num_slots, error);
// }
// static int32_t kvfolio_go_gather(
//     const kvfolio_view* cache, const int32_t* block_table, int64_t num_entries,
//     const kvfolio_gather_options* options, u8* k, const kvfolio_rows* k_rows, u8* v,
//     const kvfolio_rows* v_rows, kvfolio_error* error) {
//   return kvfolio_gather(cache, block_table, num_entries, options, k, k_rows, v, v_rows, error);
// }
// static int32_t kvfolio_go_gather_sequence(
//     const kvfolio_manager* manager, kvfolio_sequence sequence, int32_t group, int32_t layer,
//     int32_t first, u8* k, const kvfolio_rows* k_rows, u8* v, const kvfolio_rows* v_rows,
//     kvfolio_error* error) {
//   return kvfolio_gather_sequence(manager, sequence, group, layer, first, k, k_rows, v, v_rows,
//                                  error);
// }
// static int32_t kvfolio_go_write_token(kvfolio_view* cache, int32_t layer, int32_t head,
//                                       int32_t slot, int32_t dtype, const u8* k, const u8* v,
//                                       kvfolio_error* error) {
//   return kvfolio_write_token(cache, layer, head, slot, dtype, k, v, error);
// }
// static int32_t kvfolio_go_read_token(const kvfolio_view* cache, int32_t layer, int32_t head,
//                                      int32_t slot, int32_t dtype, u8* k, u8* v,
//                                      kvfolio_error* error) {
//   return kvfolio_read_token(cache, layer, head, slot, dtype, k, v, error);
// }
// static int32_t kvfolio_go_convert(const u8* src, const kvfolio_rows* src_rows, u8* dst,
//                                   const kvfolio_rows* dst_rows, kvfolio_error* error) {
//   return kvfolio_convert(src, src_rows, dst, dst_rows, error);
// }
// static int32_t kvfolio_go_attend(
//     uintptr_t cache, const kvfolio_attention_options* options, int32_t num_sequences,
//     const int32_t* query_start, const int32_t* kv_lens, const int32_t* block_table,
//     int32_t block_table_stride, const int32_t* trim_sinks, const int32_t* trim_first_kept,
//     const u8* q, const kvfolio_rows* q_rows, u8* out, const kvfolio_rows* out_rows, u8* lse,
//     const kvfolio_rows* lse_rows, u8* workspace, int64_t workspace_bytes,
//     uintptr_t executor, const float* slopes, const float* logits, kvfolio_error* error) {
//   kvfolio_attention_options all = *options;  // whose arrays Go may not point to from there
//   all.alibi_slopes = slopes;
//   all.sink_logits = logits;
//   return kvfolio_attend((const kvfolio_view*)cache, &all, num_sequences, query_start, kv_lens,
//                         block_table, block_table_stride, trim_sinks, trim_first_kept, q, q_rows,
//                         out, out_rows, lse, lse_rows, workspace, workspace_bytes,
//                         (const kvfolio_executor*)executor, error);
// }
// static int32_t kvfolio_go_choose_attention_target(
//     uintptr_t cache, const kvfolio_attention_options* options, const float* slopes,
//     const float* logits, int32_t* out, kvfolio_error* error) {
//   kvfolio_attention_options all = *options;
//   all.alibi_slopes = slopes;
//   all.sink_logits = logits;
//   return kvfolio_choose_attention_target((const kvfolio_view*)cache, &all, out, error);
// }
// static int32_t kvfolio_go_merge_states(
//     const u8* a_out, const kvfolio_rows* a_rows, const u8* a_lse, const kvfolio_rows* a_lse_rows,
//     const u8* b_out, const kvfolio_rows* b_rows, const u8* b_lse, const kvfolio_rows* b_lse_rows,
//     u8* out, const kvfolio_rows* out_rows, u8* lse, const kvfolio_rows* lse_rows,
//     kvfolio_error* error) {
//   return kvfolio_merge_states(a_out, a_rows, a_lse, a_lse_rows, b_out, b_rows, b_lse, b_lse_rows,
//                               out, out_rows, lse, lse_rows, error);
// }
import "C"

import (
	"runtime"
	"unsafe"
)

// Rows are [NumTokens, NumHeads, HeadDim] elements of a slice, elements contiguous. The zero value
// stands for none. Strides are in bytes; both 0: without gaps. Every call checks that the rows lie
// within their slice.
type Rows struct {
	DType       DType
	NumTokens   int
	NumHeads    int
	HeadDim     int
	TokenStride int
	HeadStride  int
	data        *C.uint8_t
	bytes       int
}

func rowsOf(dtype DType, data unsafe.Pointer, bytes, numTokens, numHeads, headDim int) Rows {
	return Rows{DType: dtype, NumTokens: numTokens, NumHeads: numHeads, HeadDim: headDim,
		data: (*C.uint8_t)(data), bytes: bytes}
}

// RowsF32 are rows of f32 in data.
func RowsF32(data []float32, numTokens, numHeads, headDim int) Rows {
	var p unsafe.Pointer
	if len(data) > 0 {
		p = unsafe.Pointer(&data[0])
	}
	return rowsOf(F32, p, 4*len(data), numTokens, numHeads, headDim)
}

// RowsF64 are rows of f64 in data.
func RowsF64(data []float64, numTokens, numHeads, headDim int) Rows {
	var p unsafe.Pointer
	if len(data) > 0 {
		p = unsafe.Pointer(&data[0])
	}
	return rowsOf(F64, p, 8*len(data), numTokens, numHeads, headDim)
}

// RowsU16 are rows of the bits of F16 or BF16 in data.
func RowsU16(dtype DType, data []uint16, numTokens, numHeads, headDim int) Rows {
	var p unsafe.Pointer
	if len(data) > 0 {
		p = unsafe.Pointer(&data[0])
	}
	if dtype != F16 && dtype != BF16 {
		p = nil // refused by every call: the slice is too short
		return rowsOf(dtype, p, 0, numTokens, numHeads, headDim)
	}
	return rowsOf(dtype, p, 2*len(data), numTokens, numHeads, headDim)
}

// RowsBytes are rows of bytes that only the engine knows, for caches of Opaque.
func RowsBytes(data []byte, numTokens, numHeads, headDim int) Rows {
	var p unsafe.Pointer
	if len(data) > 0 {
		p = unsafe.Pointer(&data[0])
	}
	return rowsOf(Opaque, p, len(data), numTokens, numHeads, headDim)
}

// isNone: these rows are not given.
func (r *Rows) isNone() bool { return *r == Rows{} }

// isDense: without gaps.
func (r *Rows) isDense() bool { return r.TokenStride == 0 && r.HeadStride == 0 }

// check says whether numLayers of these rows, layerStride bytes apart, lie within the slice. The
// numbers are compared as float64, which cannot overflow and is exact for all sizes that fit.
func (r *Rows) check(call, name string, numLayers, layerStride int) error {
	if r.TokenStride < 0 || r.HeadStride < 0 || layerStride < 0 {
		return failf(ErrInvalidArgument, "%s: %s has a negative stride", call, name)
	}
	if r.NumTokens <= 0 || r.NumHeads <= 0 || r.HeadDim <= 0 || numLayers <= 0 {
		return nil // nothing is touched; the library says what it thinks of it
	}
	row := float64(r.HeadDim) * float64(r.DType.bytes())
	head, token := float64(r.HeadStride), float64(r.TokenStride)
	if r.isDense() {
		head, token = row, row*float64(r.NumHeads)
	}
	need := float64(numLayers-1)*float64(layerStride) + float64(r.NumTokens-1)*token +
		float64(r.NumHeads-1)*head + row
	if need > float64(r.bytes) {
		return failf(ErrInvalidArgument,
			"%s: %s of %d tokens, %d heads and %d elements needs %.0f bytes, the slice has %d", call,
			name, r.NumTokens, r.NumHeads, r.HeadDim, need, r.bytes)
	}
	return nil
}

// toC fills `out` and returns it, or null for none.
func (r *Rows) toC(out *C.kvfolio_rows) *C.kvfolio_rows {
	if r.isNone() {
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

// AppendRows writes token t of k and v to slots[t] of a layer; -1: it is skipped. v is Rows{} if
// the cache has no V of its own.
func AppendRows(cache *View, layer int, k, v Rows, slots []int32) error {
	if err := k.check("AppendRows", "k", 1, 0); err != nil {
		return err
	}
	if err := v.check("AppendRows", "v", 1, 0); err != nil {
		return err
	}
	s := take()
	err := cache.done(s, C.kvfolio_go_append_rows(cache.h(), i32(layer), k.data, k.toC(&s.rows[0]),
		v.data, v.toC(&s.rows[1]), first(slots), C.int64_t(len(slots)), &s.err))
	runtime.KeepAlive(cache)
	return err
}

// GatherOptions says which positions of a sequence Gather copies.
type GatherOptions struct {
	Length       int // tokens of the sequence
	First        int // positions [First, First+Count)
	Count        int
	FirstLayer   int
	NumLayers    int // 0: 1
	FirstHead    int
	KLayerStride int // bytes from one layer's rows to the next one's
	VLayerStride int
}

func (o *GatherOptions) toC() C.kvfolio_gather_options {
	return C.kvfolio_gather_options{
		struct_size:    C.sizeof_kvfolio_gather_options,
		length:         i32(o.Length),
		first:          i32(o.First),
		count:          i32(o.Count),
		first_layer:    i32(o.FirstLayer),
		num_layers:     i32(o.NumLayers),
		first_head:     i32(o.FirstHead),
		k_layer_stride: C.int64_t(o.KLayerStride),
		v_layer_stride: C.int64_t(o.VLayerStride),
	}
}

// Gather copies positions of one sequence to rows; k or v may be Rows{} and is then not written.
func Gather(cache *View, blockTable []int32, options GatherOptions, k, v Rows) error {
	layers := options.NumLayers
	if layers == 0 {
		layers = 1
	}
	if err := k.check("Gather", "k", layers, options.KLayerStride); err != nil {
		return err
	}
	if err := v.check("Gather", "v", layers, options.VLayerStride); err != nil {
		return err
	}
	o := options.toC()
	s := take()
	err := cache.done(s, C.kvfolio_go_gather(cache.p(), first(blockTable),
		C.int64_t(len(blockTable)), &o, k.data, k.toC(&s.rows[0]), v.data, v.toC(&s.rows[1]), &s.err))
	runtime.KeepAlive(cache)
	return err
}

// Gather copies positions first, first+1, ... of a sequence to as many rows as k and v have, from
// one layer, out of the storage of the cache; k or v may be Rows{} and is then not written. What the
// open step appends counts, once its K and V are written. ErrUnsupported: ids only.
func (c *Cache) Gather(sequence Sequence, group, layer, first int, k, v Rows) error {
	if err := k.check("Gather", "k", 1, 0); err != nil {
		return err
	}
	if err := v.check("Gather", "v", 1, 0); err != nil {
		return err
	}
	s := take()
	return c.done(s, C.kvfolio_go_gather_sequence(c.p(), C.kvfolio_sequence(sequence), i32(group),
		i32(layer), i32(first), k.data, k.toC(&s.rows[0]), v.data, v.toC(&s.rows[1]), &s.err))
}

// token checks k and v of one token and head of a view; either may be none.
func (v *View) token(call string, k, value *Rows) (DType, error) {
	if v.p() == nil {
		return 0, failf(ErrFailedPrecondition, "%s: the View, or what it shows, is closed", call)
	}
	for _, r := range []struct {
		rows    *Rows
		name    string
		headDim int
	}{{k, "k", v.group.HeadDimK}, {value, "v", v.group.HeadDimV}} {
		if r.rows.isNone() {
			continue
		}
		if r.rows.NumTokens != 1 || r.rows.NumHeads != 1 || r.rows.HeadDim != r.headDim {
			return 0, failf(ErrInvalidArgument, "%s: %s is %d x %d x %d, allowed: 1 x 1 x %d", call,
				r.name, r.rows.NumTokens, r.rows.NumHeads, r.rows.HeadDim, r.headDim)
		}
		if err := r.rows.check(call, r.name, 1, 0); err != nil {
			return 0, err
		}
	}
	switch {
	case k.isNone():
		return value.DType, nil
	case !value.isNone() && k.DType != value.DType:
		return 0, failf(ErrInvalidArgument, "%s: k and v have different element types", call)
	}
	return k.DType, nil
}

// WriteToken writes one token, head and layer: rows of 1 token and 1 head. k or v may be Rows{}.
func WriteToken(cache *View, layer, head, slot int, k, v Rows) error {
	dtype, err := cache.token("WriteToken", &k, &v)
	if err != nil {
		return err
	}
	s := take()
	err = cache.done(s, C.kvfolio_go_write_token(cache.p(), i32(layer), i32(head), i32(slot),
		C.int32_t(dtype), k.data, v.data, &s.err))
	runtime.KeepAlive(cache)
	return err
}

// ReadToken reads one token, head and layer to rows of 1 token and 1 head. k or v may be Rows{}.
func ReadToken(cache *View, layer, head, slot int, k, v Rows) error {
	dtype, err := cache.token("ReadToken", &k, &v)
	if err != nil {
		return err
	}
	s := take()
	err = cache.done(s, C.kvfolio_go_read_token(cache.p(), i32(layer), i32(head), i32(slot),
		C.int32_t(dtype), k.data, v.data, &s.err))
	runtime.KeepAlive(cache)
	return err
}

// CopyBlocks copies block src[i] to block dst[i], all layers of the view, in the order of i.
func CopyBlocks(cache *View, src, dst []int32) error {
	if len(src) != len(dst) {
		return failf(ErrInvalidArgument, "CopyBlocks: %d sources for %d destinations", len(src),
			len(dst))
	}
	s := take()
	err := cache.done(s, C.kvfolio_copy_blocks(cache.p(), first(src), first(dst),
		C.int64_t(len(src)), &s.err))
	runtime.KeepAlive(cache)
	return err
}

// ConvertBlocks copies block src[i] of one view to block dst[i] of another one, with its format and
// element type.
func ConvertBlocks(from, to *View, src, dst []int32) error {
	if len(src) != len(dst) {
		return failf(ErrInvalidArgument, "ConvertBlocks: %d sources for %d destinations", len(src),
			len(dst))
	}
	s := take()
	err := s.give(C.kvfolio_convert_blocks(from.p(), to.p(), first(src), first(dst),
		C.int64_t(len(src)), &s.err), from.p() == nil || to.p() == nil, "View, or what it shows,")
	runtime.KeepAlive(from)
	runtime.KeepAlive(to)
	return err
}

// Convert copies element by element; equal shapes, any element types.
func Convert(src, dst Rows) error {
	if err := src.check("Convert", "src", 1, 0); err != nil {
		return err
	}
	if err := dst.check("Convert", "dst", 1, 0); err != nil {
		return err
	}
	s := take()
	return s.give(C.kvfolio_go_convert(src.data, src.toC(&s.rows[0]), dst.data, dst.toC(&s.rows[1]),
		&s.err), false, "")
}

// Target is an implementation of attention. 0: the one that KVFOLIO_KERNEL names, else the fastest.
type Target int32

// Targets.
const (
	TargetAuto       Target = C.KVFOLIO_TARGET_AUTO
	TargetReference  Target = C.KVFOLIO_TARGET_REFERENCE
	TargetPortable   Target = C.KVFOLIO_TARGET_PORTABLE
	TargetAVX2       Target = C.KVFOLIO_TARGET_AVX2
	TargetAVX512     Target = C.KVFOLIO_TARGET_AVX512
	TargetAVX512BF16 Target = C.KVFOLIO_TARGET_AVX512_BF16
	TargetNEON       Target = C.KVFOLIO_TARGET_NEON
)

// String returns "avx2" and so on.
func (t Target) String() string { return C.GoString(C.kvfolio_target_name(C.int32_t(t))) }

// ParseTarget returns the target of a name.
func ParseTarget(name string) (Target, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	s := take()
	code := C.kvfolio_parse_target(text, &s.i32[0], &s.err)
	out := Target(s.i32[0])
	return out, s.give(code, false, "")
}

// Targets returns those that this CPU runs, slowest first.
func Targets() []Target {
	out := make([]int32, int(C.kvfolio_targets(nil, 0)))
	C.kvfolio_targets(first(out), i32(len(out)))
	targets := make([]Target, len(out))
	for i, t := range out {
		targets[i] = Target(t)
	}
	return targets
}

// ChooseTarget returns the target that computes on this cache if a call asks for `wanted`.
func ChooseTarget(cache *View, wanted Target) (Target, error) {
	s := take()
	code := C.kvfolio_choose_target(cache.p(), C.int32_t(wanted), &s.i32[0], &s.err)
	out := Target(s.i32[0])
	return out, cache.done(s, code)
}

// ChooseAttentionTarget returns the target that computes a call of Attend with these options;
// options.Target is the one wanted.
func ChooseAttentionTarget(cache *View, options AttentionOptions) (Target, error) {
	s := take()
	s.attention = options.toC()
	code := C.kvfolio_go_choose_attention_target(cache.h(), &s.attention,
		floats(options.AlibiSlopes), floats(options.SinkLogits), &s.i32[0], &s.err)
	out := Target(s.i32[0])
	return out, cache.done(s, code)
}

// ThreadPool is threads to lend to Attend. Several goroutines may use it at a time. Close it.
type ThreadPool struct {
	c        *C.kvfolio_thread_pool
	executor *C.kvfolio_executor // C memory, since it holds C pointers
	birth
}

// NewThreadPool starts threads. numThreads counts the caller: 1 starts none.
func NewThreadPool(numThreads int) (*ThreadPool, error) {
	s := take()
	var out *C.kvfolio_thread_pool
	code := C.kvfolio_thread_pool_create(i32(numThreads), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	executor := (*C.kvfolio_executor)(C.calloc(1, C.sizeof_kvfolio_executor))
	if executor == nil {
		C.kvfolio_thread_pool_destroy(out)
		return nil, failf(ErrOutOfMemory, "no memory for an executor")
	}
	executor.struct_size = C.sizeof_kvfolio_executor
	C.kvfolio_thread_pool_executor(out, executor, nil)
	p := &ThreadPool{c: out, executor: executor, birth: bornOf()}
	runtime.SetFinalizer(p, func(p *ThreadPool) { p.leaked("ThreadPool") })
	return p, nil
}

// Close ends the threads. No call may use them.
func (p *ThreadPool) Close() {
	if p == nil || p.c == nil {
		return
	}
	runtime.SetFinalizer(p, nil)
	C.kvfolio_thread_pool_destroy(p.c)
	C.free(unsafe.Pointer(p.executor))
	p.c, p.executor = nil, nil
}

// NumThreads counts the caller.
func (p *ThreadPool) NumThreads() int {
	if p == nil {
		return 0
	}
	return int(C.kvfolio_thread_pool_num_threads(p.c))
}

// AttentionOptions of Attend (AttentionParams and AttentionSlice in kernels.h).
type AttentionOptions struct {
	Layer     int
	Scale     float64 // 0: 1 / sqrt(head dim of K)
	NotCausal bool
	Window    int // tokens that a query reads, itself included; 0: no window
	NumSinks  int
	Chunk     int     // tokens of a chunk: a query reads its own; 0: no chunks. Not with a window
	SoftCap   float64 // scores become SoftCap * tanh(score / SoftCap); 0: none
	// AlibiSlopes has a slope for each query head, times the key's position less that of the query;
	// SinkLogits a learned sink, a score without a value. Empty: none.
	AlibiSlopes []float32
	SinkLogits  []float32
	Target      Target
	// Slice limits the call to NumRows rows from FirstRow on and NumKVHeads heads from FirstKVHead
	// on; 0 of them are none. Without Slice the four stay 0.
	Slice       bool
	FirstRow    int
	NumRows     int
	FirstKVHead int
	NumKVHeads  int
}

// toC returns all but the arrays, which C code cannot find through a pointer of Go.
func (o *AttentionOptions) toC() C.kvfolio_attention_options {
	return C.kvfolio_attention_options{
		struct_size:      C.sizeof_kvfolio_attention_options,
		layer:            i32(o.Layer),
		scale:            C.double(o.Scale),
		not_causal:       b32(o.NotCausal),
		window:           i32(o.Window),
		num_sinks:        i32(o.NumSinks),
		chunk:            i32(o.Chunk),
		soft_cap:         C.double(o.SoftCap),
		num_alibi_slopes: i32(len(o.AlibiSlopes)),
		num_sink_logits:  i32(len(o.SinkLogits)),
		target:           C.int32_t(o.Target),
		slice:            b32(o.Slice),
		first_row:        i32(o.FirstRow),
		num_rows:         i32(o.NumRows),
		first_kv_head:    i32(o.FirstKVHead),
		num_kv_heads:     i32(o.NumKVHeads),
	}
}

// floats points to the first of some, or nowhere.
func floats(some []float32) *C.float {
	if len(some) == 0 {
		return nil
	}
	return (*C.float)(unsafe.Pointer(&some[0]))
}

// AttentionOptionsOf returns the options of a causal group: its window and sinks, and defaults.
func AttentionOptionsOf(group GroupSpec) (AttentionOptions, error) {
	spec := group.toC()
	s := take()
	s.attention = C.kvfolio_attention_options{struct_size: C.sizeof_kvfolio_attention_options}
	code := C.kvfolio_attention_options_of(&spec, &s.attention, &s.err)
	out := AttentionOptions{
		Layer:       int(s.attention.layer),
		Scale:       float64(s.attention.scale),
		NotCausal:   s.attention.not_causal != 0,
		Window:      int(s.attention.window),
		NumSinks:    int(s.attention.num_sinks),
		Chunk:       int(s.attention.chunk),
		SoftCap:     float64(s.attention.soft_cap),
		Target:      Target(s.attention.target),
		Slice:       s.attention.slice != 0,
		FirstRow:    int(s.attention.first_row),
		NumRows:     int(s.attention.num_rows),
		FirstKVHead: int(s.attention.first_kv_head),
		NumKVHeads:  int(s.attention.num_kv_heads),
	}
	return out, s.give(code, false, "")
}

// AttentionWorkspaceBytes returns the bytes of Attention.Workspace for sequences of up to maxKVLen
// tokens on numThreads threads.
func AttentionWorkspaceBytes(cache *View, numQHeads, maxKVLen int, target Target,
	numThreads int) (int, error) {
	s := take()
	code := C.kvfolio_attention_workspace_bytes(cache.p(), i32(numQHeads), i32(maxKVLen),
		C.int32_t(target), i32(numThreads), &s.i64[0], &s.err)
	out := int(s.i64[0])
	return out, cache.done(s, code)
}

// Batch is a ragged batch of n sequences. Plan.Batch gives that of a plan.
type Batch struct {
	QueryStart       []int32 // [n + 1]
	KVLens           []int32 // [n]
	BlockTable       []int32 // [n, BlockTableStride]
	BlockTableStride int
	TrimSinks        []int32 // [n], or both empty
	TrimFirstKept    []int32
}

// Batch returns the arrays of one group of the plan; they live as long as those. A group that the
// plan does not have gives an empty batch, which Attend refuses.
func (p *Plan) Batch(group int) Batch {
	if p == nil || group < 0 || group >= len(p.Groups) {
		return Batch{}
	}
	return Batch{
		QueryStart:       p.QueryStart,
		KVLens:           p.KVLens,
		BlockTable:       p.Groups[group].BlockTable,
		BlockTableStride: p.Groups[group].BlockTableStride,
		TrimSinks:        p.TrimSinks,
		TrimFirstKept:    p.TrimFirstKept,
	}
}

// Attention is the arguments of Attend.
type Attention struct {
	Cache     *View
	Batch     Batch
	Options   AttentionOptions
	Q         Rows // [QueryStart[n], q heads, head dim of K]
	Out       Rows // [QueryStart[n], q heads, head dim of V]
	LSE       Rows // [.., q heads, 1] of f32 or f64, or Rows{}
	Workspace []byte
	Pool      *ThreadPool // nil: the calling thread works alone
}

// Attend computes softmax(scale * q k^T + mask) v over a ragged batch.
func Attend(a *Attention) error {
	if a == nil {
		return failf(ErrInvalidArgument, "Attend: the Attention is nil")
	}
	b := &a.Batch
	n := len(b.KVLens)
	if len(b.QueryStart) != n+1 {
		return failf(ErrInvalidArgument, "Attend: QueryStart has %d entries, allowed: %d",
			len(b.QueryStart), n+1)
	}
	if b.BlockTableStride < 0 ||
		float64(n)*float64(b.BlockTableStride) > float64(len(b.BlockTable)) {
		return failf(ErrInvalidArgument,
			"Attend: BlockTable has %d entries for %d sequences of stride %d", len(b.BlockTable), n,
			b.BlockTableStride)
	}
	if len(b.TrimSinks) != len(b.TrimFirstKept) || len(b.TrimSinks) != 0 && len(b.TrimSinks) != n {
		return failf(ErrInvalidArgument,
			"Attend: TrimSinks has %d entries, TrimFirstKept %d, allowed: %d or 0 in both",
			len(b.TrimSinks), len(b.TrimFirstKept), n)
	}
	if err := a.Q.check("Attend", "Q", 1, 0); err != nil {
		return err
	}
	if err := a.Out.check("Attend", "Out", 1, 0); err != nil {
		return err
	}
	if err := a.LSE.check("Attend", "LSE", 1, 0); err != nil {
		return err
	}
	var executor *C.kvfolio_executor
	if a.Pool != nil {
		if executor = a.Pool.executor; executor == nil {
			return failf(ErrFailedPrecondition, "Attend: the ThreadPool is closed")
		}
	}
	var workspace *C.uint8_t
	if len(a.Workspace) > 0 {
		workspace = (*C.uint8_t)(unsafe.Pointer(&a.Workspace[0]))
	}
	s := take()
	s.attention = a.Options.toC()
	code := C.kvfolio_go_attend(a.Cache.h(), &s.attention, i32(n), first(b.QueryStart),
		first(b.KVLens), first(b.BlockTable), i32(b.BlockTableStride), first(b.TrimSinks),
		first(b.TrimFirstKept), a.Q.data, a.Q.toC(&s.rows[0]), a.Out.data, a.Out.toC(&s.rows[1]),
		a.LSE.data, a.LSE.toC(&s.rows[2]), workspace, C.int64_t(len(a.Workspace)),
		C.uintptr_t(uintptr(unsafe.Pointer(executor))), floats(a.Options.AlibiSlopes),
		floats(a.Options.SinkLogits), &s.err)
	runtime.KeepAlive(a.Pool)
	return a.Cache.done(s, code)
}

// State is what Attend wrote when it read a part of the tokens.
type State struct {
	Out Rows
	LSE Rows
}

// MergeStates merges what Attend wrote over two disjoint sets of tokens. The LSE of `to` may be
// Rows{}.
func MergeStates(a, b, to State) error {
	all := [6]struct {
		rows *Rows
		name string
	}{{&a.Out, "a.Out"}, {&a.LSE, "a.LSE"}, {&b.Out, "b.Out"}, {&b.LSE, "b.LSE"},
		{&to.Out, "to.Out"}, {&to.LSE, "to.LSE"}}
	s := take()
	var rows [6]*C.kvfolio_rows
	for i := range all {
		if err := all[i].rows.check("MergeStates", all[i].name, 1, 0); err != nil {
			return err
		}
		rows[i] = all[i].rows.toC(&s.rows[i])
	}
	return s.give(C.kvfolio_go_merge_states(a.Out.data, rows[0], a.LSE.data, rows[1], b.Out.data,
		rows[2], b.LSE.data, rows[3], to.Out.data, rows[4], to.LSE.data, rows[5], &s.err), false, "")
}
