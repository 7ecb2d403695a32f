// SPDX-License-Identifier: Apache-2.0

// decode SEQUENCES TOKENS STEPS: decode steps over many sequences, as bench/bindings/decode.c makes
// them in C. bench/bindings/run compares the two.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
)

const blockSize = 16

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// processorSeconds is that of all threads, the collector's too.
func processorSeconds() float64 {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + 1e-6*float64(t.Usec) }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

var options = &kvfolio.PlanOptions{NoBlockTables: true, ChangedEntries: true}

func step(cache *kvfolio.Cache, sequences []kvfolio.Sequence, tokens []int32) (sum int64) {
	ticket, err := cache.BeginStep(0)
	must(err)
	_, err = cache.AppendEach(sequences, tokens)
	must(err)
	plan, err := cache.Plan(options)
	must(err)
	for _, slot := range plan.Groups[0].SlotMapping {
		sum += int64(slot)
	}
	must(cache.Finish(ticket))
	return sum
}

func main() {
	n, length, steps := 32, 64, 4 // as a test
	for i, to := range []*int{&n, &length, &steps} {
		if i+1 < len(os.Args) {
			value, err := strconv.Atoi(os.Args[i+1])
			must(err)
			*to = value
		}
	}
	group := kvfolio.GroupSpec{HeadDimK: 1, BlockSize: blockSize,
		NumBlocks: n * ((length+2*steps)/blockSize + 2)}
	cache, err := kvfolio.NewCache([]kvfolio.GroupSpec{group}, &kvfolio.Options{MaxSequences: n})
	must(err)
	defer cache.Close()
	sequences := make([]kvfolio.Sequence, n)
	tokens := make([]int32, n)
	prompt := make([]int32, length) // one for all, as in C: no garbage
	for i := range sequences {
		// Lengths differ so that a sixteenth of the sequences fills a block in each step.
		prompt := prompt[:length-i%blockSize]
		for at := range prompt {
			prompt[at] = int32((i*31 + at) % 50000)
		}
		opened, err := cache.Open(nil, nil)
		must(err)
		sequences[i], tokens[i] = opened.Sequence, 7
		ticket, err := cache.BeginStep(0)
		must(err)
		must(cache.Append(opened.Sequence, prompt, 0))
		must(cache.Finish(ticket))
	}
	var sum int64
	for i := 0; i < steps; i++ {
		sum += step(cache, sequences, tokens) // warm
	}
	begin := processorSeconds()
	for i := 0; i < steps; i++ {
		sum += step(cache, sequences, tokens)
	}
	seconds := processorSeconds() - begin
	fmt.Printf("{\"nanoseconds\": %.3f, \"sum\": %d}\n", 1e9*seconds/float64(n*steps), sum)
}
