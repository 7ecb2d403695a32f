// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"fmt"
	"math"
	"math/rand"
	"testing"
	"unsafe"
)

func randoms(r *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}

// naive attends with one query at the last position of each prefix, in float64.
// k, v [tokens, heads, dim]; q [queries, qHeads, dim]; the queries are the last positions.
func naive(q, k, v []float32, queries, tokens, qHeads, heads, dim, window int) []float64 {
	out := make([]float64, queries*qHeads*dim)
	for i := 0; i < queries; i++ {
		position := tokens - queries + i
		for h := 0; h < qHeads; h++ {
			kv := h / (qHeads / heads)
			var sum float64
			row := out[(i*qHeads+h)*dim:][:dim]
			for p := 0; p <= position; p++ {
				if window > 0 && p <= position-window {
					continue
				}
				var score float64
				for d := 0; d < dim; d++ {
					score += float64(q[(i*qHeads+h)*dim+d]) * float64(k[(p*heads+kv)*dim+d])
				}
				weight := math.Exp(score / math.Sqrt(float64(dim)))
				sum += weight
				for d := 0; d < dim; d++ {
					row[d] += weight * float64(v[(p*heads+kv)*dim+d])
				}
			}
			for d := range row {
				row[d] /= sum
			}
		}
	}
	return out
}

func close64(t *testing.T, name string, got []float32, want []float64) {
	t.Helper()
	for i := range want {
		if math.Abs(float64(got[i])-want[i]) > 1e-5 {
			t.Fatalf("%s: element %d is %v, want %v", name, i, got[i], want[i])
		}
	}
}

func TestAttendIsTheNaiveComputation(t *testing.T) {
	const heads, qHeads, dim, tokens, chunk = 2, 4, 8, 11, 7
	pool, err := NewThreadPool(2)
	must(t, err)
	defer pool.Close()
	equal(t, "threads", pool.NumThreads(), 2)
	for _, format := range []Format{HND, NHD, Granule} {
		for _, window := range []int{0, 5} {
			group := GroupSpec{NumKVHeads: heads, HeadDimK: dim, HeadDimV: dim, BlockSize: 16,
				NumBlocks: 8, Format: format}
			if window > 0 {
				group.Kind, group.Window = SlidingWindow, window
			}
			storage, err := NewStorage([]GroupSpec{group}, nil)
			must(t, err)
			c, err := NewCacheWithStorage(storage, nil)
			must(t, err)
			view, err := c.View(0, -1)
			must(t, err)
			r := rand.New(rand.NewSource(1))
			k, v := randoms(r, tokens*heads*dim), randoms(r, tokens*heads*dim)
			opened, err := c.Open(tokensFrom(0, tokens), nil)
			must(t, err)
			options, err := AttentionOptionsOf(group)
			must(t, err)
			equal(t, "window", options.Window, window)
			for begin := 0; begin < tokens; begin += chunk {
				n := chunk
				if begin+n > tokens {
					n = tokens - begin
				}
				ticket, err := c.BeginStep(0)
				must(t, err)
				must(t, c.Append(opened.Sequence, tokensFrom(int32(begin), n), 0))
				plan, err := c.Plan(nil)
				must(t, err)
				must(t, c.RunCopies())
				part := func(x []float32) Rows {
					return RowsF32(x[begin*heads*dim:], n, heads, dim)
				}
				must(t, AppendRows(view, 0, part(k), part(v), plan.Groups[0].SlotMapping))
				q := randoms(r, n*qHeads*dim)
				want := naive(q, k, v, n, begin+n, qHeads, heads, dim, window)
				for _, target := range append(Targets(), TargetAuto) {
					options.Target = target
					bytes, err := AttentionWorkspaceBytes(view, qHeads, tokens, target, 2)
					must(t, err)
					out, lse := make([]float32, n*qHeads*dim), make([]float32, n*qHeads)
					must(t, Attend(&Attention{Cache: view, Batch: plan.Batch(0), Options: options,
						Q: RowsF32(q, n, qHeads, dim), Out: RowsF32(out, n, qHeads, dim),
						LSE: RowsF32(lse, n, qHeads, 1), Workspace: make([]byte, bytes), Pool: pool}))
					close64(t, fmt.Sprint(format, window, begin, target), out, want)
				}
				must(t, c.Finish(ticket))
			}
			if window == 0 {
				table, err := c.BlockTable(opened.Sequence, 0)
				must(t, err)
				gathered := make([]float32, 5*heads*dim)
				must(t, Gather(view, table, GatherOptions{Length: tokens, First: 3, Count: 5},
					RowsF32(gathered, 5, heads, dim), Rows{}))
				equal(t, "gathered", gathered, k[3*heads*dim:8*heads*dim])
				wants(t, Gather(view, table, GatherOptions{Length: tokens, First: 3, Count: 5,
					NumLayers: 2, KLayerStride: 1}, RowsF32(gathered, 5, heads, dim), Rows{}),
					ErrInvalidArgument)
			}
			view.Close()
			c.Close()
		}
	}
}

// tiny is a view of 4 blocks of 4 tokens, 1 head of 4 elements, and a batch of one query over them.
func tiny(t *testing.T) (*View, *Attention) {
	t.Helper()
	storage, err := NewStorage(small(4), nil)
	must(t, err)
	t.Cleanup(storage.Close)
	must(t, storage.Fill(0))
	view, err := storage.View(0, 0)
	must(t, err)
	t.Cleanup(view.Close)
	return view, &Attention{Cache: view,
		Batch: Batch{QueryStart: []int32{0, 1}, KVLens: []int32{5}, BlockTable: []int32{0, 1},
			BlockTableStride: 2},
		Q: RowsF32(make([]float32, 4), 1, 1, 4), Out: RowsF32(make([]float32, 4), 1, 1, 4),
		Workspace: make([]byte, 1<<16)}
}

func TestRowsStayInTheirSlices(t *testing.T) {
	view, good := tiny(t)
	if n := testing.AllocsPerRun(100, func() { must(t, Attend(good)) }); n > 0 && !hasRaceDetector {
		t.Fatalf("Attend takes %v objects of the heap", n)
	}
	closed, err := NewThreadPool(1)
	must(t, err)
	closed.Close()
	for name, spoil := range map[string]func(a *Attention){
		"short q":         func(a *Attention) { a.Q = RowsF32(make([]float32, 3), 1, 1, 4) },
		"no q":            func(a *Attention) { a.Q = Rows{} },
		"short out":       func(a *Attention) { a.Out = RowsF32(make([]float32, 4), 1, 2, 4) },
		"negative stride": func(a *Attention) { a.Out.TokenStride = -4 },
		"huge stride":     func(a *Attention) { a.Out.NumTokens, a.Out.TokenStride = 2, math.MaxInt64 },
		"huge shape":      func(a *Attention) { a.Out.NumTokens = math.MaxInt64 },
		"short lse":       func(a *Attention) { a.LSE = RowsF32(make([]float32, 1), 2, 1, 1) },
		"no query start":  func(a *Attention) { a.Batch.QueryStart = nil },
		"empty batch":     func(a *Attention) { a.Batch = Batch{} },
		"foreign group":   func(a *Attention) { a.Batch = (&Plan{}).Batch(3) },
		"short table":     func(a *Attention) { a.Batch.BlockTable = []int32{0} },
		"huge table":      func(a *Attention) { a.Batch.BlockTableStride = math.MaxInt64 },
		"foreign block":   func(a *Attention) { a.Batch.BlockTable = []int32{0, 99} },
		"one trim":        func(a *Attention) { a.Batch.TrimSinks = []int32{0} },
		"long trims": func(a *Attention) {
			a.Batch.TrimSinks, a.Batch.TrimFirstKept = []int32{0, 0}, []int32{0, 0}
		},
		"no workspace":  func(a *Attention) { a.Workspace = nil },
		"negative rows": func(a *Attention) { a.Options.Slice, a.Options.NumRows = true, -2 },
		"NaN scale":     func(a *Attention) { a.Options.Scale = math.NaN() },
		"layer":         func(a *Attention) { a.Options.Layer = 1 },
	} {
		bad := *good
		spoil(&bad)
		err := Attend(&bad)
		if err == nil {
			t.Fatalf("%s: no error", name)
		}
		wants(t, err, ErrInvalidArgument)
	}
	bad := *good
	bad.Pool = closed
	wants(t, Attend(&bad), ErrFailedPrecondition)
	bad = *good
	bad.Cache = nil
	wants(t, Attend(&bad), ErrFailedPrecondition)
	k := RowsF32(make([]float32, 8), 2, 1, 4)
	must(t, AppendRows(view, 0, k, k, []int32{0, -1}))
	wants(t, AppendRows(view, 0, k, k, []int32{0, 1, 2}), ErrInvalidArgument)
	wants(t, AppendRows(view, 0, k, k, []int32{0, 99}), ErrInvalidArgument)
	wants(t, AppendRows(view, 0, k, Rows{}, []int32{0, 1}), ErrInvalidArgument)
	wants(t, AppendRows(view, 0, Rows{}, Rows{}, nil), ErrInvalidArgument)
	short := RowsF32(make([]float32, 4), 2, 1, 4)
	wants(t, AppendRows(view, 0, short, k, []int32{0, 1}), ErrInvalidArgument)
	wants(t, Convert(short, k), ErrInvalidArgument)
	wants(t, Convert(Rows{}, Rows{}), ErrInvalidArgument)
	wants(t, MergeStates(State{}, State{}, State{}), ErrInvalidArgument)
	wants(t, ReadToken(view, 0, 0, 0, RowsF32(make([]float32, 3), 1, 1, 3), Rows{}),
		ErrInvalidArgument)
	wants(t, CopyBlocks(view, []int32{1}, nil), ErrInvalidArgument)
	wants(t, CopyBlocks(view, []int32{1}, []int32{-1}), ErrInvalidArgument)
	wants(t, ConvertBlocks(view, nil, nil, nil), ErrFailedPrecondition)
}

// Rows may lie in a Go struct beside Go pointers: cgo looks at the rows only.
func TestRowsMayLieBesideGoPointers(t *testing.T) {
	view, _ := tiny(t)
	type state struct {
		next *state
		k, v [4]float32
		slot [1]int32
	}
	s := &state{next: &state{}, k: [4]float32{1, 2, 3, 4}, slot: [1]int32{2}}
	must(t, AppendRows(view, 0, RowsF32(s.k[:], 1, 1, 4), RowsF32(s.v[:], 1, 1, 4), s.slot[:]))
	must(t, ReadToken(view, 0, 0, 2, RowsF32(s.next.k[:], 1, 1, 4), Rows{}))
	equal(t, "read", s.next.k, s.k)
}

func TestKernelsOverBlocks(t *testing.T) {
	view, _ := tiny(t)
	row := func(x ...float32) Rows { return RowsF32(x, 1, 1, 4) }
	must(t, WriteToken(view, 0, 0, 1, row(1, 2, 3, 4), row(5, 6, 7, 8)))
	must(t, CopyBlocks(view, []int32{0}, []int32{3}))
	v := make([]float32, 4)
	must(t, ReadToken(view, 0, 0, 13, Rows{}, RowsF32(v, 1, 1, 4)))
	equal(t, "v", v, []float32{5, 6, 7, 8})
	equal(t, "v in place", *(*[4]float32)(view.V(0, 3, 0, 1)), [4]float32{5, 6, 7, 8})
	if view.K(0, 4, 0, 0) != nil {
		t.Fatal("a row of a block that is not there")
	}
	other, err := NewStorage([]GroupSpec{{HeadDimK: 4, HeadDimV: 4, BlockSize: 4, NumBlocks: 2,
		Format: NHD, DType: BF16}}, nil)
	must(t, err)
	defer other.Close()
	bf16, err := other.View(0, -1)
	must(t, err)
	defer bf16.Close()
	must(t, ConvertBlocks(view, bf16, []int32{3}, []int32{1}))
	bits := make([]uint16, 4)
	must(t, ReadToken(bf16, 0, 0, 5, RowsU16(BF16, bits, 1, 1, 4), Rows{}))
	equal(t, "bits", bits, []uint16{0x3f80, 0x4000, 0x4040, 0x4080})
	wide := make([]float64, 4)
	must(t, Convert(RowsU16(BF16, bits, 1, 1, 4), RowsF64(wide, 1, 1, 4)))
	equal(t, "wide", wide, []float64{1, 2, 3, 4})
	wants(t, Convert(RowsU16(F32, bits, 1, 1, 4), RowsF64(wide, 1, 1, 4)), ErrInvalidArgument)
	must(t, other.CopyBlocks(0, []int32{1}, []int32{0}))
	wants(t, other.CopyBlocks(0, []int32{1}, nil), ErrInvalidArgument)
	wants(t, other.CopyBlocksFrom(nil, 0, nil), ErrInvalidArgument)
	equal(t, "kind", other.MemoryKind(), Host)
	equal(t, "groups", other.NumGroups(), 1)
	if target, err := ChooseTarget(view, TargetReference); err != nil || target != TargetReference {
		t.Fatal(target, err)
	}
	capped := AttentionOptions{SoftCap: 30, AlibiSlopes: []float32{0.5},
		SinkLogits: []float32{0}, Target: TargetReference}
	if target, err := ChooseAttentionTarget(view, capped); err != nil || target != TargetReference {
		t.Fatal(target, err)
	}
	parsed, err := ParseTarget("portable")
	must(t, err)
	equal(t, "target", parsed.String(), "portable")
}

func TestMergeStatesIsOneCallOverBoth(t *testing.T) {
	a := State{RowsF32([]float32{1, 2}, 1, 1, 2), RowsF32([]float32{0}, 1, 1, 1)}
	b := State{RowsF32([]float32{3, 6}, 1, 1, 2), RowsF32([]float32{float32(math.Log(3))}, 1, 1, 1)}
	out, lse := make([]float64, 2), make([]float64, 1)
	must(t, MergeStates(a, b, State{RowsF64(out, 1, 1, 2), RowsF64(lse, 1, 1, 1)}))
	for i, want := range []float64{2.5, 5, math.Log(4)} {
		if got := append(out[:2:2], lse...)[i]; math.Abs(got-want) > 1e-6 {
			t.Fatalf("merged %v %v", out, lse)
		}
	}
	must(t, MergeStates(a, b, State{Out: RowsF64(out, 1, 1, 2)}))
}

func TestTokenStoreKeepsItsRows(t *testing.T) {
	store, err := NewTokenStore(TokenStoreOptions{HeadDimK: 3, HeadDimV: 2, NumKVHeads: 2,
		BlockSize: 4, MaxTokens: 6}, nil)
	must(t, err)
	defer store.Close()
	k, v := make([]float32, 5*6), make([]float32, 5*4)
	for i := range k {
		k[i] = float32(i)
	}
	for i := range v {
		v[i] = -float32(i)
	}
	must(t, store.Append(RowsF32(k, 5, 2, 3), RowsF32(v, 5, 2, 2)))
	wants(t, store.Append(RowsF32(k, 2, 2, 3), RowsF32(v, 2, 2, 2)), ErrResourceExhausted)
	wants(t, store.Append(RowsF32(k, 1, 2, 3), Rows{}), ErrInvalidArgument)
	wants(t, store.Append(RowsF32(k, 1, 2, 3), RowsF32(v, 2, 2, 2)), ErrInvalidArgument)
	wants(t, store.Append(RowsF32(k, 1, 3, 2), RowsF32(v, 1, 2, 2)), ErrInvalidArgument)
	wants(t, store.Append(RowsF32(k, -1, 2, 3), RowsF32(v, -1, 2, 2)), ErrInvalidArgument)
	must(t, store.Append(Rows{}, Rows{}))
	equal(t, "size", []int{store.Size(), store.MaxTokens()}, []int{5, 6})
	equal(t, "printed", store.String(), "token store: 5 of 6 tokens of f32, K 2 x 3, V 2 x 2; "+
		"2 of 2 blocks of 4 tokens in use, 384 of 384 bytes")
	if store.BytesUsed() <= 0 || store.MemoryBytes() < store.BytesUsed() {
		t.Fatal(store.BytesUsed(), store.MemoryBytes())
	}
	back := make([]float64, 2*6)
	must(t, store.Gather(3, RowsF64(back, 2, 2, 3), Rows{}))
	equal(t, "gathered", back[0], 18.0)
	wants(t, store.Gather(4, RowsF64(back, 2, 2, 3), Rows{}), ErrInvalidArgument)
	wants(t, store.Gather(-1, RowsF64(back, 2, 2, 3), Rows{}), ErrInvalidArgument)
	row, err := store.At(4)
	must(t, err)
	equal(t, "row of K", unsafe.Slice((*float32)(unsafe.Pointer(&row[0])), len(row)/4), k[24:])
	row, err = store.VAt(4)
	must(t, err)
	equal(t, "row of V", unsafe.Slice((*float32)(unsafe.Pointer(&row[0])), len(row)/4), v[16:])
	_, err = store.At(5)
	wants(t, err, ErrInvalidArgument)

	view, err := store.View()
	must(t, err)
	defer view.Close()
	read := make([]float32, 3)
	must(t, ReadToken(view, 0, 1, 2, RowsF32(read, 1, 1, 3), Rows{}))
	equal(t, "through the view", read, k[15:18])
	twin, err := store.Copy()
	must(t, err)
	defer twin.Close()
	store.Clear()
	equal(t, "sizes", []int{store.Size(), twin.Size()}, []int{0, 5})
	store.Close()
	wants(t, store.Append(Rows{}, Rows{}), ErrFailedPrecondition)
	wants(t, ReadToken(view, 0, 1, 2, RowsF32(read, 1, 1, 3), Rows{}), ErrFailedPrecondition)
	_, err = store.View()
	wants(t, err, ErrFailedPrecondition)
	_, err = store.Copy()
	wants(t, err, ErrFailedPrecondition)
	_, err = NewTokenStore(TokenStoreOptions{}, nil)
	wants(t, err, ErrInvalidArgument)
}
