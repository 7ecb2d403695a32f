// SPDX-License-Identifier: Apache-2.0

package kvfolio_test

import (
	"errors"
	"fmt"
	"os"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func newCache(numBlocks int) *kvfolio.Cache {
	group := kvfolio.GroupSpec{HeadDimK: 8, BlockSize: 4, NumBlocks: numBlocks}
	storage, err := kvfolio.NewStorage([]kvfolio.GroupSpec{group}, nil)
	check(err)
	cache, err := kvfolio.NewCacheWithStorage(storage, &kvfolio.Options{ListFindable: true})
	check(err)
	return cache
}

func compute(cache *kvfolio.Cache, tokens []int32) kvfolio.Sequence {
	opened, err := cache.Open(tokens, nil)
	check(err)
	ticket, err := cache.BeginStep(0)
	check(err)
	check(cache.Append(opened.Sequence, tokens[opened.CachedTokens:], 0))
	check(cache.Finish(ticket)) // and write K and V before
	return opened.Sequence
}

// An append that is short of blocks ends another sequence, inside the step, and is called again.
func ExampleCache_Preempt() {
	cache := newCache(3)
	defer cache.Close()
	compute(cache, []int32{1, 2, 3, 4, 5})
	prompt := []int32{7, 7, 7, 7, 7, 7, 7, 7}
	opened, err := cache.Open(prompt, nil)
	check(err)
	ticket, err := cache.BeginStep(0)
	check(err)
	for {
		err = cache.Append(opened.Sequence, prompt, 0)
		if !errors.Is(err, kvfolio.ErrNoBlocks) {
			break
		}
		victim, found := cache.SelectVictim(kvfolio.LRU)
		if !found { // each other sequence is in the step, or frees no block: let this one wait
			break
		}
		check(cache.Preempt(victim)) // its engine opens it again later, and appends the rest
		fmt.Println("preempted one")
	}
	check(err)
	check(cache.Finish(ticket))
	// Output: preempted one
}

// What one cache has computed goes to another one as images of blocks.
func ExampleCache_BeginLoad() {
	warm, cold := newCache(8), newCache(8)
	defer warm.Close()
	defer cold.Close()
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	compute(warm, prompt)

	found := warm.TakeFindable(100) // may be read: its step is complete
	blocks := make([]int32, 2)
	for _, f := range found {
		blocks[f.End/4-1] = int32(f.Block)
	}
	hold, err := warm.HoldBlocks(0, blocks)
	check(err)
	images := make([]byte, 2*warm.Storage().BlockImageBytes(0))
	check(warm.Storage().ReadBlocks(0, blocks, images))
	check(warm.ReleaseHold(hold))

	opened, err := cold.Open(prompt, nil)
	check(err)
	load, err := cold.BeginLoad(opened.Sequence, prompt, 8)
	check(err)
	_, to, err := cold.BlocksToLoad(load.ID, 0)
	check(err)
	check(cold.Storage().WriteBlocks(0, to, images))
	stand, err := cold.FinishLoad(load.ID, load.End-load.Begin)
	check(err)
	fmt.Println(stand, "of", len(prompt), "tokens need not be computed")
	// Output: 8 of 9 tokens need not be computed
}

// Every call and its answer go to a file that `kvfolio inspect --replay` repeats.
func ExampleCache_Record() {
	directory, err := os.MkdirTemp("", "kvfolio")
	check(err)
	defer os.RemoveAll(directory)
	log, err := kvfolio.NewOpLog(directory+"/calls.oplog", false)
	check(err)
	defer log.Close()
	cache := newCache(8)
	defer cache.Close()
	check(cache.Record(log)) // before the first call that changes it
	compute(cache, []int32{1, 2, 3, 4, 5})
	check(cache.Record(nil)) // the log is whole
	fmt.Println(log.NumCalls(), "calls,", log.Status())
	// Output: 4 calls, <nil>
}
