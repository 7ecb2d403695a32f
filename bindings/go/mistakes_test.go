// SPDX-License-Identifier: Apache-2.0

package kvfolio

import (
	"strings"
	"testing"
)

// Mistakes of a host that were silent once and spoiled what others find.

// withACopy is a cache with storage, and a step of it whose one sequence needs a copy.
func withACopy(t *testing.T, options *Options) (c *Cache, child Sequence, ticket Ticket) {
	storage, err := NewStorage(small(16), nil)
	must(t, err)
	c, err = NewCacheWithStorage(storage, options)
	must(t, err)
	t.Cleanup(c.Close)
	parent := prefill(t, c, tokensFrom(1, 6), nil)
	child, err = c.Fork(parent.Sequence, nil)
	must(t, err)
	ticket, err = c.BeginStep(0)
	must(t, err)
	must(t, c.Append(child, []int32{7}, 0))
	plan, err := c.Plan(nil)
	must(t, err)
	equal(t, "copies", len(plan.Groups[0].CopySrc), 1)
	return c, child, ticket
}

func TestCopiesThatDidNotRunAreRefusedAndCounted(t *testing.T) {
	c, child, ticket := withACopy(t, nil)
	for _, end := range []func(Ticket) error{c.Commit, c.Finish} {
		e := wants(t, end(ticket), ErrFailedPrecondition)
		if !strings.Contains(e.Message, "1 copy that has not run") {
			t.Fatal(e)
		}
	}
	must(t, c.RunCopies()) // the step is open still
	must(t, c.Finish(ticket))
	info, err := c.Info(child)
	must(t, err)
	equal(t, "length", info.Length, 7)
}

func TestAHostThatCopiesItselfIsNotAsked(t *testing.T) {
	c, _, ticket := withACopy(t, &Options{CopiesByHost: true})
	equal(t, "option", c.Options().CopiesByHost, true)
	must(t, c.Finish(ticket))
}

func TestASequenceThatThePlanLacksIsNotCommitted(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	var sequences [2]Sequence
	for i := range sequences {
		opened, err := c.Open(nil, nil)
		must(t, err)
		sequences[i] = opened.Sequence
	}
	ticket, err := c.BeginStep(0)
	must(t, err)
	must(t, c.Append(sequences[0], []int32{1, 2}, 0))
	_, err = c.Plan(nil)
	must(t, err)
	must(t, c.Append(sequences[1], []int32{3}, 0))
	e := wants(t, c.Commit(ticket), ErrFailedPrecondition)
	if !strings.Contains(e.Message, "1 of the 2 sequences") {
		t.Fatal(e)
	}
	must(t, c.Undo(sequences[1])) // who left is not missed
	must(t, c.Finish(ticket))
}

func TestAPlanWithASequenceThatLeftSinceIsNotCommitted(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	for _, leave := range []func(Sequence) error{c.Undo, c.Preempt, c.Cancel} {
		stays, err := c.Open(nil, nil)
		must(t, err)
		leaves, err := c.Open(nil, nil)
		must(t, err)
		ticket, err := c.BeginStep(0)
		must(t, err)
		must(t, c.Append(stays.Sequence, []int32{1, 2}, 0))
		must(t, c.Append(leaves.Sequence, []int32{3}, 0))
		_, err = c.Plan(nil)
		must(t, err)
		must(t, leave(leaves.Sequence))
		for _, end := range []func(Ticket) error{c.Commit, c.Finish} {
			e := wants(t, end(ticket), ErrFailedPrecondition)
			if !strings.Contains(e.Message, "1 sequence that was taken out since") {
				t.Fatal(e)
			}
		}
		_, err = c.Plan(nil) // the step is open still
		must(t, err)
		must(t, c.Finish(ticket))
		info, err := c.Info(stays.Sequence)
		must(t, err)
		equal(t, "length", info.Length, 2)
	}
}

func TestTheWholePromptBehindAHitIsRefused(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	prompt := tokensFrom(1, 10)
	must(t, c.CloseSequence(prefill(t, c, prompt, nil).Sequence))
	opened, err := c.Open(prompt, nil)
	must(t, err)
	equal(t, "cached", opened.CachedTokens, 9)
	ticket, err := c.BeginStep(0)
	must(t, err)
	e := wants(t, c.Append(opened.Sequence, prompt, 0), ErrInvalidArgument)
	if !strings.Contains(e.Message, "the 9 that it has of its prompt of 10") {
		t.Fatal(e)
	}
	must(t, c.Append(opened.Sequence, prompt[9:], 0))
	must(t, c.Finish(ticket))
}

func TestTheRestOfAPromptThatRepeatsItselfIsTakenWithItsDrafts(t *testing.T) {
	c := newTestCache(t, small(16), nil)
	prompt := []int32{7, 7, 7, 7}
	must(t, c.CloseSequence(prefill(t, c, prompt, nil).Sequence))
	opened, err := c.Open(prompt, nil)
	must(t, err)
	equal(t, "cached", opened.CachedTokens, 3)
	ticket, err := c.BeginStep(0)
	must(t, err)
	must(t, c.Append(opened.Sequence, prompt, 3)) // the rest and three drafts
	must(t, c.Finish(ticket))
	must(t, c.Accept(opened.Sequence, 1))
	info, err := c.Info(opened.Sequence)
	must(t, err)
	equal(t, "length", info.Length, 5)
}

func TestIdsOfTwoCachesAreToldApartByTheirTags(t *testing.T) {
	a := newTestCache(t, small(16), &Options{IDTag: 1})
	b := newTestCache(t, small(16), &Options{IDTag: 2})
	ofA, err := a.Open(nil, nil)
	must(t, err)
	_, err = b.Open(nil, nil)
	must(t, err)
	wants(t, b.CloseSequence(ofA.Sequence), ErrNotFound)
}
