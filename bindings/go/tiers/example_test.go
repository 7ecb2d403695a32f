// SPDX-License-Identifier: Apache-2.0

package tiers_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
	"github.com/kvfolio/kvfolio/bindings/go/tiers"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// The lines of "In Go" of docs/tiers.md.
func prefill(cache *kvfolio.Cache, offload *tiers.Offload, prompt []int32) (int, error) {
	// shown: go
	opened, err := offload.Open(prompt, nil) // what the cache has, at once
	if err != nil {
		return 0, err
	}
	cached := opened.CachedTokens
	for opened.Pending { // or serve others, and Poll in each step
		ready, err := offload.Wait(time.Now().Add(time.Second))
		if err != nil {
			return 0, err
		}
		for _, one := range ready {
			cached, opened.Pending = one.CachedTokens, false // came back, bit for bit
		}
	}
	ticket, err := cache.BeginStep(0) // go on as ever
	if err != nil {
		return 0, err
	}
	_, err = cache.AppendPrompt(opened.Sequence, prompt, len(prompt))
	if err == nil {
		err = cache.RunCopies()
	}
	if err != nil {
		_ = cache.Drop(ticket)
		return 0, err
	}
	return cached, cache.Finish(ticket)
	// shown end
}

// Two processes, say, over one directory.
func ExampleNewDiskTier() {
	directory, err := os.MkdirTemp("", "kvfolio-example")
	check(err)
	defer os.RemoveAll(directory)
	model := &tiers.ModelIdentity{Model: "llama-3-8b", Weights: "sha256:0f3a", Tokenizer: "r1",
		ModelDType: "bf16", Positions: "rope 500000", Engine: "my engine 7, avx2"}
	prompt := make([]int32, 100)
	for run := 1; run <= 2; run++ {
		storage, err := kvfolio.NewStorage([]kvfolio.GroupSpec{{HeadDimK: 64, HeadDimV: 64,
			NumBlocks: 64}}, nil)
		check(err)
		cache, err := kvfolio.NewCacheWithStorage(storage, &kvfolio.Options{ListFindable: true})
		check(err)
		disk, err := tiers.NewDiskTier(directory, &tiers.DiskOptions{Bytes: 64 << 20})
		check(err)
		// Its Timeout is 50 ms else, and what comes later is computed.
		options := &tiers.OffloadOptions{ArenaBytes: 8 << 20, Timeout: 10 * time.Second}
		offload, err := tiers.NewOffload(cache, model, options, []tiers.OffloadTier{{Tier: disk}})
		check(err)
		cached, err := prefill(cache, offload, prompt)
		check(err)
		_, err = offload.Drain(time.Now().Add(5 * time.Second)) // what was left would be lost
		check(err)
		offload.Close()
		disk.Close()
		cache.Close()
		fmt.Printf("run %d: %d of 100 tokens found\n", run, cached)
	}
	// Output:
	// run 1: 0 of 100 tokens found
	// run 2: 96 of 100 tokens found
}

// Go's own poller wakes a goroutine when a tier has something to say; Tier.Wait is this.
func ExampleTier_EventFD() {
	directory, err := os.MkdirTemp("", "kvfolio-example")
	check(err)
	defer os.RemoveAll(directory)
	// shown: netpoll
	disk, err := tiers.NewDiskTier(directory, &tiers.DiskOptions{Bytes: 64 << 20})
	check(err)
	defer disk.Close()
	names, err := tiers.NewForeignIdentity(&tiers.ForeignModel{Engine: "my engine 7, H100",
		Model: "llama-3-8b", Weights: "sha256:0f3a", ModelDType: "bf16", Hash: "sha256",
		HashSeed: "none", Layout: "bf16 HND 16x8x128 tp1"})
	check(err)
	defer names.Close()
	block, err := tiers.NewBuffer(65536) // memory of C, which the tier has until it is done
	check(err)
	defer block.Close()
	for i := range block.Bytes() {
		block.Bytes()[i] = byte(i)
	}
	hash := sha256.Sum256(block.Bytes()) // your engine's hash of the block
	key, err := names.Key(0, hash[:], "tenant 7")
	check(err)

	fd, err := syscall.Dup(disk.EventFD()) // os.File closes what it has
	check(err)
	check(syscall.SetNonblock(fd, true)) // so Go's poller takes it
	events := os.NewFile(uintptr(fd), "events")
	defer events.Close()
	conn, err := events.SyscallConn()
	check(err)
	for _, op := range []tiers.Op{tiers.Store, tiers.Load} {
		deadline := time.Now().Add(2 * time.Second)
		_, err := disk.Submit(op, []tiers.Item{{Key: key, Buffer: block}}, deadline)
		check(err)
		var done []tiers.Done
		for len(done) == 0 {
			check(events.SetReadDeadline(time.Now().Add(50 * time.Millisecond)))
			var refused error
			err := conn.Read(func(uintptr) bool { // again whenever the descriptor is readable
				done, refused = disk.Poll()
				return refused != nil || len(done) > 0
			})
			check(refused)
			if !errors.Is(err, os.ErrDeadlineExceeded) { // what is too late does not wake it
				check(err)
			}
		}
		fmt.Println(op, done[0].Result, sha256.Sum256(done[0].Buffer.Bytes()) == hash)
	}
	// shown end

	// Output:
	// store ok true
	// load ok true
}

// A snapshot of the prefix cache in a file.
func ExampleSave() {
	directory, err := os.MkdirTemp("", "kvfolio-example")
	check(err)
	defer os.RemoveAll(directory)
	groups := []kvfolio.GroupSpec{{HeadDimK: 8, NumBlocks: 8}}
	newCache := func() *kvfolio.Cache {
		storage, err := kvfolio.NewStorage(groups, nil)
		check(err)
		cache, err := kvfolio.NewCacheWithStorage(storage, nil)
		check(err)
		return cache
	}
	names, err := tiers.NewIdentity(&tiers.ModelIdentity{Model: "m", Weights: "w", Tokenizer: "t",
		ModelDType: "f32", Positions: "none", Engine: "e"}, groups)
	check(err)
	defer names.Close()
	cache := newCache()
	opened, err := cache.Open(nil, nil)
	check(err)
	ticket, err := cache.BeginStep(0)
	check(err)
	check(cache.Append(opened.Sequence, make([]int32, 40), 0))
	check(cache.Finish(ticket))
	_, err = tiers.Save(cache, names, directory+"/snapshot", nil)
	check(err)
	cache.Close()

	next := newCache()
	defer next.Close()
	_, err = tiers.Restore(next, names, directory+"/snapshot", tiers.RecordKeys{})
	check(err)
	found, err := next.Probe(make([]int32, 40), nil)
	check(err)
	fmt.Println(found, "tokens are found")
	// Output: 32 tokens are found
}
