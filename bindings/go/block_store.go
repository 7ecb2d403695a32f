// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
//
// // Bytes in place of void*: see kernels.go.
// static int32_t kvfolio_go_blocks_read(const kvfolio_block_store* store, const int32_t* blocks,
//                                       int64_t num_blocks, uint8_t* images, int64_t image_bytes,
//                                       kvfolio_error* error) {
//   return kvfolio_block_store_read(store, blocks, num_blocks, images, image_bytes, error);
// }
// static int32_t kvfolio_go_blocks_write(kvfolio_block_store* store, const int32_t* blocks,
//                                        int64_t num_blocks, const uint8_t* images,
//                                        int64_t image_bytes, kvfolio_error* error) {
//   return kvfolio_block_store_write(store, blocks, num_blocks, images, image_bytes, error);
// }
import "C"

import (
	"runtime"
)

// BlockStore is the blocks of one group and their bytes, for programs that keep block tables of
// their own and want neither sequences nor prefixes. Close it. block_store.h says what each call
// does in full.
type BlockStore struct {
	c     *C.kvfolio_block_store
	group GroupSpec
	birth
}

func (b *BlockStore) p() *C.kvfolio_block_store {
	if b == nil {
		return nil
	}
	return b.c
}

func (b *BlockStore) isClosed() bool { return b.p() == nil }

func (b *BlockStore) done(s *scratch, code C.int32_t) error {
	return s.give(code, b.p() == nil, "BlockStore")
}

// NewBlockStore makes a store whose blocks are free. A nil resource is memory of the process.
func NewBlockStore(group GroupSpec, resource *MemoryResource) (*BlockStore, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	spec := groupsToC([]GroupSpec{group})
	s := take()
	var out *C.kvfolio_block_store
	code := C.kvfolio_block_store_create(&spec[0], resource.toC(), &out, &s.err)
	if err := s.give(code, false, ""); err != nil {
		return nil, err
	}
	b := &BlockStore{c: out, group: group, birth: bornOf()}
	runtime.SetFinalizer(b, func(b *BlockStore) { b.leaked("BlockStore") })
	return b, nil
}

// Close frees the store.
func (b *BlockStore) Close() {
	if b.p() == nil {
		return
	}
	runtime.SetFinalizer(b, nil)
	C.kvfolio_block_store_destroy(b.p())
	b.c = nil
}

// Allocate takes a free block for each entry of blocks, all or none; each has one reference then.
// ErrResourceExhausted: fewer are free.
func (b *BlockStore) Allocate(blocks []int32) error {
	s := take()
	return b.done(s, C.kvfolio_block_store_allocate(b.p(), first(blocks), C.int64_t(len(blocks)),
		&s.err))
}

// Hold adds a reference to each block, all or none. ErrFailedPrecondition: a block is free.
func (b *BlockStore) Hold(blocks []int32) error {
	s := take()
	return b.done(s, C.kvfolio_block_store_hold(b.p(), first(blocks), C.int64_t(len(blocks)), &s.err))
}

// Release takes a reference from each, all or none. A block without any is free.
func (b *BlockStore) Release(blocks []int32) error {
	s := take()
	return b.done(s, C.kvfolio_block_store_release(b.p(), first(blocks), C.int64_t(len(blocks)),
		&s.err))
}

// MakeWritable returns the block to write in place of this one: itself, or if others hold it too a
// copy, to which the caller's reference moves. ErrUnavailable: the memory failed; the block is as it
// was, and the call may be made again.
func (b *BlockStore) MakeWritable(block int) (int, error) {
	s := take()
	code := C.kvfolio_block_store_make_writable(b.p(), i32(block), &s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, b.done(s, code)
}

// RefCount returns the references to a block; 0: it is free.
func (b *BlockStore) RefCount(block int) (int, error) {
	s := take()
	code := C.kvfolio_block_store_ref_count(b.p(), i32(block), &s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, b.done(s, code)
}

// Read copies images of blocks, one behind the other: len(blocks) * BlockImageBytes() bytes.
// Storage.ReadBlocks says what an image is.
func (b *BlockStore) Read(blocks []int32, images []byte) error {
	s := take()
	return b.done(s, C.kvfolio_go_blocks_read(b.p(), first(blocks), C.int64_t(len(blocks)),
		firstByte(images), C.int64_t(len(images)), &s.err))
}

// Write copies images to blocks. ErrFailedPrecondition: a block has several references.
func (b *BlockStore) Write(blocks []int32, images []byte) error {
	s := take()
	return b.done(s, C.kvfolio_go_blocks_write(b.p(), first(blocks), C.int64_t(len(blocks)),
		firstByte(images), C.int64_t(len(images)), &s.err))
}

// NumBlocks returns how many blocks there are.
func (b *BlockStore) NumBlocks() int { return int(C.kvfolio_block_store_num_blocks(b.p())) }

// NumFree returns how many of them are free.
func (b *BlockStore) NumFree() int { return int(C.kvfolio_block_store_num_free(b.p())) }

// BlockImageBytes returns the bytes of the image of a block.
func (b *BlockStore) BlockImageBytes() int {
	return int(C.kvfolio_block_store_block_image_bytes(b.p()))
}

// MemoryBytes returns the bytes taken from the resource.
func (b *BlockStore) MemoryBytes() int64 { return int64(C.kvfolio_block_store_memory_bytes(b.p())) }

// String returns what the store holds, as C++ prints it: "block store: 5 of 64 blocks ...".
func (b *BlockStore) String() string {
	if b.p() == nil {
		return "block store: closed"
	}
	return textOf(func(out *C.char, capacity C.int64_t) C.int64_t {
		return C.kvfolio_block_store_describe(b.p(), out, capacity)
	})
}

// View makes a view of all layers for the kernels. Nothing keeps a kernel from writing to a block
// that several tables have: MakeWritable comes before.
func (b *BlockStore) View() (*View, error) {
	s := take()
	var out *C.kvfolio_view
	code := C.kvfolio_block_store_view(b.p(), &out, &s.err)
	if err := b.done(s, code); err != nil {
		return nil, err
	}
	return newView(out, b, b.group, bornOf()), nil
}
