// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"fmt"
	"testing"
)

// The lines of "In Go" of docs/languages.md.
func readmePrefill(cache *Cache, prompt []int32) (found int, err error) {
	// shown: go
	opened, err := cache.Open(prompt, nil) // finds and holds
	if err != nil {
		return 0, err
	}
	ticket, err := cache.BeginStep(0)
	if err != nil {
		return 0, err
	}
	_, err = cache.AppendPrompt(opened.Sequence, prompt, len(prompt))
	if err != nil {
		_ = cache.Drop(ticket) // ErrNoBlocks: or preempt another one, and append again
		_ = cache.CloseSequence(opened.Sequence)
		return 0, err
	}
	plan, err := cache.Plan(nil) // its slices are int32 arrays for your kernels
	if err != nil {
		return 0, err
	}
	// Yours: copy blocks CopySrc to CopyDst, write K and V to SlotMapping, attend.
	fmt.Println(plan.Groups[0].SlotMapping, plan.Groups[0].BlockTable)
	err = cache.Finish(ticket) // plan is not to be read any more
	if err != nil {
		return 0, err
	}
	err = cache.CloseSequence(opened.Sequence) // its blocks stay findable
	// shown end
	return opened.CachedTokens, err
}

func TestReadmeFindsThePrefix(t *testing.T) {
	cache := newTestCache(t, small(64), nil)
	for _, want := range []int{0, 20} {
		found, err := readmePrefill(cache, append(tokensFrom(7, 20), int32(100+want)))
		must(t, err)
		equal(t, "found", found, want)
	}
}
