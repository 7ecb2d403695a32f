// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// small is a group of rows of 4 elements in blocks of 4 tokens.
func small(blocks int) []GroupSpec {
	return []GroupSpec{{HeadDimK: 4, HeadDimV: 4, BlockSize: 4, NumBlocks: blocks}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t testing.TB, err error, code Code) *Error {
	t.Helper()
	var e *Error
	if !errors.Is(err, code) || !errors.As(err, &e) {
		t.Fatalf("error is %v, want %v", err, code)
	}
	if e.Message == "" {
		t.Fatalf("%v says nothing", code)
	}
	return e
}

func equal(t testing.TB, name string, got, want interface{}) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s is %v, want %v", name, got, want)
	}
}

func newTestCache(t testing.TB, groups []GroupSpec, options *Options) *Cache {
	t.Helper()
	c, err := NewCache(groups, options)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func tokensFrom(first int32, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = first + int32(i)
	}
	return out
}

func step(t testing.TB, c *Cache, sequence Sequence, tokens []int32) {
	t.Helper()
	ticket, err := c.BeginStep(0)
	must(t, err)
	must(t, c.Append(sequence, tokens, 0))
	must(t, c.Finish(ticket))
}

func prefill(t testing.TB, c *Cache, tokens []int32, options *OpenOptions) Opened {
	t.Helper()
	opened, err := c.Open(tokens, options)
	must(t, err)
	step(t, c, opened.Sequence, tokens[opened.CachedTokens:])
	return opened
}

func TestATwinHearsHowFarTheFirstOneWillReach(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	tokens := tokensFrom(100, 10)
	first, err := c.Open(tokens, &OpenOptions{Announce: true})
	must(t, err)
	soon, err := c.Soon(tokens, nil)
	must(t, err)
	equal(t, "soon", soon, Soon{8, first.Sequence})
	admission, err := c.AdmitPrompt(tokens, nil, 0)
	must(t, err)
	equal(t, "soon of the admission", admission.Soon, soon)
	twin, err := c.Open(tokens, nil)
	must(t, err)
	equal(t, "soon of the twin", twin.Soon, soon)
	must(t, c.CloseSequence(twin.Sequence))
	step(t, c, first.Sequence, tokens)
	soon, err = c.Soon(tokens, nil)
	must(t, err)
	equal(t, "soon", soon, Soon{})
	n, err := c.Probe(tokens, nil)
	must(t, err)
	equal(t, "probe", n, 8)
	equal(t, "skipped", c.Counters().AnnouncementsSkipped, uint64(0))
}

func TestPromptsShareTheirPrefix(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	tokens := tokensFrom(100, 10)
	a := prefill(t, c, tokens, nil)
	equal(t, "cached", a.CachedTokens, 0)
	n, err := c.Probe(tokens, nil)
	must(t, err)
	equal(t, "probe", n, 8)
	b := prefill(t, c, tokens, nil)
	equal(t, "cached", b.CachedTokens, 8)
	first, err := c.BlockTable(a.Sequence, 0)
	must(t, err)
	second, err := c.BlockTable(b.Sequence, 0)
	must(t, err)
	equal(t, "shared blocks", first[:2], second[:2])
	refs, err := c.RefCount(0, int(first[0]))
	must(t, err)
	equal(t, "references", refs, 2)
	findable, err := c.IsFindable(0, int(first[0]))
	must(t, err)
	equal(t, "findable", findable, true)
	end, err := c.FindableEnd(0, int(first[1]))
	must(t, err)
	equal(t, "findable end", end, 8)
	state, err := c.BlockState(0, int(first[0]))
	must(t, err)
	equal(t, "state", state, BlockHeld)
	must(t, c.CheckInvariants())
}

func TestRootsAndMediaSeparatePrompts(t *testing.T) {
	c := newTestCache(t, small(32), nil)
	tokens := tokensFrom(0, 9)
	root, err := NewRoot(RootKey{Model: "m", TenantSalt: "tenant\x00a", Epoch: 1})
	must(t, err)
	defer root.Close()
	media := []MediaSpan{{Begin: 1, End: 3, ContentID: [32]byte{7}}}
	options := &OpenOptions{Root: root, Media: media}
	prefill(t, c, tokens, options)
	for name, x := range map[string]struct {
		options *OpenOptions
		want    int
	}{
		"the same":    {options, 8},
		"no root":     {&OpenOptions{Media: media}, 0},
		"other media": {&OpenOptions{Root: root, Media: []MediaSpan{{Begin: 1, End: 3, ContentID: [32]byte{8}}}}, 1},
		"no look-up":  {&OpenOptions{Root: root, Media: media, NoLookUp: true}, 0},
	} {
		n, err := c.Probe(tokens, x.options)
		must(t, err)
		if name == "other media" {
			if n > 1 {
				t.Fatalf("other media: %d tokens found", n)
			}
			continue
		}
		equal(t, name, n, x.want)
	}
	_, err = c.Probe(tokens, &OpenOptions{Media: []MediaSpan{{Begin: 1, End: 3}}})
	wants(t, err, ErrInvalidArgument)
	pinned, err := c.Pin(tokens, options)
	must(t, err)
	equal(t, "pinned", pinned.Tokens, 8)
	must(t, c.Unpin(pinned.Pin))
	wants(t, c.Unpin(pinned.Pin), ErrNotFound)
	pinned, err = c.Pin(tokens, options)
	must(t, err)
	gone, err := c.ForgetRoot(root)
	must(t, err)
	equal(t, "pins that ended", gone.Pins, 1)
	wants(t, c.Unpin(pinned.Pin), ErrNotFound)
	_, err = c.Forget(tokens, options)
	must(t, err)
	gone, err = c.Reset()
	must(t, err)
	equal(t, "nothing is left to reset", gone, Forgotten{})
	root.Close()
	_, err = c.Probe(tokens, options)
	wants(t, err, ErrFailedPrecondition)
}

func TestForkCopiesTheLastBlockWhenItWrites(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	a := prefill(t, c, tokensFrom(0, 6), nil).Sequence
	b, err := c.Fork(a, &ForkOptions{HasCallerID: true, CallerID: 7})
	must(t, err)
	found, err := c.Find(7)
	must(t, err)
	equal(t, "found", found, b)
	ticket, err := c.BeginStep(0)
	must(t, err)
	n, err := c.AppendEach([]Sequence{a, b}, []int32{50, 60})
	must(t, err)
	equal(t, "appended", n, 2)
	plan, err := c.Plan(&PlanOptions{FlashInfer: true, SharedPrefixes: true, Positions: true,
		ChangedEntries: true})
	must(t, err)
	g := &plan.Groups[0]
	equal(t, "ticket", plan.Ticket, ticket)
	equal(t, "sequences", plan.Sequences, []Sequence{a, b})
	equal(t, "query start", plan.QueryStart, []int32{0, 1, 2})
	equal(t, "lengths", plan.KVLens, []int32{7, 7})
	equal(t, "positions", plan.Positions, []int32{6, 6})
	equal(t, "slots", g.SlotMapping, []int32{6, 10})
	equal(t, "stride", g.BlockTableStride, 2)
	equal(t, "table", g.BlockTable, []int32{0, 1, 0, 2})
	equal(t, "copies", [][]int32{g.CopySrc, g.CopyDst}, [][]int32{{1}, {2}})
	equal(t, "indptr", g.KVIndptr, []int32{0, 2, 4})
	equal(t, "indices", g.KVIndices, []int32{0, 1, 0, 2})
	equal(t, "last pages", g.KVLastPageLen, []int32{3, 3})
	equal(t, "shared", g.SharedPrefixes, []SharedPrefix{{0, 2, 1}})
	equal(t, "changed", len(g.ChangedRows), len(g.ChangedBlocks))
	equal(t, "number", plan.Number > 0 && plan.Follows < plan.Number, true)
	kept := plan.Clone()
	equal(t, "the clone", kept, plan)
	must(t, c.Commit(ticket))
	must(t, c.Complete(ticket))
	slots := make([]int32, 7)
	must(t, c.SlotMapping(b, 0, 0, slots))
	equal(t, "slots of the child", slots, []int32{0, 1, 2, 3, 8, 9, 10})
	equal(t, "the clone stays", kept.Groups[0].SlotMapping, []int32{6, 10})
}

func TestFixedShapesPadRowsTokensAndTables(t *testing.T) {
	c := newTestCache(t, small(16), &Options{NullBlock: true})
	a := prefill(t, c, tokensFrom(0, 6), nil).Sequence
	ticket, err := c.BeginStep(0)
	must(t, err)
	must(t, c.Append(a, []int32{50}, 0))
	shapes := &PlanOptions{FlashInfer: true, Positions: true, TableStride: []int32{3},
		PaddedSequences: 2, PaddedTokens: 4, Int64Slots: true}
	for _, inCMemory := range []bool{false, true} {
		if inCMemory {
			shapes.MemoryBytes, err = c.PlanBytes(shapes)
			must(t, err)
			pages, err := syscall.Mmap(-1, 0, int(shapes.MemoryBytes),
				syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			must(t, err)
			defer syscall.Munmap(pages)
			shapes.Memory = unsafe.Pointer(&pages[0])
		}
		plan, err := c.Plan(shapes)
		must(t, err)
		g := &plan.Groups[0]
		equal(t, "tokens", plan.NumTokens, 1)
		equal(t, "sequences", plan.Sequences, []Sequence{a})
		equal(t, "query start", plan.QueryStart, []int32{0, 1, 1})
		equal(t, "lengths", plan.KVLens, []int32{7, 0})
		equal(t, "row of padding", plan.Rows[1], int32(-1))
		equal(t, "positions", plan.Positions, []int32{6, 0, 0, 0})
		equal(t, "no slots of 32 bits", len(g.SlotMapping), 0)
		equal(t, "slots", g.SlotMapping64, []int64{10, -1, -1, -1})
		equal(t, "table", g.BlockTable, []int32{1, 2, 0, 0, 0, 0})
		equal(t, "indptr", g.KVIndptr, []int32{0, 2, 2})
		equal(t, "last pages", g.KVLastPageLen, []int32{3, 1})
		equal(t, "the clone", plan.Clone(), plan)
		if inCMemory {
			equal(t, "it begins in the memory", unsafe.Pointer(&plan.QueryStart[0]), shapes.Memory)
		}
	}
	shapes.PaddedTokens = 0
	_, err = c.PlanBytes(shapes)
	wants(t, err, ErrInvalidArgument)
	shapes.TableStride = []int32{1}
	_, err = c.Plan(shapes)
	wants(t, err, ErrInvalidArgument)
	must(t, c.Finish(ticket))
	_, err = c.PlanBytes(nil)
	wants(t, err, ErrInvalidArgument)
}

func TestShortageHasItsNumbers(t *testing.T) {
	c := newTestCache(t, small(4), nil)
	a := prefill(t, c, tokensFrom(0, 8), nil).Sequence
	opened, err := c.Open(tokensFrom(100, 16), nil)
	must(t, err)
	ticket, err := c.BeginStep(0)
	must(t, err)
	e := wants(t, c.Append(opened.Sequence, tokensFrom(100, 16), 0), ErrNoBlocks)
	equal(t, "shortage", *e.Shortage, Shortage{Group: 0, Needed: 4, Free: 2, Pinned: 2, Sequences: 2, NumBlocks: 4})
	wants(t, c.Admit([]Sequence{opened.Sequence}, []int64{16}), ErrNoBlocks)
	victim, found := c.SelectVictim(PolicyOfOptions)
	equal(t, "victim", []interface{}{victim, found}, []interface{}{a, true})
	must(t, c.Preempt(victim))
	wants(t, c.Preempt(victim), ErrNotFound)
	must(t, c.Admit([]Sequence{opened.Sequence}, []int64{16}))
	must(t, c.Append(opened.Sequence, tokensFrom(100, 16), 0))
	must(t, c.Finish(ticket))
	equal(t, "utilization", c.Utilization(), 1.0)
	equal(t, "needs eviction", c.NeedsEviction(), true)
	ended, err := c.PreemptTo(0.5, LRU)
	must(t, err)
	equal(t, "ended", ended, []Ended{{Sequence: opened.Sequence}})
	_, found = c.SelectVictim(LRU)
	equal(t, "a victim", found, false)
	ids := make([]int32, 1)
	n, err := c.Evict(0, 2, ids)
	must(t, err)
	equal(t, "evicted", n, 2)
	counters := c.Counters()
	equal(t, "preempted", counters.SequencesPreempted, uint64(2))
	must(t, c.CheckInvariants())
}

func TestPromptsComeInChunks(t *testing.T) {
	full := GroupSpec{HeadDimK: 4, HeadDimV: 4, BlockSize: 16, NumBlocks: 80}
	window := full
	window.Kind, window.Window, window.NumBlocks, window.Rewind = SlidingWindow, 32, 13, 16
	c := newTestCache(t, []GroupSpec{full, window}, nil)
	prompt := tokensFrom(0, 1000)
	_, err := c.AdmitPrompt(prompt, nil, 0)
	e := wants(t, err, ErrNoBlocks)
	equal(t, "never", e.Shortage.Never, false) // a longer hit would do
	_, err = c.AdmitPrompt(prompt, &OpenOptions{NoLookUp: true}, 0)
	equal(t, "never", wants(t, err, ErrNoBlocks).Shortage.Never, true)
	admission, err := c.AdmitPromptInChunks(prompt, nil, 0, 64)
	must(t, err)
	equal(t, "blocks", admission.Blocks, []int32{63, 8})
	opened, err := c.Open(prompt, &OpenOptions{HasCallerID: true, CallerID: 71})
	must(t, err)
	a := opened.Sequence
	admission, err = c.AdmitInChunks(a, 1000, 64)
	must(t, err)
	equal(t, "blocks", admission.Blocks, []int32{63, 8})
	must(t, c.Reserve(a, 1000, 64))
	for n := -1; n != 0; {
		ticket, err := c.BeginStep(0)
		must(t, err)
		n, err = c.AppendPrompt(a, prompt, 64)
		must(t, err)
		plan, err := c.Plan(&PlanOptions{CallerIDs: true, FlashInfer: true})
		must(t, err)
		if n > 0 {
			equal(t, "callers", plan.CallerIDs, []uint64{71})
			equal(t, "rewinds", plan.Rewinds, []int32{0})
			equal(t, "row", len(plan.TableOf(0, 0)), plan.Groups[0].BlockTableStride)
			equal(t, "first live", plan.Groups[0].KVFirstLive, []int32{0})
		}
		must(t, c.Finish(ticket))
	}
	info, err := c.Info(a)
	must(t, err)
	equal(t, "rewind", []int{info.Rewinds, info.RewindFrom}, []int{0, 984})
	must(t, c.Truncate(a, 984))
	info, err = c.Info(a)
	must(t, err)
	equal(t, "rewind", []int{info.Rewinds, info.RewindFrom}, []int{1, 984})
	must(t, c.Touch(a))
	must(t, c.Cancel(a))
	wants(t, c.Cancel(a), ErrNotFound)
	wants(t, c.Touch(a), ErrNotFound)
}

func TestAppendEachEndsAtTheFirstThatFails(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	a, b := prefill(t, c, tokensFrom(0, 3), nil), prefill(t, c, tokensFrom(9, 3), nil)
	_, err := c.BeginStep(0)
	must(t, err)
	n, err := c.AppendEach([]Sequence{a.Sequence, 0, b.Sequence}, []int32{1, 2, 3})
	wants(t, err, ErrNotFound)
	equal(t, "appended", n, 1)
	must(t, c.Undo(a.Sequence))
	n, err = c.AppendUnnamedEach([]Sequence{a.Sequence, b.Sequence})
	must(t, err)
	equal(t, "appended", n, 2)
	n, err = c.SetTokensEach([]Sequence{a.Sequence, b.Sequence}, []int32{5, 6})
	must(t, err)
	equal(t, "named", n, 2)
	wants(t, c.SetTokens(a.Sequence, []int32{7}), ErrInvalidArgument)
	must(t, c.Drop(1+2))
}

func TestDraftsTrimsAndReservations(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	a := prefill(t, c, tokensFrom(0, 12), &OpenOptions{Priority: 3}).Sequence
	must(t, c.Reserve(a, 8, 4))
	ticket, err := c.BeginStep(0)
	must(t, err)
	must(t, c.Append(a, []int32{1, 2, 3}, 2))
	must(t, c.Finish(ticket))
	info, err := c.Info(a)
	must(t, err)
	equal(t, "lengths", []int{info.Length, info.AcceptedLength}, []int{15, 13})
	equal(t, "promised", info.ReservedTokens, int64(5))
	must(t, c.Accept(a, 1))
	n, err := c.Trim(a, 2, 4)
	must(t, err)
	equal(t, "dropped", n, 8)
	must(t, c.SetPriority(a, -1))
	info, err = c.Info(a)
	must(t, err)
	equal(t, "trim", []int{info.TrimSinks, info.TrimFirstKept, info.Length, info.Priority},
		[]int{2, 10, 14, -1})
	must(t, c.Truncate(a, 12))
	must(t, c.Clear(a))
	sequence, err := c.OpenUnnamed(3, nil)
	wants(t, err, ErrFailedPrecondition) // no step is open
	equal(t, "no sequence", sequence, Sequence(0))
	must(t, c.CloseSequence(a))
	wants(t, c.CloseSequence(a), ErrNotFound)
	equal(t, "open", c.Sequences(), []Sequence{})
}

func TestFailClosesWhatTheStepWrote(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	opened, err := c.Open(nil, &OpenOptions{HasCallerID: true, CallerID: 9})
	must(t, err)
	ticket, err := c.BeginStep(0)
	must(t, err)
	must(t, c.AppendUnnamed(opened.Sequence, 5, 0))
	must(t, c.Commit(ticket))
	ended, err := c.Fail(ticket)
	must(t, err)
	equal(t, "ended", ended, []Ended{{opened.Sequence, true, 9}})
	_, err = c.Info(opened.Sequence)
	wants(t, err, ErrAborted)
}

func TestAdoptTakesATableForEachGroup(t *testing.T) {
	groups := append(small(16), small(16)...)
	c := newTestCache(t, groups, nil)
	a := prefill(t, c, tokensFrom(0, 8), nil).Sequence
	var tables [][]int32
	for g := range groups {
		table, err := c.BlockTable(a, g)
		must(t, err)
		tables = append(tables, table[:2])
	}
	b, err := c.Open(nil, nil)
	must(t, err)
	must(t, c.Adopt(b.Sequence, tables, 8))
	wants(t, c.Adopt(b.Sequence, tables, 8), ErrFailedPrecondition)
	empty, err := c.Open(nil, nil)
	must(t, err)
	wants(t, c.Adopt(empty.Sequence, nil, 8), ErrInvalidArgument)
	wants(t, c.Adopt(empty.Sequence, [][]int32{{}, nil}, 8), ErrInvalidArgument)
	refs, err := c.RefCount(1, int(tables[1][0]))
	must(t, err)
	equal(t, "references", refs, 2)
}

func TestCopyToMakesAnEqual(t *testing.T) {
	c, target := newTestCache(t, small(8), nil), newTestCache(t, small(8), nil)
	a := prefill(t, c, tokensFrom(0, 7), nil).Sequence
	must(t, c.CopyTo(target))
	equal(t, "description", target.Describe(), c.Describe())
	equal(t, "counters", target.Counters(), c.Counters())
	info, err := target.Info(a)
	must(t, err)
	equal(t, "length", info.Length, 7)
	other := newTestCache(t, small(9), nil)
	wants(t, c.CopyTo(other), ErrInvalidArgument)
	wants(t, c.CopyTo(nil), ErrFailedPrecondition)
}

func TestQuestionsAboutTheWhole(t *testing.T) {
	c := newTestCache(t, small(8), &Options{MaxSequences: 3, IDTag: 5, HighWatermark: 0.5})
	equal(t, "groups", c.Groups(), []GroupSpec{{NumLayers: 1, NumKVHeads: 1, HeadDimK: 4,
		HeadDimV: 4, BlockSize: 4, DType: F32, NumBlocks: 8}})
	o := c.Options()
	equal(t, "options", []interface{}{o.MaxSequences, o.IDTag, o.HighWatermark, o.MaxPins},
		[]interface{}{3, 5, 0.5, 256})
	prefill(t, c, tokensFrom(0, 5), nil)
	layouts, err := PlanLayouts(small(8))
	must(t, err)
	equal(t, "bytes", []int64{c.BytesTotal(), c.BytesUsed()},
		[]int64{layouts[0].TotalBytes, 2 * layouts[0].BytesPerBlock})
	reserved, used := c.Metadata()
	if used <= 0 || reserved < used {
		t.Fatalf("metadata: %d used of %d", used, reserved)
	}
	equal(t, "rows", c.NumRows(), 3)
	widest, err := c.Widest(0)
	must(t, err)
	equal(t, "widest", widest, 8)
	usage, err := c.Usage(0)
	must(t, err)
	equal(t, "usage", usage, GroupUsage{NumBlocks: 8, Free: 6, Held: 2})
	admission, err := c.AdmitPrompt(tokensFrom(0, 9), nil, 4)
	must(t, err)
	equal(t, "admission", admission, Admission{CachedTokens: 4, Blocks: []int32{3}})
	if !strings.Contains(c.Describe(), "\n") {
		t.Fatalf("describe: %q", c.Describe())
	}
	fitted, err := Fit([]GroupSpec{{HeadDimK: 4, HeadDimV: 4}}, 1<<20)
	must(t, err)
	equal(t, "fitted", fitted[0].NumBlocks, 1<<20/(16*8*4))
	if Version() == "" || ABIVersion() != 1 {
		t.Fatalf("version %q, ABI %d", Version(), ABIVersion())
	}
}

func TestBadInputIsAnError(t *testing.T) {
	for name, groups := range map[string][]GroupSpec{
		"none": nil, "empty": {}, "zero": {{}}, "negative": {{HeadDimK: -1, NumBlocks: 4}},
		"huge": {{HeadDimK: math.MaxInt64, NumBlocks: math.MinInt64}}, "many": make([]GroupSpec, 99),
	} {
		_, err := NewCache(groups, nil)
		if !errors.Is(err, ErrInvalidArgument) {
			t.Fatalf("%s: %v", name, err)
		}
		_, err = NewStorage(groups, nil)
		wants(t, err, ErrInvalidArgument)
		_, err = PlanLayouts(groups)
		wants(t, err, ErrInvalidArgument)
		_, err = Fit(groups, -1)
		wants(t, err, ErrInvalidArgument)
	}
	_, err := NewCache(small(4), &Options{MaxSequences: -5})
	wants(t, err, ErrInvalidArgument)
	c := newTestCache(t, small(4), nil)
	opened, err := c.Open([]int32{}, &OpenOptions{})
	must(t, err)
	a := opened.Sequence
	_, err = c.Open([]int32{-1}, nil)
	wants(t, err, ErrInvalidArgument)
	_, err = c.Open(nil, &OpenOptions{MaxTokens: -1})
	wants(t, err, ErrInvalidArgument)
	_, err = c.Open(nil, &OpenOptions{Media: []MediaSpan{{Begin: -1, End: 1 << 40}}})
	wants(t, err, ErrInvalidArgument)
	_, err = c.BeginStep(0)
	must(t, err)
	must(t, c.Append(a, nil, 0))
	wants(t, c.Append(a, []int32{1}, 2), ErrInvalidArgument)
	wants(t, c.Append(a, []int32{1}, math.MinInt64), ErrInvalidArgument)
	wants(t, c.AppendUnnamed(a, -1, 0), ErrInvalidArgument)
	wants(t, c.AppendUnnamed(a, math.MaxInt64, 0), ErrInvalidArgument)
	_, err = c.AppendEach([]Sequence{a}, nil)
	wants(t, err, ErrInvalidArgument)
	_, err = c.SetTokensEach(nil, []int32{1})
	wants(t, err, ErrInvalidArgument)
	n, err := c.AppendEach(nil, nil)
	must(t, err)
	equal(t, "appended", n, 0)
	wants(t, c.Admit([]Sequence{a}, nil), ErrInvalidArgument)
	must(t, c.Admit(nil, nil))
	plan, err := c.Plan(nil)
	must(t, err)
	equal(t, "an empty plan", []int{plan.NumTokens, len(plan.Sequences)}, []int{0, 0})
	wants(t, c.Commit(99), ErrFailedPrecondition)
	must(t, c.Drop(1))
	_, err = c.Plan(nil)
	wants(t, err, ErrFailedPrecondition)
	wants(t, c.RunCopies(), ErrUnsupported)
	wants(t, c.Truncate(a, -1), ErrInvalidArgument)
	_, err = c.Trim(a, -1, 0)
	wants(t, err, ErrInvalidArgument)
	wants(t, c.Reserve(a, -1, 0), ErrInvalidArgument)
	wants(t, c.SlotMapping(a, 0, 0, make([]int32, 3)), ErrInvalidArgument)
	must(t, c.SlotMapping(a, 0, 0, nil))
	_, err = c.BlockTable(a, 1)
	wants(t, err, ErrInvalidArgument)
	_, err = c.Usage(-1)
	wants(t, err, ErrInvalidArgument)
	_, err = c.RefCount(0, 1<<40)
	wants(t, err, ErrInvalidArgument)
	_, err = c.Evict(0, -1, nil)
	wants(t, err, ErrInvalidArgument)
	_, err = c.AdmitPrompt(nil, nil, -1)
	wants(t, err, ErrInvalidArgument)
	_, err = c.PreemptTo(math.NaN(), LRU)
	wants(t, err, ErrInvalidArgument)
	_, found := c.SelectVictim(99)
	equal(t, "a victim", found, false)
	_, err = c.Find(1)
	wants(t, err, ErrNotFound)
	_, err = c.Fork(12345, nil)
	wants(t, err, ErrNotFound)
	_, err = c.View(0, 0)
	wants(t, err, ErrUnsupported)
	_, err = NewThreadPool(-1)
	wants(t, err, ErrInvalidArgument)
	_, err = ParseTarget("abacus")
	wants(t, err, ErrInvalidArgument)
	must(t, c.CheckInvariants())
}

func TestClosedValuesSaySo(t *testing.T) {
	storage, err := NewStorage(small(4), nil)
	must(t, err)
	early, err := storage.View(0, -1)
	must(t, err)
	c, err := NewCacheWithStorage(storage, nil)
	must(t, err)
	late, err := c.View(0, 0)
	must(t, err)
	_, err = NewCacheWithStorage(storage, nil)
	wants(t, err, ErrFailedPrecondition)
	storage.Close() // nothing: it belongs to the cache
	must(t, storage.Fill(0))
	if early.K(0, 0, 0, 0) == nil || early.K(0, 0, 0, 0) != late.K(0, 0, 0, 0) {
		t.Fatal("two views of one row differ")
	}
	c.Close()
	c.Close()
	for _, err := range []error{c.Append(1, []int32{1}, 0), c.Commit(1), storage.Fill(0),
		c.CheckInvariants(), CopyBlocks(late, nil, nil), CopyBlocks(early, nil, nil)} {
		wants(t, err, ErrFailedPrecondition)
	}
	_, err = c.Open(nil, nil)
	wants(t, err, ErrFailedPrecondition)
	_, err = c.Plan(nil)
	wants(t, err, ErrFailedPrecondition)
	_, err = c.View(0, 0)
	wants(t, err, ErrFailedPrecondition)
	equal(t, "numbers", []int{c.NumSequences(), c.NumRows(), len(c.Groups()), len(c.Sequences())},
		[]int{0, 0, 0, 0})
	equal(t, "counters", c.Counters(), Counters{})
	equal(t, "text", c.Describe(), "")
	if late.K(0, 0, 0, 0) != nil {
		t.Fatal("a row of a closed cache")
	}
	early.Close()
	late.Close()
	late.Close()
	storage, err = NewStorage(small(4), nil)
	must(t, err)
	_, err = NewCacheWithStorage(storage, &Options{MaxSequences: -1})
	wants(t, err, ErrInvalidArgument)
	must(t, storage.Fill(0)) // it is the caller's still
	storage.Close()
	wants(t, storage.Fill(0), ErrFailedPrecondition)
}

// eight goroutines in turn, each on whatever thread it is.
func TestGoroutinesTakeTurns(t *testing.T) {
	c := newTestCache(t, small(256), nil)
	var turn sync.Mutex
	var all sync.WaitGroup
	failures := make(chan error, 8)
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func(me int32) {
			defer all.Done()
			failures <- func() error {
				var sequence Sequence
				for round := int32(0); round < 60; round++ {
					turn.Lock()
					err := func() error {
						if sequence == 0 {
							prompt := append(tokensFrom(0, 6), me)
							opened, err := c.Open(prompt, nil)
							if err != nil {
								return err
							}
							sequence = opened.Sequence
							ticket, err := c.BeginStep(0)
							if err != nil {
								return err
							}
							if err := c.Append(sequence, prompt[opened.CachedTokens:], 0); err != nil {
								return err
							}
							return c.Finish(ticket)
						}
						ticket, err := c.BeginStep(0)
						if err != nil {
							return err
						}
						n, err := c.AppendEach([]Sequence{sequence}, []int32{round})
						if err != nil || n != 1 {
							return fmt.Errorf("appended %d of 1: %w", n, err)
						}
						plan, err := c.Plan(nil)
						if err != nil {
							return err
						}
						if len(plan.Groups[0].SlotMapping) != 1 {
							return errors.New("no slot")
						}
						if round%20 == 19 {
							if err := c.CheckInvariants(); err != nil {
								return err
							}
						}
						return c.Finish(ticket)
					}()
					turn.Unlock()
					if err != nil {
						return err
					}
					if round%8 == 0 {
						runtime.GC()
					}
					runtime.Gosched()
				}
				turn.Lock()
				defer turn.Unlock()
				return c.CloseSequence(sequence)
			}()
		}(int32(1000 + i))
	}
	all.Wait()
	for i := 0; i < 8; i++ {
		must(t, <-failures)
	}
	equal(t, "open", c.NumSequences(), 0)
}

func TestQuestionsRunAtTheSameTime(t *testing.T) {
	c := newTestCache(t, small(64), nil)
	tokens := tokensFrom(0, 9)
	a := prefill(t, c, tokens, nil).Sequence
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < 200; j++ {
				info, err := c.Info(a)
				n, err2 := c.Probe(tokens, nil)
				_, err3 := c.Info(0)
				if err != nil || err2 != nil || info.Length != 9 || n != 8 || !errors.Is(err3, ErrNotFound) {
					t.Errorf("%v %v %v: %d, %d", err, err2, err3, info.Length, n)
					return
				}
			}
		}()
	}
	all.Wait()
}

func TestManySmallCalls(t *testing.T) {
	c := newTestCache(t, small(64), nil)
	a := prefill(t, c, tokensFrom(0, 5), nil).Sequence
	sequences, tokens := []Sequence{a}, []int32{1}
	for i := 0; i < 5000; i++ {
		ticket, err := c.BeginStep(0)
		must(t, err)
		_, err = c.AppendEach(sequences, tokens)
		must(t, err)
		must(t, c.Finish(ticket))
		must(t, c.Truncate(a, 5))
	}
	options := &PlanOptions{Positions: true}
	if n := testing.AllocsPerRun(200, func() {
		ticket, err := c.BeginStep(0)
		must(t, err)
		_, err = c.AppendEach(sequences, tokens)
		must(t, err)
		_, err = c.Plan(options)
		must(t, err)
		must(t, c.Drop(ticket))
	}); n > 2 && !hasRaceDetector {
		t.Fatalf("a step takes %v objects of the heap, want the plan and its groups", n)
	}
	must(t, c.CheckInvariants())
}

func TestTheCollectorNamesWhatWasNotClosed(t *testing.T) {
	said := make(chan string, 8)
	old := complain
	complain = func(line string) { said <- line }
	defer func() { complain = old }()
	func() {
		storage, err := NewStorage(small(4), nil)
		must(t, err)
		_, err = NewCacheWithStorage(storage, nil) // they know of each other
		must(t, err)
	}()
	closed, err := NewStorage(small(4), nil)
	must(t, err)
	closed.Close()
	for i := 0; i < 50; i++ {
		runtime.GC()
		select {
		case line := <-said:
			if !strings.HasPrefix(line, "kvfolio: a Cache made at ") ||
				!strings.Contains(line, "kvfolio_test.go:") {
				t.Fatalf("it says %q", line)
			}
			runtime.KeepAlive(closed)
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Fatal("nothing was said")
}

func TestErrorsAreErrors(t *testing.T) {
	var err error = &Error{Code: ErrNoBlocks, Message: "m"}
	wrapped := fmt.Errorf("step: %w", err)
	if !errors.Is(wrapped, ErrNoBlocks) || errors.Is(wrapped, ErrNotFound) {
		t.Fatal("errors.Is")
	}
	equal(t, "text", err.Error(), "kvfolio: "+ErrNoBlocks.Error()+": m")
	equal(t, "a number that is no code", Code(99).Error(), "invalid")
}

func TestBorrowedMemoryMustBeOfC(t *testing.T) {
	groups := small(4)
	rows := func(p unsafe.Pointer) Borrowed {
		return Borrowed{Data: p, Bytes: 4 * 64,
			Strides: Strides{Token: 16, Head: 64, Block: 64, Layer: 256}}
	}
	k, err := AllocC(4 * 64)
	must(t, err)
	defer FreeC(k)
	v, err := AllocC(4 * 64)
	must(t, err)
	defer FreeC(v)
	storage, err := BorrowStorage(groups, []BorrowedGroup{{K: rows(k), V: rows(v)}}, nil)
	must(t, err)
	equal(t, "owns", storage.OwnsMemory(), false)
	equal(t, "bytes", storage.MemoryBytes(), int64(0))
	must(t, storage.Fill(1))
	equal(t, "first byte", *(*byte)(k), byte(1))
	storage.Close()
	// The same by layers.
	layered := BorrowedGroup{K: rows(nil), V: rows(nil), Layers: []BorrowedLayer{{K: k, V: v}}}
	storage, err = BorrowStorage(groups, []BorrowedGroup{layered}, nil)
	must(t, err)
	must(t, storage.Fill(2))
	equal(t, "first byte", *(*byte)(v), byte(2))
	storage.Close()
	_, err = BorrowStorage(groups, nil, nil)
	wants(t, err, ErrInvalidArgument)
	_, err = BorrowStorage(groups, []BorrowedGroup{{}}, nil)
	wants(t, err, ErrInvalidArgument)
	_, err = AllocC(-1)
	wants(t, err, ErrOutOfMemory)

	goMemory := make([]float32, 64)
	for name, lent := range map[string]BorrowedGroup{
		"one base": {K: rows(unsafe.Pointer(&goMemory[0])), V: rows(v)},
		"layers": {K: rows(nil), V: rows(nil),
			Layers: []BorrowedLayer{{K: unsafe.Pointer(&goMemory[0]), V: v}}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Fatalf("%s: Go memory was lent", name)
				}
			}()
			_, _ = BorrowStorage(groups, []BorrowedGroup{lent}, nil)
		}()
	}
	runtime.KeepAlive(goMemory)
}
