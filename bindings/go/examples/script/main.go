// SPDX-License-Identifier: Apache-2.0

// One script, told in C, Rust and Go with the same output: two prompts with a common prefix, a
// fork, a window group beside a full one, attention over memory of our own, a shortage and a
// preemption.
package main

import (
	"errors"
	"fmt"
	"log"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

const (
	blockSize  = 4
	numHeads   = 2
	headDim    = 4
	window     = 6
	mostTokens = 32
)

var numBlocks = [2]int{10, 8}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// fill returns keys, values or queries that every language computes alike.
func fill(tokens []int32, what int32) []float32 {
	rows := make([]float32, 0, len(tokens)*numHeads*headDim)
	for _, token := range tokens {
		for h := int32(0); h < numHeads; h++ {
			for i := int32(0); i < headDim; i++ {
				rows = append(rows, float32((token*7+h*3+i*5+what*11)%13-6)/8)
			}
		}
	}
	return rows
}

func printArray(name string, array []int32) {
	fmt.Printf("    %s", name)
	for _, x := range array {
		fmt.Printf(" %d", x)
	}
	fmt.Println()
}

type engine struct {
	cache  *kvfolio.Cache
	groups []kvfolio.GroupSpec
	views  []*kvfolio.View
	memory []unsafe.Pointer
}

// lend returns [blocks, heads, blockSize, headDim] of f32 in C memory.
func (e *engine) lend(blocks int) kvfolio.Borrowed {
	bytes := blocks * numHeads * blockSize * headDim * 4
	memory, err := kvfolio.AllocC(bytes)
	must(err)
	e.memory = append(e.memory, memory)
	return kvfolio.Borrowed{Data: memory, Bytes: int64(bytes), Strides: kvfolio.Strides{
		Token: headDim * 4,
		Head:  blockSize * headDim * 4,
		Block: numHeads * blockSize * headDim * 4,
	}}
}

func newEngine() *engine {
	e := &engine{}
	var lent []kvfolio.BorrowedGroup
	for g, blocks := range numBlocks {
		group := kvfolio.GroupSpec{NumKVHeads: numHeads, HeadDimK: headDim, HeadDimV: headDim,
			BlockSize: blockSize, NumBlocks: blocks}
		if g == 1 {
			group.Kind, group.Window = kvfolio.SlidingWindow, window
		}
		e.groups = append(e.groups, group)
		lent = append(lent, kvfolio.BorrowedGroup{K: e.lend(blocks), V: e.lend(blocks)})
	}
	storage, err := kvfolio.BorrowStorage(e.groups, lent, nil)
	must(err)
	e.cache, err = kvfolio.NewCacheWithStorage(storage, &kvfolio.Options{MaxSequences: 8})
	must(err)
	for g := range e.groups {
		view, err := e.cache.View(g, -1)
		must(err)
		e.views = append(e.views, view)
	}
	return e
}

func (e *engine) close() {
	for _, view := range e.views {
		view.Close()
	}
	e.cache.Close()
	for _, memory := range e.memory {
		kvfolio.FreeC(memory)
	}
}

// run runs the open step: copies, K and V, attention. `tokens`: those of all sequences, in order.
func (e *engine) run(ticket kvfolio.Ticket, tokens []int32) {
	plan, err := e.cache.Plan(nil)
	must(err)
	must(e.cache.RunCopies())
	rows := func(data []float32) kvfolio.Rows {
		return kvfolio.RowsF32(data, plan.NumTokens, numHeads, headDim)
	}
	k, v, q := rows(fill(tokens, 0)), rows(fill(tokens, 1)), rows(fill(tokens, 2))
	out := make([]float32, plan.NumTokens*numHeads*headDim)
	for g, view := range e.views {
		group := &plan.Groups[g]
		fmt.Printf("  group %d\n", g)
		printArray("slots", group.SlotMapping)
		printArray("table", group.BlockTable)
		if len(group.CopySrc) > 0 {
			printArray("copy from", group.CopySrc)
			printArray("copy to", group.CopyDst)
		}
		must(kvfolio.AppendRows(view, 0, k, v, group.SlotMapping))
		options, err := kvfolio.AttentionOptionsOf(e.groups[g])
		must(err)
		options.Target = kvfolio.TargetReference // the same bits on every machine
		bytes, err := kvfolio.AttentionWorkspaceBytes(view, numHeads, mostTokens, options.Target, 1)
		must(err)
		must(kvfolio.Attend(&kvfolio.Attention{Cache: view, Batch: plan.Batch(g), Options: options,
			Q: q, Out: rows(out), Workspace: make([]byte, bytes)}))
		for s := range plan.Sequences {
			last := out[(plan.QueryStart[s+1]-1)*numHeads*headDim:]
			fmt.Printf("    out of its last token %.4f %.4f %.4f %.4f\n", last[0], last[1], last[2],
				last[3])
		}
	}
	must(e.cache.Finish(ticket))
}

func (e *engine) open(name rune, tokens []int32) kvfolio.Opened {
	opened, err := e.cache.Open(tokens,
		&kvfolio.OpenOptions{HasCallerID: true, CallerID: uint64(name)})
	must(err)
	fmt.Printf("open %c: %d of %d tokens found\n", name, opened.CachedTokens, len(tokens))
	return opened
}

// prefill opens a prompt and computes what was not found.
func (e *engine) prefill(name rune, tokens []int32) kvfolio.Sequence {
	opened := e.open(name, tokens)
	ticket, err := e.cache.BeginStep(0)
	must(err)
	must(e.cache.Append(opened.Sequence, tokens[opened.CachedTokens:], 0))
	e.run(ticket, tokens[opened.CachedTokens:])
	return opened.Sequence
}

func (e *engine) printUsage() {
	for g := range e.groups {
		usage, err := e.cache.Usage(g)
		must(err)
		fmt.Printf("  group %d: %d held, %d cached, %d free\n", g, usage.Held, usage.Cached,
			usage.Free)
	}
}

func main() {
	log.SetFlags(0)
	e := newEngine()
	defer e.close()
	var first, second, third [mostTokens]int32
	for i := range first {
		first[i], second[i], third[i] = 100+int32(i), 200+int32(i), 300+int32(i)
	}
	copy(second[:9], first[:9])
	e.prefill('a', first[:10])
	b := e.prefill('b', second[:13])

	c, err := e.cache.Fork(b, &kvfolio.ForkOptions{HasCallerID: true, CallerID: 'c'})
	must(err)
	fmt.Println("fork b: c")
	for round := int32(0); round < 2; round++ {
		tokens := []int32{400 + round, 500 + round}
		ticket, err := e.cache.BeginStep(0)
		must(err)
		n, err := e.cache.AppendEach([]kvfolio.Sequence{b, c}, tokens)
		must(err)
		fmt.Printf("append one token to each of %d\n", n)
		e.run(ticket, tokens)
	}
	e.printUsage()

	d := e.open('d', third[:20]).Sequence
	ticket, err := e.cache.BeginStep(0)
	must(err)
	for {
		err = e.cache.Append(d, third[:20], 0)
		if !errors.Is(err, kvfolio.ErrNoBlocks) {
			break
		}
		var short *kvfolio.Error
		errors.As(err, &short)
		fmt.Println(short.Message)
		fmt.Printf("  group %d needs %d, has %d free and %d evictable\n", short.Shortage.Group,
			short.Shortage.Needed, short.Shortage.Free, short.Shortage.Evictable)
		victim, found := e.cache.SelectVictim(kvfolio.LRU)
		if !found {
			log.Fatal("there is no victim")
		}
		info, err := e.cache.Info(victim)
		must(err)
		must(e.cache.Preempt(victim))
		fmt.Printf("preempt %c\n", rune(info.CallerID))
	}
	must(err)
	e.run(ticket, third[:20])
	e.printUsage()
	must(e.cache.CheckInvariants())

	counters := e.cache.Counters()
	fmt.Printf("%d tokens committed, %d reused, %d blocks copied, %d evicted\n",
		counters.TokensCommitted, counters.TokensReused, counters.BlockCopies,
		counters.BlocksEvicted)
}
