// SPDX-License-Identifier: Apache-2.0

// A decode loop over a disk: tiers DIRECTORY. Run it twice: the second process finds the prompt, and the
// tokens that the first one made of it, on the disk. What a record lacks is computed again.
package main

import (
	"fmt"
	"log"
	"os"
	"time"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
	"github.com/kvfolio/kvfolio/bindings/go/tiers"
)

const (
	headDim   = 64
	blockSize = 16
	promptLen = 100
	newTokens = 50
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// row stands for a model: keys and values follow from the token alone.
func row(token int32) []float32 {
	out := make([]float32, headDim)
	for i := range out {
		out[i] = float32(token*31+int32(i)*7) / 16
	}
	return out
}

// step computes K and V of the tokens in one step.
func step(cache *kvfolio.Cache, view *kvfolio.View, sequence kvfolio.Sequence, tokens []int32) {
	ticket, err := cache.BeginStep(0)
	must(err)
	must(cache.Append(sequence, tokens, 0))
	must(cache.RunCopies())
	plan, err := cache.Plan(nil)
	must(err)
	var rows []float32
	for _, token := range tokens {
		rows = append(rows, row(token)...)
	}
	k := kvfolio.RowsF32(rows, len(tokens), 1, headDim)
	must(kvfolio.AppendRows(view, 0, k, k, plan.Groups[0].SlotMapping))
	must(cache.Finish(ticket))
}

// next stands for sampling: it reads what the cache has of the last token.
func next(cache *kvfolio.Cache, view *kvfolio.View, sequence kvfolio.Sequence, n int) int32 {
	table, err := cache.BlockTable(sequence, 0)
	must(err)
	at := view.K(0, int(table[(n-1)/blockSize]), 0, (n-1)%blockSize)
	sum := float32(0)
	for _, x := range unsafe.Slice((*float32)(at), headDim) {
		sum += x
	}
	return int32(sum) % 1000
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: tiers DIRECTORY")
	}
	storage, err := kvfolio.NewStorage([]kvfolio.GroupSpec{{HeadDimK: headDim, HeadDimV: headDim,
		BlockSize: blockSize, NumBlocks: 32}}, nil)
	must(err)
	cache, err := kvfolio.NewCacheWithStorage(storage, &kvfolio.Options{ListFindable: true})
	must(err)
	defer cache.Close()
	view, err := cache.View(0, -1)
	must(err)
	defer view.Close()
	disk, err := tiers.NewDiskTier(os.Args[1], &tiers.DiskOptions{Bytes: 64 << 20})
	must(err)
	defer disk.Close()
	model := &tiers.ModelIdentity{Model: "toy", Weights: "1", Tokenizer: "ids", ModelDType: "f32",
		Positions: "none", Engine: "examples/tiers 1"}
	offload, err := tiers.NewOffload(cache, model, &tiers.OffloadOptions{ArenaBytes: 8 << 20,
		Timeout: 10 * time.Second}, []tiers.OffloadTier{{Tier: disk}})
	must(err)
	defer offload.Close()

	tokens := make([]int32, promptLen)
	for i := range tokens {
		tokens[i] = int32(i * i % 97)
	}
	for turn := 0; turn < 2; turn++ {
		opened, err := offload.Open(tokens, nil)
		must(err)
		found, why := opened.CachedTokens, "at once"
		for opened.Pending { // an engine serves others meanwhile
			ready, err := offload.Wait(time.Now().Add(time.Second))
			must(err)
			for _, one := range ready {
				found, why, opened.Pending = one.CachedTokens, one.Why.String(), false
			}
		}
		fmt.Printf("turn %d: %d of %d tokens found: %s\n", turn, found, len(tokens), why)
		step(cache, view, opened.Sequence, tokens[found:])
		for i := 0; i < newTokens; i++ {
			token := next(cache, view, opened.Sequence, len(tokens))
			tokens = append(tokens, token)
			step(cache, view, opened.Sequence, []int32{token})
			_, err := offload.Poll() // moves what became findable
			must(err)
		}
		must(cache.CloseSequence(opened.Sequence))
	}
	fmt.Println("the last tokens are", tokens[len(tokens)-4:])
	left, err := offload.Drain(time.Now().Add(5 * time.Second))
	must(err)
	if left.Any() {
		log.Printf("not stored: %+v", left)
	}
}
