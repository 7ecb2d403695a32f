// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <stdlib.h>
// #include <string.h>
// #include <kvfolio/kvfolio.h>
//
// static void* kvfolio_go_alloc(int64_t bytes) {
//   if (bytes < 0 || bytes > INT64_MAX - 64) return NULL;
//   const size_t size = ((size_t)bytes + 63) / 64 * 64;
//   void* const memory = aligned_alloc(64, size == 0 ? 64 : size);
//   if (memory != NULL) memset(memory, 0, size);
//   return memory;
// }
// // A call of its own, so that cgo checks that `from` holds no Go pointers.
// static kvfolio_borrowed_layer* kvfolio_go_layers(const kvfolio_borrowed_layer* from, size_t n) {
//   kvfolio_borrowed_layer* const to = calloc(n, sizeof *to);
//   if (to != NULL) memcpy(to, from, n * sizeof *to);
//   return to;
// }
import "C"

import (
	"runtime"
	"unsafe"
)

// AllocC returns C memory of 0 bytes, aligned to 64, to lend to a storage. It never moves and the
// garbage collector does not see it. Use unsafe.Slice to read and write it, and FreeC to free it
// when the storage is closed.
func AllocC(bytes int) (unsafe.Pointer, error) {
	p := C.kvfolio_go_alloc(C.int64_t(bytes))
	if p == nil {
		return nil, failf(ErrOutOfMemory, "no %d bytes of C memory", bytes)
	}
	return p, nil
}

// FreeC frees what AllocC returned. Nil is nothing.
func FreeC(memory unsafe.Pointer) { C.free(memory) }

// MemoryKind says who may touch memory.
type MemoryKind int32

// Kinds of memory.
const (
	Host   MemoryKind = C.KVFOLIO_HOST
	Device MemoryKind = C.KVFOLIO_DEVICE
)

// MemoryResource is a table of C functions that allocate K and V (kvfolio_memory_resource). All
// pointers are of C. The functions are used until the storage is destroyed.
type MemoryResource struct {
	Kind       MemoryKind
	Context    unsafe.Pointer
	Allocate   unsafe.Pointer // void* (*)(void* context, int64_t bytes)
	Deallocate unsafe.Pointer // void (*)(void* context, void* memory, int64_t bytes)
	Copy       unsafe.Pointer // int32_t (*)(void* context, void* dst, const void* src, int64_t bytes)
	// These may be nil. CopyBatch does many copies, CopyIn copies from memory of the CPU, CopyOut to
	// it. Without them copies are made by Copy, one after the other, and the CPU cannot reach memory
	// of a device (ReadBlocks, WriteBlocks). Copies return 0 if the bytes arrived. Any other code is
	// ErrUnavailable for the caller, but KVFOLIO_ERR_UNSUPPORTED: then nothing was copied.
	CopyBatch unsafe.Pointer // int32_t (*)(void* context, const kvfolio_copy_run* runs, int64_t n)
	CopyIn    unsafe.Pointer // int32_t (*)(void* context, const kvfolio_copy_run* runs, int64_t n)
	CopyOut   unsafe.Pointer
}

func (m *MemoryResource) toC() *C.kvfolio_memory_resource {
	if m == nil {
		return nil
	}
	return &C.kvfolio_memory_resource{
		struct_size: C.sizeof_kvfolio_memory_resource,
		kind:        C.int32_t(m.Kind),
		context:     m.Context,
		allocate:    (*[0]byte)(m.Allocate),
		deallocate:  (*[0]byte)(m.Deallocate),
		copy:        (*[0]byte)(m.Copy),
		copy_batch:  (*[0]byte)(m.CopyBatch),
		copy_in:     (*[0]byte)(m.CopyIn),
		copy_out:    (*[0]byte)(m.CopyOut),
	}
}

// life is what a storage knows of its cache. Not the cache itself: the collector does not run the
// finalizers of a circle.
type life struct{ closed bool }

// Storage is K and V of all groups. Close it, or hand it to NewCacheWithStorage, whose cache then
// owns it: the storage may be used until that cache is closed.
type Storage struct {
	c      *C.kvfolio_storage
	owner  *life // that of its cache, or nil
	groups []GroupSpec
	birth
}

// p is null once the storage, or the cache that owns it, is closed.
func (s *Storage) p() *C.kvfolio_storage {
	if s == nil || s.owner != nil && s.owner.closed {
		return nil
	}
	return s.c
}

func (s *Storage) done(w *scratch, code C.int32_t) error {
	return w.give(code, s.p() == nil, "Storage")
}

func newStorage(c *C.kvfolio_storage, groups []GroupSpec, born birth) *Storage {
	s := &Storage{c: c, groups: append([]GroupSpec(nil), groups...), birth: born}
	runtime.SetFinalizer(s, func(s *Storage) { s.leaked("Storage") })
	return s
}

// NewStorage allocates K and V. A nil resource is memory of the process.
func NewStorage(groups []GroupSpec, resource *MemoryResource) (*Storage, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	specs := groupsToC(groups)
	s := take()
	var out *C.kvfolio_storage
	code := C.kvfolio_storage_create(&specs[0], i32(len(groups)), resource.toC(), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	return newStorage(out, groups, bornOf()), nil
}

// Strides are bytes between neighbours along each axis.
type Strides struct {
	Layer int64
	Block int64
	Head  int64
	Token int64
}

// Borrowed is an array of the caller in C memory.
type Borrowed struct {
	Data    unsafe.Pointer
	Bytes   int64 // that may be touched from Data on
	Strides Strides
}

// BorrowedLayer says where the arrays of one layer begin; nil as in BorrowedGroup.
type BorrowedLayer struct {
	K      unsafe.Pointer
	V      unsafe.Pointer
	KScale unsafe.Pointer
	VScale unsafe.Pointer
}

// BorrowedGroup is memory of the caller for one group, which it owns until the storage is closed.
// It must be C memory (AllocC): Go panics if a pointer here is to Go memory. The pointers here are
// bases of all layers; or they are nil, and Layers has one base for each layer.
type BorrowedGroup struct {
	K      Borrowed // [layers, blocks, heads, block size, head dim]
	V      Borrowed // zero if there is no V of its own
	KScale Borrowed // Int8 and E4M3: f32 [layers, blocks, heads, block size]
	VScale Borrowed
	Layers []BorrowedLayer
}

func (s Strides) toC() C.kvfolio_strides {
	return C.kvfolio_strides{
		layer: C.int64_t(s.Layer),
		block: C.int64_t(s.Block),
		head:  C.int64_t(s.Head),
		token: C.int64_t(s.Token),
	}
}

// BorrowStorage makes a storage over memory of the caller. Needs one BorrowedGroup for each group.
func BorrowStorage(groups []GroupSpec, borrowed []BorrowedGroup,
	resource *MemoryResource) (*Storage, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	if len(borrowed) != len(groups) {
		return nil, failf(ErrInvalidArgument, "BorrowStorage: %d borrowed groups for %d groups",
			len(borrowed), len(groups))
	}
	// Go memory that holds C pointers, so that cgo checks what they point to.
	lent := make([]C.kvfolio_borrowed_group, len(borrowed)+1)
	for i := range borrowed {
		from, to := &borrowed[i], &lent[i]
		to.struct_size = C.sizeof_kvfolio_borrowed_group
		to.k, to.k_bytes, to.k_strides =
			from.K.Data, C.int64_t(from.K.Bytes), from.K.Strides.toC()
		to.v, to.v_bytes, to.v_strides =
			from.V.Data, C.int64_t(from.V.Bytes), from.V.Strides.toC()
		to.k_scale, to.k_scale_bytes, to.k_scale_strides =
			from.KScale.Data, C.int64_t(from.KScale.Bytes), from.KScale.Strides.toC()
		to.v_scale, to.v_scale_bytes, to.v_scale_strides =
			from.VScale.Data, C.int64_t(from.VScale.Bytes), from.VScale.Strides.toC()
		if len(from.Layers) == 0 {
			continue
		}
		layers := make([]C.kvfolio_borrowed_layer, len(from.Layers))
		for l, layer := range from.Layers {
			layers[l] = C.kvfolio_borrowed_layer{
				k: layer.K, v: layer.V, k_scale: layer.KScale, v_scale: layer.VScale}
		}
		to.num_layers = i32(len(layers))
		to.layers = C.kvfolio_go_layers(&layers[0], C.size_t(len(layers)))
		if to.layers == nil {
			return nil, failf(ErrOutOfMemory, "BorrowStorage: no memory for %d layers", len(layers))
		}
		defer C.free(unsafe.Pointer(to.layers))
	}
	specs := groupsToC(groups)
	s := take()
	var out *C.kvfolio_storage
	code := C.kvfolio_storage_borrow(&specs[0], i32(len(groups)), &lent[0], resource.toC(), &out,
		&s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	return newStorage(out, groups, bornOf()), nil
}

// Close frees the storage. Does nothing to one that belongs to a cache.
func (s *Storage) Close() {
	if s == nil || s.owner != nil || s.c == nil {
		return
	}
	runtime.SetFinalizer(s, nil)
	C.kvfolio_storage_destroy(s.c)
	s.c = nil
}

// NumGroups returns the number of groups.
func (s *Storage) NumGroups() int { return int(C.kvfolio_storage_num_groups(s.p())) }

// MemoryKind says who may touch the memory.
func (s *Storage) MemoryKind() MemoryKind {
	return MemoryKind(C.kvfolio_storage_memory_kind(s.p()))
}

// OwnsMemory reports whether the storage allocated its memory.
func (s *Storage) OwnsMemory() bool { return C.kvfolio_storage_owns_memory(s.p()) != 0 }

// MemoryBytes returns the bytes taken from the resource; 0 if borrowed.
func (s *Storage) MemoryBytes() int64 { return int64(C.kvfolio_storage_memory_bytes(s.p())) }

// CopyBlocks copies block src[i] to block dst[i], in the order of i, all layers.
func (s *Storage) CopyBlocks(group int, src, dst []int32) error {
	if len(src) != len(dst) {
		return failf(ErrInvalidArgument, "CopyBlocks: %d sources for %d destinations", len(src),
			len(dst))
	}
	w := take()
	return s.done(w, C.kvfolio_storage_copy_blocks(s.p(), i32(group), first(src), first(dst),
		C.int64_t(len(src)), &w.err))
}

// CopyBlocksFrom copies the blocks with the same ids of another storage of an equal spec.
func (s *Storage) CopyBlocksFrom(source *Storage, group int, blocks []int32) error {
	w := take()
	err := s.done(w, C.kvfolio_storage_copy_blocks_from(s.p(), source.p(), i32(group), first(blocks),
		C.int64_t(len(blocks)), &w.err))
	runtime.KeepAlive(source)
	return err
}

// Fill sets every byte of every row and scale: 0xff poisons memory.
func (s *Storage) Fill(value byte) error {
	w := take()
	return s.done(w, C.kvfolio_storage_fill(s.p(), C.uint8_t(value), &w.err))
}

// View is what kernels take: all layers of a group, or one. Calls on a view whose storage, cache or
// store is closed return ErrFailedPrecondition. Close it before or after them.
type View struct {
	c     *C.kvfolio_view
	shown memory
	group GroupSpec
	birth
}

// memory is what a view shows, which it keeps: a Storage, a TokenStore or a BlockStore.
type memory interface{ isClosed() bool }

func (s *Storage) isClosed() bool { return s.p() == nil }

// p is null once the view or its memory is closed; a View that no call made shows nothing.
func (v *View) p() *C.kvfolio_view {
	if v == nil || v.shown == nil || v.shown.isClosed() {
		return nil
	}
	return v.c
}

// h is p as a number, see steps.go.
func (v *View) h() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(v.p()))) }

func (v *View) done(s *scratch, code C.int32_t) error {
	return s.give(code, v.p() == nil, "View, or what it shows,")
}

func newView(c *C.kvfolio_view, shown memory, group GroupSpec, born birth) *View {
	v := &View{c: c, shown: shown, group: group, birth: born}
	runtime.SetFinalizer(v, func(v *View) { v.leaked("View") })
	return v
}

// View makes a view of a group. Layer -1: all layers; ErrUnsupported if they were lent apart. One
// layer is layer 0 of its view.
func (s *Storage) View(group, layer int) (*View, error) { return s.view(group, layer, bornOf()) }

func (s *Storage) view(group, layer int, born birth) (*View, error) {
	w := take()
	var out *C.kvfolio_view
	code := C.kvfolio_view_create(s.p(), i32(group), i32(layer), &out, &w.err)
	if err := s.done(w, code); err != nil {
		return nil, err
	}
	return newView(out, s, s.groups[group], born), nil
}

// Close frees the view.
func (v *View) Close() {
	if v == nil || v.c == nil {
		return
	}
	runtime.SetFinalizer(v, nil)
	C.kvfolio_view_destroy(v.c)
	v.c = nil
}

// K returns where the row of K of a token lies, in format Granule the tile; nil if there is none.
// The memory is that of the storage and lives as long.
func (v *View) K(layer, block, head, offset int) unsafe.Pointer {
	return C.kvfolio_view_k(v.p(), i32(layer), i32(block), i32(head), i32(offset))
}

// V returns where the row of V of a token lies, as K does.
func (v *View) V(layer, block, head, offset int) unsafe.Pointer {
	return C.kvfolio_view_v(v.p(), i32(layer), i32(block), i32(head), i32(offset))
}

// KScale returns where the f32 scale of a row of K lies; nil if there is none: in caches
// of Int8 and E4M3 only.
func (v *View) KScale(layer, block, head, offset int) unsafe.Pointer {
	return C.kvfolio_view_k_scale(v.p(), i32(layer), i32(block), i32(head), i32(offset))
}

// VScale returns where the f32 scale of a row of V lies, as KScale does.
func (v *View) VScale(layer, block, head, offset int) unsafe.Pointer {
	return C.kvfolio_view_v_scale(v.p(), i32(layer), i32(block), i32(head), i32(offset))
}
