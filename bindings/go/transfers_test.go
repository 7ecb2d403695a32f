// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
)

// withImages is a cache of 16 blocks with storage, and a view of it.
func withImages(t testing.TB) (*Cache, *View) {
	t.Helper()
	storage, err := NewStorage(small(16), nil)
	must(t, err)
	c, err := NewCacheWithStorage(storage, &Options{ListFindable: true, MaxTransfers: 2})
	must(t, err)
	t.Cleanup(c.Close)
	view, err := c.View(0, -1)
	must(t, err)
	t.Cleanup(view.Close)
	return c, view
}

// fillRows writes number + token to each row of K and V of a sequence.
func fillRows(t testing.TB, c *Cache, view *View, sequence Sequence, n int, number float32) {
	t.Helper()
	slots := make([]int32, n)
	must(t, c.SlotMapping(sequence, 0, 0, slots))
	rows := make([]float32, 4*n)
	for i := range rows {
		rows[i] = number + float32(i/4)
	}
	must(t, AppendRows(view, 0, RowsF32(rows, n, 1, 4), RowsF32(rows, n, 1, 4), slots))
}

func TestALoadBringsBackWhatAnotherCacheHad(t *testing.T) {
	prompt := tokensFrom(0, 12)
	warm, from := withImages(t)
	a := prefill(t, warm, prompt, nil).Sequence
	fillRows(t, warm, from, a, 12, 100)
	table, err := warm.BlockTable(a, 0)
	must(t, err)
	size := warm.Storage().BlockImageBytes(0)
	equal(t, "image", size, 2*4*4*4)
	images := make([]byte, 3*size)
	table = clone(table) // it is the cache's memory, which no call takes but Adopt
	hold, err := warm.HoldBlocks(0, table)
	must(t, err)
	must(t, warm.Storage().ReadBlocks(0, table, images))
	must(t, warm.ReleaseHold(hold))

	cold, to := withImages(t)
	opened, err := cold.Open(prompt, nil)
	must(t, err)
	b := opened.Sequence
	has := [][]bool{{true, true, false}}
	loadable, err := cold.Loadable(b, prompt, 12, has)
	must(t, err)
	equal(t, "loadable", loadable, Loadable{0, 8, 2})
	has[0][2] = true
	loadable, err = cold.Loadable(b, prompt, 12, has)
	must(t, err)
	equal(t, "loadable", []interface{}{loadable, has}, []interface{}{Loadable{0, 12, 3},
		[][]bool{{true, true, true}}})
	load, err := cold.BeginLoad(b, prompt, 12)
	must(t, err)
	info, err := cold.Info(b)
	must(t, err)
	equal(t, "the load", []interface{}{load.Begin, load.End, info.Load}, []interface{}{0, 12, load.ID})
	usage, err := cold.Usage(0)
	must(t, err)
	equal(t, "loading", usage.Loading, 3)
	logical, blocks, err := cold.BlocksToLoad(load.ID, 0)
	must(t, err)
	equal(t, "logical blocks", logical, []int32{0, 1, 2})
	must(t, cold.Storage().WriteBlocks(0, blocks, images))
	n, err := cold.Probe(prompt, nil)
	must(t, err)
	equal(t, "found before it is finished", n, 0)
	n, err = cold.FinishLoad(load.ID, 12)
	must(t, err)
	equal(t, "stand", []interface{}{n, cold.Counters().TokensLoaded}, []interface{}{12, uint64(12)})
	row := make([]float32, 4)
	must(t, ReadToken(to, 0, 0, int(blocks[2])*4+3, RowsF32(row, 1, 1, 4), Rows{}))
	equal(t, "the last row", row, []float32{111, 111, 111, 111})
	load, err = cold.BeginLoad(b, prompt, 12)
	must(t, err)
	equal(t, "the cache has it all", load, Load{0, 12, 12})
	must(t, cold.CheckInvariants())
}

func TestWhatBecameFindableNamesItsPrefix(t *testing.T) {
	c, _ := withImages(t)
	root, err := NewRoot(RootKey{TenantSalt: "alice"})
	must(t, err)
	defer root.Close()
	span := MediaSpan{Begin: 1, End: 3, ContentID: [32]byte{7, 31: 9}, AttendsToItself: true}
	options := &OpenOptions{Root: root, Media: []MediaSpan{span}}
	prompt := tokensFrom(50, 8)
	prefill(t, c, prompt, options)
	found := c.TakeFindable(math.MaxInt64)
	equal(t, "findable", len(found), 2)
	equal(t, "nothing is left", c.TakeFindable(5), []FindableBlock(nil))
	last, before := found[0], found[1]
	if last.End < before.End {
		last, before = before, last
	}
	equal(t, "ends", []int{before.End, last.End}, []int{4, 8})
	tokens := make([]int32, 5)
	prefix, err := c.PrefixOf(0, last.Block, 3, tokens)
	must(t, err)
	defer prefix.Root.Close()
	equal(t, "prefix", []interface{}{prefix.NumTokens, prefix.Media, tokens},
		[]interface{}{8, []MediaSpan{span}, prompt[3:]})
	n, err := c.Probe(prompt, &OpenOptions{Root: prefix.Root, Media: prefix.Media})
	must(t, err)
	equal(t, "found under the root", n, 7)
	at, err := c.BlockAt(0, last.Block, 0, 4)
	must(t, err)
	equal(t, "the block before", at, before.Block)
	serial, err := c.EntrySerial(0, last.Block)
	must(t, err)
	equal(t, "serial", serial, last.Serial)
	_, err = c.Reset()
	must(t, err)
	serial, err = c.EntrySerial(0, last.Block)
	must(t, err)
	equal(t, "serial of a block that is not findable", serial, uint64(0))
	_, err = c.PrefixOf(0, last.Block, 0, nil)
	wants(t, err, ErrNotFound)
	_, err = c.BlockAt(0, last.Block, 0, 4)
	wants(t, err, ErrNotFound)
}

func TestTransfersOfBadInputAreRefused(t *testing.T) {
	c, view := withImages(t)
	prompt := tokensFrom(0, 8)
	a := prefill(t, c, prompt, nil).Sequence
	before := c.Describe()
	for _, end := range []int{-1, 9, math.MaxInt64, math.MinInt64} {
		_, err := c.BeginLoad(a, prompt, end)
		wants(t, err, ErrInvalidArgument)
		_, err = c.Loadable(a, prompt, end, [][]bool{{true}})
		wants(t, err, ErrInvalidArgument)
	}
	_, err := c.BeginLoad(77, prompt, 8)
	wants(t, err, ErrNotFound)
	_, err = c.BeginLoad(a, tokensFrom(9, 12), 12)
	wants(t, err, ErrInvalidArgument)
	for _, has := range [][][]bool{nil, {}, {{true}}, {nil, nil}, make([][]bool, 99)} {
		_, err = c.Loadable(a, prompt, 8, has)
		wants(t, err, ErrInvalidArgument)
	}
	for _, id := range []LoadID{0, 1, math.MaxUint64} {
		_, _, err = c.BlocksToLoad(id, 0)
		wants(t, err, ErrNotFound)
		_, err = c.FinishLoad(id, 0)
		wants(t, err, ErrNotFound)
	}
	for _, blocks := range [][]int32{{15}, {16}, {-1}, {math.MinInt32}} {
		_, err = c.HoldBlocks(0, blocks)
		wants(t, err, ErrInvalidArgument)
	}
	_, err = c.HoldBlocks(-1, nil)
	wants(t, err, ErrInvalidArgument)
	wants(t, c.ReleaseHold(5), ErrNotFound)
	_, err = c.EntrySerial(0, 16)
	wants(t, err, ErrInvalidArgument)
	_, err = c.PrefixOf(0, 0, math.MaxInt64, make([]int32, 1))
	wants(t, err, ErrInvalidArgument)
	_, err = c.BlockAt(0, 0, 0, 3)
	wants(t, err, ErrInvalidArgument)
	equal(t, "none taken", len(c.TakeFindable(-1)), 0)

	storage := c.Storage()
	size := storage.BlockImageBytes(0)
	equal(t, "bytes of no group", storage.BlockImageBytes(1), 0)
	for _, wrong := range []struct {
		blocks []int32
		bytes  int
	}{{[]int32{0}, size - 1}, {[]int32{0}, 0}, {[]int32{16}, size}, {[]int32{-1}, size}, {nil, 1}} {
		wants(t, storage.ReadBlocks(0, wrong.blocks, make([]byte, wrong.bytes)), ErrInvalidArgument)
		wants(t, storage.WriteBlocks(0, wrong.blocks, make([]byte, wrong.bytes)), ErrInvalidArgument)
	}
	must(t, storage.ReadBlocks(0, nil, nil))
	if view.KScale(0, 0, 0, 0) != nil || view.VScale(0, 0, 0, 0) != nil {
		t.Fatal("a scale of f32")
	}
	equal(t, "the cache", c.Describe(), before)
}

func TestRowsOfInt8AndE4M3HaveScales(t *testing.T) {
	for _, of := range []struct {
		dtype DType
		most  float32
		k     [2]byte
	}{{Int8, 127, [2]byte{127, 129}}, {E4M3, 448, [2]byte{0x7e, 0xfe}}} {
		storage, err := NewStorage([]GroupSpec{{HeadDimK: 2, HeadDimV: 2, NumBlocks: 4,
			DType: of.dtype}}, nil)
		must(t, err)
		defer storage.Close()
		view, err := storage.View(0, -1)
		must(t, err)
		defer view.Close()
		must(t, WriteToken(view, 0, 0, 5, RowsF32([]float32{of.most, -of.most}, 1, 1, 2),
			RowsF32([]float32{0, 2 * of.most}, 1, 1, 2)))
		equal(t, "scales", []float32{*(*float32)(view.KScale(0, 0, 0, 5)),
			*(*float32)(view.VScale(0, 0, 0, 5))}, []float32{1, 2})
		equal(t, "elements", *(*[2]byte)(view.K(0, 0, 0, 5)), of.k)
		if view.KScale(0, 4, 0, 0) != nil {
			t.Fatal("a scale of a block that is not there")
		}
	}
}

func TestOpaqueRowsGoInAndOutAsTheyAre(t *testing.T) {
	storage, err := NewStorage([]GroupSpec{{HeadDimK: 3, HeadDimV: 2, NumBlocks: 4, DType: Opaque}}, nil)
	must(t, err)
	defer storage.Close()
	view, err := storage.View(0, -1)
	must(t, err)
	defer view.Close()
	k, v := []byte{1, 2, 255}, []byte{7, 128}
	must(t, WriteToken(view, 0, 0, 5, RowsBytes(k, 1, 1, 3), RowsBytes(v, 1, 1, 2)))
	backK, backV := make([]byte, 3), make([]byte, 2)
	must(t, ReadToken(view, 0, 0, 5, RowsBytes(backK, 1, 1, 3), RowsBytes(backV, 1, 1, 2)))
	equal(t, "k", backK, k)
	equal(t, "v", backV, v)
	wants(t, WriteToken(view, 0, 0, 5, RowsF32([]float32{1, 2, 3}, 1, 1, 3), Rows{}),
		ErrInvalidArgument)
}

func TestE4M3IsRefusedInFormatGranule(t *testing.T) {
	_, err := NewStorage([]GroupSpec{{HeadDimK: 8, HeadDimV: 8, NumBlocks: 4, DType: E4M3,
		Format: Granule}}, nil)
	wants(t, err, ErrInvalidArgument)
}

func TestEveryFunctionOfTheHeaderIsCalled(t *testing.T) {
	header, err := os.ReadFile("../../include/kvfolio/kvfolio.h")
	must(t, err)
	var all strings.Builder
	entries, err := os.ReadDir(".")
	must(t, err)
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			text, err := os.ReadFile(name)
			must(t, err)
			all.Write(text)
		}
	}
	functions := regexp.MustCompile(`(?m)^KVFOLIO_C_API [^;(]*?\b(kvfolio_\w+)\(`).FindAllStringSubmatch(
		string(header), -1)
	if len(functions) < 130 {
		t.Fatalf("the header has %d functions", len(functions))
	}
	var missing []string
	for _, function := range functions {
		if !regexp.MustCompile(`\b` + function[1] + `\(`).MatchString(all.String()) {
			missing = append(missing, function[1])
		}
	}
	// A log to an io.Writer: OpLog says why there is none.
	equal(t, "what is not called", missing, []string{"kvfolio_op_log_create"})
}
