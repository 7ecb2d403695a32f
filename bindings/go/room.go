// SPDX-License-Identifier: Apache-2.0

package kvfolio

// #include <kvfolio/kvfolio.h>
import "C"

import (
	"runtime"
	"unsafe"
)

// Admit asks whether numTokens[i] tokens would fit sequences[i], all in one step. ErrNoBlocks: no.
func (c *Cache) Admit(sequences []Sequence, numTokens []int64) error {
	if len(sequences) != len(numTokens) {
		return failf(ErrInvalidArgument, "Admit: %d counts for %d sequences", len(numTokens),
			len(sequences))
	}
	var counts *C.int64_t
	if len(numTokens) > 0 {
		counts = (*C.int64_t)(unsafe.Pointer(&numTokens[0]))
	}
	s := take()
	return c.done(s, C.kvfolio_admit(c.p(), ids(sequences), counts, C.int64_t(len(sequences)), &s.err))
}

// Admission is what a prompt would get.
type Admission struct {
	CachedTokens int
	Blocks       []int32 // by group: what the append would take, or Reserve keep
	Soon         Soon    // what the prompt would find later, see Cache.Soon
}

// AdmitPrompt asks whether the prompt, and numMore tokens behind it, would fit in one step. It
// changes nothing.
func (c *Cache) AdmitPrompt(tokens []int32, options *OpenOptions, numMore int) (Admission, error) {
	return c.AdmitPromptInChunks(tokens, options, numMore, 0)
}

// AdmitInChunks asks the same for numTokens tokens of a sequence that is open.
func (c *Cache) AdmitInChunks(sequence Sequence, numTokens, mostPerStep int) (Admission, error) {
	if c.p() == nil {
		return Admission{}, failf(ErrFailedPrecondition, "the Cache is closed")
	}
	blocks := make([]int32, c.numGroups)
	s := take()
	code := C.kvfolio_admit_sequence(c.p(), C.kvfolio_sequence(sequence), C.int64_t(numTokens),
		C.int64_t(mostPerStep), first(blocks), i32(len(blocks)), &s.err)
	if err := c.done(s, code); err != nil {
		return Admission{}, err
	}
	return Admission{Blocks: blocks}, nil
}

// AdmitPromptInChunks asks whether they would fit in steps of at most mostPerStep tokens: what Open
// and then Reserve would say, in numbers. A window group needs far fewer blocks for a long prompt in
// chunks. 0: all in one step.
func (c *Cache) AdmitPromptInChunks(tokens []int32, options *OpenOptions,
	numMore, mostPerStep int) (Admission, error) {
	if c.p() == nil {
		return Admission{}, failf(ErrFailedPrecondition, "the Cache is closed")
	}
	p, err := options.toC()
	if err != nil {
		return Admission{}, err
	}
	blocks := make([]int32, c.numGroups)
	s := take()
	code := C.kvfolio_admit_prompt(c.p(), p.root, first(tokens), C.int64_t(len(tokens)), p.media, p.n,
		p.options, C.int64_t(numMore), C.int64_t(mostPerStep), &s.found, first(blocks), i32(len(blocks)), &s.err)
	cached, soon := int(s.found.cached_tokens), s.soon()
	runtime.KeepAlive(options)
	if err := c.done(s, code); err != nil {
		return Admission{}, err
	}
	return Admission{cached, blocks, soon}, nil
}

// Reserve keeps blocks for numTokens more tokens, at most mostPerStep in a step; 0: all in one
// step.
func (c *Cache) Reserve(sequence Sequence, numTokens, mostPerStep int) error {
	s := take()
	return c.done(s, C.kvfolio_reserve(c.p(), C.kvfolio_sequence(sequence), C.int64_t(numTokens),
		C.int64_t(mostPerStep), &s.err))
}

// Evict evicts up to numBlocks cached blocks of a group and returns how many. `evicted`, which may
// be nil, gets as many of their ids as fit.
func (c *Cache) Evict(group, numBlocks int, evicted []int32) (int, error) {
	s := take()
	code := C.kvfolio_evict(c.p(), i32(group), i32(numBlocks), first(evicted),
		C.int64_t(len(evicted)), &s.i32[0], &s.err)
	out := int(s.i32[0])
	return out, c.done(s, code)
}

// Forgotten is what Reset, Forget and ForgetRoot took away.
type Forgotten struct {
	Blocks int64 // that are not findable any more
	Pins   int   // that ended
}

// Reset makes everything unfindable: after new weights, say.
func (c *Cache) Reset() (Forgotten, error) {
	s := take()
	code := C.kvfolio_reset(c.p(), &s.i64[0], &s.i32[0], &s.err)
	out := Forgotten{int64(s.i64[0]), int(s.i32[0])}
	return out, c.done(s, code)
}

// ForgetRoot makes all of a root key unfindable. Nil is the key without any bytes.
func (c *Cache) ForgetRoot(root *Root) (Forgotten, error) {
	p, err := (&OpenOptions{Root: root}).toC()
	if err != nil {
		return Forgotten{}, err
	}
	s := take()
	code := C.kvfolio_forget_root(c.p(), p.root, &s.i64[0], &s.i32[0], &s.err)
	out := Forgotten{int64(s.i64[0]), int(s.i32[0])}
	runtime.KeepAlive(root)
	return out, c.done(s, code)
}

// Forget makes all unfindable that begins with these tokens. Only Root and Media of the options count.
func (c *Cache) Forget(tokens []int32, options *OpenOptions) (Forgotten, error) {
	p, err := options.toC()
	if err != nil {
		return Forgotten{}, err
	}
	s := take()
	code := C.kvfolio_forget(c.p(), p.root, first(tokens), C.int64_t(len(tokens)), p.media, p.n,
		&s.i64[0], &s.i32[0], &s.err)
	out := Forgotten{int64(s.i64[0]), int(s.i32[0])}
	runtime.KeepAlive(options)
	return out, c.done(s, code)
}

// Pinned is a pin and the tokens of the prefix that it holds.
type Pinned struct {
	Pin    PinID
	Tokens int
}

// Pin holds whole blocks of what is found of these tokens, and keeps them findable, until Unpin.
func (c *Cache) Pin(tokens []int32, options *OpenOptions) (Pinned, error) {
	p, err := options.toC()
	if err != nil {
		return Pinned{}, err
	}
	s := take()
	code := C.kvfolio_pin(c.p(), p.root, first(tokens), C.int64_t(len(tokens)), p.media, p.n,
		p.options, &s.id, &s.i32[0], &s.err)
	out := Pinned{PinID(s.id), int(s.i32[0])}
	runtime.KeepAlive(options)
	return out, c.done(s, code)
}

// Unpin ends a pin.
func (c *Cache) Unpin(pin PinID) error {
	s := take()
	return c.done(s, C.kvfolio_unpin(c.p(), C.kvfolio_pin_id(pin), &s.err))
}

// Utilization returns held blocks divided by all blocks, in the fullest group.
func (c *Cache) Utilization() float64 { return float64(C.kvfolio_utilization(c.p())) }

// NeedsEviction reports whether Utilization reached the high watermark: it is time for PreemptTo.
func (c *Cache) NeedsEviction() bool { return C.kvfolio_needs_eviction(c.p()) != 0 }

// SelectVictim returns the sequence that the policy would preempt now: one whose end frees a block
// by itself and that is not in the open step. False: there is none, also where sequences share all
// of their blocks. Then preempt by your own choice, the youngest first, until an append fits; or
// unpin.
func (c *Cache) SelectVictim(policy Policy) (Sequence, bool) {
	victim := Sequence(C.kvfolio_select_victim(c.p(), C.int32_t(policy)))
	return victim, victim != 0
}

// PreemptTo preempts victims while Utilization() > target, and returns a copy of them in order.
func (c *Cache) PreemptTo(target float64, policy Policy) ([]Ended, error) {
	s := take()
	var ended *C.kvfolio_ended
	code := C.kvfolio_preempt_to(c.p(), C.double(target), C.int32_t(policy), &ended, &s.i64[0], &s.err)
	out := endedOf(ended, s.i64[0])
	return out, c.done(s, code)
}
