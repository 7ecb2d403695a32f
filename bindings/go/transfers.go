// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
//
// // Bytes in place of void*: see kernels.go.
// static int32_t kvfolio_go_read_blocks(const kvfolio_storage* storage, int32_t group,
//                                       const int32_t* blocks, int64_t n, uint8_t* images,
//                                       int64_t bytes, kvfolio_error* error) {
//   return kvfolio_storage_read_blocks(storage, group, blocks, n, images, bytes, error);
// }
// static int32_t kvfolio_go_write_blocks(kvfolio_storage* storage, int32_t group,
//                                        const int32_t* blocks, int64_t n, const uint8_t* images,
//                                        int64_t bytes, kvfolio_error* error) {
//   return kvfolio_storage_write_blocks(storage, group, blocks, n, images, bytes, error);
// }
import "C"

import (
	"runtime"
	"unsafe"
)

// A load is an append whose bytes come from elsewhere: from host memory, a file, another machine.
// Begin it when the bytes are there and verified, write the blocks, finish it. Until then nothing in
// the blocks is findable, and none is given away, whatever becomes of the sequence. A hold keeps
// blocks as they are while something copies from them. manager.h says the rules.

// LoadID is the id of a load. 0: none.
type LoadID uint64

// HoldID is the id of a hold. 0: none.
type HoldID uint64

// Load is for tokens [Begin, End) of a sequence.
type Load struct {
	ID    LoadID // 0: the cache has it all by now; there is nothing to write or to finish
	Begin int    // the length of the sequence
	End   int
}

// BeginLoad lets a sequence grow to `end` tokens of the prompt without computing them. First the
// sequence gets what the cache has by now, as in Open. Then write the blocks of BlocksToLoad and call
// FinishLoad. Meanwhile no call may append to the sequence, trim it, reserve for it or begin another
// load.
func (c *Cache) BeginLoad(sequence Sequence, prompt []int32, end int) (Load, error) {
	out := C.kvfolio_load{struct_size: C.sizeof_kvfolio_load}
	s := take()
	code := C.kvfolio_begin_load(c.p(), C.kvfolio_sequence(sequence), first(prompt),
		C.int64_t(len(prompt)), i32(end), &out, &s.err)
	return Load{LoadID(out.id), int(out.begin), int(out.end)}, c.done(s, code)
}

// BlocksToLoad returns the blocks of a group that a load waits for: logical[i] is blocks[i]. All
// tokens of a block are to be written, also those in front of Load.Begin. Both slices are copies.
func (c *Cache) BlocksToLoad(load LoadID, group int) (logical, blocks []int32, err error) {
	s := take()
	code := C.kvfolio_blocks_to_load(c.p(), C.kvfolio_load_id(load), i32(group), nil, nil, 0,
		&s.i32[0], &s.err)
	n := int(s.i32[0])
	if err := c.done(s, code); err != nil {
		return nil, nil, err
	}
	logical, blocks = make([]int32, n), make([]int32, n)
	s = take()
	code = C.kvfolio_blocks_to_load(c.p(), C.kvfolio_load_id(load), i32(group), first(logical),
		first(blocks), C.int64_t(n), nil, &s.err)
	return logical, blocks, c.done(s, code)
}

// FinishLoad ends a load. Call it when nothing writes to its blocks any more, also if the transfer
// failed: the first numTokens tokens from Load.Begin on are good. It returns how many of them the
// sequence has now: fewer if it was closed or shortened meanwhile, for example.
func (c *Cache) FinishLoad(load LoadID, numTokens int) (int, error) {
	s := take()
	code := C.kvfolio_finish_load(c.p(), C.kvfolio_load_id(load), i32(numTokens), &s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, c.done(s, code)
}

// Loadable says how far a load could reach.
type Loadable struct {
	Begin  int   // tokens that are there without the tier
	End    int   // tokens that are there with it; Begin: a load gains nothing
	Blocks int64 // that a load to End would wait for, of all groups
}

// Loadable asks how far a load could reach with blocks that a tier has: has[g][i] says that it has
// logical block i of the prompt in group g. What the sequence and the cache have counts, too.
// Afterwards the blocks that a load to End would wait for are true, all others false. limit is the
// largest end to look at; has[g] has an entry for each block of so many tokens.
func (c *Cache) Loadable(sequence Sequence, prompt []int32, limit int,
	has [][]bool) (Loadable, error) {
	var bytes []byte
	sizes := make([]C.int64_t, len(has)+1)
	for g := range has {
		sizes[g] = C.int64_t(len(has[g]))
		for _, b := range has[g] {
			bytes = append(bytes, byte(b32(b)))
		}
	}
	s := take()
	code := C.kvfolio_loadable(c.p(), C.kvfolio_sequence(sequence), first(prompt),
		C.int64_t(len(prompt)), i32(limit), firstByte(bytes), &sizes[0], i32(len(has)), &s.i32[0], &s.i32[1],
		&s.i64[0], &s.err)
	out := Loadable{int(s.i32[0]), int(s.i32[1]), int64(s.i64[0])}
	if err := c.done(s, code); err != nil {
		return Loadable{}, err
	}
	for g := range has {
		for i := range has[g] {
			has[g][i] = bytes[i] != 0
		}
		bytes = bytes[len(has[g]):]
	}
	return out, nil
}

// HoldBlocks keeps blocks as they are until ReleaseHold. Read them when the step that wrote them is
// complete.
func (c *Cache) HoldBlocks(group int, blocks []int32) (HoldID, error) {
	s := take()
	code := C.kvfolio_hold_blocks(c.p(), i32(group), first(blocks), C.int64_t(len(blocks)), &s.id,
		&s.err)
	out := HoldID(s.id)
	return out, c.done(s, code)
}

// ReleaseHold ends a hold: nothing reads the blocks any more.
func (c *Cache) ReleaseHold(hold HoldID) error {
	s := take()
	return c.done(s, C.kvfolio_release_hold(c.p(), C.kvfolio_hold_id(hold), &s.err))
}

// FindableBlock is a block that became findable.
type FindableBlock struct {
	Group  int
	Block  int
	End    int    // one past the last position whose token can be found in it
	Serial uint64 // EntrySerial now
}

// TakeFindable takes up to atMost blocks that became findable, those that waited longest first. A
// block is handed out once each time that it becomes findable, or findable with more tokens, and not
// before its step is complete. None without Options.ListFindable.
func (c *Cache) TakeFindable(atMost int) []FindableBlock {
	var out []FindableBlock
	var piece [64]C.kvfolio_findable_block
	for len(out) < atMost {
		room := atMost - len(out)
		if room > len(piece) {
			room = len(piece)
		}
		n := int(C.kvfolio_take_findable(c.p(), &piece[0], C.int64_t(room)))
		for i := range piece[:n] {
			b := &piece[i]
			out = append(out,
				FindableBlock{int(b.group), int(b.block), int(b.end), uint64(b.serial)})
		}
		if n < room {
			break
		}
	}
	runtime.KeepAlive(c)
	return out
}

// EntrySerial returns a number that stays as long as the block is found by the same tokens. 0: the
// block is not findable, or there is no Options.ListFindable.
func (c *Cache) EntrySerial(group, block int) (uint64, error) {
	s := take()
	code := C.kvfolio_entry_serial(c.p(), i32(group), i32(block), &s.id, &s.err)
	out := uint64(s.id)
	return out, c.done(s, code)
}

// Prefix is what stands in front of a findable block.
type Prefix struct {
	NumTokens int // from the root to the end of the block
	Media     []MediaSpan
	Root      *Root // the key that the block is found under. Close it.
}

// PrefixOf returns the path that a findable block ends, and fills tokens with those of it from
// position begin on. ErrNotFound: the block is not findable.
func (c *Cache) PrefixOf(group, block, begin int, tokens []int32) (Prefix, error) {
	s := take()
	code := C.kvfolio_prefix_of(c.p(), i32(group), i32(block), 0, nil, 0, nil, 0, nil, &s.i32[0], nil,
		&s.err)
	n := int(s.i32[0])
	if err := c.done(s, code); err != nil {
		return Prefix{}, err
	}
	media := make([]C.kvfolio_media_span, n+1) // at least one, so that there is an address
	for i := range media {
		media[i].struct_size = C.sizeof_kvfolio_media_span
	}
	s = take()
	var root *C.kvfolio_root
	code = C.kvfolio_prefix_of(c.p(), i32(group), i32(block), i32(begin), first(tokens),
		C.int64_t(len(tokens)), &media[0], C.int64_t(n), &s.i32[0], nil, &root, &s.err)
	out := Prefix{NumTokens: int(s.i32[0])}
	if err := c.done(s, code); err != nil {
		return Prefix{}, err
	}
	for i := range media[:n] {
		from := &media[i]
		span := MediaSpan{Begin: int(from.begin), End: int(from.end),
			AttendsToItself: from.attends_to_itself != 0}
		for j, b := range from.content_id {
			span.ContentID[j] = byte(b)
		}
		out.Media = append(out.Media, span)
	}
	out.Root = newRoot(root, bornOf())
	return out, nil
}

// BlockAt returns the block of group `of` that holds whole what ends at position `end` on the path of
// a findable block. -1: the cache keeps none.
func (c *Cache) BlockAt(group, block, of, end int) (int, error) {
	s := take()
	code := C.kvfolio_block_at(c.p(), i32(group), i32(block), i32(of), i32(end), &s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, c.done(s, code)
}

// BlockImageBytes returns the bytes of the image of a block: all of its layers, K, V and scales in
// one piece, in an order that depends on the group alone (storage.h says it). 0: no such group.
func (s *Storage) BlockImageBytes(group int) int {
	return int(C.kvfolio_storage_block_image_bytes(s.p(), i32(group)))
}

func firstByte(b []byte) *C.uint8_t {
	if len(b) == 0 {
		return nil
	}
	return (*C.uint8_t)(unsafe.Pointer(&b[0]))
}

// ReadBlocks copies blocks to images, one behind the other: len(blocks) * BlockImageBytes(group)
// bytes.
func (s *Storage) ReadBlocks(group int, blocks []int32, images []byte) error {
	w := take()
	return s.done(w, C.kvfolio_go_read_blocks(s.p(), i32(group), first(blocks),
		C.int64_t(len(blocks)), firstByte(images), C.int64_t(len(images)), &w.err))
}

// WriteBlocks copies images, which ReadBlocks gave, to blocks; name each block once.
func (s *Storage) WriteBlocks(group int, blocks []int32, images []byte) error {
	w := take()
	return s.done(w, C.kvfolio_go_write_blocks(s.p(), i32(group), first(blocks),
		C.int64_t(len(blocks)), firstByte(images), C.int64_t(len(images)), &w.err))
}
