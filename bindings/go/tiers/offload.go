// SPDX-License-Identifier: Apache-2.0

package tiers

// #include <kvfolio/kvfolio_tiers.h>
import "C"

import (
	"runtime"
	"time"
	"unsafe"

	kvfolio "github.com/kvfolio/kvfolio/bindings/go"
	"github.com/kvfolio/kvfolio/bindings/go/internal/bridge"
)

// WritePolicy says which records go to a tier.
type WritePolicy int32

// Policies.
const (
	WriteThrough   WritePolicy = C.KVFOLIO_WRITE_THROUGH    // all that enter the arena by a store
	WriteSecondUse WritePolicy = C.KVFOLIO_WRITE_SECOND_USE // a record that is used for the second time
	WriteOff       WritePolicy = C.KVFOLIO_WRITE_OFF        // the tier is read only
)

// OffloadTier is a tier of an Offload, and how it is used.
type OffloadTier struct {
	Tier          *Tier
	Policy        WritePolicy
	StoreBytesMax int64 // in flight; more waits its turn; 0: 64 MiB
	LoadBytesMax  int64 // the same; 0: 256 MiB
}

// RootEpoch is the name of a root or of a prefix that was forgotten. It holds no text.
type RootEpoch struct {
	Root  Digest
	Epoch uint64
}

// NameEpochs is what was forgotten: keep it after each forgetting, for the next process.
type NameEpochs struct {
	Epoch uint64 // of every root which is not listed
	Roots []RootEpoch
}

// OffloadOptions of an Offload (OffloadOptions in offload.h).
type OffloadOptions struct {
	ArenaBytes   int64 // host memory
	BytesPerPoll int64 // 0: 16 MiB
	// How long the tiers' answers may take, beside the time that bytes take at half of LoadBytesPerS, or at 500 MB/s if
	// that is 0. Up to 2 s of that are given at once, the rest as bytes come. 0: 50 ms.
	Timeout           time.Duration
	CopyTimeout       time.Duration // of the copy to the cache once all is at hand; 0: 2 s
	LoadBytesPerS     float64       // load from tiers only what is slower to compute; 0: always
	PrefillTokensPerS float64
	Names             NameEpochs              // what a host with tiers that outlive it kept of Epochs
	Resource          *kvfolio.MemoryResource // of the arena; nil: memory of the process
}

// Offload keeps blocks that became findable in host memory and in tiers, and brings them back when a
// prompt asks for them (Offload in offload.h). It has no threads and no goroutines: everything moves
// in Poll. Close it before its cache.
//
// Open, ForgetRoot, Forget and Reset stand for those of the cache; all other calls are the cache's.
type Offload struct {
	c        *C.kvfolio_offload
	cache    *kvfolio.Cache
	tiers    []*Tier
	identity *Identity
	life     *life
	birth
}

func (o *Offload) p() *C.kvfolio_offload {
	if o == nil {
		return nil
	}
	return o.c
}

func (o *Offload) call(f func(e *C.kvfolio_error) C.int32_t) error {
	if o.p() == nil {
		return closed("Offload")
	}
	return call(f)
}

// NewOffload makes an Offload over a cache, which has a Storage and ListFindable. tiers: cheapest
// first, at most 8; they are the Offload's until it is closed. ErrInvalidArgument names a field of the
// model that says too little, or a budget that holds no record.
func NewOffload(cache *kvfolio.Cache, model *ModelIdentity, options *OffloadOptions,
	tiers []OffloadTier) (*Offload, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	m := manager(cache)
	if m == nil {
		return nil, closed("Cache")
	}
	if options == nil {
		options = &OffloadOptions{}
	}
	if err := checkDurations("NewOffload", duration{"Timeout", options.Timeout},
		duration{"CopyTimeout", options.CopyTimeout}); err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	out := &Offload{cache: cache, life: &life{}, birth: bornOf()}
	list := make([]C.kvfolio_offload_tier, len(tiers)+1)
	for i := range tiers {
		tier := tiers[i].Tier
		if err := tier.own(out.life); err != nil {
			out.disownAll()
			return nil, err
		}
		out.tiers = append(out.tiers, tier)
		list[i] = C.kvfolio_offload_tier{
			struct_size:     C.sizeof_kvfolio_offload_tier,
			policy:          C.int32_t(tiers[i].Policy),
			tier:            tier.c,
			store_bytes_max: C.int64_t(tiers[i].StoreBytesMax),
			load_bytes_max:  C.int64_t(tiers[i].LoadBytesMax),
		}
	}
	settings := options.toC(&l)
	resource := (*C.kvfolio_memory_resource)(bridge.Resource(options.Resource))
	identity := model.toC(&l)
	err := call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_create(m, identity, settings, &list[0], i32(len(tiers)), resource,
			&out.c, e)
	})
	if err != nil {
		out.disownAll()
		return nil, err
	}
	out.identity = &Identity{c: C.kvfolio_offload_identity(out.c), owner: out.life}
	runtime.SetFinalizer(out, func(o *Offload) { o.leaked("Offload") })
	return out, nil
}

// own gives the tier to an Offload.
func (t *Tier) own(owner *life) error {
	defer t.lock()()
	if err := t.alone(); err != nil {
		return err
	}
	if n := len(t.flying); n > 0 {
		return failf(kvfolio.ErrFailedPrecondition,
			"the Tier has %d items of Submit that are not done: an Offload would be told of them", n)
	}
	t.owner = owner
	return nil
}

func (o *Offload) disownAll() {
	for _, tier := range o.tiers {
		tier.disown()
	}
	o.tiers = nil
}

func (options *OffloadOptions) toC(l *lent) *C.kvfolio_offload_options {
	out := &C.kvfolio_offload_options{
		struct_size:          C.sizeof_kvfolio_offload_options,
		arena_bytes:          C.int64_t(options.ArenaBytes),
		bytes_per_poll:       C.int64_t(options.BytesPerPoll),
		timeout_us:           durationToC(options.Timeout),
		copy_timeout_us:      durationToC(options.CopyTimeout),
		load_bytes_per_s:     C.double(options.LoadBytesPerS),
		prefill_tokens_per_s: C.double(options.PrefillTokensPerS),
		epoch:                C.uint64_t(options.Names.Epoch),
	}
	if n := len(options.Names.Roots); n > 0 {
		const size = int(C.sizeof_kvfolio_root_epoch)
		roots := (*C.kvfolio_root_epoch)(l.bytes(make([]byte, n*size)))
		for i, root := range options.Names.Roots {
			unsafe.Slice(roots, n)[i] = C.kvfolio_root_epoch{root: *root.Root.toC(),
				epoch: C.uint64_t(root.Epoch)}
		}
		out.root_epochs, out.num_root_epochs = roots, C.int64_t(n)
	}
	return out
}

// Close ends the Offload; its tiers may be used by another one then, and those that were closed end. It
// closes no sequence. Drain first: what tiers were not given yet is lost, and host memory that a tier
// works on still is never given back.
func (o *Offload) Close() {
	if o.p() == nil {
		return
	}
	runtime.SetFinalizer(o, nil)
	C.kvfolio_offload_destroy(o.c)
	o.c = nil
	o.life.ended = true
	o.disownAll()
}

// Cache returns that which the Offload was made over.
func (o *Offload) Cache() *kvfolio.Cache {
	if o == nil {
		return nil
	}
	return o.cache
}

// IsOf reports whether this is the cache that the Offload was made over, and is not closed.
func (o *Offload) IsOf(cache *kvfolio.Cache) bool {
	m := manager(cache)
	return o.p() != nil && m != nil && C.kvfolio_offload_is_of(o.c, m) != 0
}

// Identity returns the names that it uses. They belong to it and are valid as long.
func (o *Offload) Identity() *Identity {
	if o == nil {
		return nil
	}
	return o.identity
}

// Opened is a sequence, and whether more of its tokens may still come.
type Opened struct {
	Sequence     kvfolio.Sequence
	CachedTokens int  // if it is not pending: append the tokens from here on
	Pending      bool // Poll says how it ends
}

// Open opens a sequence as Cache.Open, and asks for what the cache does not have. Who does not want to
// wait calls Cancel, or closes the sequence.
func (o *Offload) Open(tokens []int32, options *kvfolio.OpenOptions) (Opened, error) {
	p, err := promptOf(options)
	if err != nil {
		return Opened{}, err
	}
	var sequence C.kvfolio_sequence
	var cached, pending C.int32_t
	err = o.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_open(o.c, p.root, first(tokens), C.int64_t(len(tokens)), p.media, p.n,
			p.options, &sequence, &cached, &pending, e)
	})
	runtime.KeepAlive(options)
	return Opened{kvfolio.Sequence(sequence), int(cached), pending != 0}, err
}

// LoadEnd says how a request ended.
type LoadEnd int32

// Ends.
const (
	Loaded        LoadEnd = C.KVFOLIO_LOADED         // all that the tiers said they have
	LoadPart      LoadEnd = C.KVFOLIO_LOAD_PART      // less: gone, damaged, or there was no room
	LoadNothing   LoadEnd = C.KVFOLIO_LOAD_NOTHING   // no tier has more
	LoadRecompute LoadEnd = C.KVFOLIO_LOAD_RECOMPUTE // computing is faster
	LoadTimeout   LoadEnd = C.KVFOLIO_LOAD_TIMEOUT   // CachedTokens may be more than at Open still
	LoadNoBlocks  LoadEnd = C.KVFOLIO_LOAD_NO_BLOCKS // the pool has no room for it
	LoadForgotten LoadEnd = C.KVFOLIO_LOAD_FORGOTTEN
)

// String returns the name of the end, such as "loaded".
func (e LoadEnd) String() string { return C.GoString(C.kvfolio_load_end_name(C.int32_t(e))) }

// Ready is a sequence that was pending.
type Ready struct {
	Sequence     kvfolio.Sequence
	CachedTokens int // the sequence's length: append the tokens from here on
	Why          LoadEnd
}

// Poll moves what is to be moved, at most BytesPerPoll: loads first, then stores. It returns the
// sequences that are ready, each pending one once, and does not wait. Call it between steps.
func (o *Offload) Poll() ([]Ready, error) {
	if o.p() == nil {
		return nil, closed("Offload")
	}
	if !o.IsOf(o.cache) {
		return nil, closed("Cache")
	}
	var out []Ready
	var some [64]C.kvfolio_sequence_ready
	for {
		n := int(C.kvfolio_offload_poll(o.c, microseconds(now()), &some[0], C.int64_t(len(some))))
		for _, one := range some[:n] {
			out = append(out, Ready{kvfolio.Sequence(one.sequence), int(one.cached_tokens),
				LoadEnd(one.why)})
		}
		if n < len(some) {
			return out, nil
		}
	}
}

// Wait is Poll that waits for the first sequence which is ready, or until the time `until`: for programs
// that have nothing else to do. It looks every millisecond, and returns nothing at once if nothing is
// pending or waits to be moved.
func (o *Offload) Wait(until time.Time) ([]Ready, error) {
	for pause := 20 * time.Microsecond; ; {
		ready, err := o.Poll()
		if err != nil || len(ready) > 0 || o.Idle() || !until.IsZero() && !time.Now().Before(until) {
			return ready, err
		}
		time.Sleep(pause)
		if pause *= 2; pause > time.Millisecond {
			pause = time.Millisecond
		}
	}
}

// Cancel ends the request of a sequence, which goes on now. It returns its length, which may have grown.
func (o *Offload) Cancel(sequence kvfolio.Sequence) (int, error) {
	var length C.int32_t
	err := o.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_cancel(o.c, C.kvfolio_sequence(sequence), &length, e)
	})
	return int(length), err
}

// Idle reports that nothing is pending or ready, nothing waits to be stored, no step that may bring
// something is in flight, and no tier works for it.
func (o *Offload) Idle() bool { return o.p() != nil && C.kvfolio_offload_idle(o.c) != 0 }

// Left is what Drain still waits for.
type Left struct {
	Blocks    bool  // some that became findable, or may become so, are not in the arena yet
	Stores    int64 // that tiers have not ended, or wait to be given
	Loads     int64 // that tiers have not ended
	Questions int64 // the same
}

// Any reports whether there is any.
func (l Left) Any() bool { return l.Blocks || l.Stores+l.Loads+l.Questions > 0 }

// Drain gives tiers what they are to have, before shutdown: it polls until nothing is left, or until
// the time `until`, and says what is left. It cancels every request. Complete the steps in flight
// first. With a time that is over it polls once: for a host that completes steps in between.
func (o *Offload) Drain(until time.Time) (Left, error) {
	for {
		c := C.kvfolio_offload_left{struct_size: C.sizeof_kvfolio_offload_left}
		err := o.call(func(e *C.kvfolio_error) C.int32_t {
			return C.kvfolio_offload_drain(o.c, microseconds(now()), &c, e)
		})
		left := Left{c.blocks != 0, int64(c.stores), int64(c.loads), int64(c.questions)}
		if err != nil || !left.Any() || !until.IsZero() && !time.Now().Before(until) {
			return left, err
		}
		time.Sleep(200 * time.Microsecond)
	}
}

func forgotten(blocks C.int64_t, pins C.int32_t) kvfolio.Forgotten {
	return kvfolio.Forgotten{Blocks: int64(blocks), Pins: int(pins)}
}

// ForgetRoot is Cache.ForgetRoot, also of what the arena and the tiers have: no tier answers with it
// again.
func (o *Offload) ForgetRoot(root *kvfolio.Root) (kvfolio.Forgotten, error) {
	p, err := promptOf(&kvfolio.OpenOptions{Root: root})
	if err != nil {
		return kvfolio.Forgotten{}, err
	}
	var blocks C.int64_t
	var pins C.int32_t
	err = o.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_forget_root(o.c, p.root, &blocks, &pins, e)
	})
	runtime.KeepAlive(root)
	return forgotten(blocks, pins), err
}

// Forget is Cache.Forget, as ForgetRoot. Below the cache, tokens end with their last whole block of the
// smallest size; shorter ones take all that has their root.
func (o *Offload) Forget(tokens []int32, options *kvfolio.OpenOptions) (kvfolio.Forgotten, error) {
	p, err := promptOf(options)
	if err != nil {
		return kvfolio.Forgotten{}, err
	}
	var blocks C.int64_t
	var pins C.int32_t
	err = o.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_forget(o.c, p.root, first(tokens), C.int64_t(len(tokens)), p.media,
			p.n, &blocks, &pins, e)
	})
	runtime.KeepAlive(options)
	return forgotten(blocks, pins), err
}

// Reset is Cache.Reset, as ForgetRoot: after new weights, say.
func (o *Offload) Reset() (kvfolio.Forgotten, error) {
	var blocks C.int64_t
	var pins C.int32_t
	err := o.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_reset(o.c, &blocks, &pins, e)
	})
	return forgotten(blocks, pins), err
}

// Epoch returns the newest one. An Offload that is made later with it finds nothing that was ever
// stored under another; with Epochs it misses only what was forgotten.
func (o *Offload) Epoch() uint64 { return uint64(C.kvfolio_offload_epoch(o.p())) }

// Epochs returns what was forgotten, for OffloadOptions.Names of the next process.
func (o *Offload) Epochs() (NameEpochs, error) {
	if o.p() == nil {
		return NameEpochs{}, closed("Offload")
	}
	var epoch C.uint64_t
	n := C.kvfolio_offload_epochs(o.c, &epoch, nil, 0)
	if n < 0 {
		return NameEpochs{}, closed("Cache")
	}
	roots := make([]C.kvfolio_root_epoch, n+1)
	C.kvfolio_offload_epochs(o.c, &epoch, &roots[0], n)
	out := NameEpochs{Epoch: uint64(epoch)}
	for i := range roots[:n] {
		out.Roots = append(out.Roots, RootEpoch{digestOf(&roots[i].root), uint64(roots[i].epoch)})
	}
	return out, nil
}

// Tiers returns those that it was made with, in that order: for their Health, counters and Describe.
func (o *Offload) Tiers() []*Tier {
	if o == nil {
		return nil
	}
	return append([]*Tier(nil), o.tiers...)
}

// NumTiers returns how many there are.
func (o *Offload) NumTiers() int { return int(C.kvfolio_offload_num_tiers(o.p())) }

// CheckInvariants recounts everything.
func (o *Offload) CheckInvariants() error {
	return o.call(func(e *C.kvfolio_error) C.int32_t {
		return C.kvfolio_offload_check_invariants(o.c, e)
	})
}
