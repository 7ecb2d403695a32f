// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"strings"
	"testing"
)

func newTestBlocks(t *testing.T) *BlockStore {
	t.Helper()
	store, err := NewBlockStore(GroupSpec{HeadDimK: 2, HeadDimV: 2, BlockSize: 4, NumBlocks: 4}, nil)
	must(t, err)
	t.Cleanup(store.Close)
	return store
}

func refs(t *testing.T, store *BlockStore, block int) int {
	t.Helper()
	n, err := store.RefCount(block)
	must(t, err)
	return n
}

func TestASharedBlockIsCopiedBeforeItIsWritten(t *testing.T) {
	store := newTestBlocks(t)
	table := make([]int32, 2)
	must(t, store.Allocate(table))
	view, err := store.View()
	must(t, err)
	defer view.Close()
	row := RowsF32([]float32{1, 2}, 1, 1, 2)
	must(t, AppendRows(view, 0, row, row, []int32{table[1]*4 + 3}))
	must(t, store.Hold(table))
	own, err := store.MakeWritable(int(table[1]))
	must(t, err)
	if own == int(table[1]) {
		t.Fatal("the block is shared, and was given to be written")
	}
	read := make([]float32, 2)
	must(t, ReadToken(view, 0, 0, own*4+3, RowsF32(read, 1, 1, 2), Rows{}))
	equal(t, "copied", read, []float32{1, 2})
	equal(t, "references", []int{refs(t, store, int(table[0])), refs(t, store, own)}, []int{2, 1})

	image := make([]byte, store.BlockImageBytes())
	must(t, store.Read([]int32{int32(own)}, image))
	must(t, store.Write([]int32{int32(own)}, image))
	wants(t, store.Write(table[:1], image), ErrFailedPrecondition)
	wants(t, store.Write([]int32{int32(own)}, image[1:]), ErrInvalidArgument)
	wants(t, store.Read([]int32{int32(own)}, nil), ErrInvalidArgument)
	must(t, store.Release([]int32{table[0], table[1], table[0], int32(own)}))
	equal(t, "free", store.NumFree(), store.NumBlocks())
	if store.MemoryBytes() < int64(4*len(image)) {
		t.Fatal(store.MemoryBytes())
	}
	if !strings.HasPrefix(store.String(), "block store: 0 of 4 blocks of 4 tokens in use, f32") {
		t.Fatal(store.String())
	}
}

func TestBlocksThatAreNotThereAreRefused(t *testing.T) {
	store := newTestBlocks(t)
	wants(t, store.Allocate(make([]int32, 5)), ErrResourceExhausted)
	must(t, store.Allocate(nil))
	wants(t, store.Hold([]int32{0}), ErrFailedPrecondition)
	wants(t, store.Release([]int32{0}), ErrFailedPrecondition)
	wants(t, store.Hold([]int32{-1}), ErrInvalidArgument)
	_, err := store.MakeWritable(4)
	wants(t, err, ErrInvalidArgument)
	_, err = store.RefCount(1 << 40)
	wants(t, err, ErrInvalidArgument)
	_, err = NewBlockStore(GroupSpec{}, nil)
	wants(t, err, ErrInvalidArgument)
}

func TestAClosedBlockStoreIsRefused(t *testing.T) {
	store := newTestBlocks(t)
	view, err := store.View()
	must(t, err)
	defer view.Close()
	store.Close()
	wants(t, store.Allocate(make([]int32, 1)), ErrFailedPrecondition)
	wants(t, ReadToken(view, 0, 0, 0, RowsF32(make([]float32, 2), 1, 1, 2), Rows{}),
		ErrFailedPrecondition)
	_, err = store.View()
	wants(t, err, ErrFailedPrecondition)
	equal(t, "printed", store.String(), "block store: closed")
	store.Close()
}

func TestASequenceIsGatheredFromItsBlocks(t *testing.T) {
	groups := []GroupSpec{{HeadDimK: 2, HeadDimV: 2, BlockSize: 2, NumBlocks: 8}}
	storage, err := NewStorage(groups, nil)
	must(t, err)
	c, err := NewCacheWithStorage(storage, nil)
	must(t, err)
	defer c.Close()
	opened, err := c.Open(nil, nil)
	must(t, err)
	ticket, err := c.BeginStep(0)
	must(t, err)
	must(t, c.Append(opened.Sequence, []int32{7, 8, 9}, 0))
	slots := make([]int32, 3)
	must(t, c.SlotMapping(opened.Sequence, 0, 0, slots))
	view, err := c.View(0, 0)
	must(t, err)
	defer view.Close()
	k := []float32{1, 2, 3, 4, 5, 6}
	must(t, AppendRows(view, 0, RowsF32(k, 3, 1, 2), RowsF32(k, 3, 1, 2), slots))
	must(t, c.Finish(ticket))

	all, last := make([]float32, 6), make([]float64, 2)
	must(t, c.Gather(opened.Sequence, 0, 0, 0, RowsF32(all, 3, 1, 2), Rows{}))
	equal(t, "K", all, k)
	must(t, c.Gather(opened.Sequence, 0, 0, 2, Rows{}, RowsF64(last, 1, 1, 2)))
	equal(t, "V of the last token", last, []float64{5, 6})
	// Rows of no tokens are rows, and not none.
	wants(t, c.Gather(opened.Sequence, 0, 0, 0, RowsF32(nil, 0, 1, 2), RowsF32(all, 3, 1, 2)),
		ErrInvalidArgument)
	wants(t, c.Gather(opened.Sequence, 0, 0, 1, RowsF32(all, 3, 1, 2), Rows{}), ErrInvalidArgument)
	wants(t, c.Gather(opened.Sequence, 0, 0, 0, RowsF32(all[1:], 3, 1, 2), Rows{}),
		ErrInvalidArgument)
	wants(t, c.Gather(opened.Sequence, 1, 0, 0, RowsF32(all, 3, 1, 2), Rows{}), ErrInvalidArgument)
	wants(t, c.Gather(opened.Sequence+1, 0, 0, 0, RowsF32(all, 3, 1, 2), Rows{}), ErrNotFound)
	c.Close()
	wants(t, c.Gather(opened.Sequence, 0, 0, 0, RowsF32(all, 3, 1, 2), Rows{}),
		ErrFailedPrecondition)
}
