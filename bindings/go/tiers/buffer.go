// SPDX-License-Identifier: Apache-2.0

package tiers

// #include <stdlib.h>
// #include <string.h>
// #include <stdint.h>
//
// static void* kvfolio_go_pages(int64_t bytes) {
//   if (bytes < 0 || bytes > INT64_MAX - 4096) return NULL;
//   const size_t size = ((size_t)bytes + 4095) / 4096 * 4096;
//   void* const memory = aligned_alloc(4096, size == 0 ? 4096 : size);
//   if (memory != NULL) memset(memory, 0, size);
//   return memory;
// }
// // A call, so that cgo checks that the memory is not Go's.
// static void kvfolio_go_is_of_c(void** memory) { (void)memory; }
import "C"

import (
	"runtime"
	"sync"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

// Buffer is memory for one record. It is C's, so it never moves, and it stays until both the caller
// has closed it and every tier is done with it. Close it.
type Buffer struct {
	mutex  sync.Mutex
	memory unsafe.Pointer
	bytes  int
	owned  bool
	// Stores that read it, or -1: a load writes it.
	users  int
	closed bool
	birth
}

// NewBuffer allocates zeros, aligned for any tier.
func NewBuffer(bytes int) (*Buffer, error) {
	p := C.kvfolio_go_pages(C.int64_t(bytes))
	if p == nil {
		return nil, failf(kvfolio.ErrOutOfMemory, "no %d bytes of C memory", bytes)
	}
	return newBuffer(p, bytes, true, bornOf()), nil
}

// BufferOver makes a Buffer of memory that the caller has already, such as a block of a cache or a part
// of kvfolio.AllocC. It stays the caller's, who keeps it until the tiers are done with it. It must be C
// memory: Go panics if it is Go's. Tier.Limits says how it is to be aligned.
func BufferOver(memory unsafe.Pointer, bytes int) (*Buffer, error) {
	if memory == nil || bytes < 0 {
		return nil, failf(kvfolio.ErrInvalidArgument, "BufferOver: %d bytes at %v", bytes, memory)
	}
	C.kvfolio_go_is_of_c(&memory)
	return newBuffer(memory, bytes, false, bornOf()), nil
}

func newBuffer(memory unsafe.Pointer, bytes int, owned bool, born birth) *Buffer {
	b := &Buffer{memory: memory, bytes: bytes, owned: owned, birth: born}
	runtime.SetFinalizer(b, func(b *Buffer) { b.leaked("Buffer") })
	return b
}

// Len returns the bytes of the record.
func (b *Buffer) Len() int {
	if b == nil {
		return 0
	}
	return b.bytes
}

// Bytes returns the memory; nil while a tier has it, and of a Buffer that is closed. Ask anew after
// each Submit: a slice of before is not to be touched while a tier has the memory, nor after Close.
func (b *Buffer) Bytes() []byte {
	if b == nil {
		return nil
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.users != 0 || b.closed || b.memory == nil {
		return nil
	}
	return unsafe.Slice((*byte)(b.memory), b.bytes)
}

// InUse reports whether a tier has the memory.
func (b *Buffer) InUse() bool {
	if b == nil {
		return false
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.users != 0
}

// Close frees the memory once no tier has it, which may be now.
func (b *Buffer) Close() {
	if b == nil {
		return
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.closed || b.memory == nil {
		return
	}
	runtime.SetFinalizer(b, nil)
	b.closed = true
	b.freeIfUnused()
}

func (b *Buffer) freeIfUnused() {
	if !b.closed || b.users != 0 {
		return
	}
	if b.owned {
		C.free(b.memory)
	}
	b.memory = nil
}

// lend gives the memory to a tier; any number of stores may read it.
func (b *Buffer) lend(op Op) (unsafe.Pointer, error) {
	if b == nil {
		return nil, failf(kvfolio.ErrInvalidArgument, "Submit: a %v needs a Buffer", op)
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	switch {
	case b.closed || b.memory == nil:
		return nil, closed("Buffer")
	case b.users != 0 && (op == Load || b.users < 0):
		return nil, failf(kvfolio.ErrFailedPrecondition, "Submit: a tier has the Buffer still")
	case op == Load:
		b.users = -1
	default:
		b.users++
	}
	return b.memory, nil
}

// giveBack ends a lend.
func (b *Buffer) giveBack() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.users < 0 {
		b.users = 0
	} else {
		b.users--
	}
	b.freeIfUnused()
}
